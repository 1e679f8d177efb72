"""Errors of `logicalrep record`: one line that says what to do; exit code 3, or 2 for unusable arguments."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from logicalrep._servers import MAJOR_VERSIONS, newest_version
from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.recorder import Connected, RecorderOptions, Stored
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.client.server import identify
from logicalrep.recorder.client.slots import Slot, check_slot
from logicalrep.recorder.storage.folder import Folder
from logicalrep.versions import OPTIONS, SERVERS
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab
from tests.server import VERSION, Server
from tests.versions import OLDEST, RELEASED

Refused = Callable[..., str]
DROP = "drop the slot with SELECT pg_drop_replication_slot('{0}')"


@pytest.fixture
def refused(record_cli: Command) -> Refused:
    """Return a function that runs `logicalrep record`, checks that it fails, and returns the error."""

    def refused(*arguments: str, exit_code: int = 3, **options: str | Path) -> str:
        code, out, err = record_cli("--until=now", *arguments, **options)
        assert (code, out) == (exit_code, "")
        *before, line = err.removesuffix("\n").split("\n")
        assert all(
            re.match(r"logicalrep: (recording|WARNING|the publication q was altered:|\S+\.parquet:) ", one)
            for one in before
        ), err
        assert line.startswith("logicalrep: ")
        return line.removeprefix("logicalrep: ")

    return refused


# The server, and the DSN


@pytest.fixture(scope="module")
def other_server() -> Iterator[Server]:
    """Start a server with wal_level = replica, which cannot be recorded."""
    settings = {"max_slot_wal_keep_size": "1MB"} if VERSION >= 13 else {}
    with Server(VERSION, wal_level="replica", **settings) as server:
        yield server


def test_a_wal_level_that_is_not_logical_is_refused(refused: Refused, other_server: Server) -> None:
    if other_server.version >= 19:
        pytest.skip("PostgreSQL 19 switches logical decoding on when a slot is created")
    assert refused("--create-slot", dsn=other_server.dsn) == (
        "wal_level must be logical, but is replica: "
        "run ALTER SYSTEM SET wal_level = logical, then restart the server"
    )


def test_an_unreachable_server_or_database_is_reported(refused: Refused, lab: Lab, tmp_path: Path) -> None:
    line = refused("--retry-for=0", dsn=f"host={tmp_path}")
    assert line.startswith("no connection: ")
    assert "No such file or directory" in line
    assert 'database "nowhere" does not exist' in refused(dsn=lab.dsn.replace(lab.name, "nowhere"))


def test_a_dsn_that_cannot_be_parsed_is_refused_without_quoting_it(refused: Refused) -> None:
    for dsn in ("host", "postgresql://u:p%zzSECRET@h/db", "password=SEC RET"):
        line = refused(dsn=dsn, exit_code=2)
        assert line.startswith("the DSN cannot be read: give keywords and values as in 'host=db dbname=shop'")
        assert "SEC" not in line
    assert refused(dsn="connect_timeout=abc").startswith("the DSN cannot be used: ")


def test_the_environment_does_not_change_value_formats(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DATESTYLE": "German", "TZ": "Asia/Tokyo", "CLIENTENCODING": "LATIN1"}.items():
        monkeypatch.setenv(f"PG{name}", value)
    monkeypatch.setenv("PGOPTIONS", "-c quote_all_identifiers=on")
    for replication in (False, True):
        with Connection(f"{lab.dsn} client_encoding=LATIN1", replication=replication) as connection:
            shown = [connection.query(f"SHOW {name}")[0][0] for name in ("datestyle", "timezone")]
            assert (str(shown[0])[:3], shown[1]) == ("ISO", "UTC")
            assert connection.query("SHOW client_encoding") == [("UTF8",)]
            assert connection.query("SELECT 'pg_class'::regclass") == [("pg_class",)]


@pytest.mark.parametrize("parameter", ["replication", None])
def test_a_pooler_that_refuses_replication_is_named(parameter: str | None, lab: Lab, tmp_path: Path) -> None:
    """PgBouncer before version 1.23 refuses the parameter `replication`; Supabase's pooler ignores it."""
    advice = "; what to do: a pooler refuses replication connections: connect to the server itself (with Neon"
    if parameter is None:
        with Connection(lab.dsn) as connection, pytest.raises(ReplicationError, match=re.escape(advice)):
            identify(connection)
        return
    text = f"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: {parameter}\0\0".encode()
    with socket.socket(socket.AF_UNIX) as pooler:
        pooler.bind(str(tmp_path / ".s.PGSQL.5432"))
        pooler.listen()

        def answer() -> None:
            client, _ = pooler.accept()
            with client:
                client.recv(1000)
                client.sendall(b"E" + (len(text) + 4).to_bytes(4) + text)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ReplicationError, match=re.escape(advice)) as caught:
            Connection(f"host={tmp_path} port=5432 user=u dbname=d", replication=True)
        thread.join()
    assert not isinstance(caught.value, ConnectionLost)


def test_a_server_whose_wal_ends_before_the_recording_is_refused(refused: Refused, table: Lab) -> None:
    """A server restored from a backup would not send new transactions up to the recorded LSN."""
    table.record()
    with Folder(table.folder) as folder:
        folder.save(replace(folder.state, acknowledged_lsn=1 << 40))
    assert re.match(
        r"the WAL of the server ends at LSN [0-9A-F/]+, before the recording's end at 100/0: ",
        refused(exit_code=2),
    )


def test_a_role_without_replication_privilege_is_refused(refused: Refused, table: Lab) -> None:
    role = f"{table.name}_reader"
    table.run(f"CREATE ROLE {role} LOGIN")
    try:
        line = refused("--create-slot", dsn=table.dsn.replace("user=postgres", f"user={role}"))
        assert "REPLICATION" in line or "replication role" in line
    finally:
        table.run(f"DROP ROLE {role}")


# Options


@pytest.mark.parametrize("server", MAJOR_VERSIONS)
def test_options_newer_than_the_server_are_refused(server: int) -> None:
    newest = newest_version(server)
    assert RecorderOptions().negotiate(server)[0] == newest
    for proto, since in SERVERS.items():
        if since > server:
            with pytest.raises(ReplicationError) as error:
                RecorderOptions(proto_version=proto).negotiate(server)
            assert str(error.value) == (
                f"protocol version {proto} needs PostgreSQL {since} or later, but the server is PostgreSQL "
                f"{server}: request version {newest}, or no version"
            )
    for name, values in OPTIONS.items():
        for value, need in values.items():
            given = value == "on" if name in ("two_phase", "binary", "messages") else value
            options = RecorderOptions(**{name: given})  # type: ignore[arg-type]
            if value == "off":
                continue
            if need.server > server:
                with pytest.raises(ReplicationError) as error:
                    options.negotiate(server)
                assert str(error.value) == (
                    f"{name} = {value} needs PostgreSQL {need.server} or later, but the server is PostgreSQL "
                    f"{server}: leave out the option {name}"
                )
                continue
            assert options.negotiate(server)[1][name] == value
            if need.proto_version > OLDEST:
                with pytest.raises(
                    ReplicationError, match=f"needs protocol version {need.proto_version} or later, n"
                ):
                    RecorderOptions(**{name: given}, proto_version=OLDEST).negotiate(server)  # type: ignore[arg-type]


def test_an_option_that_the_server_lacks_is_refused(refused: Refused, table: Lab) -> None:
    for proto, since in SERVERS.items():
        if since > table.version and proto in RELEASED:
            error = refused(f"--proto={proto}")
            assert f"needs PostgreSQL {since} or later, but the server is PostgreSQL {table.version}" in error
    assert refused(f"--proto={OLDEST}", "--streaming=parallel") == (
        f"streaming = parallel needs protocol version 4 or later, not {OLDEST}: "
        "leave out the option streaming, or request version 4"
        if table.version >= 16
        else f"streaming = parallel needs PostgreSQL 16 or later, but the server is PostgreSQL "
        f"{table.version}: leave out the option streaming"
    )
    assert table.slots() == []


def test_an_until_that_is_not_an_lsn_is_refused(record_cli: Command) -> None:
    code, _, err = record_cli("--until=tomorrow")
    assert code == 2
    text = " ".join(err.replace("│", "").split())
    assert "Invalid value for --until: expected now or an LSN: 'tomorrow' is not an LSN" in text


# Publications


def test_a_missing_publication_is_refused(refused: Refused, lab: Lab) -> None:
    assert refused("--create-slot", "--publication=Q") == (
        f'there is no publication "p" in the database {lab.name}: '
        'run CREATE PUBLICATION "p" FOR TABLE …, or FOR ALL TABLES'
    )
    assert lab.slots() == []


def test_a_publication_created_after_the_slot_is_refused(refused: Refused, table: Lab) -> None:
    table.record()
    table.run("INSERT INTO t VALUES (1)", "CREATE PUBLICATION q FOR TABLE t", "INSERT INTO t VALUES (2)")
    if table.version >= 18:
        assert 'skipped loading publication "q"' in refused("--publication=q", exit_code=2)
    else:
        assert re.fullmatch(
            f'at the LSN of the slot {table.slot}, publication "q" does not exist '
            rf'\(slot "{table.slot}", output plugin "pgoutput", .* associated LSN \S+\): '
            "record without that publication, or record anew from a new slot and in another folder",
            refused("--publication=q", exit_code=2),
        )
    table.record("p")
    table.assert_equal()


# Slots


def test_a_missing_slot_is_not_created_without_create_slot(refused: Refused, table: Lab) -> None:
    assert refused() == (
        f"the slot {table.slot} does not exist: create it with --create-slot, or correct the slot name"
    )


def test_a_dropped_slot_is_not_created_again(refused: Refused, table: Lab) -> None:
    table.record()
    table.run("INSERT INTO t VALUES (1)")
    table.record()
    stored = table.segments()[-1].end_lsn
    table.run(f"SELECT pg_drop_replication_slot('{table.slot}')", "INSERT INTO t VALUES (2)")
    for how in ("--create-slot", "--snapshot"):
        line = refused(how, exit_code=2)
        if how == "--create-slot":
            place = re.fullmatch(
                f"the slot {table.slot} was dropped, so the changes after LSN ([0-9A-F]+)/([0-9A-F]+) are "
                "lost: record anew in another folder",
                line,
            )
            assert place
            assert int(place[1], 16) << 32 | int(place[2], 16) >= stored
    assert table.slots() == []
    # A new slot of the same name has a gap.
    table.run(f"SELECT pg_create_logical_replication_slot('{table.slot}', 'pgoutput')")
    line = refused("--create-slot", exit_code=2)
    assert line.startswith(f"another client has read from the slot {table.slot}, or has created it anew: ")
    assert line.endswith("and the changes between are lost: record anew in another folder")


def test_a_slot_that_another_client_has_advanced_is_refused(refused: Refused, table: Lab) -> None:
    table.record()
    table.run("INSERT INTO t VALUES (1)")
    table.record(recording=table.folder.with_name("other"))
    line = refused(exit_code=2)
    assert line.startswith(f"another client has read from the slot {table.slot}, or has created it anew: ")


def test_an_invalidated_slot_is_refused(refused: Refused, other_server: Server, tmp_path: Path) -> None:
    if VERSION < 13:
        return
    other_server.stop()
    other_server._settings["wal_level"] = "logical"
    other_server.start()
    with Lab(other_server, tmp_path / "elsewhere") as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        lab.record()
        for _ in range(4):
            lab.run("INSERT INTO t SELECT count(*) FROM t", "SELECT pg_switch_wal()")
        lab.run("CHECKPOINT")
        line = refused(dsn=lab.dsn, slot=lab.slot, recording=lab.folder, exit_code=2)
        assert line == (
            f"the server has invalidated the slot {lab.slot} (wal_removed), so changes are lost: "
            f"{DROP.format(lab.slot)}, and record anew in another folder"
        )


def test_a_slot_of_another_plugin_or_kind_is_refused(refused: Refused, table: Lab) -> None:
    table.run(f"SELECT pg_create_physical_replication_slot('{table.slot}')")
    assert refused() == (
        f"expected {table.slot} to be a slot of the plugin pgoutput, found a physical slot: "
        "choose another slot name"
    )
    table.run(f"SELECT pg_drop_replication_slot('{table.slot}')")
    with Connection(table.dsn, replication=True) as connection:
        server = identify(connection)
    with pytest.raises(ReplicationError) as error:  # the server may have no other plugin
        check_slot(Slot("wal2json", table.name), server, table.recorder()._settings)
    assert str(error.value) == (
        f"expected {table.slot} to be a slot of the plugin pgoutput, found a slot of the plugin wal2json: "
        "choose another slot name"
    )


def test_a_slot_of_another_database_is_refused(refused: Refused, table: Lab) -> None:
    with table.server.connect() as connection:
        connection.execute(f"SELECT pg_create_logical_replication_slot('{table.slot}', 'pgoutput')")
        try:
            assert refused() == (
                f"the slot {table.slot} belongs to the database postgres, but the connection is to the "
                f"database {table.name}: connect to the slot's database, or use another slot"
            )
        finally:
            connection.execute(f"SELECT pg_drop_replication_slot('{table.slot}')")


def test_a_slot_with_another_two_phase_flag_is_refused(refused: Refused, table: Lab) -> None:
    table.record()
    if table.version < 15:
        assert "two_phase = on needs PostgreSQL 15" in refused("--two-phase")
        return
    assert refused("--two-phase") == (
        f"the slot {table.slot} lacks the flag two_phase: leave out the option two_phase, "
        f"or {DROP.format(table.slot)} and let the recorder create a new one"
    )
    other = f"{table.slot}_two_phase"
    table.record(
        options=RecorderOptions(two_phase=True), slot=other, recording=table.folder.with_name("other")
    )
    assert refused(slot=other, recording=table.folder.with_name("third")) == (
        f"the slot {other} has the flag two_phase: set the option two_phase, "
        f"or {DROP.format(other)} and let the recorder create a new one"
    )


def test_an_invalid_slot_name_is_refused(refused: Refused, table: Lab) -> None:
    assert refused("--create-slot", slot="It's").startswith(
        'replication slot name "It\'s" contains invalid character'
    )


def test_a_server_without_free_slots_is_reported(refused: Refused, table: Lab) -> None:
    for n in range(20):
        table.run(f"SELECT pg_create_logical_replication_slot('{table.slot}_{n}', 'pgoutput')")
    assert refused("--create-slot").startswith("all replication slots are in use (")
    assert refused("--snapshot").startswith("all replication slots are in use (")


# Two recorders


def test_a_row_filter_that_fails_ends_the_recorder(lab: Lab) -> None:
    """The messages before the failure arrive together with the error of the server."""
    lab.require(15, "row filters")
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t WHERE (1 / id > 0), u",
    )
    lab.record()
    lab.run("INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (0)")
    error = r'division by zero \(slot ".*", output plugin "pgoutput", .* associated LSN .*\)'
    with pytest.raises(ReplicationError, match=error):
        lab.record(retry_for=60)
    assert sum(one.transactions for one in lab.segments()) == 1


def test_a_second_recorder_is_refused(refused: Refused, table: Lab) -> None:
    with table.recording() as recording:
        recording.wait(Connected)
        assert refused() == (
            f"{table.folder}: another recorder writes to this folder: stop it, or use another folder"
        )
        line = refused("--retry-for=0", recording=table.folder.with_name("other"))
        assert re.fullmatch(
            rf"the slot {table.slot} is in use by another connection \(server process \d+\): "
            "end that connection, or record from another slot",
            line,
        )
        table.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
    table.assert_equal()


# Folders


def test_a_folder_with_other_files_is_refused(refused: Refused, table: Lab, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear")
    assert refused("--create-slot", recording=tmp_path, exit_code=2) == (
        f"{tmp_path}: the folder has files, but no recording: use an empty folder"
    )
    assert "File exists" in refused("--create-slot", recording=tmp_path / "letter", exit_code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]
    assert table.slots() == []


def test_a_folder_of_another_recording_is_refused(refused: Refused, table: Lab) -> None:
    table.record()
    assert refused("--create-slot", slot="another", exit_code=2) == (
        f"{table.folder}: the recording has the slot {table.slot}, not another: use another folder"
    )
    (table.folder / "_recording.json").write_text("{")
    assert refused(exit_code=2).startswith(f"{table.folder / '_recording.json'}: the file is damaged (")


# The disk


def record_with_file_limit(lab: Lab, limit: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Record in a process whose writes fail, as on a full disk, when a file exceeds `limit` bytes."""
    return subprocess.run(
        lab.command("--until=now", *options),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def test_a_full_disk_loses_nothing(table: Lab) -> None:
    table.record()
    table.run("INSERT INTO t SELECT generate_series(1, 5)")
    table.record()
    table.run("BEGIN", "INSERT INTO t SELECT generate_series(10, 100000)")
    before = table.lsn()
    table.run("COMMIT", "INSERT INTO t VALUES (0)")
    result = record_with_file_limit(table, 20_000)
    connected, line = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (3, "")
    assert connected.startswith("logicalrep: recording ")
    assert line == (
        "logicalrep: [Errno 27] File too large; everything acknowledged is stored: "
        f"free disk space, and start again to continue: '{table.folder}'"
    )
    assert table.confirmed_lsn() <= before
    table.record()
    table.assert_equal()


def test_a_folder_that_cannot_be_created_leaves_no_slot(refused: Refused, table: Lab) -> None:
    line = refused("--create-slot", recording="/dev/null/recording", exit_code=2)
    assert line.endswith("'/dev/null/recording'")
    assert table.slots() == []


def test_uris_of_other_kinds_are_refused(
    refused: Refused, table: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in ("s3://key:SECRET@bucket/recording", "s3:/bucket", "hdfs://host/recording"):
        line = refused("--create-slot", recording=uri, exit_code=2)
        scheme = uri.partition(":")[0]
        assert line == (
            f"cannot record to {scheme}://…: give a folder, or a URL s3://BUCKET/PATH, gs://BUCKET/PATH or "
            "az://CONTAINER/PATH without credentials and options (set these in environment variables)"
        )
    line = refused("--create-slot", recording="s3://bucket/", exit_code=2)
    assert line.startswith("s3://bucket/: the URL of a recording needs a path")
    assert list(tmp_path.iterdir()) == []
    assert table.slots() == []


def test_a_folder_whose_name_is_not_utf_8(
    refused: Refused, table: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refused("--create-slot", recording=tmp_path / os.fsdecode(b"a\xff"), exit_code=2)
    assert line == f"the name of the folder {tmp_path}/a\\xff is not valid UTF-8: choose another"
    assert (list(tmp_path.iterdir()), table.slots()) == ([], [])
    inside = tmp_path / os.fsdecode(b"b\xff")
    inside.mkdir()
    monkeypatch.chdir(inside)  # a relative path does not have the names of its parents
    table.run("INSERT INTO t VALUES (1)")
    table.record(recording=Path("recording"), snapshot=True)
    table.assert_equal(folder=Path("recording"))


@pytest.mark.parametrize("option", ["--create-slot", "--snapshot"])
def test_a_disk_that_is_full_at_the_start_leaves_no_slot(table: Lab, option: str) -> None:
    table.run("INSERT INTO t VALUES (1)")
    for limit in (0, 300):  # the write that fails comes before or after the slot is created
        result = record_with_file_limit(table, limit, option)
        assert result.returncode == 3, result.stderr
        assert "File too large" in result.stderr
        assert table.slots() == []
    assert table.record(snapshot=option == "--snapshot", create_slot=True)
