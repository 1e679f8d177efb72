"""Read the values that a fuzz target needs from the bytes that the fuzzer generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]


class InputReader:
    """Reads values from the bytes of a fuzzer. After the end of the bytes, all values are zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Return whether bytes are left."""
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end."""
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(len(self._data) - min(self._at, len(self._data)))

    def integer(self, size: int = 1, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size).ljust(size, b"\0"), signed=signed)

    def boolean(self) -> bool:
        return bool(self.integer() & 1)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.integer() % len(items)]

    def offsets(self, count: int, kind: type[np.integer[Any]]) -> npt.NDArray[Any]:
        """Read Arrow offsets for `count` values: arbitrary numbers, or cumulative sums of arbitrary sizes."""
        if self.boolean():
            return np.array([self.integer(4, signed=True) for _ in range(count + 1)], kind)
        return np.cumsum([0, *(self.integer(2) for _ in range(count))], dtype=kind)

    def bitmap(self, count: int) -> Bytes:
        return exact(self.take((count + 7) // 8).ljust((count + 7) // 8, b"\0"))


def exact(data: bytes) -> Bytes:
    """Return a copy in memory of exactly this size, so that a sanitizer detects each access after the end.

    Buffers that Arrow allocates are padded, which would hide such an access.
    """
    return np.frombuffer(data, np.uint8).copy()


def array(
    type_: pa.DataType, start: int, offsets: npt.NDArray[Any], content: Bytes, validity: Bytes | None
) -> pa.Array:
    """Return an Arrow array of these buffers without the first `start` values."""
    buffers = [None if one is None else pa.py_buffer(one) for one in (validity, offsets, content)]
    return pa.Array.from_buffers(type_, len(offsets) - 1 - start, buffers, offset=start)


def is_sound(made: pa.Array) -> bool:
    """Return whether Arrow accepts an array as valid. Text may be invalid UTF-8."""
    is_large = made.type in (pa.large_string(), pa.large_binary())
    try:
        made.view(pa.large_binary() if is_large else pa.binary()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
