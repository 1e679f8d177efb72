"""Example streams: one valid stream for each protocol version, with every message that the version has.

The messages are made from the roles and meanings in the spec, so a new field or version needs no new example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from codegen.model import Gate, Spec
from codegen.resolve import Cell, Field, MessageView, View
from codegen.roles import Role

_RELATION, _TYPE = 16385, 16390
_COLUMNS: tuple[Mapping[str, Any], ...] = (
    {"flags": 1, "name": "id", "type_oid": 23, "type_modifier": -1},
    {"flags": 0, "name": "email", "type_oid": 25, "type_modifier": -1},
    {"flags": 0, "name": "mood", "type_oid": _TYPE, "type_modifier": -1},
)
_NAMES: Mapping[str, str] = {"relation": "account", "type": "mood", "origin": "node_b"}
_ROW = ("7", "ada@example.org", None)
_TEXTS: Mapping[str, str] = {"namespace": "public", "prefix": "audit"}
_EPOCH_MICROSECONDS = 820_540_800_000_000
"""2026-01-01 00:00 UTC, in microseconds since 2000-01-01."""


class Example(NamedTuple):
    """A stream: its options, and its messages."""

    streaming: str
    two_phase: bool
    messages: tuple[bytes, ...]


def example(spec: Spec, view: View) -> Example:
    """Return the example stream of a protocol version."""
    assert view.version is not None
    streaming = [
        name
        for name, value in spec.options["streaming"].values.items()
        if view.version in Gate.parse(value.versions)
    ][-1]
    two_phase = any(message.role == "begin_prepare" for message in view.messages)
    writer = _Writer(view, streaming)
    return Example(streaming, two_phase, tuple(_stream(writer)))


def envelopes(view: View, message: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return an example of each message of the replication protocol, as pairs of sender and bytes.

    Args:
        view: The replication protocol.
        message: The message of logical replication in XLogData.
    """
    writer = _Writer(view, "off", message)
    return tuple((one.sender, writer.encode(one)) for one in view.messages)


def _stream(write: _Writer) -> Iterator[bytes]:
    yield from write("payload", transactional=0)
    yield from write.next("begin")
    yield from write("origin", "type", "relation", "insert", "update")
    yield from write("update", key=("6", None, None))
    yield from write("delete", key=("7", None, None))
    yield from write("truncate", "payload", "commit")
    if "open_block" not in write.roles:
        return
    yield from write.next("open_block", first_block=1)
    yield from write("type", "relation", "insert", "payload")
    yield from write("insert", sub=1)
    yield from write("close_block", "abort_streamed", sub=1)
    yield from write("open_block", first_block=0)
    yield from write("type", "relation", "insert", sub=2)
    yield from write("close_block", "commit_streamed")
    yield from write.next("open_block", first_block=1)
    yield from write("type", "relation", "insert", "close_block", "abort_streamed")
    if "begin_prepare" not in write.roles:
        return
    for end in ("commit_prepared", "rollback_prepared"):
        yield from write.next("begin_prepare")
        yield from write("insert", "prepare")
        yield from write.after(end)
    yield from write.next("open_block", first_block=1)
    yield from write("type", "relation", "insert", "close_block", "prepare_streamed")
    yield from write.after("commit_prepared")


class _Writer:
    """Encodes messages by role, such as `insert`. Messages of one transaction have the same xid and gid."""

    def __init__(self, view: View, streaming: str, rest: bytes = b"") -> None:
        self._rest = rest
        self.roles: dict[Role | None, list[MessageView]] = {}
        for message in view.messages:
            self.roles.setdefault(message.role, []).append(message)
        self._streaming = streaming
        self._in_stream = False
        self._xid, self._lsn, self._time = 742, 0x16B3748, _EPOCH_MICROSECONDS
        self._prepared: Mapping[str, int] = {}

    def __call__(self, *roles: Role, **values: Any) -> Iterator[bytes]:
        """Yield the messages of each role, such as `insert`.

        `values` has field values by the meaning of the field, such as `key`. If it has `sub`, the subxid is
        the xid plus `sub`. If it has `transactional`, messages without a field of this meaning are left out.
        """
        for role in roles:
            messages = self.roles.get(role, [])
            for number, message in enumerate(messages, 1):
                if "transactional" in values and all(
                    field.means != "transactional" for field in message.fields
                ):
                    continue
                self._in_stream = self._in_stream or role == "open_block"
                earlier = {"lsn": self._lsn - 8 * (len(messages) - number)} if role == "payload" else {}
                yield self.encode(message, **earlier, **values)
                self._in_stream = self._in_stream and role != "close_block"

    def next(self, role: Role, **values: Any) -> Iterator[bytes]:
        """Begin a new transaction and yield its first message.

        `role` is the role of the message, such as `begin`. `values` has field values by the meaning of the
        field, as for `__call__`.
        """
        self._step()
        self._xid += 4
        yield from self(role, **values)

    def after(self, role: Role) -> Iterator[bytes]:
        """Yield the message that commits or rolls back the prepared transaction, with a later LSN and time.

        `role` is `commit_prepared` or `rollback_prepared`.
        """
        before = {"prepare_end_lsn": self._lsn + 48, "prepare_time": self._time}
        self._step()
        yield from self(role, **before)

    def _step(self) -> None:
        self._lsn += 256
        self._time += 1_000_000

    def encode(self, message: MessageView, **values: Any) -> bytes:
        by_meaning = {
            "xid": self._xid,
            "subxid": self._xid + values.get("sub", 0),
            "lsn": self._lsn,
            "end_lsn": self._lsn + 48,
            "time": self._time,
            "gid": f"tx-{self._xid}",
            "oid": _TYPE if message.role == "type" else _RELATION,
            "name": _NAMES.get(message.role or "", ""),
            "relation": _RELATION,
            "relations": (_RELATION,),
            "transactional": 1,
            "new": _ROW,
            **values,
        }
        fields = [field for field in message.fields if self._applies(field)]
        return message.tag.encode() + b"".join(self._field(field, fields, by_meaning) for field in fields)

    def _applies(self, field: Field) -> bool:
        if field.when is None:
            return True
        return (
            self._in_stream if field.when == "in_stream" else field.when == f"streaming = {self._streaming}"
        )

    def _field(self, field: Field, fields: list[Field], by_meaning: Mapping[str, Any]) -> bytes:
        if field.kind == "choice":
            chosen = [side for side in field.fields if side.means in by_meaning]
            sides = chosen or ([] if field.optional else [*field.fields[:1]])
            return b"".join(self._field(side, fields, by_meaning) for side in sides)
        if field.of is not None:
            target = next(one for one in fields if one.name == field.of)
            return len(self._value(target, by_meaning)).to_bytes(field.size)
        return _encode(field, self._value(field, by_meaning))

    def _value(self, field: Field, by_meaning: Mapping[str, Any]) -> Any:
        if field.means is not None and field.means in by_meaning:
            value = by_meaning[field.means]
            is_item = not isinstance(value, tuple) or (
                field.element == "tuple" and not isinstance(value[0], tuple)
            )
            return (value,) if field.kind == "list" and is_item else value
        if field.kind == "literal":
            return field.literal
        if field.kind == "rest":
            return self._rest
        if field.kind == "list":
            return _default(field)
        return {
            "lsn": self._lsn,
            "timestamp": self._time,
            "xid": self._xid,
        }.get(field.type, _default(field))


def _default(field: Field) -> Any:
    match field.kind:
        case "string":
            return _TEXTS.get(field.name, field.name)
        case "bytes":
            return b'{"ok": true}'
        case "enum":
            return next(iter(field.values))
        case "tuple":
            return _ROW
        case "list":
            return (
                _COLUMNS
                if field.element == "struct"
                else (_ROW,)
                if field.element == "tuple"
                else (_RELATION if field.fields[0].type == "oid" else 1,)
            )
    return 0


def _encode(field: Field, value: Any) -> bytes:
    match field.kind:
        case "string":
            return str(value).encode() + b"\0"
        case "bytes" | "rest":
            return bytes(value)
        case "enum":
            return str(value).encode()
        case "tuple":
            return (field.tag or "").encode() + _tuple(field, value)
        case "list":
            return b"".join(_encode(one, _item(one, item)) for item in value for one in field.fields)
    return int(value).to_bytes(field.size, signed=field.signed)


def _item(field: Field, item: Any) -> Any:
    return item.get(field.name, _default(field)) if field.name else item


def _tuple(field: Field, row: tuple[str | None, ...]) -> bytes:
    forms: dict[str, Cell] = {cell.form: cell for cell in field.cells}
    cells = [
        forms["null"].tag.encode()
        if cell is None
        else forms["text"].tag.encode() + len(cell).to_bytes(forms["text"].length_size) + cell.encode()
        for cell in row
    ]
    return len(row).to_bytes(field.size) + b"".join(cells)
