"""Read texts of fixed-width values with the compiled kernel (`logicalrep.compiled.kernel`)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from logicalrep import compiled
from logicalrep._arrays import Numbers, byte_values, from_buffers, mask_bits, value_bytes, value_offsets

_MAX_SCALE: Final = 18


class FixedReader(NamedTuple):
    """How the compiled kernel reads the values of a fixed-width Arrow type."""

    kind: str
    """`bool`, `integer`, `float`, `decimal`, `date` or `timestamp`."""
    width: int
    """Size of a value in bytes; a bool has 1."""
    low: int = 0
    """Least value of an integer type."""
    high: int = 0
    """Greatest value of an integer type."""
    precision: int = 0
    """Precision of a decimal type."""
    scale: int = 0
    """Scale of a decimal type."""
    zone: bool = False
    """Whether a timestamp type has a time zone."""


_READERS: Final = {
    pa.bool_(): FixedReader("bool", 1),
    pa.int16(): FixedReader("integer", 2, -(2**15), 2**15 - 1),
    pa.int32(): FixedReader("integer", 4, -(2**31), 2**31 - 1),
    pa.int64(): FixedReader("integer", 8, -(2**63), 2**63 - 1),
    pa.float32(): FixedReader("float", 4),
    pa.float64(): FixedReader("float", 8),
    pa.date32(): FixedReader("date", 4),
    pa.timestamp("us"): FixedReader("timestamp", 8),
    pa.timestamp("us", tz="UTC"): FixedReader("timestamp", 8, zone=True),
}


def fixed_reader(type_: pa.DataType) -> FixedReader | None:
    """Return how the compiled kernel reads an Arrow type; None if it cannot read the type."""
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= _MAX_SCALE:
        return FixedReader("decimal", 16, precision=type_.precision, scale=type_.scale)
    return _READERS.get(type_)


def fixed_array(type_: pa.DataType, rows: int, read: Any) -> tuple[pa.Array, Numbers]:
    """Return the compiled kernel's result as an Arrow array, and the rows that it could not read.

    Args:
        type_: Type of the array.
        rows: Number of rows of the array.
        read: Result of the kernel's function `read_fixed` or `read_fixed_texts`.
    """
    valid, nulls, values, unread = read
    if pa.types.is_boolean(type_):
        values = mask_bits(byte_values(values))
    array = from_buffers(type_, rows, values, valid=valid if nulls else None, null_count=nulls)
    return array, np.frombuffer(unread, np.int64)


def read_fixed_texts(texts: pa.StringArray, type_: pa.DataType) -> tuple[pa.Array, Numbers] | None:
    """Return texts as values of an Arrow type, and the rows that the compiled kernel did not read.

    The kernel reads only texts in the form that a server writes, for example not `007`. Two different texts
    therefore never become the same integer.

    Returns:
        The values, which are NULL in the unread rows and where the text is NULL, and the unread rows; None
        without the kernel, and if the kernel does not read the type.
    """
    reader = fixed_reader(type_)
    if compiled.kernel is None or reader is None:
        return None
    known = mask_bits(np.asarray(texts.is_valid())) if texts.null_count else None
    read = compiled.kernel.read_fixed_texts(value_bytes(texts), value_offsets(texts), known, *reader)
    return fixed_array(type_, len(texts), read)
