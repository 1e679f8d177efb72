"""Real clients read 100,000 messages from a stand-in completely, and resume after a drop."""

from __future__ import annotations

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
from tests.standin.streams import Repeated, write_capture

STREAM = Repeated(1_000)
PAYLOADS = STREAM.payloads()
DROP = 30_050
"""So that the connection breaks in the middle of a transaction."""

CLIENTS = [with_psycopg2, with_psycopg3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    """The same stream, from a capture file without envelopes."""
    return RecordedSource(write_capture(tmp_path_factory.mktemp("capture") / "c.jsonl", PAYLOADS))


def confirmed(server: StandIn) -> int:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchone()
    assert row is not None
    return parse_lsn(row[0])


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
        for connection in range(4):
            after = confirmed(server) if connection else 0
            assert after == (ended[-1] if ended else 0)  # what it acknowledged, the slot has kept
            received = client(server.dsn, stream.end_lsn, tmp_path)
            assert received == stream.payloads(after)[: len(received)]  # nothing twice, nothing left out
            ended += commits(received)
        assert ended == commits(PAYLOADS)
        assert len(stream.started) == 4


def test_pgoutput_capture_reads_and_resumes_by_itself(recorded: RecordedSource, tmp_path: Path) -> None:
    with StandIn(recorded, faults=Faults(drop_after=60_050)) as server:
        create_slot(server.dsn)
        received = with_recorder(server.dsn, recorded.end_lsn, tmp_path)
    changes = [one for one in received if one[:1] in b"BIC"]
    whole = _whole(changes)
    assert whole == [one for one in PAYLOADS if one[:1] in b"BIC"]


def _whole(payloads: list[bytes]) -> list[bytes]:
    """Without the transactions that broke off: they came again."""
    whole: list[bytes] = []
    began = 0
    for one in payloads:
        if one[:1] == b"B":
            del whole[began:]
        whole.append(one)
        if one[:1] == b"C":
            began = len(whole)
    return whole


def test_pg_recvlogical_reads_all_and_resumes(recorded: RecordedSource, tmp_path: Path) -> None:
    lines = [one + b"\n" for one in PAYLOADS]
    with StandIn(recorded, faults=Faults(drop_after=DROP)) as server:
        created = run_pg_recvlogical(server.dsn, "--create-slot", "--plugin=pgoutput")
        assert created.returncode == 0, created.stderr
        assert with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path) == b"".join(lines[:DROP])
    with StandIn(recorded) as server:
        run_pg_recvlogical(server.dsn, "--create-slot", "--plugin=pgoutput")
        assert with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path) == b"".join(lines)
        assert confirmed(server) == recorded.end_lsn
        assert with_pg_recvlogical(server.dsn, recorded.end_lsn, tmp_path) == b""
        dropped = run_pg_recvlogical(server.dsn, "--drop-slot")
        assert dropped.returncode == 0, dropped.stderr
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
