"""Whatever comes, the stand-in goes on, for everybody else."""

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

from pgoutput import envelope
from pgoutput.messages import StandbyStatusUpdate, XLogData
from pgoutput.standin import StandIn
from tests.standin.raw import Raw, fields, replication
from tests.standin.streams import Repeated

START = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT"


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn(Repeated(3_000)) as server:
        yield server
        with psycopg.connect(server.dsn) as connection:  # after all that
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack(">I", 10_001),
        struct.pack(">I", 7),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS without having asked
    ],
)
def test_what_is_no_startup_packet(server: StandIn, sent: bytes) -> None:
    with Raw(server) as raw:
        raw.socket.sendall(sent)
        tag, body = raw.read()
        assert (tag, fields(body)["M"]) == (b"E", "invalid length of startup packet")
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
def test_what_is_no_message(server: StandIn, sent: bytes) -> None:
    with replication(server) as raw:
        if sent[:1] == b"B":
            raw.send(b"P", b"\0SELECT $1\0\0\0")
        raw.socket.sendall(sent)
        error = fields(dict(raw.read_to(b"E"))[b"E"])
        assert (error["S"], error["C"]) == ("FATAL", "08P01")
        assert raw.has_ended


@pytest.mark.parametrize("body", [b"", b"r", b"x123", b"h", bytes(60_000)])
def test_what_is_no_answer_to_a_stream(server: StandIn, body: bytes) -> None:
    with replication(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        raw.query(START.format("t"))
        raw.send(b"d", body)
        error = fields(raw.read_to(b"E")[-1][1])
        assert error["C"] == "08P01"
    time.sleep(0.05)


def test_random_bytes(server: StandIn) -> None:
    generator = random.Random(1)
    for round_ in range(200):
        with Raw(server) as raw:
            if round_ % 2:
                raw.startup(replication="database")
                raw.read_to(b"Z")
                tag = generator.choice([b"Q", b"P", b"B", b"D", b"E", b"C", b"d", b"p"])
                raw.send(tag, generator.randbytes(generator.randrange(60)))
                raw.send(b"S")
            else:
                raw.socket.sendall(generator.randbytes(generator.randrange(1, 60)))
            with suppress(OSError):  # it may have been hung up on already
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
    """What a client may say, somewhat damaged."""

    def message(tag: bytes) -> bytes:
        text = generator.choice(QUERIES).encode() + b"\0"
        name = generator.choice([b"\0", b"s\0"])
        update = StandbyStatusUpdate(generator.getrandbits(64), generator.getrandbits(64), 0, 0, True)
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
    said = bytearray(struct.pack(">II", len(startup) + 8, version) + startup)
    for _ in range(generator.randrange(8)):
        said += message(generator.choice([*[b"Q"] * 5, *(bytes([tag]) for tag in b"PBDESCHdcfXFp")]))
    for _ in range(generator.choice([0, 0, 1, 5])):
        place = generator.randrange(len(said))
        said[place : place + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
    return bytes(said)


def test_damaged_conversations(caplog: pytest.LogCaptureFixture) -> None:
    generator = random.Random(2)
    with StandIn(Repeated(5)) as server:
        for _ in range(3_000):
            with Raw(server) as raw, suppress(ConnectionError):
                raw.socket.sendall(_conversation(generator))
                raw.socket.shutdown(socket.SHUT_WR)
                while raw.file.read(1 << 16):  # TimeoutError: it hangs
                    pass
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert caplog.records == []  # asyncio logs what nobody has caught


def test_text_that_is_not_utf_8(server: StandIn) -> None:
    with Raw(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        raw.send(b"Q", b"SET x = '\xff'\0")
        assert fields(raw.read_to(b"Z")[0][1])["C"] == "22021"
        assert raw.ask("SELECT 1")[1][0] == b"D"
    with Raw(server) as raw:
        body = struct.pack(">I", 3 << 16) + b"user\0\xff\0\0"
        raw.socket.sendall(struct.pack(">I", len(body) + 4) + body)
        error = fields(raw.read()[1])
        assert (error["S"], error["C"]) == ("FATAL", "22021")


def test_two_hundred_clients_at_a_time() -> None:
    stream = Repeated(10)
    with StandIn(stream) as server, ExitStack() as stack:
        clients = [stack.enter_context(replication(server)) for _ in range(200)]
        for number, one in enumerate(clients):
            one.ask(CREATE.format(f"s{number}"))
            one.query(START.format(f"s{number}"))
        for one in clients:
            one.read()
            assert [envelope.decode(one.read()[1]).data for _ in stream.payloads()] == stream.payloads()  # type: ignore[union-attr]
        with psycopg.connect(server.dsn) as connection:
            query = "SELECT count(*) FROM pg_stat_replication"
            assert connection.execute(query).fetchone() == (200,)


def test_there_is_an_end_to_clients_and_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgoutput.standin.server._CONNECTIONS", 1)
    monkeypatch.setattr("pgoutput.standin.slots.MAX_SLOTS", 1)
    with StandIn(Repeated(1)) as server, replication(server) as raw, Raw(server) as other:
        assert fields(other.read()[1])["C"] == "53300"
        raw.ask(CREATE.format("a"))
        assert fields(raw.ask(CREATE.format("b"))[0][1])["C"] == "53400"


def test_thousands_of_statements_let_others_speak(server: StandIn) -> None:
    with Raw(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        raw.query("SELECT 1;" * 5_000)
        raw.read()
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        raw.socket.settimeout(0.01)
        with pytest.raises(TimeoutError):  # it is still at work
            raw.read_to(b"Z")


def test_half_a_message_and_silence_and_a_hundred_connections(server: StandIn) -> None:
    halves = [Raw(server) for _ in range(50)]
    for half in halves:
        half.socket.sendall(struct.pack(">II", 100, 3 << 16))
    rest = [replication(server) for _ in range(50)]
    for one in rest:
        one.socket.sendall(b"Q\0\0\0\x20SEL")
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    for one in halves + rest:
        one.file.close()
        one.socket.close()


def test_a_client_that_does_not_read_hurts_nobody(server: StandIn) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    deaf = [replication(server) for _ in range(4)]
    for number, one in enumerate(deaf):
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.ask(CREATE.format(f"deaf{number}"))
        one.query(START.format(f"deaf{number}"))
        for _ in range(1000):  # and asks for more and more
            one.send(b"d", envelope.encode(StandbyStatusUpdate(1, 1, 1, 0, True)))
    with replication(server) as raw:
        raw.ask(CREATE.format("heard"))
        raw.query(START.format("heard"))
        raw.read()
        count = 0
        while isinstance(envelope.decode(raw.read()[1]), XLogData):
            count += 1
        assert count == 300_001
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 60_000  # KB; each stream is 17 MB, and the rows are made once
    for one in deaf:
        one.file.close()
        one.socket.close()


class Stuck(Repeated):
    """A source that waits for something, as one on a slow disk."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go = threading.Event()

    def stream(self, *, after_lsn: int = 0, **options: object) -> Iterator[XLogData]:
        yield from self._stream(after_lsn)
        self.go.wait(10)
        raise RuntimeError("the disk is gone")


def test_a_source_that_waits_hurts_nobody_and_one_that_fails_ends_its_stream_only() -> None:
    stuck = Stuck()
    with StandIn(stuck) as server, replication(server) as raw:
        raw.ask(CREATE.format("a"))
        raw.query(START.format("a"))
        raw.read()
        for _ in range(101):
            assert isinstance(envelope.decode(raw.read()[1]), XLogData)  # what there is comes at once
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        stuck.go.set()
        error = fields(raw.read_to(b"Z")[-2][1])
        assert (error["C"], error["S"]) == ("XX000", "ERROR")
        assert "the disk is gone" in error["M"]
        assert raw.ask("IDENTIFY_SYSTEM")[0][0] == b"T"


def test_clients_are_told_when_the_stand_in_ends() -> None:
    with StandIn(Repeated(1)) as server:
        raw = replication(server)
    assert fields(raw.read()[1])["C"] == "57P01"
    assert raw.has_ended
    raw.file.close()
    raw.socket.close()
