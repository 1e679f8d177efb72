"""Reading one value's bytes: what is not there raises, and no claimed length is believed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pgoutput.wire import read_string

Output: TypeAlias = Callable[[bytes], str]
"""A value's binary form to its text form; raises one of `ILLEGAL` where the bytes are no such value. Bytes
that are not UTF-8 stand in the text as lone surrogates (PEP 383)."""

ILLEGAL: Final = (ValueError, IndexError, struct.error)
"""What an `Output` raises."""

_LENGTH: Final = struct.Struct(">i")


class Reader:
    """A position in the bytes of a value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self._pos

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """The next numbers.

        Raises:
            struct.error: They are not there.
        """
        values = form.unpack_from(self._data, self._pos)
        self._pos += form.size
        return values

    def take(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            ValueError: They are not there, or `size` is negative.
        """
        if not 0 <= size <= self.left:
            raise ValueError(f"{size} bytes are wanted, {self.left} are left")
        self._pos += size
        return self._data[self._pos - size : self._pos]

    def value(self) -> bytes | None:
        """The next value of an array, a range or a record: a length in bytes (-1: NULL), then its bytes.

        Raises:
            ValueError: It is not there.
            struct.error: Its length is not there.
        """
        (size,) = self.unpack(_LENGTH)
        return None if size == -1 else self.take(size)

    def string(self) -> str:
        """The next string, which a zero byte ends (pq_getmsgstring).

        Raises:
            ValueError: There is no zero byte.
        """
        text, self._pos = read_string(self._data, self._pos)
        return text

    def end(self) -> None:
        """Nothing must follow (pq_getmsgend).

        Raises:
            ValueError: Something does.
        """
        if self.left:
            raise ValueError(f"{self.left} bytes too many")
