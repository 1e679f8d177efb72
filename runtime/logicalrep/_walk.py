"""Field-by-field decoder that follows the layouts in `logicalrep._protocols`.

This decoder is slow, but tells the field of each byte. `logicalrep inspect` prints the pieces that the
decoder yields, and the codecs call `explain_decode` after they failed to decode a message. The decoder
accepts the same messages as the codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count, takewhile
from typing import Any

import msgspec

from logicalrep import messages
from logicalrep._layout import Cell, Field, Message, Protocol
from logicalrep.errors import DecodeError
from logicalrep.wire import UNCHANGED


class Piece(msgspec.Struct, frozen=True):
    """Consecutive bytes of a message that hold one value: a field, a cell, a tag, a count or a length."""

    start: int
    """Offset of the first byte from the start of the message, in bytes."""
    end: int
    """Offset after the last byte, in bytes."""
    path: str
    """Path of the field: `xid`, `columns.count`, `columns[0].name`, `new[2].length`, `new[2]`."""
    type: str
    """Type of the field in the spec (`xid`), or form of a cell (`text`); empty for tags, and for counts and
    lengths in tuples."""
    notation: str
    """Type as PostgreSQL's documentation writes it, such as `Int32 (TransactionId)`."""
    value: Any
    """Decoded value: int, bool, str, bytes, None (a NULL cell) or UNCHANGED."""
    doc: str
    """Description of the field or cell."""


def walk(protocol: Protocol, data: bytes, in_stream: bool, streaming: str) -> Iterator[Piece]:
    """Yield the pieces of a message in order; together they cover all of its bytes.

    Args:
        protocol: The protocol version, or the streaming replication protocol.
        data: The bytes of one message.
        in_stream: Whether the message is inside a stream block.
        streaming: Value of the option `streaming`: off, on or parallel.

    Raises:
        DecodeError: The bytes are not a message of the protocol with these values of `in_stream` and
            `streaming`.
    """
    message = _message(protocol, data)
    reader = _Reader(message, data)
    if message.tag:
        tag = f"Byte1('{message.tag}')"
        yield Piece(0, 1, "tag", "", tag, message.tag, f"{message.title}. {message.doc}")
    if protocol.length_size:
        yield reader.length(protocol.length_size)
    for field in message.fields:
        if reader.has(field) if field.case else applies(field, in_stream, streaming):
            yield from _READERS[field.kind](reader, field, field.name)
    if reader.pos != len(data):
        text = f"the message ends here, {len(data) - reader.pos} more bytes follow"
        absent = [field for field in message.fields if not applies(field, in_stream, streaming)]
        if absent:
            names = " and ".join(field.name for field in absent)
            text += f" ({names} come only with {absent[0].when})"
        raise reader.error("", text)


def explain_decode(protocol: Protocol, data: bytes, in_stream: bool, streaming: str) -> DecodeError:
    """Return a DecodeError that says why a codec could not decode the bytes of a message."""
    try:
        for _ in walk(protocol, data, in_stream, streaming):
            pass
    except DecodeError as error:
        return error
    name = _message(protocol, data).name
    return DecodeError(
        f"{name}: the bytes are valid, but were not decoded: please report this bug of logicalrep",
        message=name,
    )


def _message(protocol: Protocol, data: bytes) -> Message:
    if not protocol.by_tag:
        return protocol.messages[0]
    if not data:
        raise DecodeError("no bytes: a message has at least its tag")
    if (message := protocol.by_tag.get(data[0])) is not None:
        return message
    tag = _character(data[0])
    for later in protocol.later:
        if ord(later.tag) == data[0]:
            text = f"{protocol.label} has no {later.title} (tag {tag}): it came with version {later.since}"
            if later.any_version:
                text += (
                    f". Servers send it all the same where the slot has {later.option} set, whatever the "
                    "client asked for: read such a stream with "
                    f"StreamDecoder({protocol.version}, {later.option}=True)"
                )
            raise DecodeError(text, message=later.name)
    text = f"{protocol.label} has no message with the tag {tag}"
    if protocol.name == "pgoutput" and data[:1] == messages.XLogData.wire_tag:
        text += "; it is the tag of XLogData: decode that with logicalrep.envelope, then its data"
    raise DecodeError(text)


def applies(field: Field, in_stream: bool, streaming: str) -> bool:
    """Return whether a message has a field, given `streaming` and whether it is in a stream block."""
    if field.when is None:
        return True
    return in_stream if field.when == "in_stream" else field.when == f"streaming = {streaming}"


def _character(byte: int) -> str:
    return f"'{chr(byte)}'" if 0x20 < byte < 0x7F else f"0x{byte:02x}"


class _Reader:
    """A read position in a message, and the counts and lengths read so far."""

    def __init__(self, message: Message, data: bytes) -> None:
        self.message = message
        self.data = data
        self.pos = len(message.tag)
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        """Values of the integer fields read so far, by name."""

    def error(self, path: str, text: str, back: int = 0) -> DecodeError:
        """Return a DecodeError whose offset is `back` bytes before the read position."""
        offset = self.pos - back
        where = self.message.name + (f".{path}" if path else "")
        return DecodeError(
            f"{where} at byte {offset}: {text}",
            message=self.message.name,
            field=path or None,
            offset=offset,
        )

    def at(self, end: bytes) -> bool:
        """Return whether the next bytes are `end`."""
        return self.data.startswith(end, self.pos)

    def has(self, field: Field) -> bool:
        """Return whether the message has `field`, whose presence depends on the value of an earlier field."""
        assert field.case is not None
        name, value = field.case
        return self.numbers.get(name) == value

    def length(self, size: int) -> Piece:
        """Read the message's length, of `size` bytes; raise DecodeError if the data have another length."""
        notation = f"Int{size * 8}"
        length = self.integer(size, "length", notation, signed=True)
        expected = len(self.data) - self.pos + size
        if length != expected:
            raise self.error("length", f"expected {expected}, found {length}", back=size)
        text = "Length of the message without its tag, in bytes."
        return Piece(self.pos - size, self.pos, "length", "", notation, length, text)

    def bytes(self, size: int, path: str, what: str) -> bytes:
        left = len(self.data) - self.pos
        if size > left:
            raise self.error(path, f"expected {size} bytes of {what}, found {left}")
        raw = self.data[self.pos : self.pos + size]
        self.pos += size
        return raw

    def integer(self, size: int, path: str, what: str, signed: bool = False) -> int:
        return int.from_bytes(self.bytes(size, path, what), "big", signed=signed)

    def piece(self, size: int, path: str, field: Field, value: object, name: str = "") -> Piece:
        """Return a `Piece` for the `size` bytes that were read last.

        `name` is the name of an enum's value, or the names of the flags that are set; it precedes the
        description of the field.
        """
        doc = f"{name}. {field.doc}" if name else field.doc
        return Piece(self.pos - size, self.pos, path, field.type, field.notation, value, doc)


def _read_integer(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    value = reader.integer(field.size, path, field.notation, field.signed)
    if field.of is not None:
        reader.sizes[field.of] = value
    reader.numbers[field.name] = value
    yield reader.piece(field.size, path, field, value)


def _read_literal(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    value: object
    if field.contents is not None:
        value = reader.bytes(field.size, path, field.notation)
    else:
        value = reader.integer(field.size, path, field.notation, field.signed)
    expected = field.literal if field.contents is None else field.contents
    if value != expected:
        raise reader.error(path, f"expected {expected!r}, found {value!r}", back=field.size)
    yield reader.piece(field.size, path, field, value)


def _read_bool(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    value = reader.integer(field.size, path, field.notation)
    if value > 1:
        raise reader.error(path, f"expected 0 or 1, found {value}", back=field.size)
    yield reader.piece(field.size, path, field, bool(value))


def _read_enum(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    value = reader.integer(field.size, path, field.notation)
    if chr(value) not in field.values:
        known = ", ".join(f"'{one}'" for one in field.values)
        text = f"expected one of {known}, found {_character(value)}{field.hint(value)}"
        raise reader.error(path, text, back=field.size)
    yield reader.piece(field.size, path, field, chr(value), field.values[chr(value)])


def _read_flags(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    value = reader.integer(field.size, path, field.notation)
    if value & ~field.mask:
        text = f"expected bits of {field.mask:#04x}, found {value:#04x}{field.hint(value)}"
        raise reader.error(path, text, back=field.size)
    names = [name for bit, name in field.values.items() if value & int(bit)]
    yield reader.piece(field.size, path, field, value, " and ".join(names) or "none")


def _read_string(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    end = reader.data.find(0, reader.pos)
    if end < 0:
        raise reader.error(path, "no zero byte ends this string")
    raw = reader.bytes(end + 1 - reader.pos, path, "text")
    yield reader.piece(len(raw), path, field, raw[:-1].decode("utf-8", "surrogateescape"))


def _read_bytes(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    raw = reader.bytes(reader.sizes[field.name], path, "content")
    yield reader.piece(len(raw), path, field, raw)


def _read_fixed(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    yield reader.piece(field.size, path, field, reader.bytes(field.size, path, "content"))


def _read_counted(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    length = reader.integer(field.size, f"{path}.length", "the length of the value", field.signed)
    notation, text = f"Int{field.size * 8}", "Length of the value."
    yield Piece(reader.pos - field.size, reader.pos, f"{path}.length", "", notation, length, text)
    if length == field.null:
        return
    if length < 0:
        raise reader.error(f"{path}.length", f"expected a length of 0 or more, found {length}", field.size)
    yield reader.piece(length, path, field, reader.bytes(length, path, "content"))


def _read_rest(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    raw = reader.bytes(len(reader.data) - reader.pos, path, "content")
    yield reader.piece(len(raw), path, field, raw)


def _read_list(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    if field.end:
        elements: Iterator[int] = takewhile(lambda i: not reader.at(field.end), count())
    else:
        elements = iter(range(reader.sizes[field.name]))
    for i in elements:
        for inner in field.fields:
            below = f"{path}[{i}].{inner.name}" if inner.name else f"{path}[{i}]"
            yield from _READERS[inner.kind](reader, inner, below)


def _read_tuple(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    if field.tag is not None:
        notation = f"Byte1('{field.tag}')"
        tag = reader.integer(1, f"{path}.tag", notation)
        if chr(tag) != field.tag:
            text = f"expected '{field.tag}', found {_character(tag)}"
            raise reader.error(f"{path}.tag", text, back=1)
        yield Piece(reader.pos - 1, reader.pos, f"{path}.tag", "", notation, field.tag, field.doc)
    count = reader.integer(field.size, f"{path}.count", "the number of columns")
    notation, text = f"Int{field.size * 8}", "Number of columns."
    yield Piece(reader.pos - field.size, reader.pos, f"{path}.count", "", notation, count, text)
    cells = {cell.tag: cell for cell in field.cells}
    for i in range(count):
        yield from _read_cell(reader, cells, f"{path}[{i}]")


def _read_cell(reader: _Reader, cells: Mapping[str, Cell], path: str) -> Iterator[Piece]:
    tag = chr(reader.integer(1, path, "a cell's tag"))
    cell = cells.get(tag)
    if cell is None:
        known = ", ".join(f"'{one}'" for one in cells)
        raise reader.error(path, f"expected one of {known}, found {_character(ord(tag))}", back=1)
    size = cell.length_size
    start = reader.pos - 1
    if not size:
        value = None if cell.form == "null" else UNCHANGED
        yield Piece(start, reader.pos, path, cell.form, f"Byte1('{tag}')", value, cell.doc)
        return
    yield Piece(start, reader.pos, f"{path}.tag", "", f"Byte1('{tag}')", tag, cell.doc)
    length = reader.integer(size, f"{path}.length", "the length of the value")
    notation, text = f"Int{size * 8}", "Length of the value."
    yield Piece(reader.pos - size, reader.pos, f"{path}.length", "", notation, length, text)
    raw = reader.bytes(length, path, cell.form)
    value_ = raw.decode("utf-8", "surrogateescape") if cell.form == "text" else raw
    yield Piece(reader.pos - length, reader.pos, path, cell.form, "Byten", value_, cell.doc)


def _read_choice(reader: _Reader, field: Field, path: str) -> Iterator[Piece]:
    tag = reader.data[reader.pos : reader.pos + 1].decode("latin-1")
    side = next((side for side in field.fields if side.tag == tag), None)
    if side is not None:
        yield from _read_tuple(reader, side, side.name)
    elif not field.optional:
        known = " or ".join(f"'{one.tag}'" for one in field.fields)
        found = _character(ord(tag)) if tag else "the end of the message"
        raise reader.error(path, f"expected {known}, found {found}")


_READERS: Mapping[str, Callable[[_Reader, Field, str], Iterator[Piece]]] = {
    "integer": _read_integer,
    "count": _read_integer,
    "length": _read_integer,
    "literal": _read_literal,
    "bool": _read_bool,
    "enum": _read_enum,
    "flags": _read_flags,
    "string": _read_string,
    "bytes": _read_bytes,
    "rest": _read_rest,
    "list": _read_list,
    "tuple": _read_tuple,
    "choice": _read_choice,
    "fixed": _read_fixed,
    "counted": _read_counted,
}
