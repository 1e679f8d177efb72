"""LSNs and timestamps.

The names that `__all__` omits are helpers of the codecs, and the marker `UNCHANGED`, which users import from
`logicalrep.messages`.
"""

from __future__ import annotations

import enum
import operator
import re
import time
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Final, TypeAlias, TypeVar, overload

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes-like objects that decoders accept."""


class Unchanged(enum.Enum):
    """The type of the marker UNCHANGED: an enum, so that type checkers narrow `is UNCHANGED`.

    `msgspec.json.encode` writes an enum as its value. The enum's value is therefore the JSON object that
    `logicalrep.jsonlines` writes for UNCHANGED; no other cell becomes this JSON object.
    """

    UNCHANGED = {"unchanged": True}  # noqa: RUF012

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""The cell of an unchanged TOASTed value, which the server does not send; compare it with `is`."""

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""PostgreSQL's epoch, 2000-01-01 00:00 UTC; timestamps count microseconds from it."""

EPOCH_UNIX_MICROSECONDS: Final = 946_684_800_000_000
"""PostgreSQL's epoch (2000-01-01 00:00 UTC) in microseconds since 1970-01-01 00:00 UTC."""

UNIX_YEAR_1: Final = -62_135_596_800_000_000
"""0001-01-01 00:00 UTC in microseconds since 1970: the first moment that Python and Spark represent."""

UNIX_YEAR_10000: Final = 253_402_300_800_000_000
"""10000-01-01 00:00 UTC in microseconds since 1970: the first moment beyond the range of Python and Spark."""

TIMES: Final = range(UNIX_YEAR_1 - EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_10000 - EPOCH_UNIX_MICROSECONDS)
"""Timestamps of messages that Python and Spark represent: those in the years 1 to 9999."""

NO_TEXT: Final = "\0"
"""The first character of what stands for a value without valid text; see `hex_text`."""

INFINITE_TIMESTAMPS: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}
"""Text of the infinite timestamps, by the number of microseconds that the server sends for them."""

_CYCLE: Final = 146_097 * 86_400_000_000
"""Microseconds in the 400-year cycle of the Gregorian calendar."""

__all__ = [
    "format_lsn",
    "format_time",
    "from_datetime",
    "parse_lsn",
    "to_datetime",
]

_Flags = TypeVar("_Flags", bound=enum.IntFlag)
_ESCAPE = re.compile(r"\\(?=x(?:[89a-f][0-9a-f]|5c))")
_LSN = re.compile(r"([0-9a-fA-F]{1,8})/([0-9a-fA-F]{1,8})")


def read_string(data: bytes, pos: int) -> tuple[str, int]:
    """Return the zero-terminated string at `pos`, and the position after its zero byte (pq_getmsgstring).

    Bytes that are not valid UTF-8 become lone surrogates (PEP 383).

    Raises:
        ValueError: No zero byte follows.
    """
    end = data.index(0, pos)
    return data[pos:end].decode("utf-8", "surrogateescape"), end + 1


def escaped_bytes(text: str) -> bytes:
    """Return the bytes of a text in which lone surrogates represent bytes that are not UTF-8 (PEP 383).

    Raises:
        ValueError: No decoder returns this text: a surrogate represents no byte, or several surrogates
            together represent bytes that are valid UTF-8.
    """
    raw = text.encode("utf-8", "surrogateescape")
    if raw.decode("utf-8", "surrogateescape") != text:
        raise ValueError("surrogates stand for bytes that are valid UTF-8")
    return raw


def is_utf8(text: str) -> bool:
    """Return whether a decoded text is valid UTF-8, so that Arrow and Delta can store it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_text(text: str) -> str:
    r"""Return a decoded text in valid UTF-8, to be shown; bytes that are not UTF-8 become `\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def stored_name(name: str) -> str:
    r"""Return a decoded name in valid UTF-8, to be stored; different names stay different.

    Bytes that are not UTF-8 become `\xff`. If a name has this very text, its backslash becomes `\x5c`.
    """
    return shown_text(_ESCAPE.sub(r"\\x5c", name))


def stored_text(text: str) -> str:
    """Return the decoded text of a value in valid UTF-8, to be stored; different texts stay different.

    Text that is not UTF-8, or has a zero byte, becomes `hex_text`.
    """
    if (text.isascii() or is_utf8(text)) and NO_TEXT not in text:
        return text
    return hex_text(text.encode("utf-8", "surrogateescape"))


def hex_text(raw: bytes) -> str:
    r"""Return what stands for a value without valid text: U+0000, which no text has, and hex as `\x00ff`."""
    return f"{NO_TEXT}\\x{raw.hex()}"


def write_string(text: str) -> bytes:
    """Return the bytes of a text and a terminating zero byte (pq_sendstring).

    Raises:
        ValueError: The text contains a zero character (U+0000), or surrogates that no decoder returns.
    """
    raw = escaped_bytes(text)
    if 0 in raw:
        raise ValueError("a zero character cannot be sent in a zero-terminated string")
    return raw + b"\0"


def flag_table(flags: type[_Flags], mask: int) -> dict[int, _Flags]:
    """Return a dict from each combination of bits in `mask` to its flags; a lookup is faster than a call."""
    return {bits: flags(bits) for bits in range(mask + 1) if not bits & ~mask}


def known_bits(value: int, mask: int) -> int:
    """Return flags as an int, if they have no bits outside `mask`.

    Raises:
        TypeError: `value` is not an integer.
        ValueError: `value` has bits outside `mask`.
    """
    bits = operator.index(value)  # the operators of IntFlag are slow
    if bits & ~mask:
        raise ValueError(f"unknown bits {bits & ~mask:#x}")
    return bits


@overload
def read_counted(data: bytes, pos: int, prefix: Struct, null: None) -> tuple[bytes, int]: ...
@overload
def read_counted(data: bytes, pos: int, prefix: Struct, null: int) -> tuple[bytes | None, int]: ...
def read_counted(data: bytes, pos: int, prefix: Struct, null: int | None) -> tuple[bytes | None, int]:
    """Return the bytes after the length at `pos` (None for the length `null`), and the position after them.

    The format of the length is `prefix`.

    Raises:
        ValueError: The length is negative, or exceeds the data.
        struct.error: The data ends within the length.
    """
    (size,) = prefix.unpack_from(data, pos)
    start = pos + prefix.size
    if size == null:
        return None, start
    end = start + size
    if size < 0 or end > len(data):
        raise ValueError
    return data[start:end], end


def write_counted(value: bytes | None, prefix: Struct, null: int | None) -> bytes:
    """Return the length of `value`, packed by `prefix`, and then `value`; for None, only the packed `null`.

    Raises:
        ValueError: `value` is not bytes, or `value` and `null` are both None.
        struct.error: The length does not fit into the prefix.
    """
    if value is None and null is not None:
        return prefix.pack(null)
    if not isinstance(value, bytes):
        raise ValueError
    return prefix.pack(len(value)) + value


def exact(value: object, size: int) -> bytes:
    """Return `value`, if it has `size` bytes.

    Raises:
        ValueError: `value` is not bytes, or has another size.
    """
    if not isinstance(value, bytes) or len(value) != size:
        raise ValueError
    return value


def not_ending(element: bytes, end: bytes) -> bytes:
    """Return `element`, an encoded element of a list whose end is marked by the bytes `end`.

    Raises:
        ValueError: `element` begins with `end`: a decoder would take the element for the end of the list.
    """
    if element.startswith(end):
        raise ValueError
    return element


def format_lsn(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it: `16/B374D848` (pg_lsn_out).

    Raises:
        ValueError: The LSN is negative or has more than 64 bits.
    """
    if not 0 <= lsn < 1 << 64:
        raise ValueError(f"an LSN is a number from 0 to 2**64 - 1, not {lsn}")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the LSN of a text such as `16/B374D848` (pg_lsn_in).

    Raises:
        ValueError: The text is not two hexadecimal numbers of at most 8 digits, separated by a slash.
    """
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an LSN such as '16/B374D848'")
    return int(match[1], 16) << 32 | int(match[2], 16)


def to_datetime(timestamp: int) -> datetime:
    """Return a message's timestamp (microseconds since 2000-01-01 00:00 UTC) as an aware datetime in UTC.

    Raises:
        OverflowError: The year is before 1 or after 9999.
    """
    return EPOCH + timedelta(microseconds=timestamp)


def format_time(timestamp: int, separator: str = " ", precision: str = "seconds") -> str:
    """Return a message's timestamp (microseconds since 2000-01-01 00:00 UTC) as text, whatever its year.

    The text is ISO 8601 in UTC. Outside the years 1 to 9999 it is as PostgreSQL writes it: `infinity`,
    `294276-12-31 23:59:59+00:00`, `0044-03-15 12:00:00+00:00 BC`.

    Args:
        timestamp: The timestamp, a signed integer of 64 bits.
        separator: The character between date and time.
        precision: The argument `timespec` of `datetime.isoformat`: `auto` for microseconds.
    """
    if timestamp in INFINITE_TIMESTAMPS:
        return INFINITE_TIMESTAMPS[timestamp]
    cycles, rest = divmod(timestamp, _CYCLE)
    moment = to_datetime(rest)
    year = moment.year + 400 * cycles
    text = moment.isoformat(separator, precision)[4:]
    return f"{year:04d}{text}" if year > 0 else f"{1 - year:04d}{text} BC"


def from_datetime(moment: datetime) -> int:
    """Return an aware datetime as a message's timestamp, in microseconds since 2000-01-01 00:00 UTC.

    Raises:
        TypeError: The datetime has no time zone.
    """
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def timestamp_now() -> int:
    """Return the current time as a message's timestamp, in microseconds since 2000-01-01 00:00 UTC."""
    return time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
