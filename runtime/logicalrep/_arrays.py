"""Build Arrow arrays from buffers, and read the buffers of Arrow arrays as NumPy arrays.

Code that runs for every batch calls these functions instead of `pa.array` and `np.asarray`, which are slower
for bytes and, if pandas is installed, import pandas, which takes 45 MB of memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = npt.NDArray[np.int64]
"""NumPy array of 64-bit integers."""

NO_NUMBERS: Final[Numbers] = np.zeros(0, np.int64)
"""Empty array of 64-bit integers."""

Mask: TypeAlias = npt.NDArray[np.bool_]
"""NumPy array of booleans."""


Bytes: TypeAlias = npt.NDArray[np.uint8]
"""NumPy array of bytes."""


def from_buffers(
    type_: pa.DataType, rows: int, *data: Any, valid: Any = None, null_count: int = -1
) -> pa.Array:
    """Return an Arrow array that consists of the given buffers, which are not copied.

    Args:
        type_: Type of the array.
        rows: Number of rows.
        data: All buffers except the null mask: the values, or the offsets and then the bytes of the values.
        valid: The null mask, as `mask_bits` returns it; None if no value is NULL.
        null_count: Number of NULLs; -1 if it is not known.
    """
    buffers = [one if one is None else pa.py_buffer(one) for one in (valid, *data)]
    return pa.Array.from_buffers(type_, rows, buffers, null_count)


def struct_from_columns(
    type_: pa.StructType, rows: int, columns: Sequence[pa.Array], valid: Any = None
) -> pa.StructArray:
    """Return columns as an array of structs; `valid` is the null mask, as `mask_bits` returns it, or None."""
    buffers = [None if valid is None else pa.py_buffer(valid)]
    return pa.Array.from_buffers(type_, rows, buffers, children=list(columns))


def int64_array(values: Iterable[int], type_: pa.DataType) -> pa.Array:
    """Return integers as an Arrow array of `type_`, a type of 64 bits such as int64 or a timestamp."""
    numbers = array("q", values)
    return from_buffers(type_, len(numbers), numbers)


def repeated_int64(value: int, rows: int, type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of `rows` rows that are all `value`; `type_` is a type of 64 bits."""
    return from_buffers(type_, rows, np.full(rows, value, np.int64))


def boolean_array(mask: Mask) -> pa.BooleanArray:
    """Return a NumPy array of booleans as an Arrow array."""
    return from_buffers(pa.bool_(), len(mask), mask_bits(mask))


def mask_bits(mask: Mask | Bytes) -> Bytes:
    """Return booleans packed into bits, eight per byte, as in Arrow's null masks."""
    return np.packbits(mask, bitorder="little")


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return bytes objects as an Arrow array."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    return from_buffers(pa.binary(), len(values), offsets, b"".join(values))


def value_offsets(strings: pa.Array) -> npt.NDArray[np.int32] | Numbers:
    """Return the offset of each value in `value_bytes(strings)`, followed by the end of the last value.

    Args:
        strings: An array of type binary, string, large_binary or large_string.
    """
    is_large = pa.types.is_large_binary(strings.type) or pa.types.is_large_string(strings.type)
    number = np.dtype(np.int64 if is_large else np.int32)
    offsets = strings.buffers()[1] or bytes(number.itemsize)
    return np.frombuffer(offsets, number, len(strings) + 1, strings.offset * number.itemsize)


def data_buffer(strings: pa.Array) -> pa.Buffer | bytes:
    """Return the buffer with the values of a binary or string array; for a slice, that of all values."""
    return strings.buffers()[2] or b""


def value_bytes(strings: pa.Array) -> Bytes:
    """Return the bytes of all values of a binary or string array; `value_offsets` has where each begins."""
    return byte_values(data_buffer(strings))


def raw_buffers(values: pa.Array) -> tuple[int, list[pa.Buffer | None]]:
    """Return the index of an array's first row in its buffers (0 if not sliced), and the buffers."""
    return values.offset, values.buffers()


def byte_values(buffer: Any) -> Bytes:
    """Return the bytes of a buffer as a NumPy array; None stands for an empty buffer."""
    return np.frombuffer(buffer or b"", np.uint8)


def int64_values(numbers: pa.Array) -> Numbers:
    """Return an Arrow array of a 64-bit type as a NumPy array; no value may be NULL."""
    return np.frombuffer(numbers.buffers()[1] or bytes(8), np.int64, len(numbers), numbers.offset * 8)


def take(array: pa.Array, numbers: Numbers) -> pa.Array:
    """Return the elements at these indices; NULL for a negative index."""
    missing = numbers < 0
    return array.take(pa.array(numbers, mask=missing if missing.any() else None))


def dates_as_integers(array: pa.Array) -> pa.Array:
    """Return dates as days since 1970, and timestamps as integers in their unit since 1970.

    Python's dates end with the year 9999, but Arrow's do not. Arrays of other types are returned unchanged.
    """
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    return array.cast(pa.int32()) if pa.types.is_date32(array.type) else array


def replace_rows(array: pa.Array, rows: Numbers, values: pa.Array) -> pa.Array:
    """Return a copy of an Arrow array in which `values` replace the rows at the ascending indices `rows`."""
    mask = np.zeros(len(array), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(array, boolean_array(mask), values)


def join_sorted(one: Numbers, other: Numbers) -> Numbers:
    """Return the numbers of two ascending arrays, in ascending order; no number may be in both.

    A stable sort merges two ascending arrays in linear time; `np.union1d` is slower.
    """
    return np.sort(np.concatenate((one, other)), kind="stable")
