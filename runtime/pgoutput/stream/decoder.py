"""Messages in their context: open blocks, known relations and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from pgoutput import _protocols
from pgoutput._walk import Piece, walk
from pgoutput.errors import StreamError
from pgoutput.messages import AnyMessage, Message, Relation, Streaming, StreamStart, StreamStop, Type
from pgoutput.versions import CODECS, OPTIONS
from pgoutput.wire import Buffer


class StreamDecoder:
    """Decodes the messages of one connection, in their order.

    Attributes:
        proto_version: The protocol version.
        streaming: The option `streaming`.
        in_stream: Whether a stream block is open (LogicalRepApplyLoop's in_streamed_transaction).
        relations: The last Relation message of each OID. It holds for the changes that follow it.
        types: The last Type message of each OID.

    Args:
        proto_version: The protocol version that the client asked for.
        streaming: The option `streaming` that the client asked for.
        two_phase: Also read the messages of two-phase commit on a stream of a version that does not have
            them. Servers send them there if the slot has its two_phase flag set.

    Raises:
        ValueError: There is no such version, or it is too old for this `streaming`.
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
        self.in_stream = False
        self.relations: dict[int, Relation] = {}
        self.types: dict[int, Type] = {}
        self.streaming: Streaming = streaming
        self._codec = CODECS[proto_version]
        self.proto_version = proto_version
        foreign = _protocols.VERSIONS[proto_version].foreign if two_phase else ()
        self._version_of_tag = {ord(message.tag): message.since for message in foreign}
        self._effects: Mapping[type[Message], Callable[[Any], None]] = {
            StreamStart: self._enter,
            StreamStop: self._leave,
            Relation: self._remember_relation,
            Type: self._remember_type,
        }

    def decode(self, data: Buffer) -> AnyMessage:
        """Decode the next message of the stream.

        Raises:
            DecodeError: The bytes are not a message of this stream. The state is as it was before.
            TypeError: `data` is not bytes-like.
        """
        codec = CODECS[self._version_for(data)] if self._version_of_tag else self._codec
        message = codec.decode(data, self.in_stream, self.streaming)
        effect = self._effects.get(type(message))
        if effect is not None:
            effect(message)
        return message

    @cached_property
    def versions_of_tags(self) -> bytes:
        """By first byte, the protocol version that such a message is read by; 0 where there is none."""
        own = dict.fromkeys(_protocols.VERSIONS[self.proto_version].by_tag, self.proto_version)
        versions = self._version_of_tag | own
        return bytes(versions.get(tag, 0) for tag in range(256))

    def walk(self, data: bytes) -> Iterator[Piece]:
        """The pieces of the next message, field by field. The state stays as it is.

        Raises:
            DecodeError: The bytes are not a message of this stream.
        """
        return walk(_protocols.VERSIONS[self._version_for(data)], data, self.in_stream, self.streaming)

    def _version_for(self, data: Buffer) -> int:
        raw = data if isinstance(data, bytes) else bytes(memoryview(data))  # items may be wider
        return self._version_of_tag.get(raw[0], self.proto_version) if raw else self.proto_version

    def _enter(self, message: StreamStart) -> None:
        if self.in_stream:
            raise StreamError.at(message, "a stream block is open already, and blocks do not nest")
        self.in_stream = True

    def _leave(self, message: StreamStop) -> None:
        if not self.in_stream:
            raise StreamError.at(message, "no stream block is open")
        self.in_stream = False

    def _remember_relation(self, message: Relation) -> None:
        self.relations[message.oid] = message

    def _remember_type(self, message: Type) -> None:
        self.types[message.oid] = message
