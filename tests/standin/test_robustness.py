"""Invalid, slow or stuck clients and sources do not disturb other clients of a stand-in server."""

from __future__ import annotations

import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psycopg
import pytest

from logicalrep import envelope
from logicalrep.messages import StandbyStatusUpdate, XLogData
from logicalrep.standin import StandIn
from tests.standin.raw_client import RawClient, connect_walsender, error_fields
from tests.standin.streams import Repeated
from tests.versions import OLDEST

START = f"START_REPLICATION SLOT {{}} LOGICAL 0/0 (proto_version '{OLDEST}', publication_names 'p')"
CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT"


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn(Repeated(3_000)) as server:
        yield server
        with psycopg.connect(server.dsn) as connection:  # the server still works after all tests
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack(">I", 10_001),
        struct.pack(">I", 7),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS without SSLRequest
    ],
)
def test_invalid_startup_packets_are_rejected(server: StandIn, sent: bytes) -> None:
    with RawClient(server) as raw:
        raw.socket.sendall(sent)
        tag, body = raw.read()
        assert (tag, error_fields(body)["M"]) == (b"E", "invalid length of startup packet")
        assert raw.has_ended


@pytest.mark.parametrize(
    "sent",
    [
        b"x\0\0\0\4",
        b"Q\xff\xff\xff\xff",
        b"Q\0\0\0\0",
        b"Q\x7f\xff\xff\xff",
        b"Q\0\0\0\4",
        b"P\0\0\0\6a\0",
        b"B\0\0\0\x0e\0\0\0\0\0\1\x7f\xff\xff\xff",
        b"F\0\0\0\4",
    ],
)
def test_invalid_messages_are_rejected(server: StandIn, sent: bytes) -> None:
    with connect_walsender(server) as raw:
        if sent[:1] == b"B":
            raw.send(b"P", b"\0SELECT $1\0\0\0")
        raw.socket.sendall(sent)
        error = error_fields(dict(raw.read_to(b"E"))[b"E"])
        assert (error["S"], error["C"]) == ("FATAL", "08P01")
        assert raw.has_ended


@pytest.mark.parametrize("body", [b"", b"r", b"x123", b"h", bytes(60_000)])
def test_invalid_status_updates_are_rejected(server: StandIn, body: bytes) -> None:
    with connect_walsender(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        raw.query(START.format("t"))
        raw.send(b"d", body)
        error = error_fields(raw.read_to(b"E")[-1][1])
        assert error["C"] == "08P01"
    time.sleep(0.05)


def test_random_bytes_do_not_stop_the_server(server: StandIn) -> None:
    generator = random.Random(1)
    for round_ in range(200):
        with RawClient(server) as raw:
            if round_ % 2:
                raw.startup(replication="database")
                raw.read_to(b"Z")
                tag = generator.choice([b"Q", b"P", b"B", b"D", b"E", b"C", b"d", b"p"])
                raw.send(tag, generator.randbytes(generator.randrange(60)))
                raw.send(b"S")
            else:
                raw.socket.sendall(generator.randbytes(generator.randrange(1, 60)))
            with suppress(OSError):  # the server may have closed the connection
                raw.socket.shutdown(socket.SHUT_WR)
                while raw.file.read(1 << 16):
                    pass


QUERIES = [
    "SELECT $1",
    "SELECT 1; ; SELECT 'x",
    "SELECT 99999999999999999999",
    "SELECT pg_create_logical_replication_slot('a', 'pgoutput')",
    "SELECT pg_create_logical_replication_slot(1, 'pgoutput')",
    "SELECT * FROM pg_create_logical_replication_slot('b', 'pgoutput', false, true)",
    "SELECT to_jsonb(s) FROM pg_replication_slots s",
    "SELECT pg_wal_lsn_diff('0/1', 'x'), current_setting(1), set_config(1, 2, 3)",
    "SET TIME ZONE 'x'",
    "BEGIN",
    "IDENTIFY_SYSTEM",
    "CREATE_REPLICATION_SLOT \"a\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE)",
    "DROP_REPLICATION_SLOT a",
    "ALTER_REPLICATION_SLOT a (FAILOVER)",
    START.format("a"),
    START.format("a").replace("0/0", "FFFFFFFF/FFFFFFFF").replace("'1'", "'4', streaming 'parallel'"),
    START.format("a").replace("'1'", "'99999999999999999999'").replace("'p'", "'\"'"),
]


def _conversation(generator: random.Random) -> bytes:
    """Return the bytes of random messages from a client, with random damage."""

    def message(tag: bytes) -> bytes:
        text = generator.choice(QUERIES).encode() + b"\0"
        name = generator.choice([b"\0", b"s\0"])
        update = StandbyStatusUpdate(
            written_lsn=generator.getrandbits(64),
            flushed_lsn=generator.getrandbits(64),
            applied_lsn=0,
            send_time=0,
            reply_requested=True,
        )
        body = {
            b"Q": text,
            b"P": name + text + generator.choice([b"\0\0", b"\0\1\0\0\0\x14", b"\xff\xff"]),
            b"B": name + name + generator.choice([bytes(6), b"\0\1\0\1\0\1\0\0\0\2xy\0\0"]),
            b"D": generator.choice([b"S", b"P", b"X"]) + name,
            b"E": name + generator.choice([bytes(4), b"\xff\xff\xff\xff"]),
            b"d": generator.choice([envelope.encode(update), bytes(20)]),
        }.get(tag, b"")
        return tag + struct.pack(">I", len(body) + 4) + body

    options = {"user": "me", "database": "x", "replication": generator.choice(["database", "true", "no", ""])}
    startup = b"".join(f"{name}\0{value}\0".encode() for name, value in options.items()) + b"\0"
    version = generator.choice([*[3 << 16] * 9, 3 << 16 | 2, 80877103, 80877102])
    sent = bytearray(struct.pack(">II", len(startup) + 8, version) + startup)
    for _ in range(generator.randrange(8)):
        sent += message(generator.choice([*[b"Q"] * 5, *(bytes([tag]) for tag in b"PBDESCHdcfXFp")]))
    for _ in range(generator.choice([0, 0, 1, 5])):
        place = generator.randrange(len(sent))
        sent[place : place + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
    return bytes(sent)


def test_damaged_conversations_do_not_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    generator = random.Random(2)
    with StandIn(Repeated(5)) as server:
        for _ in range(3_000):
            with RawClient(server) as raw, suppress(ConnectionError):
                raw.socket.sendall(_conversation(generator))
                raw.socket.shutdown(socket.SHUT_WR)
                while raw.file.read(1 << 16):  # a TimeoutError here means that the server hangs
                    pass
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert caplog.records == []  # asyncio logs uncaught exceptions


def test_invalid_utf_8_is_rejected(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        raw.send(b"Q", b"SET x = '\xff'\0")
        assert error_fields(raw.read_to(b"Z")[0][1])["C"] == "22021"
        assert raw.ask("SELECT 1")[1][0] == b"D"
    with RawClient(server) as raw:
        body = struct.pack(">I", 3 << 16) + b"user\0\xff\0\0"
        raw.socket.sendall(struct.pack(">I", len(body) + 4) + body)
        error = error_fields(raw.read()[1])
        assert (error["S"], error["C"]) == ("FATAL", "22021")


def test_two_hundred_clients_stream_at_a_time() -> None:
    stream = Repeated(10)
    with StandIn(stream) as server, ExitStack() as stack:
        clients = [stack.enter_context(connect_walsender(server)) for _ in range(200)]
        for number, one in enumerate(clients):
            one.ask(CREATE.format(f"s{number}"))
            one.query(START.format(f"s{number}"))
        for one in clients:
            one.read()
            assert [envelope.decode(one.read()[1]).data for _ in stream.payloads()] == stream.payloads()  # type: ignore[union-attr]
        with psycopg.connect(server.dsn) as connection:
            query = "SELECT count(*) FROM pg_stat_replication"
            assert connection.execute(query).fetchone() == (200,)


def test_connections_and_slots_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.standin.server._MAX_CONNECTIONS", 1)
    monkeypatch.setattr("logicalrep.standin.slots.MAX_SLOTS", 1)
    with StandIn(Repeated(1)) as server, connect_walsender(server) as raw, RawClient(server) as other:
        assert error_fields(other.read()[1])["C"] == "53300"
        raw.ask(CREATE.format("a"))
        assert error_fields(raw.ask(CREATE.format("b"))[0][1])["C"] == "53400"


def test_a_query_of_thousands_of_statements_does_not_block_others(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        raw.query("SELECT 1;" * 5_000)
        raw.read()
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        raw.socket.settimeout(0.01)
        with pytest.raises(TimeoutError):  # the query is still being executed
            raw.read_to(b"Z")


def test_incomplete_messages_on_a_hundred_connections_do_not_block_others(server: StandIn) -> None:
    halves = [RawClient(server) for _ in range(50)]
    for half in halves:
        half.socket.sendall(struct.pack(">II", 100, 3 << 16))
    rest = [connect_walsender(server) for _ in range(50)]
    for one in rest:
        one.socket.sendall(b"Q\0\0\0\x20SEL")
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    for one in halves + rest:
        one.file.close()
        one.socket.close()


def test_clients_that_do_not_read_do_not_block_others(server: StandIn) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stalled = [connect_walsender(server) for _ in range(4)]
    for number, one in enumerate(stalled):
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.ask(CREATE.format(f"stalled{number}"))
        one.query(START.format(f"stalled{number}"))
        for _ in range(1000):  # and requests more and more replies
            one.send(
                b"d",
                envelope.encode(
                    StandbyStatusUpdate(
                        written_lsn=1, flushed_lsn=1, applied_lsn=1, send_time=0, reply_requested=True
                    )
                ),
            )
    with connect_walsender(server) as raw:
        raw.ask(CREATE.format("reading"))
        raw.query(START.format("reading"))
        raw.read()
        count = 0
        while isinstance(envelope.decode(raw.read()[1]), XLogData):
            count += 1
        assert count == 300_001
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 60_000  # KB; each stream has 17 MB, and the rows are encoded once
    for one in stalled:
        one.file.close()
        one.socket.close()


class StuckStream(Repeated):
    """Stream factory that blocks after its last message and then raises an error, like a failing disk."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go = threading.Event()

    def stream(self, *, after_lsn: int = 0, **options: object) -> Iterator[XLogData]:
        yield from self._stream(after_lsn)
        self.go.wait(10)
        raise RuntimeError("the disk is gone")


def test_a_blocked_source_does_not_block_others_and_a_failed_one_ends_only_its_stream() -> None:
    stuck = StuckStream()
    with StandIn(stuck) as server, connect_walsender(server) as raw:
        raw.ask(CREATE.format("a"))
        raw.query(START.format("a"))
        raw.read()
        for _ in range(101):
            assert isinstance(envelope.decode(raw.read()[1]), XLogData)  # available messages are sent at once
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        stuck.go.set()
        error = error_fields(raw.read_to(b"Z")[-2][1])
        assert (error["C"], error["S"]) == ("XX000", "ERROR")
        assert "the disk is gone" in error["M"]
        assert raw.ask("IDENTIFY_SYSTEM")[0][0] == b"T"


def test_clients_are_sent_an_error_when_the_server_shuts_down() -> None:
    with StandIn(Repeated(1)) as server:
        raw = connect_walsender(server)
    assert error_fields(raw.read()[1])["C"] == "57P01"
    assert raw.has_ended
    raw.file.close()
    raw.socket.close()
