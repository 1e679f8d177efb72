"""Faults strike as they are said to, and never what is sent again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pgoutput import envelope
from pgoutput.messages import StandbyStatusUpdate, XLogData
from pgoutput.standin import Faults, StandIn, parse_faults
from tests.standin.clients import create_slot, with_psycopg3
from tests.standin.raw import Raw, replication
from tests.standin.streams import Repeated

STREAM = Repeated(10)
PAYLOADS = STREAM.payloads()
START = "START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '1', publication_names 'p')"


def received(raw: Raw, count: int) -> list[bytes]:
    """The messages of a stream, so many of them at most, up to its keepalive or the connection's end."""
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


def stream_of(server: StandIn) -> list[bytes]:
    with replication(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        raw.query(START)
        raw.read()
        return received(raw, 1 << 20)


def test_drop_after() -> None:
    with StandIn(STREAM, faults=Faults(drop_after=250)) as server:
        # Nothing is acknowledged: each connection gets all from the start, and 250 messages further.
        assert [len(stream_of(server)) for _ in range(5)] == [250, 500, 750, 1000, 1001]


def test_a_client_gets_on_in_a_transaction_larger_than_the_distance_between_drops() -> None:
    with StandIn(Repeated(2), faults=Faults(drop_after=30)) as server:
        assert [len(stream_of(server)) for _ in range(8)] == [30, 60, 90, 120, 150, 180, 201, 201]


def test_duplicate() -> None:
    with StandIn(STREAM, faults=Faults(duplicate=100)) as server:
        expected = [
            one for number, data in enumerate(PAYLOADS, 1) for one in [data] * (1 + (number % 100 == 0))
        ]
        assert stream_of(server) == expected
        assert stream_of(server) == PAYLOADS  # again, and so as it should be


def test_truncate_message() -> None:
    with StandIn(STREAM, faults=Faults(truncate_message=100)) as server:
        found = stream_of(server)
        assert [n for n, one in enumerate(found, 1) if one != PAYLOADS[n - 1]] == list(range(100, 1002, 100))
        assert found[99] == PAYLOADS[99][:-1]
        assert stream_of(server) == PAYLOADS


def test_flip_bit() -> None:
    def flipped() -> list[bytes]:
        with StandIn(STREAM, faults=Faults(flip_bit=100)) as server:
            found = stream_of(server)
            assert stream_of(server) == PAYLOADS
        return found

    found = flipped()
    for number, (one, right) in enumerate(zip(found, PAYLOADS, strict=True), 1):
        bits = int.from_bytes(one, "big") ^ int.from_bytes(right, "big")
        assert bits.bit_count() == (number % 100 == 0)
    assert flipped() == found


def test_delay() -> None:
    with StandIn(Repeated(1), faults=Faults(delay=5)) as server, replication(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        raw.query(START)
        raw.read()
        began = time.monotonic()
        assert len(received(raw, 20)) == 20  # they come one by one, and not all at the end
        assert 0.08 < time.monotonic() - began < 0.45


def test_stall_keepalive() -> None:
    faults = Faults(stall_keepalive=True)
    with StandIn(Repeated(0), faults=faults, sender_timeout=0.2) as server, replication(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        raw.query(START)
        raw.read()
        raw.send(b"d", envelope.encode(StandbyStatusUpdate(1, 1, 1, 0, True)))
        raw.socket.settimeout(0.6)
        with pytest.raises(TimeoutError):
            raw.read()


def test_all_of_them_at_once() -> None:
    faults = Faults(drop_after=50, delay=1, duplicate=3, truncate_message=5, flip_bit=7)
    runs = []
    for _ in range(2):
        with StandIn(Repeated(1), faults=faults) as server:
            runs.append([stream_of(server) for _ in range(3)])
            assert runs[-1][-1] == Repeated(1).payloads()  # all has been struck
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == 50 + 50 // 3


def test_a_client_that_acknowledges_is_sent_less_each_time(tmp_path: Path) -> None:
    with StandIn(STREAM, faults=Faults(drop_after=150), sender_timeout=0.2) as server:
        create_slot(server.dsn)
        found = [len(with_psycopg3(server.dsn, STREAM.end_lsn, tmp_path)) for _ in range(9)]
        assert max(found) < 300  # no connection began anew
        assert found[-1] == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("drop", "there is no fault 'drop'; there are drop-after, delay, duplicate"),
        ("drop-after", "drop-after wants a number, as in drop-after=100, not ''"),
        ("drop-after=x", "not 'x'"),
        ("drop-after=-1", "not '-1'"),
        ("drop-after=0", "drop-after wants a number from 1 on, not 0"),
        ("stall-keepalive=1", "stall-keepalive takes no value"),
    ],
)
def test_faults_that_are_none(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_faults([text])


def test_faults_by_their_names() -> None:
    texts = ["drop-after=1", "delay=2", "duplicate=3", "truncate-message=4", "flip-bit=5", "stall-keepalive"]
    assert parse_faults(texts) == Faults(
        drop_after=1, delay=2, duplicate=3, truncate_message=4, flip_bit=5, stall_keepalive=True
    )
    assert parse_faults([]) == Faults()
