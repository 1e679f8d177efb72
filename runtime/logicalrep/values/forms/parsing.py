"""Read the binary form of a value within its bounds, and match the text form with a regular expression."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from logicalrep.wire import read_string

OutputFunction: TypeAlias = Callable[[bytes], str]
"""A function from a value's binary form to its text form.

It raises one of `INVALID_VALUE_ERRORS` if the bytes are not a value of the type. Bytes that are not UTF-8
become lone surrogates (PEP 383).
"""

INVALID_VALUE_ERRORS: Final = (ValueError, IndexError, struct.error)
"""Exceptions that an `OutputFunction` raises for bytes that are not a value of its type."""

InputFunction: TypeAlias = Callable[[str], bytes]
"""A function from a value's text form to its binary form.

It raises ValueError, OverflowError or struct.error if the text is not a value of the type.
"""


class Form(NamedTuple):
    """The functions that convert the values of a type between binary form and text form."""

    output: OutputFunction
    input: InputFunction | None = None
    """Function from text form to binary form; None if the type has none."""


_LENGTH: Final = struct.Struct(">i")


class Reader:
    """A read position in the bytes of a value.

    Lengths in the bytes may be wrong; memory use does not depend on these lengths.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    @property
    def remaining(self) -> int:
        """Number of bytes after the read position."""
        return len(self._data) - self._pos

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Read the numbers that a struct format describes.

        Raises:
            struct.error: Fewer bytes remain than the numbers need.
        """
        values = form.unpack_from(self._data, self._pos)
        self._pos += form.size
        return values

    def take(self, size: int) -> bytes:
        """Read `size` bytes.

        Raises:
            ValueError: Fewer bytes remain, or `size` is negative.
        """
        if not 0 <= size <= self.remaining:
            raise ValueError(f"expected {size} bytes, found {self.remaining}")
        self._pos += size
        return self._data[self._pos - size : self._pos]

    def value(self) -> bytes | None:
        """Read a value of an array, range or record: its length in bytes (-1 for NULL), then its bytes.

        Returns:
            The bytes, or None for NULL.

        Raises:
            ValueError: Fewer bytes remain than the length says.
            struct.error: Fewer bytes remain than the length field needs.
        """
        (size,) = self.unpack(_LENGTH)
        return None if size == -1 else self.take(size)

    def string(self) -> str:
        """Read a zero-terminated string (pq_getmsgstring).

        Raises:
            ValueError: No zero byte follows.
        """
        text, self._pos = read_string(self._data, self._pos)
        return text

    def end(self) -> None:
        """Check that no bytes remain (pq_getmsgend).

        Raises:
            ValueError: Bytes remain.
        """
        if self.remaining:
            raise ValueError(f"{self.remaining} bytes remain after the value")


def match_whole(pattern: re.Pattern[str], text: str, example: str) -> re.Match[str]:
    """Return the match of the whole text with a pattern.

    Args:
        pattern: The pattern.
        text: A value's text.
        example: An example of a valid text, for the error message.

    Raises:
        ValueError: The pattern does not match the whole text.
    """
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a text such as {example}, found {text[:20]!r}")
    return match
