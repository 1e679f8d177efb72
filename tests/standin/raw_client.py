"""Client of the frontend/backend protocol that sends and receives raw messages."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

from logicalrep.standin import StandIn

Message = tuple[bytes, bytes]


class RawClient:
    """A connection to a stand-in server for raw protocol messages. Use as a context manager."""

    def __init__(self, server: StandIn) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        self.socket.close()

    def startup(self, *, version: int = 3 << 16, **options: str) -> None:
        options = {"user": "postgres", "database": "postgres"} | options
        body = b"".join(f"{name}\0{value}\0".encode() for name, value in options.items()) + b"\0"
        self.socket.sendall(struct.pack(">II", len(body) + 8, version) + body)

    def send(self, tag: bytes, body: bytes = b"") -> None:
        self.socket.sendall(tag + struct.pack(">I", len(body) + 4) + body)

    def query(self, text: str) -> None:
        self.send(b"Q", text.encode() + b"\0")

    def read(self) -> Message:
        head = self.file.read(5)
        assert len(head) == 5, "the connection has ended"
        tag, length = struct.unpack(">cI", head)
        return tag, self.file.read(length - 4)

    def read_to(self, tag: bytes) -> list[Message]:
        """Return the next messages, up to and including the next message with this tag."""
        messages = [self.read()]
        while messages[-1][0] != tag:
            messages.append(self.read())
        return messages

    def ask(self, text: str) -> list[Message]:
        """Send a simple query and return the messages of the response."""
        self.query(text)
        return self.read_to(b"Z")

    @property
    def has_ended(self) -> bool:
        return self.file.read(1) == b""


def connect_walsender(server: StandIn) -> RawClient:
    """Return a new connection with replication=database that is ready for queries."""
    raw = RawClient(server)
    raw.startup(replication="database")
    raw.read_to(b"Z")
    return raw


def error_fields(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse message by field code, such as C for the SQLSTATE."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
