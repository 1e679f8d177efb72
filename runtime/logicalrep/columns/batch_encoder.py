"""Encode a batch of messages of one class from columns, field by field in the order of the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep import _protocols, envelope
from logicalrep._build import blueprint
from logicalrep._layout import Field, sides
from logicalrep.columns.assembly import IntegerArray, Integers, MessagePart, join_parts
from logicalrep.columns.cells import Cells, bytes_part, cells_part, common_length
from logicalrep.errors import EncodeError
from logicalrep.messages import Message
from logicalrep.versions import CODECS, LATEST_RELEASED
from logicalrep.wire import write_string

Masks: TypeAlias = Sequence[pa.BooleanArray | None]
"""For each column, a mask that is true where a cell is UNCHANGED; None for a column without UNCHANGED
cells."""

Columns: TypeAlias = Sequence[pa.Array | Cells]
"""The cells of a batch of rows, with one array per column, or one `Cells` object for several columns.

Strings are cells in text format, binary values are cells in binary format. Values of other types, such as
`logicalrep.values.to_arrow` returns them, are encoded as PostgreSQL's text.
"""


class TupleColumns(msgspec.Struct, frozen=True):
    """The new, old or key tuples of a batch of messages, as columns."""

    columns: Columns
    unchanged: Masks | None = None

    @property
    def lengths(self) -> set[int]:
        """The different lengths of the columns and masks. Valid columns and masks have only one length."""
        return {len(one) for one in (*self.columns, *(self.unchanged or ())) if one is not None}

    @property
    def width(self) -> int:
        """Number of cells of each tuple."""
        return sum(one.columns if isinstance(one, Cells) else 1 for one in self.columns)


_Constant: TypeAlias = int | str | bytes | tuple[()]
_CONSTANTS: Final = (int, str, bytes, tuple)

FieldColumn: TypeAlias = _Constant | IntegerArray | pa.Array | TupleColumns
"""Values of one field in a batch of messages: a value that all messages share (an integer, text, bytes or an
empty list), or a value for each message (integers, bytes or tuples)."""


def encode_role(role: str, proto_version: int, **meanings: FieldColumn | None) -> pa.BinaryArray:
    """Encode a batch of messages of the class that has a role in the spec.

    The messages are inside stream blocks if `subxid` is given.

    Args:
        role: The role: what the messages do in a stream, such as `insert`. If several message classes have
            the role, the first one whose messages have a single row instead of a list of rows is used.
        proto_version: The protocol version.
        meanings: The columns by meaning: the spec's word for what a field contains, such as `relation`. None
            for a field that the messages do not have. Fields without a given column are zero or empty.

    Raises:
        EncodeError: The codec refuses a value, or the messages have more than 2 GB together.
        TypeError: A column has a type that cannot be encoded.
        ValueError: The columns have different lengths.
    """
    kind, neutral, names = blueprint(role, proto_version)
    given = {names[meaning]: column for meaning, column in meanings.items() if meaning in names}
    return encode_batch(kind, proto_version, **{**neutral, **given})


def encode_batch(
    kind: type[Message], proto_version: int = LATEST_RELEASED, **fields: FieldColumn | None
) -> pa.BinaryArray:
    """Encode a batch of messages of one class.

    Args:
        kind: The message class.
        proto_version: The protocol version; ignored for an envelope.
        fields: The columns by field name; None for a field that the messages do not have.

    Raises:
        EncodeError: The codec refuses a value, or the messages have more than 2 GB together.
        TypeError: A column has a type that cannot be encoded.
        ValueError: The columns have different lengths.
    """
    name = kind.__name__
    present = {field: column for field, column in fields.items() if column is not None}
    rows = _common_rows(present)
    in_envelope = name in _protocols.ENVELOPE.by_name
    encode = envelope.encode if in_envelope else CODECS[proto_version].encode
    encode(kind(**{field: _sample(column) for field, column in present.items()}))
    layout = (_protocols.ENVELOPE if in_envelope else _protocols.VERSIONS[proto_version]).by_name[name]
    try:
        return join_parts([layout.tag.encode(), *_parts(layout.fields, present)], rows)
    except EncodeError as error:
        where = f"{name}." if error.field else f"{name}: "
        raise EncodeError(f"{where}{error}", message=name, field=error.field) from None


def _common_rows(columns: Mapping[str, FieldColumn]) -> int:
    lengths: set[int] = set()
    for column in columns.values():
        if not isinstance(column, _CONSTANTS):
            lengths |= column.lengths if isinstance(column, TupleColumns) else {len(column)}
    return common_length(lengths)


def _sample(column: FieldColumn) -> Any:
    """Return a sample value for a column: the codec encodes a message of samples to check the columns."""
    if isinstance(column, _CONSTANTS):
        return column
    if isinstance(column, TupleColumns):
        return (None,) * column.width
    return b"" if isinstance(column, pa.Array) and not pa.types.is_integer(column.type) else 0


def _parts(fields: Sequence[Field], columns: Mapping[str, FieldColumn]) -> Iterator[MessagePart]:
    """Yield the parts of the messages that follow the tag byte, in the order of the wire."""
    for field in sides(tuple(fields)):
        column = columns.get(field.name)
        if field.literal is not None:
            yield field.literal.to_bytes(field.size)
        elif isinstance(column, TupleColumns):
            assert field.tag is not None
            yield field.tag.encode() + column.width.to_bytes(field.size)
            masks = column.unchanged or [None] * len(column.columns)
            for i, (cells, mask) in enumerate(zip(column.columns, masks, strict=True)):
                yield cells_part(cells, mask, f"{field.name}[{i}]")
        elif field.of is not None:
            yield len(columns[field.of]).to_bytes(field.size)  # type: ignore[arg-type]
        elif isinstance(column, _CONSTANTS):
            yield _constant(field, column)
        elif field.kind == "rest":
            yield bytes_part(column, field.name)
        elif column is not None:
            yield _integers_part(field, column)


def _constant(field: Field, value: _Constant) -> bytes:
    """Return the encoded value of a field that is equal in all messages; a list can only be empty."""
    if isinstance(value, int):
        return value.to_bytes(field.size, signed=field.signed)
    if isinstance(value, str):
        return write_string(value) if field.kind == "string" else value.encode()
    return bytes(value)


def _integers_part(field: Field, column: IntegerArray | pa.Array) -> Integers:
    numbers = np.asarray(column)
    if numbers.dtype.kind not in "iu" or (isinstance(column, pa.Array) and column.null_count):
        kind = str(numbers.dtype)
        if isinstance(column, pa.Array):
            kind = f"{column.type} with {column.null_count} NULL"
        raise TypeError(f"{field.name}: expected integers without NULL, found {kind}")
    bits = field.size * 8
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    if len(numbers) and (int(numbers.min()) < low or int(numbers.max()) > high):
        row, wrong = next((row, one) for row, one in enumerate(numbers.tolist()) if not low <= one <= high)
        text = f"{field.name}: row {row}: {wrong} does not fit into {field.notation}, {low} to {high}"
        raise EncodeError(text, field=field.name)
    return Integers(np.ascontiguousarray(numbers, np.int64), field.size)
