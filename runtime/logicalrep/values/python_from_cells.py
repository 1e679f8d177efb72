"""Conversion of cells to Python objects, with the types that psycopg 3 uses."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Final, TypeAlias
from uuid import UUID

from logicalrep import catalog
from logicalrep.messages import Cell
from logicalrep.values.builtin_types import array_delimiter
from logicalrep.values.forms.datetimes import interval_in
from logicalrep.values.literals import parse_array_literal
from logicalrep.values.text_from_cells import decode_binary
from logicalrep.wire import UNCHANGED

_Loader: TypeAlias = Callable[[str], Any]
"""A function from a value's text to a Python object; raises ValueError, ArithmeticError (also OverflowError)
or struct.error if the Python type cannot represent the value."""

_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_ZONE: Final = r"[+-][0-9]{2}(:[0-9]{2}){0,2}"
_INTERVAL: Final = struct.Struct(">qii")


def to_python(cell: Cell, type_oid: int) -> Any:
    r"""Return a cell as a Python object; the text and the binary form of a value give equal objects.

    ===============================================  ==================================================
    PostgreSQL type                                  Python type
    ===============================================  ==================================================
    bool                                             bool
    int2, int4, int8, oid, xid, cid, xid8            int
    float4, float8                                   float
    numeric                                          Decimal
    bytea                                            bytes
    date                                             datetime.date
    time, timetz                                     datetime.time, aware for timetz
    timestamp, timestamptz                           datetime.datetime, aware for timestamptz
    interval                                         timedelta; str if it has months or years
    uuid                                             UUID
    inet, cidr                                       an address, interface or network of ipaddress
    arrays                                           list, nested for several dimensions; None for NULL
    json, jsonb, text, varchar, all others           str, the server's text
    ===============================================  ==================================================

    The types are those of psycopg 3, with three exceptions. json, jsonb and ranges stay text. xid, cid and
    xid8 are int. And a value that its Python type cannot represent is returned as the server's text: infinite
    dates, timestamps and intervals; years before 1 and after 9999; the time 24:00:00; intervals with
    months or years, because their length in days varies.

    A timestamptz has the offset that the server sent; in binary format, UTC. Lower bounds of arrays are
    dropped. Bytes of a text that are not valid UTF-8 become lone surrogates (PEP 383).

    Args:
        cell: A cell of a tuple in text or binary format. Texts must have DateStyle ISO, IntervalStyle
            postgres and bytea_output hex, as they do by default.
        type_oid: OID of the column's type. For a domain, pass the OID of its base type (`base_types`).

    Returns:
        The object; None for None, UNCHANGED for UNCHANGED. Bytes that are not a value of the type in binary
        format are returned as they are.

    Raises:
        TypeError: `cell` is not a str, bytes, None or UNCHANGED.
    """
    if cell is None or cell is UNCHANGED:
        return cell
    if isinstance(cell, bytes):
        if type_oid == _BYTEA:
            return cell
        try:
            cell = decode_binary(cell, type_oid)
        except ValueError:
            return cell
    elif not isinstance(cell, str):
        raise TypeError(f"expected str, bytes, None or UNCHANGED, found {type(cell).__name__}")
    return _load(cell, _loader(type_oid))


def _load(text: str, loader: _Loader) -> Any:
    try:
        return loader(text)
    except (ValueError, ArithmeticError, struct.error):
        return text


@lru_cache(maxsize=1024)
def _loader(type_oid: int) -> _Loader:
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(_load_array, loader=_loader(element.oid), delimiter=array_delimiter(type_oid))
    builtin = catalog.FORMS.get(type_oid)
    return str if builtin is None else _LOADERS.get(builtin.name, str)


def _load_array(text: str, loader: _Loader, delimiter: str) -> list[Any]:
    array = parse_array_literal(text, delimiter)
    items = [None if element is None else _load(element, loader) for element in array.elements]
    for size in reversed(array.sizes[1:]):
        items = [items[start : start + size] for start in range(0, len(items), size)]
    return items


def _load_bytea(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError(f"expected bytea in hex format, such as \\x00ff, found {text[:20]!r}")
    return bytes.fromhex(text[2:])


def _load_interval(text: str) -> timedelta:
    microseconds, days, months = _INTERVAL.unpack(interval_in(text))
    if months:
        raise ValueError("an interval with months has no fixed length, so it cannot become a timedelta")
    return timedelta(days=days, microseconds=microseconds)


def _strict(pattern: str, parse: _Loader) -> _Loader:
    """Return a loader that calls `parse`, but raises ValueError if `pattern` does not match the text."""
    compiled = re.compile(pattern)

    def load(text: str) -> Any:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected a text that matches {pattern}, found {text!r}")
        return parse(text)

    return load


_BYTEA: Final = catalog.BY_NAME["bytea"].oid
_LOADERS: Final[dict[str, _Loader]] = {
    "bool": lambda text: ("f", "t").index(text) == 1,
    **dict.fromkeys(("int2", "int4", "int8", "oid", "xid", "cid", "xid8"), int),
    **dict.fromkeys(("float4", "float8"), float),
    "numeric": Decimal,
    "bytea": _load_bytea,
    "date": _strict(_DATE, date.fromisoformat),
    "time": _strict(_TIME, time.fromisoformat),
    "timetz": _strict(_TIME + _ZONE, time.fromisoformat),
    "timestamp": _strict(f"{_DATE} {_TIME}", datetime.fromisoformat),
    "timestamptz": _strict(f"{_DATE} {_TIME}{_ZONE}", datetime.fromisoformat),
    "interval": _load_interval,
    "uuid": UUID,
    "inet": lambda text: ip_interface(text) if "/" in text else ip_address(text),
    "cidr": ip_network,
}
"""Functions from a value's text to a Python object, by type name; values of other types stay text."""
