"""Real clients read 100,000 messages from a stand-in completely, and resume after drops.

Completely: byte for byte what was served, in its order, each message once. To resume: after a drop, from the
same slot, the first thing that comes is the first transaction that was not acknowledged; nothing that was
acknowledged comes again, and in the end everything has come.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from pgoutput.standin import Faults, RecordedSource, StandIn
from pgoutput.wire import parse_lsn
from tests.standin.clients import (
    Client,
    commits,
    create_slot,
    run_pg_recvlogical,
    with_pg_recvlogical,
    with_psycopg2,
    with_psycopg3,
    with_recorder,
)
from tests.standin.streams import STEP, Asking, Repeated, write_capture_file

STREAM = Repeated(1_000)
PAYLOADS = STREAM.payloads()
DROP = 35_050
"""So that the connection breaks in the middle of a transaction, and not where Asking asks."""

CLIENTS = [with_psycopg2, with_psycopg3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    """The same stream, from a capture file without envelopes."""
    return RecordedSource(write_capture_file(tmp_path_factory.mktemp("capture") / "c.jsonl", PAYLOADS))


def confirmed(server: StandIn) -> int:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def lines(payloads: list[bytes]) -> bytes:
    """As pg_recvlogical writes them."""
    return b"".join(one + b"\n" for one in payloads)


@pytest.mark.parametrize("client", CLIENTS)
def test_all_of_it_comes(client: Client, recorded: RecordedSource, tmp_path: Path) -> None:
    assert len(PAYLOADS) > 100_000
    with StandIn(recorded) as server:
        create_slot(server.dsn)
        assert client(server.dsn, recorded.end_lsn, tmp_path) == PAYLOADS
        assert client(server.dsn, recorded.end_lsn, tmp_path) == []  # for it was acknowledged


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_resumes_after_drops(client: Client, tmp_path: Path) -> None:
    stream = Repeated(1_000)
    with StandIn(stream, faults=Faults(drop_after=DROP)) as server:
        create_slot(server.dsn)
        ended: list[int] = []
        for connection in range(3):
            after = confirmed(server) if connection else 0
            assert after == (ended[-1] if ended else 0)  # what it acknowledged, the slot has kept
            received = client(server.dsn, stream.end_lsn, tmp_path)
            assert received == stream.payloads(after)[: len(received)]  # nothing twice, nothing left out
            ended += commits(received)
        assert ended == commits(PAYLOADS)
        assert len(stream.started) == 3


def test_pgoutput_capture_reads_all_of_it(recorded: RecordedSource, tmp_path: Path) -> None:
    with StandIn(recorded) as server:
        create_slot(server.dsn)
        assert with_recorder(server.dsn, recorded.end_lsn, tmp_path) == [PAYLOADS]


def test_pgoutput_capture_resumes_by_itself(tmp_path: Path) -> None:
    stream = Repeated(1_000)
    with StandIn(stream, faults=Faults(drop_after=60_050)) as server:
        create_slot(server.dsn)
        before, after = with_recorder(server.dsn, stream.end_lsn, tmp_path)
        assert confirmed(server) == stream.end_lsn
    assert before == PAYLOADS[:60_050]
    assert stream.started[1] <= commits(before)[-1]
    begin, relation, *others = stream.payloads(commits(before)[-1])
    assert after == [relation, begin, *others]  # of what was sent again, only the Relation is stored again


def test_pg_recvlogical_reads_all_of_it(recorded: RecordedSource, tmp_path: Path) -> None:
    with StandIn(recorded) as server:
        created = run_pg_recvlogical(server.dsn, "--create-slot", "--plugin=pgoutput")
        assert created.returncode == 0, created.stderr
        assert with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path, "--no-loop") == lines(PAYLOADS)
        assert confirmed(server) == recorded.end_lsn
        assert with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path, "--no-loop") == b""
        dropped = run_pg_recvlogical(server.dsn, "--drop-slot")
        assert dropped.returncode == 0, dropped.stderr
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []


def test_pg_recvlogical_resumes_in_the_next_run(tmp_path: Path) -> None:
    stream = Asking(1_000)
    with StandIn(stream, faults=Faults(drop_after=DROP)) as server:
        create_slot(server.dsn)
        for run in range(3):
            after = confirmed(server) if run else 0
            received = with_pg_recvlogical(server.dsn, stream.end_lsn, tmp_path, "--no-loop")
            expected, later = (lines(stream.payloads(lsn)) for lsn in (after, confirmed(server)))
            assert expected.startswith(received)
            assert len(received) >= len(expected) - len(later)  # whatever it acknowledged, it has
        assert received == expected
    assert all(earlier < later for earlier, later in pairwise(stream.started))
    assert len(stream.started) == 3


def test_pg_recvlogical_resumes_by_itself(tmp_path: Path) -> None:
    stream = Asking(1_000)
    with StandIn(stream, faults=Faults(drop_after=65_050)) as server:
        create_slot(server.dsn)
        received = with_pg_recvlogical(server.dsn, stream.end_lsn, tmp_path)
        assert confirmed(server) == stream.end_lsn
    acknowledged = 600 * STEP  # when it was asked last
    assert stream.started[1:] == [acknowledged]
    assert received == lines(PAYLOADS[:65_050]) + lines(stream.payloads(acknowledged))
