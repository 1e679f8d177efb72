"""CopyData is read from a socket, as libpq reads it."""

from __future__ import annotations

import socket
import struct
from itertools import islice

import psycopg
import pytest
from hypothesis import given, strategies as st

from logicalrep import compiled, envelope
from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.messages import Message, PrimaryKeepalive, XLogData
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.client.copy_data import CopyOutSocket, ReplicationSocket
from logicalrep.recorder.events import Notice
from tests.server import Server

pytestmark = pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")

STATEMENTS = (
    "SELECT g, md5(g::text), NULL, E'a\\tb' FROM generate_series(1, 60000) g",
    "SELECT WHERE false",
    "SELECT FROM generate_series(1, 5)",
    "SELECT repeat('x', 5000000), g FROM generate_series(1, 3) g",
    "SELECT '\\xffff'::bytea",
)
ROWS = [b"1\n", b"", b"x" * 300, b"22\n"]


def message(kind: bytes, contents: bytes = b"") -> bytes:
    return kind + struct.pack(">i", 4 + len(contents)) + contents


COPIED = {
    "notices and parameters between rows": [
        message(b"H", b"\0\0\0"),
        message(b"d", ROWS[0]),
        message(b"N", b"SWARNING\0C01000\0Mhello\0\0"),
        message(b"d", ROWS[1]),
        message(b"S", b"TimeZone\0UTC\0"),
        *(message(b"d", row) for row in ROWS[2:]),
        message(b"c"),
    ],
    "an error between rows": [message(b"H", b"\0\0\0"), *(message(b"d", row) for row in ROWS)],
}


@pytest.mark.parametrize("name", COPIED)
@given(choice=st.data())
def test_messages_may_arrive_in_any_pieces(name: str, choice: st.DataObject) -> None:
    sent = b"".join(COPIED[name])
    rest = message(b"E", b"C57P01\0\0") + message(b"Z", b"I")
    cuts = choice.draw(st.lists(st.integers(0, len(sent + rest)), max_size=6).map(sorted))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        pieces = iter([(sent + rest)[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)])

        def wait() -> None:
            theirs.sendall(next(pieces))

        notices: list[bytes] = []
        with CopyOutSocket(ours.fileno(), wait) as copied:
            assert copied.has_output()
            found = b"".join(bytes(rows.data) for rows in copied.rows(notices.append))
        assert found == b"".join(ROWS)
        assert len(notices) == name.startswith("notices")
        for piece in pieces:
            theirs.sendall(piece)
        left = ours.recv(1 << 16)
        assert left == rest  # libpq reads them


ENVELOPES = [
    envelope.encode(XLogData(wal_start=n, wal_end=n, send_time=0, data=b"m" * n)) for n in (0, 1, 300, 70_000)
]
KEEPALIVE = PrimaryKeepalive(wal_end=5, send_time=6, reply_requested=True)
STREAM = [
    message(b"W", b"\0\0\0"),
    *(message(b"d", one) for one in ENVELOPES[:2]),
    message(b"d", envelope.encode(KEEPALIVE)),
    message(b"N", b"SWARNING\0C01000\0Mhello\0\0"),
    *(message(b"d", one) for one in ENVELOPES[2:]),
]


@pytest.mark.parametrize("end", [message(b"E", b"C57P01\0\0"), message(b"C", b"COPY 0\0")])
@given(choice=st.data())
def test_a_replication_stream_may_arrive_in_any_pieces(end: bytes, choice: st.DataObject) -> None:
    sent = b"".join(STREAM) + end
    cuts = choice.draw(st.lists(st.integers(0, len(sent)), max_size=6).map(sorted))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for one in (ours, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.setblocking(False)
        pieces = iter([sent[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)])

        def wait() -> None:
            theirs.sendall(next(pieces))

        messages: list[bytes] = []
        others: list[tuple[int, Message]] = []
        notices: list[bytes] = []
        with ReplicationSocket(ours.fileno(), wait) as stream:
            assert stream.begins()
            while not stream.ended:
                batch = stream.receive(notices.append)
                others += [(len(messages) + before, one) for before, one in batch.others]
                messages += batch.data.to_pylist()
                if not stream.more:
                    theirs.sendall(next(pieces))
        assert messages == [b"m" * n for n in (0, 1, 300, 70_000)]
        assert others == [(2, KEEPALIVE)]
        assert len(notices) == 1
        assert stream.error is not None
        assert stream.error.sqlstate == ("57P01" if end.startswith(b"E") else "")


def test_a_replication_stream_whose_connection_is_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            theirs.sendall(b"".join(STREAM[:2]) + STREAM[2][:9])
        with ReplicationSocket(ours.fileno(), lambda: None) as stream:
            assert stream.begins()
            assert stream.receive(lambda contents: None).data.to_pylist() == [b""]
            assert stream.ended
            assert stream.error is not None
            assert stream.error.text == "server closed the connection unexpectedly"


@pytest.mark.parametrize("form", ["text", "binary"])
@pytest.mark.parametrize("query", STATEMENTS)
def test_rows_are_those_that_libpq_reads(
    server: Server, query: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kernel in (compiled.kernel, None):
        monkeypatch.setattr(compiled, "kernel", kernel)
        with Connection(server.dsn) as connection:
            rows = [*connection.copy_out(f"COPY ({query}) TO STDOUT (FORMAT {form})")]
            assert connection.query("SELECT 1") == [("1",)]  # libpq is in step with the server
        found.append((sum(one.number for one in rows), b"".join(bytes(one.data) for one in rows)))
    assert found[0] == found[1]


def test_errors_and_notices_of_a_copy(server: Server) -> None:
    notices: list[Notice] = []
    with Connection(server.dsn, on_notice=notices.append) as connection:
        for query, rows in (
            ("SELECT 1/0", 0),
            ("SELECT 1/(50000 - g) FROM generate_series(1, 99999) g", 49_999),
        ):
            copied = connection.copy_out(f"COPY ({query}) TO STDOUT")
            assert sum(one.number for one in islice(copied, rows // 49_999)) == rows
            with pytest.raises(ReplicationError, match="division by zero"):
                next(copied)
        warn = "DO $$BEGIN RAISE WARNING '%', 'low' USING HINT = 'add'; END$$"
        connection.query(warn)
        connection.query(
            "CREATE FUNCTION pg_temp.warn() RETURNS int LANGUAGE plpgsql AS "
            "$$BEGIN RAISE WARNING 'high' USING HINT = 'add'; RETURN 1; END$$"
        )
        found = list(connection.copy_out("COPY (SELECT pg_temp.warn() FROM generate_series(1, 2)) TO STDOUT"))
        assert sum(one.number for one in found) == 2
    (first, second) = notices
    assert (first.severity, first.sqlstate, first.message) == ("WARNING", "01000", "low (add)")
    assert (second.severity, second.sqlstate, second.message) == ("WARNING", "01000", "high (add)")


def test_a_connection_that_is_lost_within_a_copy(server: Server) -> None:
    with Connection(server.dsn) as connection, psycopg.connect(server.dsn, autocommit=True) as other:
        rows = connection.copy_out("COPY (SELECT g FROM generate_series(1, 100000000) g) TO STDOUT")
        next(rows)
        other.execute("SELECT pg_terminate_backend(%s)", [connection.backend_pid])
        with pytest.raises(ConnectionLost):
            list(rows)
