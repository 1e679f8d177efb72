"""Encode columns as the cells of tuples (logicalrep_write_tuple)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from logicalrep._arrays import data_buffer
from logicalrep._protocols import CELLS
from logicalrep.columns.assembly import Bytes, CellValues, MessagePart, join_parts
from logicalrep.errors import EncodeError
from logicalrep.values import default_type, from_arrow

_TAGS: Final = {pa.string(): CELLS["text"].code, pa.binary(): CELLS["binary"].code}
_LARGE: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

_MAX_VALUE_BYTES: Final = (1 << 30) - 1
"""Size of the longest value that a server can send (MaxAllocSize), in bytes."""


class Cells(msgspec.Struct, frozen=True):
    """Encoded cells of neighbouring columns, with one binary value per row; made by `encode_cells`."""

    array: pa.BinaryArray
    """For each row, the bytes of its cells as on the wire."""
    columns: int
    """Number of columns, which is the number of cells in each row."""

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: pa.Array) -> Cells:
        """Return the cells of the rows with the given row numbers, like `pa.Array.take`."""
        return Cells(self.array.take(rows), self.columns)

    def slice(self, start: int, stop: int) -> Cells:
        """Return the cells of the rows from `start` up to, but not including, `stop`."""
        return Cells(self.array[start:stop], self.columns)


def encode_cells(columns: Sequence[pa.Array]) -> Cells:
    """Encode the cells of rows once, for use in several messages.

    Args:
        columns: The columns: strings for cells in text format, binary for cells in binary format; values of
            other types are encoded as PostgreSQL's text.

    Raises:
        EncodeError: A value is longer than 1 GB, or the cells have more than 2 GB together.
        TypeError: PostgreSQL has no type for the values of a column.
        ValueError: The columns have different lengths.
    """
    rows = common_length({len(column) for column in columns})
    parts = [cells_part(column, None, f"columns[{i}]") for i, column in enumerate(columns)]
    return Cells(join_parts(parts, rows), len(columns))


def common_length(lengths: set[int]) -> int:
    """Return the length that all columns have in common; 0 if there are no columns.

    Raises:
        ValueError: The columns have different lengths.
    """
    if len(lengths) > 1:
        raise ValueError(
            f"columns have different lengths: {', '.join(map(str, sorted(lengths)))}; "
            "each row needs a value in each column"
        )
    return next(iter(lengths), 0)


def cells_part(column: pa.Array | Cells, unchanged: pa.BooleanArray | None, path: str) -> MessagePart:
    """Return a column, or the columns of a `Cells` object, as a `MessagePart` of a batch of messages.

    Args:
        column: The values of the column, or cells that are encoded already.
        unchanged: Mask that is true where a cell is UNCHANGED; NULL counts as false. None if no cell is
            UNCHANGED.
        path: Name of the column in errors.

    Raises:
        EncodeError: A value is longer than 1 GB.
        TypeError: PostgreSQL has no type for the column's values.
        ValueError: `unchanged` is given for encoded cells.
    """
    if isinstance(column, Cells):
        if unchanged is not None:
            raise ValueError(
                f"{path}: a mask of unchanged values needs a column of values, but Cells were passed: "
                "pass the values, or no mask"
            )
        return bytes_part(column.array, path)
    column = _with_32_bit_offsets(column)
    tag = _TAGS.get(column.type)
    if tag is None:
        column, tag = _texts(column, path), _TAGS[pa.string()]
    if unchanged is None and column.null_count == len(column):
        return CELLS["null"].tag.encode()
    mask = None if unchanged is None else unchanged.fill_null(False)
    values = CellValues(column, tag, mask)
    _check_lengths(values, path)
    return values


def _texts(column: pa.Array, path: str) -> pa.StringArray:
    """Return a column's values as PostgreSQL's text. The column is neither string nor binary."""
    try:
        type_ = default_type(column.type)
    except ValueError:
        raise TypeError(
            f"{path}: Arrow type {column.type} has no PostgreSQL equivalent; pass strings"
        ) from None
    try:
        return from_arrow(column, *type_)
    except ValueError as error:
        raise EncodeError(f"{path}: {error}", field=path) from None


def bytes_part(array: pa.Array, path: str) -> Bytes:
    """Return a binary column as a `MessagePart` of a batch of messages.

    Args:
        array: Binary or large_binary, without NULL.
        path: Name of the column in errors.

    Raises:
        EncodeError: A value is NULL.
        TypeError: The column is not binary.
    """
    array = _with_32_bit_offsets(array)
    if array.type != pa.binary():
        raise TypeError(f"{path}: expected an Arrow array of binary, found {array.type}")
    if array.null_count:
        row = array.is_null().index(True).as_py()
        raise EncodeError(f"{path}: row {row}: expected bytes, found None", field=path)
    return Bytes(array)


def _with_32_bit_offsets(array: pa.Array) -> pa.Array:
    """Cast large_string to string and large_binary to binary; return other arrays unchanged.

    32-bit offsets suffice, because a batch of messages has at most 2 GB.
    """
    small = _LARGE.get(array.type)
    return array if small is None else array.cast(small)


def _check_lengths(values: CellValues, path: str) -> None:
    if len(data_buffer(values.array)) <= _MAX_VALUE_BYTES:
        return
    longest = int(values.lengths.max())
    if longest > _MAX_VALUE_BYTES:
        where = f"{path}: row {int(values.lengths.argmax())}"
        raise EncodeError(f"{where}: the value has {longest} bytes; the maximum is 1 GB", field=path)
