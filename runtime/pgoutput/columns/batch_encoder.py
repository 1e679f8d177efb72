"""Encode a batch of messages of one class from columns, field by field in the order of the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput import _protocols, _roles, envelope
from pgoutput._build import class_of, fitted, neutral_bytes
from pgoutput._layout import Field, sides
from pgoutput.columns.assembly import IntegerArray, Integers, MessagePart, join_parts
from pgoutput.columns.cells import Cells, bytes_part, cells_part, common_length
from pgoutput.errors import EncodeError
from pgoutput.messages import Message
from pgoutput.versions import CODECS, LATEST_RELEASED

Masks: TypeAlias = Sequence[pa.BooleanArray | None]
"""For each column, a mask that is true where a cell is UNCHANGED; None for a column without UNCHANGED
cells."""

Columns: TypeAlias = Sequence[pa.Array | Cells]
"""The cells of a batch of rows, with one array per column, or one `Cells` object for several columns.

Strings are cells in text format, binary values are cells in binary format. Values of other types, such as
`pgoutput.values.to_arrow` returns them, are encoded as PostgreSQL's text.
"""


class TupleColumns(msgspec.Struct, frozen=True):
    """The new, old or key tuples of a batch of messages, as columns."""

    columns: Columns
    unchanged: Masks | None = None

    @property
    def lengths(self) -> set[int]:
        """The distinct lengths of the columns and masks; valid columns and masks all have one length."""
        return {len(one) for one in (*self.columns, *(self.unchanged or ())) if one is not None}

    @property
    def width(self) -> int:
        """Number of cells of each tuple."""
        return sum(one.columns if isinstance(one, Cells) else 1 for one in self.columns)


FieldColumn: TypeAlias = int | IntegerArray | pa.Array | TupleColumns
"""One field of all messages of a batch: one integer for all messages, or an integer, bytes or a tuple for
each message."""


def encode_role(role: str, proto_version: int, **meanings: FieldColumn | None) -> pa.BinaryArray:
    """Encode a batch of messages with one role. The messages are inside stream blocks if `subxid` is given.

    Args:
        role: The role. Of several messages with the role, the one without a list of rows is encoded.
        proto_version: The protocol version.
        meanings: The columns by meaning of the field; None for a field that the messages do not have.

    Raises:
        EncodeError: The codec refuses a value, or the messages have more than 2 GB together.
        TypeError: A column has a type that cannot be encoded.
        ValueError: The columns have different lengths.
    """
    kind, _ = class_of(role, proto_version)
    names = {meaning: _roles.field_name(kind, meaning) for meaning in meanings}
    fields = {name: meanings[meaning] for meaning, name in names.items() if name is not None}
    return encode_batch(kind, proto_version, **fields)


def encode_batch(
    kind: type[Message], proto_version: int = LATEST_RELEASED, **fields: FieldColumn | None
) -> pa.BinaryArray:
    """Encode a batch of messages of one class.

    Fields without a column that the protocol version requires get a neutral value (0, empty).

    Args:
        kind: The message class.
        proto_version: Protocol version of the messages. Envelopes have none.
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
    sample = kind(**{field: _sample(column) for field, column in present.items()})
    if in_envelope:
        envelope.encode(sample)
        layout = _protocols.ENVELOPE.by_name[name]
    else:
        CODECS[proto_version].encode(fitted(sample, proto_version))
        layout = _protocols.VERSIONS[proto_version].by_name[name]
    try:
        return join_parts([layout.tag.encode(), *_parts(layout.fields, present)], rows)
    except EncodeError as error:
        where = f"{name}." if error.field else f"{name}: "
        raise EncodeError(f"{where}{error}", message=name, field=error.field) from None


def _common_rows(columns: Mapping[str, FieldColumn]) -> int:
    lengths: set[int] = set()
    for column in columns.values():
        if not isinstance(column, int):
            lengths |= column.lengths if isinstance(column, TupleColumns) else {len(column)}
    return common_length(lengths)


def _sample(column: FieldColumn) -> Any:
    """Return one value of the column's kind, for a message that the codec encodes as a check."""
    if isinstance(column, int):
        return column
    if isinstance(column, TupleColumns):
        return (None,) * column.width
    return b"" if isinstance(column, pa.Array) and not pa.types.is_integer(column.type) else 0


def _parts(fields: Sequence[Field], columns: Mapping[str, FieldColumn]) -> Iterator[MessagePart]:
    """Yield the parts of the messages that follow the tag byte, in the order of the wire."""
    neutral = {one.name: neutral_bytes(one) for one in fields if one.when is None and one.kind != "choice"}
    for field in sides(tuple(fields)):
        column = columns.get(field.name)
        if column is None:
            yield neutral.get(field.name, b"")
        elif isinstance(column, TupleColumns):
            assert field.tag is not None
            yield field.tag.encode() + column.width.to_bytes(field.size)
            masks = column.unchanged or [None] * len(column.columns)
            for i, (cells, mask) in enumerate(zip(column.columns, masks, strict=True)):
                yield cells_part(cells, mask, f"{field.name}[{i}]")
        elif field.kind == "rest":
            yield bytes_part(column, field.name)
        elif isinstance(column, int):
            yield column.to_bytes(field.size, signed=field.signed)
        else:
            yield _integers_part(field, column)


def _integers_part(field: Field, column: IntegerArray | pa.Array) -> Integers:
    numbers = np.asarray(column)
    if numbers.dtype.kind not in "iu" or (isinstance(column, pa.Array) and column.null_count):
        kind = column.type if isinstance(column, pa.Array) else column.dtype
        raise TypeError(f"{field.name}: integers without NULL are required, not {kind}")
    bits = field.size * 8
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    if len(numbers) and (int(numbers.min()) < low or int(numbers.max()) > high):
        row, wrong = next((row, one) for row, one in enumerate(numbers.tolist()) if not low <= one <= high)
        text = f"{field.name}: row {row}: {wrong} does not fit into {field.notation}, {low} to {high}"
        raise EncodeError(text, field=field.name)
    return Integers(np.ascontiguousarray(numbers, np.int64), field.size)
