"""Faults change the stream as documented. Messages sent again after a reconnect are intact."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pgoutput import envelope
from pgoutput.messages import StandbyStatusUpdate, XLogData
from pgoutput.standin import Faults, StandIn, parse_faults
from tests.standin.clients import create_slot, read_with_psycopg3
from tests.standin.raw_client import RawClient, connect_walsender
from tests.standin.streams import Repeated
from tests.versions import OLDEST

STREAM = Repeated(10)
PAYLOADS = STREAM.payloads()
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
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
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
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        raw.query(START)
        raw.read()
        began = time.monotonic()
        assert len(read_messages(raw, 20)) == 20  # messages arrive one by one
        assert time.monotonic() - began > 0.08


def test_stall_keepalive_suppresses_replies() -> None:
    faults = Faults(stall_keepalive=True)
    with StandIn(Repeated(0), faults=faults, sender_timeout=0.2) as server, connect_walsender(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT")
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
    with StandIn(STREAM, faults=Faults(drop_after=150), sender_timeout=2.0) as server:
        create_slot(server.dsn)
        found = [len(read_with_psycopg3(server.dsn, STREAM.end_lsn, tmp_path)) for _ in range(9)]
        assert max(found) < 300  # no connection started from the beginning
        assert found[-1] == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("drop", "there is no fault 'drop'; there are drop-after, delay, duplicate"),
        ("drop-after", "drop-after needs a number, as in drop-after=100, not ''"),
        ("drop-after=x", "not 'x'"),
        ("drop-after=-1", "not '-1'"),
        ("drop-after=0", "drop-after must be at least 1, not 0"),
        ("stall-keepalive=1", "stall-keepalive takes no value"),
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
