"""The cells of columns as they stand on the wire (logicalrep_write_tuple)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from pgoutput.columns.parts import FORMS, Part, Strings, Values, join
from pgoutput.errors import EncodeError
from pgoutput.values import default_type, from_arrow

_TAGS: Final = {pa.string(): ord(FORMS["text"].tag), pa.binary(): ord(FORMS["binary"].tag)}
_LARGE: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

_LONGEST: Final = (1 << 30) - 1
"""The bytes of the longest value that a server can make (MaxAllocSize)."""


class Cells(msgspec.Struct, frozen=True):
    """Cells of several columns side by side, as they stand on the wire: see `encode_cells`."""

    array: pa.BinaryArray
    columns: int

    def __len__(self) -> int:
        return len(self.array)

    def take(self, places: pa.Array) -> Cells:
        """Those of some rows, as `pa.Array.take`."""
        return Cells(self.array.take(places), self.columns)

    def slice(self, start: int, stop: int) -> Cells:
        """Those of rows that follow each other."""
        return Cells(self.array[start:stop], self.columns)


def encode_cells(columns: Sequence[pa.Array]) -> Cells:
    """The cells of each row, so that they can stand in many messages and are encoded once.

    Args:
        columns: As for `encode_inserts`.

    Raises:
        EncodeError: As there.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    rows = common_length({len(column) for column in columns})
    parts = [cells(column, None, f"columns[{i}]") for i, column in enumerate(columns)]
    return Cells(join(parts, rows), len(columns))


def common_length(lengths: set[int]) -> int:
    """The length of all columns; 0 if there are none.

    Raises:
        ValueError: They have several.
    """
    if len(lengths) > 1:
        raise ValueError(f"columns have different lengths: {', '.join(map(str, sorted(lengths)))}")
    return next(iter(lengths), 0)


def cells(column: pa.Array | Cells, unchanged: pa.BooleanArray | None, path: str) -> Part:
    """The cells of a column.

    Args:
        column: The values.
        unchanged: Where they are not sent; NULL is not there.
        path: How errors call the column.

    Raises:
        EncodeError: A value is longer than any can be.
        TypeError: The column is neither text nor binary, and PostgreSQL has no type for its values.
        ValueError: Cells that are encoded already are to be left out.
    """
    if isinstance(column, Cells):
        if unchanged is not None:
            raise ValueError(f"{path}: these cells are encoded already: none of them can be made UNCHANGED")
        return strings(column.array, path)
    column = _small(column)
    tag = _TAGS.get(column.type)
    if tag is None:
        column, tag = _texts(column, path), _TAGS[pa.string()]
    if unchanged is None and column.null_count == len(column):
        return FORMS["null"].tag.encode()
    mask = None if unchanged is None else unchanged.fill_null(False)
    values = Values(column, tag, mask)
    _check_lengths(values, path)
    return values


def _texts(column: pa.Array, path: str) -> pa.StringArray:
    """Values of another type as the server's text."""
    try:
        type_ = default_type(column.type)
    except ValueError:
        raise TypeError(f"{path}: a column of {column.type} has neither cells nor values for them") from None
    try:
        return from_arrow(column, *type_)
    except ValueError as error:
        raise EncodeError(f"{path}: {error}", field=path) from None


def strings(array: pa.Array, path: str) -> Strings:
    """The bytes of an array.

    Args:
        array: Binary.
        path: How errors call it.

    Raises:
        EncodeError: Some are NULL.
        TypeError: It is no such array.
    """
    array = _small(array)
    if array.type != pa.binary():
        raise TypeError(f"{path}: binary is wanted, not {array.type}")
    if array.null_count:
        row = array.is_null().index(True).as_py()
        raise EncodeError(f"{path}: row {row}: bytes are expected, not None", field=path)
    return Strings(array)


def _small(array: pa.Array) -> pa.Array:
    """With offsets of 32 bits: no more bytes than these have can be in one batch."""
    small = _LARGE.get(array.type)
    return array if small is None else array.cast(small)


def _check_lengths(values: Values, path: str) -> None:
    content = values.array.buffers()[2]
    if content is None or content.size <= _LONGEST:
        return
    longest = int(values.lengths.max())
    if longest > _LONGEST:
        where = f"{path}: row {int(values.lengths.argmax())}"
        raise EncodeError(f"{where}: a value of {longest} bytes; 1 GB is the most that is sent", field=path)
