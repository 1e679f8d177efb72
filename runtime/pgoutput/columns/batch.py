"""Messages of one kind, many at once: the layout of the message, filled with columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput import _protocols, envelope
from pgoutput._layout import Field, sides
from pgoutput.columns.cells import Cells, cells, common_length, strings
from pgoutput.columns.parts import Integers, Numbers, Part, join
from pgoutput.errors import EncodeError
from pgoutput.messages import Message
from pgoutput.versions import CODECS, LATEST

Masks: TypeAlias = Sequence[pa.BooleanArray | None]
"""For each column where its cells are UNCHANGED; None: nowhere."""

Columns: TypeAlias = Sequence[pa.Array | Cells]
"""The cells of rows, by column; `Cells` are those of several.

Strings are cells in text format, binary is cells in binary format. Of values of other types, as
`pgoutput.values.to_arrow` gives them, the server's text is made.
"""


class Tuple(msgspec.Struct, frozen=True):
    """A tuple of each message."""

    columns: Columns
    unchanged: Masks | None = None

    @property
    def lengths(self) -> set[int]:
        """Those of the columns."""
        return {len(one) for one in (*self.columns, *(self.unchanged or ())) if one is not None}

    @property
    def width(self) -> int:
        """How many cells it has."""
        return sum(one.columns if isinstance(one, Cells) else 1 for one in self.columns)


Value: TypeAlias = int | Numbers | pa.Array | Tuple
"""What a field is: the same integer in all messages, or one for each; bytes; or a tuple."""


def encode_batch(kind: type[Message], **values: Value | None) -> pa.BinaryArray:
    """The messages that have these values, outside of stream blocks if there is no xid.

    Args:
        kind: Their class.
        values: Those of its fields; None for one that is not there.

    Raises:
        EncodeError: What the codec refuses, or what does not fit into an array.
        TypeError: A column is of another type.
        ValueError: Columns differ in length.
    """
    name = kind.__name__
    given = {field: value for field, value in values.items() if value is not None}
    rows = _rows(given)
    in_envelope = name in _protocols.ENVELOPE.by_name
    encode = envelope.encode if in_envelope else CODECS[LATEST].encode
    encode(kind(**{field: _sample(value) for field, value in given.items()}))
    layout = (_protocols.ENVELOPE if in_envelope else _protocols.VERSIONS[LATEST]).by_name[name]
    try:
        return join([layout.tag.encode(), *_parts(layout.fields, given)], rows)
    except EncodeError as error:
        where = f"{name}." if error.field else f"{name}: "
        raise EncodeError(f"{where}{error}", message=name, field=error.field) from None


def _rows(values: Mapping[str, Value]) -> int:
    lengths: set[int] = set()
    for value in values.values():
        if not isinstance(value, int):
            lengths |= value.lengths if isinstance(value, Tuple) else {len(value)}
    return common_length(lengths)


def _sample(value: Value) -> Any:
    """What of a value the codec can judge."""
    if isinstance(value, int):
        return value
    if isinstance(value, Tuple):
        return (None,) * value.width
    return b"" if isinstance(value, pa.Array) and not pa.types.is_integer(value.type) else 0


def _parts(fields: Sequence[Field], values: Mapping[str, Value]) -> Iterator[Part]:
    """What stands behind the tag."""
    for field in sides(tuple(fields)):
        value = values.get(field.name)
        if field.literal is not None:
            yield field.literal.to_bytes(field.size)
        elif isinstance(value, Tuple):
            assert field.tag is not None
            yield field.tag.encode() + value.width.to_bytes(field.size)
            masks = value.unchanged or [None] * len(value.columns)
            for i, (column, mask) in enumerate(zip(value.columns, masks, strict=True)):
                yield cells(column, mask, f"{field.name}[{i}]")
        elif field.kind == "rest":
            yield strings(value, field.name)
        elif isinstance(value, int):
            yield value.to_bytes(field.size, signed=field.signed)
        elif value is not None:
            yield _integers(field, value)


def _integers(field: Field, values: Numbers | pa.Array) -> Integers:
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iu" or (isinstance(values, pa.Array) and values.null_count):
        kind = values.type if isinstance(values, pa.Array) else values.dtype
        raise TypeError(f"{field.name}: integers without NULL are wanted, not {kind}")
    bits = field.size * 8
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    if len(numbers) and (int(numbers.min()) < low or int(numbers.max()) > high):
        row, wrong = next((row, one) for row, one in enumerate(numbers.tolist()) if not low <= one <= high)
        text = f"{field.name}: row {row}: {wrong} does not fit into {field.notation}, {low} to {high}"
        raise EncodeError(text, field=field.name)
    return Integers(np.ascontiguousarray(numbers, np.int64), field.size)
