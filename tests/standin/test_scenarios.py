"""Recordings of a served scenario match the scenario's stream, also while the scenario grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from logicalrep import envelope
from logicalrep._servers import MAJOR_VERSIONS, newest_version
from logicalrep.errors import ReplicationError
from logicalrep.messages import Begin, XLogData
from logicalrep.recorder import Recorder, RecorderOptions
from logicalrep.recorder.session import session
from logicalrep.recording import RecordingReader
from logicalrep.standin import Faults, StandIn
from logicalrep.standin.faults import Incident
from logicalrep.synth import Scenario, ScenarioTable
from logicalrep.wire import format_lsn
from tests.standin.raw_client import connect_walsender, error_fields
from tests.versions import OLDEST, PLAIN

OPTION_SETS: list[dict[str, Any]] = [
    {"proto_version": OLDEST},
    {"proto_version": OLDEST, "binary": True, "messages": True, "origin": "none"},
    {"proto_version": 2},
    {"proto_version": 2, "streaming": "on", "messages": True},
    {"proto_version": 3, "streaming": "on", "two_phase": True},
    {"proto_version": 3, "two_phase": True, "binary": True},
    {"proto_version": 4, "streaming": "on", "two_phase": True, "messages": True},
    {"proto_version": 4, "streaming": "parallel"},
    {"proto_version": 4, "streaming": "parallel", "two_phase": True, "binary": True, "messages": True},
    {"proto_version": 4, "streaming": "parallel", "origin": "none"},
]
SOME_OPTION_SETS = OPTION_SETS[::3]
"""Option sets of each value of `streaming`, and of each other option except binary."""


def shop() -> Scenario:
    """Return a scenario whose stream depends on every stream option."""
    db = Scenario(logical_decoding_work_mem=2_000)
    orders = db.table("public.orders", id="int8 key", note="text")
    for round_ in range(3):
        add_transactions(db, orders, round_)
    return db


def add_transactions(db: Scenario, orders: ScenarioTable, round_: int) -> None:
    first = 1_000 * round_
    with db.transaction() as transaction:
        transaction.insert(orders, id=first, note="x")
        transaction.message("audit", b"inside")
    db.message("audit", b"outside")
    with db.transaction(origin="elsewhere", origin_lsn=0x100) as transaction:
        transaction.insert(orders, id=first + 1, note="y")
    with db.transaction() as transaction:  # a streamed transaction
        for number in range(first + 10, first + 40):
            transaction.insert(orders, id=number, note="z" * 100)
        with transaction.savepoint() as savepoint:
            for number in range(first + 50, first + 80):
                savepoint.insert(orders, id=number, note="gone" * 20)
            savepoint.rollback()
    transaction = db.transaction()
    transaction.insert(orders, id=first + 90, note="prepared")
    transaction.prepare(f"gid {round_}")
    db.wait()
    db.commit_prepared(f"gid {round_}")


def payloads(db: Scenario, options: dict[str, Any]) -> list[bytes]:
    arguments = {"streaming": "off"} | options
    return [one.data for one in db.stream(**arguments) if isinstance(one, XLogData)]


def stored(folder: Path) -> list[bytes]:
    with RecordingReader(folder) as segments:
        return [record.data for record in segments.records()]


def recorder(server: StandIn, folder: Path, options: dict[str, Any], slot: str = "lake") -> Recorder:
    recorder_options = RecorderOptions(**{"streaming": "off"} | options)
    return Recorder(
        server.dsn,
        slot,
        ["any name"],
        folder,
        options=recorder_options,
        create_slot=True,
        segment_seconds=0.1,
    )


@contextmanager
def recording(server: StandIn, folder: Path, *option_sets: dict[str, Any]) -> Iterator[Callable[[int], None]]:
    """Run a recorder for each option set; the recordings are in the folders 0, 1 and so on.

    Yield a function that waits until all recorders have acknowledged an LSN.
    """
    recorders = [
        recorder(server, folder / str(number), one, f"s{number}") for number, one in enumerate(option_sets)
    ]
    threads = [threading.Thread(target=one.run, kwargs={"seconds": 150.0}) for one in recorders]
    for thread in threads:
        thread.start()

    def wait_until_acknowledged(lsn: int) -> None:
        deadline = time.monotonic() + 120
        query = "SELECT 1 FROM pg_replication_slots WHERE pg_wal_lsn_diff(confirmed_flush_lsn, %s) >= 0"
        while len(connection.execute(query, [format_lsn(lsn)]).fetchall()) < len(option_sets):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    try:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            yield wait_until_acknowledged
    finally:
        for one in recorders:
            one.stop()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def streams() -> list[list[bytes]]:
    db = shop()
    return [payloads(db, options) for options in OPTION_SETS]


def test_each_option_changes_the_stream(streams: list[list[bytes]]) -> None:
    # Version 2 without options gives the same stream as version 1.
    assert len({tuple(one) for one in streams}) == len(OPTION_SETS) - 1
    assert {one[:1] for stream in streams for one in stream} >= {bytes([tag]) for tag in b"BCRIOMSEcAbPK"}


@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
def test_a_recorder_stores_the_stream_of_a_scenario(options: dict[str, Any], tmp_path: Path) -> None:
    db = shop()
    with StandIn(db) as server:
        recorder(server, tmp_path / "r", options).run(until="now", seconds=120)
    assert stored(tmp_path / "r") == payloads(db, options)


def test_connected_clients_are_sent_later_transactions(tmp_path: Path) -> None:
    db = shop()
    orders = db.tables["public.orders"]
    with (
        StandIn(db, wal_sender_timeout=10.0) as server,
        recording(server, tmp_path, *SOME_OPTION_SETS) as wait_until_acknowledged,
    ):
        for round_ in range(3, 5):
            wait_until_acknowledged(db.end_lsn)
            add_transactions(db, orders, round_)
        transaction = db.transaction()
        transaction.insert(orders, id=-1, note="open for a while")
        wait_until_acknowledged(db.end_lsn)
        transaction.commit()
        wait_until_acknowledged(db.end_lsn)
    for number, options in enumerate(SOME_OPTION_SETS):
        assert stored(tmp_path / str(number)) == payloads(db, options)


def test_no_transaction_is_lost_when_connections_drop_while_the_scenario_grows(tmp_path: Path) -> None:
    db = shop()
    orders = db.tables["public.orders"]
    options = {"proto_version": OLDEST}
    with (
        StandIn(db, faults=Faults(drop_after=200), wal_sender_timeout=10.0) as server,
        recording(server, tmp_path, options) as wait_until_acknowledged,
    ):
        for round_ in range(3, 12):
            add_transactions(db, orders, round_)
        wait_until_acknowledged(db.end_lsn)
    with RecordingReader(tmp_path / "0") as segments:
        found = [transaction.xid for transaction in segments.transactions()]
    begun = (PLAIN.decode(one) for one in payloads(db, options))
    assert found == [one.xid for one in begun if isinstance(one, Begin)]


@pytest.mark.parametrize("incident", ["drop", "error", "freeze", "switch-timeline"])
def test_a_recorder_survives_incidents(
    incident: Incident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SILENCE_SECONDS", 1.0)
    db = shop()
    options = {"proto_version": OLDEST}
    faults = Faults(at_message={1: incident, 30: incident, 31: incident, 100: incident})
    with StandIn(db, faults=faults, wal_sender_timeout=1.0) as server:
        recorder(server, tmp_path / "r", options).run(until=db.end_lsn, seconds=120)
    with RecordingReader(tmp_path / "r") as segments:
        found = [transaction.xid for transaction in segments.transactions()]
    begun = (PLAIN.decode(one) for one in payloads(db, options))
    assert found == [one.xid for one in begun if isinstance(one, Begin)]


def test_a_recorder_ends_at_a_lost_slot(tmp_path: Path) -> None:
    db = shop()
    with (
        StandIn(db, faults=Faults(at_message={30: "invalidate-slot"})) as server,
        pytest.raises(ReplicationError, match="the server has invalidated the slot lake"),
    ):
        recorder(server, tmp_path / "r", {}).run(until=db.end_lsn, seconds=120)


def test_a_two_phase_slot_sends_prepared_transactions_in_every_protocol_version() -> None:
    db = shop()
    with StandIn(db) as server, connect_walsender(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE)")
        raw.query(f"START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '{OLDEST}', publication_names 'p')")
        expected = payloads(db, {"proto_version": OLDEST, "two_phase": True})
        assert {data[:1] for data in expected} >= {b"b", b"P", b"K"}
        received: list[bytes] = []
        while len(received) < len(expected):
            tag, body = raw.read()
            message = envelope.decode(body) if tag == b"d" else None
            if isinstance(message, XLogData):
                received.append(message.data)
        assert received == expected


def test_a_server_refuses_options_that_its_version_lacks() -> None:
    oldest = MAJOR_VERSIONS[0]
    spoken = newest_version(oldest)
    refused = f"client sent proto_version={spoken + 1} but we only support protocol {spoken} or lower"
    db = Scenario(server=oldest)
    with StandIn(db) as server, connect_walsender(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        for option, error in (
            (f"proto_version '{spoken + 1}'", refused),
            (f"proto_version '{spoken}', origin 'none'", "unrecognized pgoutput option: origin"),
        ):
            answer = raw.ask(f"START_REPLICATION SLOT a LOGICAL 0/0 ({option}, publication_names 'p')")
            assert error_fields(answer[-2][1])["M"] == error
