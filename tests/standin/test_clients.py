"""Real clients read 100,000 messages from a stand-in server, and resume after dropped connections.

Reading: the client receives the served bytes in order, each message once. Resuming: after a drop, the slot
continues with the first transaction that was not acknowledged, and the client has received all transactions
in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from logicalrep.standin import Faults, RecordedSource, StandIn
from logicalrep.wire import parse_lsn
from tests.standin.clients import (
    Client,
    commit_end_lsns,
    create_slot,
    read_with_pg_recvlogical,
    read_with_psycopg2,
    read_with_psycopg3,
    read_with_recorder,
    run_pg_recvlogical,
)
from tests.standin.streams import STEP, Repeated, ReplyRequesting, write_capture_file

STREAM = Repeated(1_000)
PAYLOADS = STREAM.payloads()
DROP = 35_050
"""Number of messages before the connection is dropped: inside a transaction, and not next to a keepalive of
`ReplyRequesting`."""

CLIENTS = [read_with_psycopg2, read_with_psycopg3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    """Return a source that serves the messages of `STREAM` from a capture file without envelopes."""
    return RecordedSource(write_capture_file(tmp_path_factory.mktemp("capture") / "c.jsonl", PAYLOADS))


def confirmed(server: StandIn) -> int:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def lines(payloads: list[bytes]) -> bytes:
    """Return the messages as pg_recvlogical writes them: with a newline after each message."""
    return b"".join(one + b"\n" for one in payloads)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reads_the_whole_stream(client: Client, recorded: RecordedSource, tmp_path: Path) -> None:
    assert len(PAYLOADS) > 100_000
    with StandIn(recorded) as server:
        create_slot(server.dsn)
        assert client(server.dsn, recorded.end_lsn, tmp_path) == PAYLOADS
        assert client(server.dsn, recorded.end_lsn, tmp_path) == []  # everything is acknowledged


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_resumes_after_dropped_connections(client: Client, tmp_path: Path) -> None:
    stream = Repeated(1_000)
    with StandIn(stream, faults=Faults(drop_after=DROP)) as server:
        create_slot(server.dsn)
        ended: list[int] = []
        for connection in range(3):
            after = confirmed(server) if connection else 0
            assert after == (ended[-1] if ended else 0)  # the slot keeps the acknowledged position
            received = client(server.dsn, stream.end_lsn, tmp_path)
            assert received == stream.payloads(after)[: len(received)]  # no gap and no duplicate
            ended += commit_end_lsns(received)
        assert ended == commit_end_lsns(PAYLOADS)
        assert len(stream.started) == 3


def test_the_recorder_reads_the_whole_stream(recorded: RecordedSource, tmp_path: Path) -> None:
    with StandIn(recorded) as server:
        create_slot(server.dsn)
        assert read_with_recorder(server.dsn, recorded.end_lsn, tmp_path) == [PAYLOADS]


def test_the_recorder_resumes_by_itself(tmp_path: Path) -> None:
    stream = Repeated(1_000)
    with StandIn(stream, faults=Faults(drop_after=60_050)) as server:
        create_slot(server.dsn)
        before, after = read_with_recorder(server.dsn, stream.end_lsn, tmp_path)
        assert confirmed(server) == stream.end_lsn
    assert before == PAYLOADS[:60_050]
    assert stream.started[1] <= commit_end_lsns(before)[-1]
    begin, relation, *others = stream.payloads(commit_end_lsns(before)[-1])
    assert after == [relation, begin, *others]  # of the repeated messages, only the Relation is stored again


def test_pg_recvlogical_reads_the_whole_stream(recorded: RecordedSource, tmp_path: Path) -> None:
    with StandIn(recorded) as server:
        created = run_pg_recvlogical(server.dsn, "--create-slot", "--plugin=pgoutput")
        assert created.returncode == 0, created.stderr
        assert read_with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path, "--no-loop") == lines(
            PAYLOADS
        )
        assert confirmed(server) == recorded.end_lsn
        assert read_with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path, "--no-loop") == b""
        dropped = run_pg_recvlogical(server.dsn, "--drop-slot")
        assert dropped.returncode == 0, dropped.stderr
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []


def test_pg_recvlogical_resumes_in_its_next_run(tmp_path: Path) -> None:
    stream = ReplyRequesting(1_000)
    with StandIn(stream, faults=Faults(drop_after=DROP)) as server:
        create_slot(server.dsn)
        for run in range(3):
            after = confirmed(server) if run else 0
            received = read_with_pg_recvlogical(server.dsn, stream.end_lsn, tmp_path, "--no-loop")
            expected, later = (lines(stream.payloads(lsn)) for lsn in (after, confirmed(server)))
            assert expected.startswith(received)
            assert len(received) >= len(expected) - len(later)  # received everything it acknowledged
        assert received == expected
    assert all(earlier < later for earlier, later in pairwise(stream.started))
    assert len(stream.started) == 3


def test_pg_recvlogical_resumes_by_itself(tmp_path: Path) -> None:
    stream = ReplyRequesting(1_000)
    with StandIn(stream, faults=Faults(drop_after=65_050)) as server:
        create_slot(server.dsn)
        received = read_with_pg_recvlogical(server.dsn, stream.end_lsn, tmp_path)
        assert confirmed(server) == stream.end_lsn
    acknowledged = 600 * STEP  # position of the last reply request
    assert stream.started[1:] == [acknowledged]
    assert received == lines(PAYLOADS[:65_050]) + lines(stream.payloads(acknowledged))


@pytest.mark.nightly
@pytest.mark.parametrize("client", [*CLIENTS, read_with_pg_recvlogical])
def test_a_client_loses_nothing_of_200_000_messages_over_two_drops(
    client: Callable[[str, int, Path], list[bytes] | bytes], tmp_path: Path
) -> None:
    stream = ReplyRequesting(2_000)
    payloads = stream.payloads()
    assert len(payloads) > 200_000
    ended: list[int] = []
    with StandIn(stream, faults=Faults(drop_after=70_050)) as server:
        create_slot(server.dsn)
        while confirmed(server) < stream.end_lsn:
            received = client(server.dsn, stream.end_lsn, tmp_path)
            if isinstance(received, list):
                ended += commit_end_lsns(received)
            else:  # pg_recvlogical reconnects by itself, and appends what it receives to the file
                ended = [lsn for lsn in commit_end_lsns(payloads) if lsn.to_bytes(8) in received]
    assert sorted(set(ended)) == commit_end_lsns(payloads)
    assert len(stream.started) >= 3
