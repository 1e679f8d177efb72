"""Text of dates, times, timestamps and intervals (DateStyle ISO, IntervalStyle postgres, TimeZone UTC)."""

from __future__ import annotations

import struct
from datetime import date
from typing import Final

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")
_INTERVAL: Final = struct.Struct(">qii")

SECOND: Final = 1_000_000
"""Number of microseconds in a second."""
DAY: Final = 86_400 * SECOND
"""Number of microseconds in a day."""
MONTHS_PER_YEAR: Final = 12
INFINITE_DATES: Final = {2**31 - 1: "infinity", -(2**31): "-infinity"}
"""Text of the infinite dates, by the number of days that the server sends for them."""
INFINITE_TIMESTAMPS: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}
"""Text of the infinite timestamps, by the number of microseconds that the server sends for them."""
INFINITE_INTERVALS: Final = {
    (2**63 - 1, 2**31 - 1, 2**31 - 1): "infinity",
    (-(2**63), -(2**31), -(2**31)): "-infinity",
}
"""Text of the infinite intervals, by the microseconds, days and months that the server sends for them."""

EPOCH: Final = date(2000, 1, 1).toordinal()
"""Proleptic Gregorian ordinal of 2000-01-01."""
CYCLE: Final = 146_097
"""Days in the 400-year cycle of the Gregorian calendar."""

DATES: Final = range(-2_451_545, 2_145_031_949)
"""Valid dates in days since 2000-01-01: 4713-11-24 BC to 5874897-12-31 (IS_VALID_DATE)."""
TIMESTAMPS: Final = range(-211_813_488_000_000_000, 9_223_371_331_200_000_000)
"""Valid timestamps in microseconds since 2000-01-01: 4713-11-24 BC to 294276-12-31 (IS_VALID_TIMESTAMP)."""
TIMES: Final = range(DAY + 1)
"""Valid times of day in microseconds since midnight, 24:00 included."""
ZONES: Final = range(-16 * 3600 + 1, 16 * 3600)
"""Valid time zone displacements, in seconds (TZDISP_LIMIT)."""


def date_out(data: bytes) -> str:
    """Return a date's text from its days since 2000-01-01 (date_send, date_out)."""
    (days,) = _INT32.unpack(data)
    return INFINITE_DATES.get(days) or "".join(_format_date(_require_in(days, DATES)))


def time_out(data: bytes) -> str:
    """Return a time's text from its microseconds since midnight (time_send, time_out)."""
    (time,) = _INT64.unpack(data)
    return _format_time(_require_in(time, TIMES))


def timetz_out(data: bytes) -> str:
    """Return a timetz's text from its microseconds since midnight and seconds west of UTC (timetz_out)."""
    time, west = _TIMETZ.unpack(data)
    minutes, seconds = divmod(abs(_require_in(west, ZONES)), 60)
    hours, minutes = divmod(minutes, 60)
    zone = f"{'-' if west > 0 else '+'}{hours:02d}"  # EncodeTimezone
    if minutes or seconds:
        zone += f":{minutes:02d}"
    if seconds:
        zone += f":{seconds:02d}"
    return _format_time(_require_in(time, TIMES)) + zone


def timestamp_out(data: bytes) -> str:
    """Return a timestamp's text from its microseconds since 2000-01-01 (timestamp_send, timestamp_out)."""
    return _format_timestamp(data, "")


def timestamptz_out(data: bytes) -> str:
    """Return a timestamptz's text in UTC from its microseconds since 2000-01-01 UTC (timestamptz_out)."""
    return _format_timestamp(data, "+00")


def interval_out(data: bytes) -> str:
    """Return an interval's text from its microseconds, days and months (interval_out, EncodeInterval)."""
    time, days, months = fields = _INTERVAL.unpack(data)
    if fields in INFINITE_INTERVALS:
        return INFINITE_INTERVALS[fields]
    sign = -1 if months < 0 else 1
    years, months = (sign * part for part in divmod(abs(months), MONTHS_PER_YEAR))  # C rounds towards zero
    parts: list[str] = []
    after_negative = False  # a positive field after a negative one has a plus sign
    for value, unit in ((years, "year"), (months, "mon"), (days, "day")):  # AddPostgresInt
        if value:
            plus = "+" if after_negative and value > 0 else ""
            parts.append(f"{plus}{value} {unit}{'' if value == 1 else 's'}")
            after_negative = value < 0
    if time or not parts:
        parts.append(("-" if time < 0 else "+" if after_negative else "") + _format_time(abs(time)))
    return " ".join(parts)


def _require_in(value: int, valid: range) -> int:
    if value not in valid:
        raise ValueError(f"{value} is out of range")
    return value


def _format_timestamp(data: bytes, zone: str) -> str:
    (timestamp,) = _INT64.unpack(data)
    if timestamp in INFINITE_TIMESTAMPS:
        return INFINITE_TIMESTAMPS[timestamp]
    days, time = divmod(_require_in(timestamp, TIMESTAMPS), DAY)
    day, era = _format_date(days)
    return f"{day} {_format_time(time)}{zone}{era}"


def _format_date(days: int) -> tuple[str, str]:
    """Return two texts: `year-month-day`, and the era, which is empty or ` BC` (EncodeDateOnly)."""
    cycles, day = divmod(days + EPOCH - 1, CYCLE)
    found = date.fromordinal(day + 1)
    year = found.year + 400 * cycles
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{found.month:02d}-{found.day:02d}", era


def _format_time(time: int) -> str:
    """Return a time's text `hours:minutes:seconds`; hours may be 24 or more (EncodeTimeOnly)."""
    seconds, fraction = divmod(time, SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text
