"""Dates, times, timestamps and intervals (DateStyle ISO, IntervalStyle postgres).

The text of a timestamptz is written in UTC, and read in any time zone.
"""

from __future__ import annotations

import re
import struct
from datetime import date
from typing import Final

from logicalrep.values.forms.parsing import match_whole
from logicalrep.wire import INFINITE_TIMESTAMPS

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

_DATE: Final = r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_ERA: Final = "(?P<era> BC)?"
_TIME: Final = (
    r"(?P<hours>[0-9]{2,}):(?P<minutes>[0-5][0-9]):(?P<seconds>[0-5][0-9])(?:\.(?P<fraction>[0-9]{1,6}))?"
)
_ZONE: Final = "(?P<east>[+-])(?P<zone>[0-9]{2}(?::[0-5][0-9]){0,2})"

_DATE_FORM: Final = re.compile(_DATE + _ERA)
_TIME_FORM: Final = re.compile(_TIME)
_TIMETZ_FORM: Final = re.compile(_TIME + _ZONE)
_TIMESTAMP_FORM: Final = re.compile(f"{_DATE} {_TIME}{_ERA}")
_TIMESTAMPTZ_FORM: Final = re.compile(f"{_DATE} {_TIME}{_ZONE}{_ERA}")
_PARTS: Final = (rf"(?:(?P<{unit}s>[+-]?[0-9]+) {unit}s?(?: (?!\Z)|\Z))?" for unit in ("year", "mon", "day"))
_INTERVAL_FORM: Final = re.compile(rf"(?!\Z){''.join(_PARTS)}(?:(?P<sign>[+-]?){_TIME})?")

_INFINITE_DATES: Final = {text: _INT32.pack(number) for number, text in INFINITE_DATES.items()}
_INFINITE_TIMESTAMPS: Final = {text: _INT64.pack(number) for number, text in INFINITE_TIMESTAMPS.items()}
_INFINITE_INTERVALS: Final = {text: _INTERVAL.pack(*fields) for fields, text in INFINITE_INTERVALS.items()}


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
        raise ValueError(
            f"out of range: its binary form must be from {valid.start} to {valid.stop - 1}, not {value}"
        )
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


def date_in(text: str) -> bytes:
    """Return a date's binary form: days since 2000-01-01 (date_in, date_send)."""
    return _INFINITE_DATES.get(text) or _INT32.pack(
        _days(match_whole(_DATE_FORM, text, "2000-12-31 or infinity"))
    )


def time_in(text: str) -> bytes:
    """Return a time's binary form: microseconds since midnight (time_in, time_send)."""
    return _INT64.pack(_time_of_day(match_whole(_TIME_FORM, text, "23:59:59.5")))


def timetz_in(text: str) -> bytes:
    """Return a timetz's binary form: microseconds since midnight, seconds west of UTC (timetz_send)."""
    match = match_whole(_TIMETZ_FORM, text, "23:59:59.5+00")
    return _TIMETZ.pack(_time_of_day(match), -_seconds_east(match))


def timestamp_in(text: str) -> bytes:
    """Return a timestamp's binary form: microseconds since 2000-01-01 (timestamp_in, timestamp_send)."""
    return _INFINITE_TIMESTAMPS.get(text) or _encode_timestamp(
        match_whole(_TIMESTAMP_FORM, text, "2000-12-31 23:59:59.5 or infinity"), 0
    )


def timestamptz_in(text: str) -> bytes:
    """Return a timestamptz's binary form: microseconds since 2000-01-01 UTC (timestamptz_send)."""
    if infinity := _INFINITE_TIMESTAMPS.get(text):
        return infinity
    match = match_whole(_TIMESTAMPTZ_FORM, text, "2000-12-31 23:59:59.5+00 or infinity")
    return _encode_timestamp(match, _seconds_east(match))


def interval_in(text: str) -> bytes:
    """Return an interval's binary form: microseconds, days, months (interval_in, interval_send)."""
    if text in _INFINITE_INTERVALS:
        return _INFINITE_INTERVALS[text]
    match = match_whole(_INTERVAL_FORM, text, "1 year 2 mons -3 days +04:05:06.7 or infinity")
    years, months, days = (int(match[unit] or 0) for unit in ("years", "mons", "days"))
    time = _microseconds(match) if match["hours"] else 0
    return _INTERVAL.pack(-time if match["sign"] == "-" else time, days, MONTHS_PER_YEAR * years + months)


def _encode_timestamp(match: re.Match[str], east: int) -> bytes:
    value = _days(match) * DAY + _time_of_day(match) - east * SECOND
    return _INT64.pack(_require_in(value, TIMESTAMPS))


def _days(match: re.Match[str]) -> int:
    """Return a date as days since 2000-01-01; the year before 0001 is `0001 BC`."""
    year = int(match["year"])
    if not year:
        raise ValueError("there is no year 0")
    cycles, year = divmod((1 - year if match["era"] else year) - 1, 400)
    day = date(year + 1, int(match["month"]), int(match["day"])).toordinal()
    return _require_in(cycles * CYCLE + day - EPOCH, DATES)


def _time_of_day(match: re.Match[str]) -> int:
    return _require_in(_microseconds(match), TIMES)


def _microseconds(match: re.Match[str]) -> int:
    """Return hours, minutes and seconds as microseconds; more than 24 hours are possible."""
    hours, minutes, seconds = (int(match[unit]) for unit in ("hours", "minutes", "seconds"))
    return ((hours * 60 + minutes) * 60 + seconds) * SECOND + int((match["fraction"] or "").ljust(6, "0"))


def _seconds_east(match: re.Match[str]) -> int:
    """Return a time zone's displacement in seconds east of UTC."""
    hours, minutes, seconds = [*map(int, match["zone"].split(":")), 0, 0][:3]
    size = (hours * 60 + minutes) * 60 + seconds
    return _require_in(size if match["east"] == "+" else -size, ZONES)
