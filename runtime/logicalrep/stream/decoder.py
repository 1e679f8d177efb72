"""Stateful decoder of one connection's messages, which tracks stream blocks, relations and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from logicalrep import _protocols
from logicalrep._roles import ROLES
from logicalrep._walk import Piece, walk
from logicalrep.errors import DecodeError, StreamError
from logicalrep.messages import AnyMessage, Message, Relation, Streaming, Type
from logicalrep.versions import CODECS, OPTIONS
from logicalrep.wire import Buffer


class StreamDecoder:
    """Decodes the messages of one connection, in stream order.

    Attributes:
        proto_version: Protocol version.
        streaming: Value of the option `streaming`.
        in_stream: Whether a stream block is open (in_streamed_transaction in worker.c).
        relations: Last Relation message of each relation, by OID. A Relation message describes the
            changes that follow.
        types: Last Type message of each type, by OID.

    Args:
        proto_version: Protocol version that the client requested.
        streaming: Option `streaming` that the client requested.
        two_phase: Whether to accept two-phase commit messages if the protocol version does not define them.
            Servers send them if the slot was created with two_phase.

    Raises:
        ValueError: The protocol version is unknown, or does not support `streaming`.
    """

    def __init__(self, proto_version: int, *, streaming: Streaming = "off", two_phase: bool = False) -> None:
        if proto_version not in CODECS:
            raise ValueError(
                f"there is no protocol version {proto_version!r}; there are {', '.join(map(str, CODECS))}"
            )
        if streaming not in OPTIONS["streaming"]:
            raise ValueError(f"streaming is one of {', '.join(OPTIONS['streaming'])}, not {streaming!r}")
        needed = OPTIONS["streaming"][streaming].proto_version
        if proto_version < needed:
            raise ValueError(f"streaming = {streaming} needs protocol version {needed}, not {proto_version}")
        self.in_stream: bool = False
        self.relations: dict[int, Relation] = {}
        self.types: dict[int, Type] = {}
        self.streaming: Streaming = streaming
        self._codec = CODECS[proto_version]
        self.proto_version = proto_version
        foreign = _protocols.VERSIONS[proto_version].foreign if two_phase else ()
        self._foreign_version_by_tag = {ord(message.tag): message.since for message in foreign}
        handlers: Mapping[str, Callable[[Any], None]] = {
            "open_block": self._open_block,
            "close_block": self._close_block,
            "relation": self._remember_relation,
            "type": self._remember_type,
        }
        known = _protocols.VERSIONS[proto_version].by_name
        self._openers = {kind.__name__ for kind, role in ROLES.items() if role == "open_block"} & known.keys()
        self._handlers = {kind: handlers[role] for kind, role in ROLES.items() if role in handlers}

    def decode(self, data: Buffer) -> AnyMessage:
        """Decode the next message of the stream.

        Raises:
            DecodeError: The bytes are not a valid message at this point of the stream. The decoder's state is
                unchanged, except that a damaged Stream Start opens a stream block too.
            TypeError: `data` is not bytes-like.
        """
        codec = CODECS[self._version_for(data)] if self._foreign_version_by_tag else self._codec
        try:
            message = codec.decode(data, self.in_stream, self.streaming)
        except DecodeError as error:
            self.in_stream |= error.message in self._openers
            raise
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)
        return message

    @cached_property
    def versions_by_tag(self) -> bytes:
        """Protocol versions used to decode messages, indexed by the first byte (tag); 0 for unknown tags."""
        own = dict.fromkeys(_protocols.VERSIONS[self.proto_version].by_tag, self.proto_version)
        versions = self._foreign_version_by_tag | own
        return bytes(versions.get(tag, 0) for tag in range(256))

    def walk(self, data: bytes) -> Iterator[Piece]:
        """Yield the fields of the next message as `decode` would read them. The decoder's state is unchanged.

        Raises:
            DecodeError: The bytes are not a valid message at this point of the stream.
        """
        return walk(_protocols.VERSIONS[self._version_for(data)], data, self.in_stream, self.streaming)

    def _version_for(self, data: Buffer) -> int:
        raw = (
            data if isinstance(data, bytes) else bytes(memoryview(data))
        )  # an item of a memoryview may have several bytes
        return self._foreign_version_by_tag.get(raw[0], self.proto_version) if raw else self.proto_version

    def _open_block(self, message: Message) -> None:
        if self.in_stream:
            raise StreamError.at(message, "a stream block is open already, and blocks do not nest")
        self.in_stream = True

    def _close_block(self, message: Message) -> None:
        if not self.in_stream:
            raise StreamError.at(message, "no stream block is open")
        self.in_stream = False

    def _remember_relation(self, message: Relation) -> None:
        self.relations[message.oid] = message

    def _remember_type(self, message: Type) -> None:
        self.types[message.oid] = message
