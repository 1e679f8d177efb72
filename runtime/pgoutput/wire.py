"""The smallest pieces of the wire: strings, flags, LSNs, timestamps, and the value that is not sent."""

from __future__ import annotations

import enum
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes-like objects that decoders take."""


class Unchanged(enum.Enum):
    """The type of UNCHANGED, so that type checkers can tell it from values."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""The cell of an unchanged TOASTed value, which the server does not send. Compare with `is`."""

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""PostgreSQL's epoch, from which timestamps count microseconds."""

EPOCH_UNIX_MICROSECONDS: Final = 946_684_800_000_000
"""The same in microseconds since 1970-01-01 00:00 UTC."""

UNIX_YEAR_1: Final = -62_135_596_800_000_000
"""0001-01-01 00:00 UTC in microseconds since 1970: the first moment that Python and Spark can show."""

UNIX_YEAR_10000: Final = 253_402_300_800_000_000
"""10000-01-01 00:00 UTC, likewise: the first moment that they no longer can."""

_LSN = re.compile(r"([0-9a-fA-F]{1,8})/([0-9a-fA-F]{1,8})")


def read_string(data: bytes, pos: int) -> tuple[str, int]:
    """The zero-terminated string at `pos`, and the position after its zero (pq_getmsgstring).

    Raises:
        ValueError: There is no zero byte.
    """
    end = data.index(0, pos)
    return data[pos:end].decode("utf-8", "surrogateescape"), end + 1


def escaped_bytes(text: str) -> bytes:
    """The bytes of text that is not valid UTF-8, as a decoder gives it (PEP 383).

    Raises:
        ValueError: No decoder gives this text: a surrogate stands for no byte, or several together stand
            for bytes that are valid UTF-8.
    """
    raw = text.encode("utf-8", "surrogateescape")
    if raw.decode("utf-8", "surrogateescape") != text:
        raise ValueError("surrogates stand for bytes that are valid UTF-8")
    return raw


def is_utf8(text: str) -> bool:
    """Whether the text stands for valid UTF-8, so that it can be stored as text elsewhere."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_text(text: str) -> str:
    """The text in valid UTF-8; bytes that are not UTF-8 become escapes in hex."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def write_string(text: str) -> bytes:
    """The text with a zero byte behind it (pq_sendstring).

    Raises:
        ValueError: The text contains a zero character, or no decoder gives it (see escaped_bytes).
    """
    raw = escaped_bytes(text)
    if 0 in raw:
        raise ValueError("a zero character cannot be sent in a zero-terminated string")
    return raw + b"\0"


def known_bits(value: int, mask: int) -> int:
    """`value`, if it has no bits outside `mask`.

    Raises:
        ValueError: It has.
    """
    if value & ~mask:
        raise ValueError(f"unknown bits {value & ~mask:#x}")
    return value


def format_lsn(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it: `16/B374D848` (pg_lsn_out).

    Raises:
        ValueError: It is negative, or has more than 64 bits.
    """
    if not 0 <= lsn < 1 << 64:
        raise ValueError(f"an LSN is a number from 0 to 2**64 - 1, not {lsn}")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """An LSN as PostgreSQL reads it (pg_lsn_in).

    Raises:
        ValueError: The text is not two hexadecimal numbers of at most 8 digits with a slash between.
    """
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an LSN such as '16/B374D848'")
    return int(match[1], 16) << 32 | int(match[2], 16)


def to_datetime(timestamp: int) -> datetime:
    """A timestamp of the wire (microseconds since 2000-01-01 UTC) as an aware datetime in UTC.

    Raises:
        OverflowError: The year is before 1 or after 9999.
    """
    return EPOCH + timedelta(microseconds=timestamp)


def from_datetime(moment: datetime) -> int:
    """An aware datetime as a timestamp of the wire.

    Raises:
        TypeError: The datetime has no time zone.
    """
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
