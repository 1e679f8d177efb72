"""A recording continues on the server that pg_upgrade has made of its server, and is refused elsewhere.

PostgreSQL 19 is upgraded from 18. For other versions pg_upgrade makes a server of the same version, which has
another system identifier too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from logicalrep.errors import ChangesLost, RecordingError
from logicalrep.recorder import (
    Event,
    PublicationAltered,
    RecorderOptions,
    TableIncomplete,
    install_ddl_events,
)
from logicalrep.recorder.client import Connection, Interrupted
from logicalrep.recorder.session.upgrade import begins_with_slot, read_wal
from logicalrep.verification import verify_tables
from tests.conftest import Run
from tests.recorder.lab import Lab
from tests.replica.live import Replica
from tests.server import VERSION, WHEEL_VERSION, Server, Upgraded

SERVERS = Path(os.environ.get("LOGICALREP_SERVERS", "."))


def is_complete(version: int) -> bool:
    """Return whether the server of a version has the programs that pg_upgrade runs."""
    return version == WHEEL_VERSION or (SERVERS / str(version) / "native/bin/pg_controldata").exists()


OLD = int(os.environ.get("LOGICALREP_OLD_VERSION", VERSION - 1 if VERSION > WHEEL_VERSION else VERSION))
"""Version to upgrade from. Debian's 17.12 sets a column option that the wheel's 18.4 refuses to restore.

npm's 17.10 does not; it needs pg_controldata and pg_resetwal of another installation of 17.
"""

pytestmark = pytest.mark.skipif(
    VERSION < 17 or not is_complete(VERSION), reason="pg_upgrade keeps slots since PostgreSQL 17"
)

NAMES = ("continued", "altered", "refused", "prepared")
"""Names of the databases: what happens to each after the upgrade, or what happened before."""

WAL_FILE_BYTES = 16 << 20
PAGE_BYTES = 8192
FILE_HEADER = 40
"""Size of the header of a WAL file, in bytes."""
RECORD = struct.Struct("<IIQBBxxI")
"""Head of a WAL record: length, xid, LSN of the preceding record, info, resource manager, checksum."""

TWO_PHASE = RecorderOptions(two_phase=True)


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Lab]]:
    """Record databases on the old server, and upgrade the server."""
    with ExitStack() as servers:
        old = servers.enter_context(Server(OLD))
        with ExitStack() as stack:
            labs = {
                name: stack.enter_context(Lab(old, tmp_path_factory.mktemp(name) / name)) for name in NAMES
            }
            for name, lab in labs.items():
                prepare(lab, name)
            for name in ("continued", "prepared"):
                labs[name].run("BEGIN", "INSERT INTO t VALUES (3, 'glad')", f"PREPARE TRANSACTION '{name}'")
                record(labs[name])
            assert_not_upgraded(labs, "prepared transactions")
            consume(labs["prepared"])
            labs["continued"].run("COMMIT PREPARED 'continued'")
            assert_not_upgraded(labs, "slots that cannot be upgraded")  # the recorder lags behind
            record(labs["continued"])
            replica_of(labs["continued"]).follow()
            new = servers.enter_context(Upgraded(old, VERSION))
            for lab in labs.values():
                lab.server = new
                lab.reconnect()
            yield labs


def prepare(lab: Lab, name: str) -> None:
    lab.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, gone int)",
        "ALTER TABLE t DROP COLUMN gone, ADD COLUMN n int DEFAULT 4",
        "CREATE TABLE parts (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION p FOR TABLE t, parts",
        "CREATE PUBLICATION root WITH (publish_via_partition_root)",
        "INSERT INTO t VALUES (1, 'sad')",
        "INSERT INTO parts VALUES (1)",
    )
    if name == "continued":
        lab.run("CREATE TABLE lsns (id int PRIMARY KEY, l pg_lsn)", "ALTER PUBLICATION p ADD TABLE lsns")
    elif name == "altered":
        install_ddl_events(lab.dsn)
    record(lab, snapshot=True)
    lab.run("INSERT INTO t VALUES (2, 'glad')")
    record(lab)


def assert_not_upgraded(labs: dict[str, Lab], reason: str) -> None:
    """Check that pg_upgrade refuses the server, and start the server again."""
    server = labs["continued"].server
    with pytest.raises(RuntimeError, match=reason), Upgraded(server, VERSION):
        pass
    server.start()
    for lab in labs.values():
        lab.reconnect()


def consume(lab: Lab) -> None:
    """Let somebody else read the end of a recorded prepared transaction from the slot."""
    lab.run(
        "COMMIT PREPARED 'prepared'",
        f"SELECT pg_replication_slot_advance('{lab.slot}', pg_current_wal_lsn())",
    )


def replica_of(lab: Lab) -> Replica:
    return Replica(lab, lab.folder.parent / "lake")


def record(lab: Lab, **options: Any) -> list[Event]:
    return lab.record("p", "root", options=TWO_PHASE, **options)


def go_on(lab: Lab) -> list[Event]:
    return record(lab, after_upgrade=True)


def assert_refused(lab: Lab, reason: str, error: type[Exception] = RecordingError) -> None:
    """Check that a recorder ends with an error, and changes neither the recording nor the slot."""
    files = {path: path.read_bytes() for path in lab.folder.iterdir() if path.is_file()}
    slots = lab.rows(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{lab.slot}'")
    with pytest.raises(error, match=reason):
        go_on(lab)
    assert {path: path.read_bytes() for path in lab.folder.iterdir() if path.is_file()} == files
    assert slots == lab.rows(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{lab.slot}'"
    )


def test_a_recording_is_continued_after_an_upgrade(labs: dict[str, Lab], run: Run) -> None:
    lab = labs["continued"]
    before = lab.segments()[-1].source
    with pytest.raises(RecordingError, match=r"system_identifier .*--after-upgrade, if this is"):
        record(lab)
    lab.run(
        "INSERT INTO t VALUES (10, 'sad')", "UPDATE t SET n = 5 WHERE id = 1", "INSERT INTO parts VALUES (2)"
    )
    lab.run("BEGIN", "INSERT INTO t VALUES (11, 'sad')", "PREPARE TRANSACTION 'after'")
    events = go_on(lab)
    assert not [event for event in events if isinstance(event, PublicationAltered)]
    incomplete = [event.table for event in events if isinstance(event, TableIncomplete)]
    assert incomplete == (["public.lsns"] if OLD < 19 <= VERSION else [])
    lab.run("COMMIT PREPARED 'after'", "DELETE FROM t WHERE id = 2")
    go_on(lab)  # the option has no effect any more
    record(lab)
    lab.assert_equal()
    replica = replica_of(lab)
    replica.follow()
    replica.assert_equal("t")
    assert all(
        one.is_equal for one in verify_tables(lab.folder, replica.target, lab.dsn, tables=["public.t"])
    )
    source = lab.segments()[-1].source
    (upgrade,) = source.upgrades
    assert (upgrade.system_identifier, upgrade.server_version) == (
        before.system_identifier,
        before.server_version,
    )
    assert source.system_identifier != before.system_identifier
    shown = run("segments", lab.folder)
    assert (shown.code, "upgraded from" in shown.out) == (0, True), shown.err
    assert before.system_identifier in shown.out


def test_alterations_after_the_upgrade_are_found(labs: dict[str, Lab]) -> None:
    lab = labs["altered"]
    lab.run(
        "ALTER EVENT TRIGGER logicalrep_ddl_begins DISABLE",  # alterations are not described meanwhile
        "ALTER TABLE t DROP COLUMN n",
        "ALTER TABLE t ADD COLUMN n int DEFAULT 4",
        "ALTER EVENT TRIGGER logicalrep_ddl_begins ENABLE ALWAYS",
        "VACUUM FULL t",
        "ALTER PUBLICATION p DROP TABLE parts",
        "ALTER PUBLICATION p ADD TABLE parts",
    )
    events = go_on(lab)
    incomplete = {event.table: event.reason for event in events if isinstance(event, TableIncomplete)}
    assert incomplete.keys() == {"public.t", "public.part"}, incomplete
    assert "dropped and added" in incomplete["public.t"]
    assert lab.segments()[-1].source.upgrades


def test_a_server_that_is_not_proven_to_continue_the_recording_is_refused(labs: dict[str, Lab]) -> None:
    lab = labs["refused"]
    lab.run("ALTER TABLE t RENAME TO u")
    assert_refused(lab, r"the table with OID \d+ is public.u, but public.t in the recording")
    lab.run("ALTER TABLE u RENAME TO t", "VACUUM FULL t", "VACUUM FULL part")
    assert_refused(lab, "all published tables have other files")
    advance = f"SELECT pg_replication_slot_advance('{lab.slot}', pg_current_wal_lsn())"
    lab.run("INSERT INTO t VALUES (10, 'sad')", advance)
    assert_refused(lab, "since pg_upgrade, so changes may be lost")
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')")
    assert_refused(lab, "the server has no slot", ChangesLost)
    lab.run(f"SELECT pg_create_logical_replication_slot('{lab.slot}', 'pgoutput', false, true)")
    assert_refused(lab, "since pg_upgrade, so changes may be lost")


def test_a_recording_with_a_prepared_transaction_is_refused(labs: dict[str, Lab]) -> None:
    assert_refused(labs["prepared"], "the transaction prepared as 'prepared' has no end in the recording")


def test_only_wal_from_pg_resetwal_to_the_slot_is_accepted(labs: dict[str, Lab]) -> None:
    lab = labs["prepared"]
    (path,) = sorted((lab.server.data / "pg_wal").glob("?" * 24))[:1]
    wal = path.read_bytes()[: lab.confirmed_lsn() % WAL_FILE_BYTES]
    assert begins_with_slot(wal, PAGE_BYTES)
    length, *_ = RECORD.unpack_from(wal, FILE_HEADER)
    restarted = wal + wal[FILE_HEADER : FILE_HEADER + (length + 7) // 8 * 8]
    transaction = wal + RECORD.pack(24, 700, 0, 0, 1, 0)
    continued = wal[: FILE_HEADER + 8] + b"\1" + wal[FILE_HEADER + 9 :]
    for other in (b"", wal[:FILE_HEADER], restarted, transaction, continued, path.read_bytes()[:PAGE_BYTES]):
        assert not begins_with_slot(other, PAGE_BYTES)


def test_reading_wal_that_the_server_does_not_send_can_be_stopped(labs: dict[str, Lab]) -> None:
    lab = labs["prepared"]
    end = (lab.lsn() // WAL_FILE_BYTES + 1) * WAL_FILE_BYTES - 1
    waits = iter([False, False])
    is_streaming = False

    def stop() -> bool:
        return is_streaming and next(waits, True)

    with Connection(lab.dsn, replication=True, stop=stop) as connection:
        is_streaming = True
        with pytest.raises(Interrupted):
            read_wal(connection, end)


def test_wal_pages_are_joined() -> None:
    """A record that continues on the next page of the WAL is read over the header of that page."""
    records = RECORD.pack(400, 0, 0, 0, 0, 0).ljust(400, b"x") + RECORD.pack(24, 0, 40, 0, 0, 0)
    wal = bytes(FILE_HEADER) + records[:216] + bytes(24) + records[216:]
    assert not begins_with_slot(wal, 256)  # the second record is a shutdown
    assert begins_with_slot(wal[:-8] + b"\x10" + wal[-7:], 256)
