"""The JSON objects of a kit of test vectors, and the requests to and answers of a decoder."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from logicalrep.messages import Streaming

FORMAT: Final = 1
"""Version of the format of kits, requests and answers."""

Json = dict[str, Any]
"""A JSON object. Messages have the form of `logicalrep.jsonlines`."""

Kind = Literal["truncated", "trailing", "tag", "value", "size", "version", "context"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of START_REPLICATION with which a server sends the messages of a vector."""

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
    """`truncated`: the message ends early. `trailing`: extra bytes follow the message. `tag`: the tag of a
    message, tuple or cell is unknown. `value`: the value of a field is invalid. `size`: a count or length is
    too large or too small. `version`: the protocol version lacks the message. `context`: the message is legal
    only in another context, such as inside a stream block."""
    text: str
    """Description of the fault for people. It is not compared with answers."""
    message: str | None = None
    """Name of the message; None if the tag is unknown."""
    field: str | None = None
    """Path of the invalid field, such as `new[0].length`; None if the fault is not in a field."""
    offset: int = 0
    """Byte offset of the fault from the start of the message."""


class Committed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transaction that the stream of a vector commits."""

    xid: int
    commit_lsn: str
    """LSN of the commit record, such as `16/B374D848`."""
    gid: str | None = None
    """Global identifier of a prepared transaction; None for other transactions."""


class Vector(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A test case for a decoder: bytes, and what they mean."""

    id: str
    """Name of the vector, unique in the kit, such as `v2/on/block/Insert/new=null`."""
    group: str
    """What the vector tests, such as `binary`. `logicalrep vectors run` counts results by group."""
    version: int | None
    """Protocol version; None for messages of the streaming replication protocol (XLogData, …)."""
    options: Options
    messages: list[str]
    """Encoded messages of one connection, in hex. A decoder must start each vector without state."""
    legal: bool
    """Whether all messages are legal. If false, all messages except the last one are legal."""
    expected: list[Json]
    """The legal messages as JSON objects."""
    fault: Fault | None = None
    """Why the last message is illegal; None if it is legal."""
    transactions: list[Committed] | None = None
    """Transactions that the stream commits, in commit order; None if the messages are not a whole stream."""
    tables: dict[str, list[Json]] | None = None
    """Rows of all tables after the last message, in any order, by table name with schema. A row is an object
    with values in text format by column name. None if unknown, as in streams with values in binary format."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request: a JSON line that a decoder reads from standard input."""

    id: str
    version: int | None
    options: Options
    messages: list[str]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer: a JSON line that a decoder writes to standard output for each request.

    Keys that are missing in an object of the answer are not compared (unless the level is `exact`).
    """

    id: str
    messages: list[Json] | None = None
    """The decoded messages that precede the first illegal message."""
    error: Json | None = None
    """Why the decoder refused a message, with the keys of `Fault`; None if all messages were accepted."""
    skip: str | None = None
    """Reason why the decoder does not support the request, such as `version 2`; None if it does."""
    transactions: list[Json] | None = None
    tables: dict[str, list[Json]] | None = None


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file with vectors of a kit."""

    path: str
    vectors: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The file manifest.json of a kit."""

    format: int
    """Version of the kit's format."""
    logicalrep: str
    """Version of logicalrep that wrote the kit."""
    spec: str
    """SHA-256 of the layouts of all messages, in hex."""
    seed: int
    """Seed of the scenarios."""
    vectors: int
    legal: int
    illegal: int
    groups: dict[str, int]
    """Numbers of vectors, by group."""
    files: list[File]
