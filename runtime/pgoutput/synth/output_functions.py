"""Convert Python dates, times, intervals and JSON documents to the text that the server writes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from pgoutput._type_modifiers import round_to_precision
from pgoutput.catalog import BY_NAME
from pgoutput.values import decode_binary

_INT64: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")
_INTERVAL: Final = struct.Struct(">qii")

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(2000, 1, 1)


def output_text(value: Any, name: str, modifier: int) -> Any:
    """Return the server's text for a date, time, interval or JSON value.

    Text and values of other types are returned unchanged.

    Args:
        value: The Python value, not None.
        name: Name of the column type in pg_type.
        modifier: `atttypmod`, the number of fractional digits to which times are rounded; -1 to not round.

    Raises:
        ValueError: The type cannot represent the value, or the value is ambiguous, such as a timetz without a
            time zone.
        TypeError: The value cannot be serialized as JSON.
    """
    if isinstance(value, str) or name not in _OUTPUT_FUNCTIONS:
        return value
    return _OUTPUT_FUNCTIONS[name](value, modifier)


def _date(value: Any, modifier: int) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("expected a date")
    return value.isoformat()


def _time(value: Any, modifier: int) -> str:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise ValueError("expected a time without time zone")
    return _text("time", _INT64.pack(round_to_precision(_since_midnight(value), modifier)))


def _timetz(value: Any, modifier: int) -> str:
    offset = value.utcoffset() if isinstance(value, time) else None
    if offset is None:
        raise ValueError("expected a time with time zone")
    west = -(offset // timedelta(seconds=1))
    return _text("timetz", _TIMETZ.pack(round_to_precision(_since_midnight(value), modifier), west))


def _timestamp(value: Any, modifier: int) -> str:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise ValueError("expected a datetime without time zone")
    return _text("timestamp", _INT64.pack(round_to_precision((value - _EPOCH) // _MICROSECOND, modifier)))


def _timestamptz(value: Any, modifier: int) -> str:
    """Return timestamptz text in UTC, the time zone of all scenarios."""
    offset = value.utcoffset() if isinstance(value, datetime) else None
    if offset is None:
        raise ValueError("expected a datetime with time zone, such as datetime(2024, 1, 1, tzinfo=UTC)")
    since = (value.replace(tzinfo=None) - _EPOCH - offset) // _MICROSECOND
    return _text("timestamptz", _INT64.pack(round_to_precision(since, modifier)))


def _interval(value: Any, modifier: int) -> str:
    if not isinstance(value, timedelta):
        raise ValueError("expected a timedelta or text")
    within_day = (value - timedelta(value.days)) // _MICROSECOND
    return _text("interval", _INTERVAL.pack(within_day, value.days, 0))


def _text(name: str, data: bytes) -> str:
    """Return in text format the value of type `name` that `data` holds in binary format."""
    return decode_binary(data, BY_NAME[name].oid)


def _since_midnight(value: time) -> int:
    return (datetime.combine(_EPOCH, value.replace(tzinfo=None)) - _EPOCH) // _MICROSECOND


def _json(value: Any, modifier: int) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _jsonb(value: Any, modifier: int) -> str:
    return _jsonb_text(json.loads(json.dumps(value, allow_nan=False), parse_float=Decimal))


def _jsonb_text(value: Any) -> str:
    """Return jsonb text (jsonb_out): keys sorted by length, then by bytes; numbers without exponent."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{_jsonb_text(key)}: {_jsonb_text(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_jsonb_text, value)) + "]"
    if isinstance(value, Decimal):
        return format(value if value else abs(value), "f")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("jsonb cannot contain U+0000")
    return json.dumps(value, ensure_ascii=False)


_OUTPUT_FUNCTIONS: Final[Mapping[str, Callable[[Any, int], str]]] = {
    "date": _date,
    "time": _time,
    "timetz": _timetz,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
    "json": _json,
    "jsonb": _jsonb,
}
"""Functions by type name. Each converts a Python value to text; the second argument is `atttypmod`."""
