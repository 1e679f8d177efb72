"""Build Arrow arrays from buffers, and read the buffers of Arrow arrays as NumPy arrays.

Code that runs for every batch calls these functions instead of `pa.array` and `np.asarray`, which are slower
for bytes and, if pandas is installed, import pandas, which takes 45 MB of memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]
"""NumPy array of 64-bit integers."""

Mask: TypeAlias = npt.NDArray[np.bool_]
"""NumPy array of booleans."""


def int64_array(values: Iterable[int], type_: pa.DataType) -> pa.Array:
    """Return integers as an Arrow array of `type_`, a type of 64 bits such as int64 or a timestamp."""
    numbers = array("q", values)
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def repeated_int64(value: int, rows: int, type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of `rows` rows that are all `value`; `type_` is a type of 64 bits."""
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(np.full(rows, value, np.int64))])


def boolean_array(mask: Mask) -> pa.BooleanArray:
    """Return a NumPy array of booleans as an Arrow array."""
    bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(bits)])


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return bytes objects as an Arrow array."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def value_offsets(strings: pa.BinaryArray | pa.StringArray) -> npt.NDArray[np.int32]:
    """Return the start of each value in an array's data buffer, then the end of the last value, in bytes."""
    return np.frombuffer(strings.buffers()[1] or bytes(4), np.int32, len(strings) + 1, strings.offset * 4)


def int64_values(numbers: pa.Array) -> Numbers:
    """Return an Arrow array of a 64-bit type as a NumPy array; no value may be NULL."""
    return np.frombuffer(numbers.buffers()[1] or bytes(8), np.int64, len(numbers), numbers.offset * 8)
