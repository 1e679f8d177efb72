"""Dates, times and intervals, as DateStyle ISO, IntervalStyle postgres and TimeZone UTC write them."""

from __future__ import annotations

import struct
from datetime import date
from typing import Final

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")
_INTERVAL: Final = struct.Struct(">qii")

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
MONTHS: Final = 12
INFINITE: Final = {2**31 - 1: "infinity", -(2**31): "-infinity"}
INFINITE_64: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}
INFINITE_INTERVALS: Final = {
    (2**63 - 1, 2**31 - 1, 2**31 - 1): "infinity",
    (-(2**63), -(2**31), -(2**31)): "-infinity",
}

EPOCH: Final = date(2000, 1, 1).toordinal()
CYCLE: Final = 146_097
"""Days of 400 years, after which the Gregorian calendar repeats."""

DATES: Final = range(-2_451_545, 2_145_031_949)
"""Days since 2000-01-01 from 4713-11-24 BC to 5874897-12-31 (IS_VALID_DATE)."""
TIMESTAMPS: Final = range(-211_813_488_000_000_000, 9_223_371_331_200_000_000)
"""Microseconds since 2000-01-01 from 4713-11-24 BC to 294276-12-31 (IS_VALID_TIMESTAMP)."""
TIMES: Final = range(DAY + 1)
ZONES: Final = range(-16 * 3600 + 1, 16 * 3600)
"""Seconds west of UTC (TZDISP_LIMIT)."""


def date_out(data: bytes) -> str:
    """From days since 2000-01-01 (date_send, date_out)."""
    (days,) = _INT32.unpack(data)
    return INFINITE.get(days) or "".join(_date(_checked(days, DATES)))


def time_out(data: bytes) -> str:
    """From microseconds since midnight (time_send, time_out)."""
    (time,) = _INT64.unpack(data)
    return _time(_checked(time, TIMES))


def timetz_out(data: bytes) -> str:
    """From microseconds since midnight and seconds west of UTC (timetz_send, timetz_out)."""
    time, west = _TIMETZ.unpack(data)
    minutes, seconds = divmod(abs(_checked(west, ZONES)), 60)
    hours, minutes = divmod(minutes, 60)
    zone = f"{'-' if west > 0 else '+'}{hours:02d}"  # EncodeTimezone
    if minutes or seconds:
        zone += f":{minutes:02d}"
    if seconds:
        zone += f":{seconds:02d}"
    return _time(_checked(time, TIMES)) + zone


def timestamp_out(data: bytes) -> str:
    """From microseconds since 2000-01-01 (timestamp_send, timestamp_out)."""
    return _timestamp(data, "")


def timestamptz_out(data: bytes) -> str:
    """From microseconds since 2000-01-01 UTC (timestamptz_send, timestamptz_out)."""
    return _timestamp(data, "+00")


def interval_out(data: bytes) -> str:
    """From microseconds, days and months (interval_send, interval_out; EncodeInterval)."""
    time, days, months = fields = _INTERVAL.unpack(data)
    if fields in INFINITE_INTERVALS:
        return INFINITE_INTERVALS[fields]
    sign = -1 if months < 0 else 1
    years, months = (sign * part for part in divmod(abs(months), MONTHS))  # as C divides, towards zero
    parts: list[str] = []
    before = False  # whether the field before is negative: the next one then shows its sign
    for value, unit in ((years, "year"), (months, "mon"), (days, "day")):  # AddPostgresInt
        if value:
            plus = "+" if before and value > 0 else ""
            parts.append(f"{plus}{value} {unit}{'' if value == 1 else 's'}")
            before = value < 0
    if time or not parts:
        parts.append(("-" if time < 0 else "+" if before else "") + _time(abs(time)))
    return " ".join(parts)


def _checked(value: int, legal: range) -> int:
    if value not in legal:
        raise ValueError(f"{value} is out of range")
    return value


def _timestamp(data: bytes, zone: str) -> str:
    (timestamp,) = _INT64.unpack(data)
    if timestamp in INFINITE_64:
        return INFINITE_64[timestamp]
    days, time = divmod(_checked(timestamp, TIMESTAMPS), DAY)
    day, era = _date(days)
    return f"{day} {_time(time)}{zone}{era}"


def _date(days: int) -> tuple[str, str]:
    """Year, month and day, and the era (EncodeDateOnly): the year before 1 is `0001` and ` BC`."""
    cycles, day = divmod(days + EPOCH - 1, CYCLE)
    found = date.fromordinal(day + 1)
    year = found.year + 400 * cycles
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{found.month:02d}-{found.day:02d}", era


def _time(time: int) -> str:
    """Hours, which may pass 24, minutes and seconds (EncodeTimeOnly, AppendSeconds)."""
    seconds, fraction = divmod(time, SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text
