"""The JSON objects of a kit of test vectors, and of the conversation with a decoder."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from pgoutput.messages import Streaming

FORMAT: Final = 1
"""Version of the format of kits, requests and answers."""

Json = dict[str, Any]
"""A JSON object; messages are written as `pgoutput.jsonlines` writes them."""

Kind = Literal["truncated", "trailing", "tag", "value", "size", "version", "context"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of START_REPLICATION under which a server sends the messages of a vector."""

    streaming: Streaming = "off"
    two_phase: bool = False
    """Whether the slot sends transactions at PREPARE TRANSACTION; possible in every protocol version."""
    binary: bool = False
    """Whether some values are in binary format."""
    messages: bool = False
    """Whether the stream has logical messages."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the last message of a vector is illegal."""

    kind: Kind
    """`truncated`: the message ends early. `trailing`: bytes follow its end. `tag`: an unknown tag of a
    message, tuple or cell. `value`: an invalid value of a field. `size`: a count or length is too large, or
    too small. `version`: the protocol version lacks the message. `context`: the message is legal in another
    context only, such as inside a stream block."""
    text: str
    """Reason, as text for people; not compared."""
    message: str | None = None
    """Name of the message; None if the tag is unknown."""
    field: str | None = None
    """Path of the invalid field, such as `new[0].length`; None for the whole message."""
    offset: int = 0
    """Offset of the invalid field from the start of the message, in bytes."""


class Committed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A committed transaction of a stream."""

    xid: int
    commit_lsn: str
    """LSN of the commit record, such as `16/B374D848`."""
    gid: str | None = None
    """Global identifier, if the transaction was prepared."""


class Vector(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A test case for a decoder: bytes, and what they mean."""

    id: str
    """Name of the vector, unique in the kit, such as `v2/on/block/Insert/new=null`."""
    group: str
    """What the vector tests, such as `binary`. `pgoutput vectors run` counts results by group."""
    version: int | None
    """Protocol version; None for messages of the streaming replication protocol (XLogData, …)."""
    options: Options
    messages: list[str]
    """Messages of one connection in stream order, in hex. A decoder begins each vector without state."""
    legal: bool
    """Whether all messages are legal. If false, all messages except the last one are legal."""
    expected: list[Json]
    """The legal messages as JSON objects."""
    fault: Fault | None = None
    """Why the last message is illegal; None if it is legal."""
    transactions: list[Committed] | None = None
    """Transactions that the stream commits, in commit order; None if the messages are not a whole stream."""
    tables: dict[str, list[Json]] | None = None
    """Rows of all tables after the last message, by table name with schema: text by column name, in no
    particular order. None if unknown, as in streams with values in binary format."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a decoder reads from standard input."""

    id: str
    version: int | None
    options: Options
    messages: list[str]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that a decoder writes to standard output, for each request.

    Keys that are missing in an object of the answer are not compared.
    """

    id: str
    messages: list[Json] | None = None
    """The decoded messages, up to the first illegal one."""
    error: Json | None = None
    """Why the decoder refused a message, with keys as in `Fault`; None if it refused none."""
    skip: str | None = None
    """Reason why the decoder does not support the request, such as `version 2`."""
    transactions: list[Json] | None = None
    tables: dict[str, list[Json]] | None = None


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a kit."""

    path: str
    vectors: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The file manifest.json of a kit."""

    format: int
    """Version of the kit's format."""
    pgoutput: str
    """Version of pgoutput that wrote the kit."""
    spec: str
    """SHA-256 of the layouts of all messages."""
    seed: int
    """Seed of the scenarios."""
    vectors: int
    legal: int
    illegal: int
    groups: dict[str, int]
    """Number of vectors by group."""
    files: list[File]
