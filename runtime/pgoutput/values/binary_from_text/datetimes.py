"""Binary form of dates, times, timestamps and intervals from texts in DateStyle ISO, any time zone."""

from __future__ import annotations

import re
import struct
from datetime import date
from typing import Final

from pgoutput.values.binary_from_text.parsing import match_whole
from pgoutput.values.text_from_binary.datetimes import (
    CYCLE,
    DATES,
    DAY,
    EPOCH,
    INFINITE_DATES,
    INFINITE_INTERVALS,
    INFINITE_TIMESTAMPS,
    MONTHS_PER_YEAR,
    SECOND,
    TIMES,
    TIMESTAMPS,
    ZONES,
)

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")
_INTERVAL: Final = struct.Struct(">qii")

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


def _require_in(value: int, valid: range) -> int:
    if value not in valid:
        raise ValueError("out of range")
    return value
