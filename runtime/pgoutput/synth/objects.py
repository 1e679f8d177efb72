"""Python's dates, times, intervals and documents, as the server's output functions write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from pgoutput.values.text_from_binary import datetimes

_INT64: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")
_INTERVAL: Final = struct.Struct(">qii")

_SECOND: Final = 1_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(2000, 1, 1)
_DIGITS: Final = 6
"""Of a second that the server keeps."""


def written(value: Any, name: str, modifier: int) -> Any:
    """The server's text of a value, if Python has a class for values of the type; otherwise the value itself.

    Args:
        value: Not NULL.
        name: The type.
        modifier: `atttypmod`, -1 if there is none; times are rounded to as many digits as it says.

    Raises:
        ValueError: It is no value of the type, or one that means several: a time of day without its zone.
        TypeError: It cannot be written as JSON.
    """
    if isinstance(value, str) or name not in _WRITERS:
        return value
    return _WRITERS[name](value, modifier)


def _date(value: Any, modifier: int) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("give a date")
    return value.isoformat()


def _time(value: Any, modifier: int) -> str:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise ValueError("give a time without a zone")
    return datetimes.time_out(_INT64.pack(_rounded(_since_midnight(value), modifier)))


def _timetz(value: Any, modifier: int) -> str:
    offset = value.utcoffset() if isinstance(value, time) else None
    if offset is None:
        raise ValueError("give a time with a zone")
    west = -(offset // timedelta(seconds=1))
    return datetimes.timetz_out(_TIMETZ.pack(_rounded(_since_midnight(value), modifier), west))


def _timestamp(value: Any, modifier: int) -> str:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise ValueError("give a datetime without a zone")
    return datetimes.timestamp_out(_INT64.pack(_rounded((value - _EPOCH) // _MICROSECOND, modifier)))


def _timestamptz(value: Any, modifier: int) -> str:
    """In UTC, which is the zone of all that a scenario writes."""
    offset = value.utcoffset() if isinstance(value, datetime) else None
    if offset is None:
        raise ValueError("give a datetime with a zone, as datetime(2024, 1, 1, tzinfo=UTC)")
    since = (value.replace(tzinfo=None) - _EPOCH - offset) // _MICROSECOND
    return datetimes.timestamptz_out(_INT64.pack(_rounded(since, modifier)))


def _interval(value: Any, modifier: int) -> str:
    if not isinstance(value, timedelta):
        raise ValueError("give a timedelta, or text")
    return datetimes.interval_out(_INTERVAL.pack(value.seconds * _SECOND + value.microseconds, value.days, 0))


def _since_midnight(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * _SECOND + value.microsecond


def _rounded(microseconds: int, modifier: int) -> int:
    """Half a unit goes away from zero (AdjustTimeForTypmod, AdjustTimestampForTypmod)."""
    if not 0 <= modifier <= _DIGITS:
        return microseconds
    unit: int = 10 ** (_DIGITS - modifier)
    size = (abs(microseconds) + unit // 2) // unit * unit
    return size if microseconds >= 0 else -size


def _json(value: Any, modifier: int) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _jsonb(value: Any, modifier: int) -> str:
    return _document(json.loads(json.dumps(value, allow_nan=False), parse_float=Decimal))


def _document(value: Any) -> str:
    """As jsonb_out: short keys first, numbers without an exponent."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{_document(key)}: {_document(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_document, value)) + "]"
    if isinstance(value, Decimal):
        return format(value if value else abs(value), "f")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("jsonb has no zero character")
    return json.dumps(value, ensure_ascii=False)


_WRITERS: Final[Mapping[str, Callable[[Any, int], str]]] = {
    "date": _date,
    "time": _time,
    "timetz": _timetz,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
    "json": _json,
    "jsonb": _jsonb,
}
"""By type."""
