"""Faults change the stream as documented. Messages sent again after a reconnect are intact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from logicalrep import envelope
from logicalrep.messages import StandbyStatusUpdate, XLogData
from logicalrep.standin import Faults, StandIn, parse_faults
from logicalrep.standin.faults import Incident
from logicalrep.synth import Scenario
from tests.standin.clients import create_slot, read_with_psycopg3
from tests.standin.raw_client import RawClient, connect_walsender, error_fields
from tests.standin.streams import COMMIT, STEP, Repeated
from tests.versions import OLDEST

STREAM = Repeated(10)
PAYLOADS = STREAM.payloads()
CREATE = "CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT"
TERMINATED = "terminating connection due to administrator command"
START = f"START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '{OLDEST}', publication_names 'p')"


def read_messages(raw: RawClient, count: int) -> list[bytes]:
    """Return the next messages: at most `count`, none after a keepalive or the end of the connection."""
    read: list[bytes] = []
    while len(read) < count:
        try:
            one = envelope.decode(raw.read()[1])
        except AssertionError:
            break
        if not isinstance(one, XLogData):
            break
        read.append(one.data)
    return read


def read_stream(server: StandIn) -> list[bytes]:
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.query(START)
        raw.read()
        return read_messages(raw, 1 << 20)


def test_drop_after_drops_each_connection_after_new_messages() -> None:
    with StandIn(STREAM, faults=Faults(drop_after=250)) as server:
        # Nothing is acknowledged: each connection starts at the beginning and gets 250 more messages.
        assert [len(read_stream(server)) for _ in range(5)] == [250, 500, 750, 1000, 1001]


def test_a_client_makes_progress_in_a_transaction_larger_than_drop_after() -> None:
    with StandIn(Repeated(2), faults=Faults(drop_after=30)) as server:
        assert [len(read_stream(server)) for _ in range(8)] == [30, 60, 90, 120, 150, 180, 201, 201]


def test_duplicate_repeats_every_nth_message() -> None:
    with StandIn(STREAM, faults=Faults(duplicate=100)) as server:
        expected = [
            one for number, data in enumerate(PAYLOADS, 1) for one in [data] * (1 + (number % 100 == 0))
        ]
        assert read_stream(server) == expected
        assert read_stream(server) == PAYLOADS  # repeated messages are intact


def test_truncate_message_removes_the_last_byte() -> None:
    with StandIn(STREAM, faults=Faults(truncate_message=100)) as server:
        found = read_stream(server)
        assert [n for n, one in enumerate(found, 1) if one != PAYLOADS[n - 1]] == list(range(100, 1002, 100))
        assert found[99] == PAYLOADS[99][:-1]
        assert read_stream(server) == PAYLOADS


def test_flip_bit() -> None:
    def flipped() -> list[bytes]:
        with StandIn(STREAM, faults=Faults(flip_bit=100)) as server:
            found = read_stream(server)
            assert read_stream(server) == PAYLOADS
        return found

    found = flipped()
    for number, (one, right) in enumerate(zip(found, PAYLOADS, strict=True), 1):
        bits = int.from_bytes(one, "big") ^ int.from_bytes(right, "big")
        assert bits.bit_count() == (number % 100 == 0)
    assert flipped() == found


def test_delay_spaces_the_messages() -> None:
    with StandIn(Repeated(1), faults=Faults(delay=5)) as server, connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.query(START)
        raw.read()
        began = time.monotonic()
        assert len(read_messages(raw, 20)) == 20  # messages arrive one by one
        assert time.monotonic() - began > 0.08


def test_stall_keepalive_suppresses_replies() -> None:
    faults = Faults(stall_keepalive=True)
    with (
        StandIn(Repeated(0), faults=faults, wal_sender_timeout=0.2) as server,
        connect_walsender(server) as raw,
    ):
        raw.ask(CREATE)
        raw.query(START)
        raw.read()
        raw.send(
            b"d",
            envelope.encode(
                StandbyStatusUpdate(
                    written_lsn=1, flushed_lsn=1, applied_lsn=1, send_time=0, reply_requested=True
                )
            ),
        )
        raw.socket.settimeout(0.6)
        with pytest.raises(TimeoutError):
            raw.read()


def test_faults_can_be_combined() -> None:
    faults = Faults(drop_after=50, delay=1, duplicate=3, truncate_message=5, flip_bit=7)
    runs = []
    for _ in range(2):
        with StandIn(Repeated(1), faults=faults) as server:
            runs.append([read_stream(server) for _ in range(3)])
            assert runs[-1][-1] == Repeated(1).payloads()  # no new messages: no faults
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == 50 + 50 // 3


def test_a_client_that_acknowledges_is_not_sent_the_whole_stream_again(tmp_path: Path) -> None:
    with StandIn(STREAM, faults=Faults(drop_after=150), wal_sender_timeout=2.0) as server:
        create_slot(server.dsn)
        found = [len(read_with_psycopg3(server.dsn, STREAM.end_lsn, tmp_path)) for _ in range(9)]
        assert max(found) < 300  # no connection started from the beginning
        assert found[-1] == 0


def read_to_end(server: StandIn) -> tuple[list[bytes], dict[str, str] | None]:
    """Return the messages of a new connection, up to a keepalive or the end, and the error's fields."""
    with connect_walsender(server) as raw:
        raw.query(START)
        read: list[bytes] = []
        try:
            while (message := raw.read())[0] != b"E":
                if message[0] == b"d":
                    one = envelope.decode(message[1])
                    if not isinstance(one, XLogData):
                        return read, None
                    read.append(one.data)
        except AssertionError:
            return read, None
        return read, error_fields(message[1])


def ask(server: StandIn, sql: str) -> tuple[Any, ...]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return row


def create(server: StandIn) -> None:
    with connect_walsender(server) as raw:
        raw.ask(CREATE)


def test_incidents_happen_once_at_their_message() -> None:
    incidents: dict[int, Incident] = {101: "drop", 201: "error", 301: "duplicate", 401: "switch-timeline"}
    with StandIn(STREAM, faults=Faults(at_message=incidents)) as server, connect_walsender(server) as raw:
        raw.ask(CREATE)
        assert read_to_end(server) == (PAYLOADS[:100], None)
        sent, error = read_to_end(server)
        assert (sent, error) == (PAYLOADS[:200], {"S": "FATAL", "V": "FATAL", "C": "57P01", "M": TERMINATED})
        assert b"\0\0\0\x011" in raw.ask("IDENTIFY_SYSTEM")[1][1]
        assert read_to_end(server) == ([*PAYLOADS[:301], *PAYLOADS[300:400]], None)
        assert b"\0\0\0\x012" in raw.ask("IDENTIFY_SYSTEM")[1][1]
        assert read_to_end(server) == (PAYLOADS, None)
        assert b"1\t0/" in raw.ask("TIMELINE_HISTORY 2")[1][1]
        for timeline in (1, 3):
            assert error_fields(raw.ask(f"TIMELINE_HISTORY {timeline}")[0][1])["C"] == "58P01"


def test_a_server_ends_quietly_while_a_dropped_client_is_connected(capfd: pytest.CaptureFixture[str]) -> None:
    with StandIn(STREAM, faults=Faults(at_message={3: "drop"})) as server:
        create(server)
        raw = connect_walsender(server).__enter__()
        raw.query(START)
        assert [raw.read()[0], len(read_messages(raw, 5))] == [b"W", 2]
    raw.__exit__(None, None, None)
    assert capfd.readouterr().err == ""


def test_an_incident_at_an_lsn_happens_at_the_next_new_message() -> None:
    at_lsn: dict[int, Incident] = {3 * STEP - COMMIT: "drop", 3 * STEP: "duplicate", 90 * STEP: "error"}
    with StandIn(STREAM, faults=Faults(at_lsn=at_lsn)) as server:
        create(server)
        assert read_to_end(server) == (PAYLOADS[:200], None)  # the Commit message has the LSN of its end
        assert read_to_end(server) == ([*PAYLOADS[:202], *PAYLOADS[201:]], None)
        assert read_to_end(server) == (PAYLOADS, None)


def test_an_lsn_goes_back_by_one_wal_segment() -> None:
    segment = 16 << 20
    scenario = Scenario()
    table = scenario.table("public.t", id="int4 key")
    with scenario.transaction() as tx:
        for number in range(3):
            tx.insert(table, id=number)
    with StandIn(scenario, faults=Faults(at_message={4: "lsn-back"})) as server:
        create(server)
        with connect_walsender(server) as raw:
            raw.query(START)
            raw.read()
            sent = [envelope.decode(raw.read()[1]) for _ in range(6)]
    starts = [one.wal_start for one in sent if isinstance(one, XLogData)]
    assert starts[2] - segment < starts[3] < starts[4] - segment
    assert starts[2] < starts[4]


def test_a_frozen_connection_stays_open_and_silent() -> None:
    faults = Faults(at_message={51: "freeze"})
    with StandIn(STREAM, faults=faults, wal_sender_timeout=0.3) as server:
        create(server)
        with connect_walsender(server) as raw:
            raw.query(START)
            raw.read()
            assert read_messages(raw, 50) == PAYLOADS[:50]
            status = StandbyStatusUpdate(
                written_lsn=STEP, flushed_lsn=STEP, applied_lsn=STEP, send_time=0, reply_requested=True
            )
            raw.send(b"d", envelope.encode(status))
            raw.send(b"c")
            raw.socket.settimeout(1.0)
            with pytest.raises(TimeoutError):
                raw.read()
            assert ask(server, "SELECT active, confirmed_flush_lsn FROM pg_replication_slots") == (
                True,
                "0/1",
            )
        assert read_to_end(server) == (PAYLOADS, None)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("13.20", 'cannot read from logical replication slot "a"'),
        ("16.9", 'can no longer get changes from replication slot "a"'),
        ("18.4", 'can no longer access replication slot "a"'),
    ],
)
def test_an_invalidated_slot_is_lost(version: str, text: str) -> None:
    source = Repeated(10)
    source.server_version = version  # type: ignore[attr-defined]
    with StandIn(source, faults=Faults(at_message={101: "invalidate-slot"})) as server:
        create(server)
        sent, error = read_to_end(server)
        assert (sent, error and error["M"]) == (PAYLOADS[:100], TERMINATED)
        sent, error = read_to_end(server)
        assert (sent, error and (error["C"], error["M"])) == ([], ("55000", text))
        assert error is not None
        assert error["D"].startswith("This ")
        columns = "active, wal_status, invalidation_reason, restart_lsn"
        row = ask(server, f"SELECT {columns} FROM pg_replication_slots")
        assert row == (False, "lost", "wal_removed", None)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=text):
            ask(server, "SELECT pg_replication_slot_advance('a', '0/9999')")
        ask(server, "SELECT pg_drop_replication_slot('a')")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("drop", "there is no fault 'drop'; the faults are drop-after, delay, duplicate"),
        ("drop-after", "drop-after needs a number, as in drop-after=100, not ''"),
        ("drop-after=x", "not 'x'"),
        ("drop-after=-1", "not '-1'"),
        ("drop-after=0", "drop-after must be an integer of at least 1, not 0"),
        ("stall-keepalive=1", "stall-keepalive takes no value"),
        ("at-lsn=1", "there is no fault 'at-lsn'"),
        ("crash@7", "the fault before @ must be one of drop, duplicate, error, freeze"),
        ("drop@", "drop@ needs the number of a message or an LSN, as in drop@17 or drop@0/15D2E70, not ''"),
        ("drop@-1", "not '-1'"),
        ("drop@0", "at-message must be an integer of at least 1, not 0"),
        ("drop@0/x", "'0/x' is not an LSN"),
    ],
)
def test_invalid_faults_are_rejected(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_faults([text])


def test_faults_are_parsed_from_their_names() -> None:
    texts = ["drop-after=1", "delay=2", "duplicate=3", "truncate-message=4", "flip-bit=5", "stall-keepalive"]
    assert parse_faults(texts) == Faults(
        drop_after=1, delay=2, duplicate=3, truncate_message=4, flip_bit=5, stall_keepalive=True
    )
    assert parse_faults([]) == Faults()
    assert parse_faults(["error@17", "freeze@1/A0", "drop@3"]) == Faults(
        at_message={17: "error", 3: "drop"}, at_lsn={(1 << 32) + 160: "freeze"}
    )
