"""Vectors of single legal messages: each message in each version and context, with boundary values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from logicalrep import _protocols, envelope
from logicalrep._build import fitted
from logicalrep._layout import Field, Message, Protocol
from logicalrep._roles import CHANGES, ROW_FIELDS, meaning_of, tuples
from logicalrep._walk import applies
from logicalrep.errors import EncodeError
from logicalrep.jsonlines import to_json
from logicalrep.messages import (
    AnyMessage,
    ColumnFlag,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Streaming,
)
from logicalrep.stream import encode_for
from logicalrep.vectors.boundaries import EXTREME, choices
from logicalrep.vectors.model import Options, Vector
from logicalrep.versions import LATEST_RELEASED, OPTIONS

VERSIONS: Final = tuple(version for version in _protocols.VERSIONS if version <= LATEST_RELEASED)
"""The released protocol versions."""

_TEXT_OID: Final = 25
_LONG_TEXT: Final = "y" * 65_536
_WIRE_ONLY: Final = ("count", "length", "literal")
_IN_BLOCK: Final = ("origin", "close_block")
"""Roles of messages that occur in stream blocks but have no field that only stream blocks contain."""


class Context(NamedTuple):
    """The state in which a message is decoded: protocol version, option `streaming`, stream block or not."""

    version: int
    streaming: Streaming
    in_stream: bool

    @property
    def name(self) -> str:
        """Name of the context in the ids of vectors, such as `v2/on/block`."""
        return f"v{self.version}/{self.streaming}{'/block' * self.in_stream}"

    def has(self, layout: Message) -> bool:
        """Return whether a server can send the message with the layout `layout` in this context."""
        role = str(layout.role)
        if self.in_stream:
            return role in _IN_BLOCK or any(field.when == "in_stream" for field in layout.fields)
        if role == "close_block":
            return False
        return self.streaming != "off" or not (layout.option == "streaming" or role.endswith("_streamed"))

    def form(self, layout: Message) -> tuple[str, ...]:
        """Return the names of the fields that the message with the layout `layout` has in this context."""
        return tuple(f.name for f in layout.fields if applies(f, self.in_stream, self.streaming))


class Sample(NamedTuple):
    """A legal message, and the messages before it in the same vector."""

    name: str
    layout: Message
    before: list[Any]
    message: Any

    def options(self, streaming: Streaming) -> Options:
        """Return the options of START_REPLICATION with which a server sends the message."""
        return Options(
            streaming=streaming,
            two_phase=self.layout.option == "two_phase",
            messages=self.layout.option == "messages",
            binary=any(isinstance(cell, bytes) for _, cells in tuples(self.message) for cell in cells),
        )


def contexts() -> Iterator[Context]:
    """Yield each `Context` (version, option `streaming`, stream block or not) of the released versions."""
    for version in VERSIONS:
        for value, need in OPTIONS["streaming"].items():
            if need.proto_version <= version:
                streaming: Streaming = value  # type: ignore[assignment]
                yield Context(version, streaming, False)
                if streaming != "off":
                    yield Context(version, streaming, True)


def message_vectors() -> Iterator[Vector]:
    """Yield the vectors of the messages of all protocol versions.

    If a message has the same fields in several contexts of a protocol version, only the first of these
    contexts has vectors of all boundary values. Each of the other contexts has the usual message, and one
    message with each optional tuple.
    """
    for context, sample in samples():
        streaming, version = context.streaming, context.version
        sent = [*sample.before, sample.message]
        yield Vector(
            id=f"{context.name}/{sample.layout.name}/{sample.name}",
            group=_group(context, sample),
            version=version,
            options=sample.options(streaming),
            messages=[encode_for(one, version).hex() for one in sent],
            legal=True,
            expected=[to_json(one) for one in sent],
        )


def samples() -> Iterator[tuple[Context, Sample]]:
    """Yield each legal message as (context, sample), for each context in which a server can send it.

    A context is a protocol version and a value of the option `streaming`, inside or outside stream blocks.
    """
    seen: set[tuple[object, ...]] = set()
    for context in contexts():
        protocol = _protocols.VERSIONS[context.version]
        for layout in (*protocol.messages, *protocol.foreign):
            if not context.has(layout):
                continue
            form = (context.version, layout.name, *context.form(layout))
            for name, message in _messages(layout, context, every=form not in seen):
                if _fits(message, context.version):
                    yield context, Sample(name, layout, _before(protocol, layout, context, message), message)
            seen.add(form)


def _fits(message: Any, version: int) -> bool:
    """Return whether a message can be encoded: one byte cannot hold every count and length."""
    try:
        encode_for(message, version)
    except EncodeError as error:
        if "fit into" in str(error):
            return False
        raise
    return True


def envelope_vectors() -> Iterator[Vector]:
    """Yield the vectors of the messages of the streaming replication protocol."""
    for layout in _protocols.ENVELOPE.messages:
        for name, message in _messages(layout, Context(0, "off", False), every=True):
            yield Vector(
                id=f"envelope/{layout.name}/{name}",
                group="envelopes",
                version=None,
                options=Options(),
                messages=[envelope.encode(message).hex()],
                legal=True,
                expected=[to_json(message)],
            )


def _group(context: Context, sample: Sample) -> str:
    layout, options = sample.layout, sample.options(context.streaming)
    if sample.name.endswith("not-utf-8"):
        return "not UTF-8"
    if f"={EXTREME}" in sample.name:
        return "extreme values"
    if options.two_phase:
        return "two-phase commit"
    if context.in_stream or not Context(context.version, "off", False).has(layout):
        return "stream blocks"
    if options.binary:
        return "binary"
    return "logical messages" if options.messages else "messages"


def _messages(layout: Message, context: Context, *, every: bool) -> Iterator[tuple[str, Any]]:
    """Yield (name, message): a message with usual values, then messages in which one value differs.

    Args:
        layout: The layout of the messages.
        context: The context of the messages.
        every: Whether to yield a message for each boundary value of each field. Otherwise, after the usual
            message, yield only one message for each tuple that the usual message lacks.
    """
    kind = _protocols.CLASSES[layout.name]
    fields = [f for f in layout.fields if applies(f, context.in_stream, context.streaming)]
    usual: dict[str, Any] = {}
    for field in fields:
        if field.kind == "choice" and not field.optional:
            usual[field.fields[0].name] = _first(field.fields[0])
        elif field.kind not in ("choice", *_WIRE_ONLY):
            usual[field.name] = _first(field)
    yield "usual", kind(**usual)
    greatest = {field.of: (1 << 8 * field.size) - 1 for field in fields if field.of}
    for field in fields:
        sides = field.fields if field.kind == "choice" else (field,)
        others = {name: value for name, value in usual.items() if name not in {one.name for one in sides}}
        for side in sides if field.kind not in _WIRE_ONLY else ():
            for name, value in choices(side):
                fits = side.name not in greatest or len(value) <= greatest[side.name]
                if fits and usual.get(side.name) != value:
                    yield f"{side.name}={name}", kind(**others, **{side.name: value})
                if not every:
                    break
    if layout.role == "insert" and every and context.streaming == "off":
        ((name, is_list),) = ROW_FIELDS[kind]
        row = ("1", _LONG_TEXT)
        yield f"{name}=text-64k", kind(**usual | {name: (row,) if is_list else row})


def _first(field: Field) -> Any:
    return next(choices(field))[1]


def _before(protocol: Protocol, layout: Message, context: Context, message: AnyMessage) -> list[Any]:
    """Return the messages that a decoder may need before `message`.

    These are the message that opens the transaction or stream block, and Relation messages.
    """
    role = str(layout.role)
    xid = getattr(message, "xid", None) if context.in_stream else None
    opener = None
    if context.in_stream:
        opener = "open_block"
    elif role == "prepare":
        opener = "begin_prepare"
    elif role in (*CHANGES, "relation", "type", "origin", "commit"):
        opener = "begin"
    sent: list[Any] = []
    if opener is not None:
        (opening,) = (one for one in (*protocol.messages, *protocol.foreign) if one.role == opener)
        sent.append(next(_messages(opening, context, every=False))[1])
    oid = meaning_of(message, "relation")
    oids = [oid] if oid is not None else list(meaning_of(message, "relations") or ())
    return sent + [fitted(_relation(one, xid, message), context.version) for one in oids]


def _relation(oid: int, xid: int | None, message: AnyMessage) -> Relation:
    """Return a Relation message for the relation that `message` changes; all columns have the type text."""
    rows = dict(tuples(message))
    cells = next(iter(rows.values()), ("1", ""))
    key = rows.get("key")
    columns = tuple(
        RelationColumn(
            flags=ColumnFlag(i == 0 or "old" in rows or (key is not None and key[i] is not None)),
            name=f"c{i}",
            type_oid=_TEXT_OID,
            type_modifier=-1,
        )
        for i in range(len(cells))
    )
    identity = ReplicaIdentity.FULL if "old" in rows else ReplicaIdentity.DEFAULT
    return Relation(
        oid=oid, namespace="public", name="t", replica_identity=identity, columns=columns, xid=xid
    )
