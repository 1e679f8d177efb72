"""`to_python` returns the objects that psycopg returns, from text and from binary cells, without Arrow."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address, ip_interface, ip_network
from math import isnan
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.adapt import Transformer
from psycopg.pq import Format

from logicalrep import catalog, values
from logicalrep.values import decode_binary, encode_binary, to_python
from logicalrep.wire import UNCHANGED
from tests.values.test_captures import NOT_SENT, PAIRS, UNKNOWN_TYPES, columns_of

LONG = "12345678901234567890123456789012345678901234567890.1"
EAST = timezone(timedelta(hours=5, minutes=30))

EXAMPLES: list[tuple[str, str, Any]] = [
    ("bool", "t", True),
    ("bool", "f", False),
    ("int2", "-32768", -32768),
    ("int4", "7", 7),
    ("int8", "9223372036854775807", 2**63 - 1),
    ("oid", "4294967295", 2**32 - 1),
    ("xid", "731", 731),
    ("cid", "0", 0),
    ("xid8", "18446744073709551615", 2**64 - 1),
    ("float4", "1.1", 1.1),
    ("float8", "-Infinity", float("-inf")),
    ("numeric", "9.50", Decimal("9.50")),
    ("numeric", "-0.000", Decimal("0.000")),
    ("numeric", LONG, Decimal(LONG)),
    ("numeric", "Infinity", Decimal("Infinity")),
    ("bytea", "\\x00ff", b"\x00\xff"),
    ("bytea", "\\x", b""),
    ("text", "1", "1"),
    ("varchar", "", ""),
    ("bpchar", "a  ", "a  "),
    ("json", '{"a": 1}', '{"a": 1}'),
    ("jsonb", "null", "null"),
    ("date", "2024-02-29", date(2024, 2, 29)),
    ("date", "0001-01-01", date.min),
    ("date", "9999-12-31", date.max),
    ("time", "23:59:59.5", time(23, 59, 59, 500_000)),
    ("timetz", "12:00:00+05:30", time(12, tzinfo=EAST)),
    ("timestamp", "2024-02-29 12:34:56.000001", datetime(2024, 2, 29, 12, 34, 56, 1)),
    ("timestamptz", "2024-02-29 12:00:00+00", datetime(2024, 2, 29, 12, tzinfo=UTC)),
    ("timestamptz", "2024-02-29 12:00:00+05:30", datetime(2024, 2, 29, 12, tzinfo=EAST)),
    ("timestamptz", "1890-01-01 00:00:00-00:01:15", datetime(1890, 1, 1, 0, 1, 15, tzinfo=UTC)),
    ("interval", "3 days 04:05:06.7", timedelta(days=3, hours=4, minutes=5, seconds=6, milliseconds=700)),
    ("interval", "-1 days +02:00:00", timedelta(days=-1, hours=2)),
    ("interval", "00:00:00", timedelta(0)),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("inet", "10.0.0.1", ip_address("10.0.0.1")),
    ("inet", "10.0.0.1/8", ip_interface("10.0.0.1/8")),
    ("cidr", "fe80::/10", ip_network("fe80::/10")),
    ("int4range", "[1,5)", "[1,5)"),
    ("point", "(0,1)", "(0,1)"),
    ("int2vector", "1 2", "1 2"),
]  # fmt: skip

KEPT_AS_TEXT = [
    ("date", "infinity"),
    ("date", "0044-03-15 BC"),
    ("date", "10000-01-01"),
    ("time", "24:00:00"),
    ("timestamp", "-infinity"),
    ("timestamp", "10000-01-01 00:00:00"),
    ("timestamptz", "infinity"),
    ("timestamptz", "4713-11-24 00:00:00+00 BC"),
    ("interval", "1 mon"),
    ("interval", "1 year 2 days"),
    ("interval", "infinity"),
    ("interval", "2147483647 days"),
]

ARRAYS: list[tuple[str, str, Any]] = [
    ("int4", "{}", []),
    ("int4", "{1,NULL,3}", [1, None, 3]),
    ("int4", "{{1,2},{3,4},{5,6}}", [[1, 2], [3, 4], [5, 6]]),
    ("int4", "{{{1},{2}}}", [[[1], [2]]]),
    ("int4", "[0:1]={1,2}", [1, 2]),
    ("text", '{"NULL",NULL,"a,b","\\"",""}', ["NULL", None, "a,b", '"', ""]),
    ("bool", "{t,f}", [True, False]),
    ("numeric", "{9.50,NaN}", [Decimal("9.50"), Decimal("NaN")]),
    ("date", "{2024-02-29,infinity}", [date(2024, 2, 29), "infinity"]),
    ("bytea", '{"\\\\x00ff"}', [b"\x00\xff"]),
    ("box", "{(2,3),(0,1);(4,5),(2,3)}", ["(2,3),(0,1)", "(4,5),(2,3)"]),
]


@pytest.mark.parametrize(("name", "text", "expected"), EXAMPLES)
def test_text_and_binary_values_become_python_objects(name: str, text: str, expected: Any) -> None:
    oid = catalog.BY_NAME[name].oid
    for cell in (text, encode_binary(text, oid)):
        value = to_python(cell, oid)
        assert type(value) is type(expected)
        assert value == expected
    assert decode_binary(encode_binary(text, oid), oid) is not None


def test_numeric_keeps_its_scale() -> None:
    assert str(to_python("9.50", 1700)) == "9.50"
    assert str(to_python(encode_binary("9.50", 1700), 1700)) == "9.50"


@pytest.mark.parametrize("name", ["float4", "float8", "numeric"])
def test_nan_stays_nan(name: str) -> None:
    oid = catalog.BY_NAME[name].oid
    assert isnan(to_python("NaN", oid))
    assert isnan(to_python(encode_binary("NaN", oid), oid))


@pytest.mark.parametrize(("name", "text"), KEPT_AS_TEXT)
def test_a_value_that_python_cannot_represent_stays_text(name: str, text: str) -> None:
    oid = catalog.BY_NAME[name].oid
    assert to_python(text, oid) == text
    assert to_python(encode_binary(text, oid), oid) == text


@pytest.mark.parametrize(("name", "text", "expected"), ARRAYS)
def test_arrays_become_lists(name: str, text: str, expected: list[Any]) -> None:
    oid = catalog.BY_NAME[name].array_oid
    assert repr(to_python(text, oid)) == repr(expected)
    assert repr(to_python(encode_binary(text, oid), oid)) == repr(expected)


def test_null_and_unchanged_stay_what_they_are() -> None:
    for oid in (16, 25, 1007, 99_999):
        assert to_python(None, oid) is None
        assert to_python(UNCHANGED, oid) is UNCHANGED


def test_types_that_are_not_built_in_are_text() -> None:
    assert to_python("happy", 99_999) == "happy"
    assert to_python(b"happy", 99_999) == "happy"


def test_bytes_that_are_not_a_value_of_the_type_stay_bytes() -> None:
    assert to_python(b"\0", 23) == b"\0"
    assert to_python(b"\xff\xff\xff\xff\0", 99_999) == b"\xff\xff\xff\xff\0"
    with pytest.raises(ValueError, match=r"b'\\x00' is not a binary value of the type int4"):
        decode_binary(b"\0", 23)


def test_text_that_is_not_utf8_keeps_its_bytes() -> None:
    assert to_python(b"a\xff", 25) == "a\udcff"
    assert to_python("a\udcff", 25) == "a\udcff"


@pytest.mark.parametrize("text", ["20240229", "2024-W09-4", "02/29/2024", "2024-02-29T00:00", ""])
def test_text_in_another_date_style_stays_text(text: str) -> None:
    assert to_python(text, 1082) == text
    assert to_python(text, 1114) == text


@pytest.mark.parametrize("cell", [1, 1.5, ["a"], bytearray(b"a")])
def test_an_object_that_is_not_a_cell_is_refused(cell: Any) -> None:
    with pytest.raises(TypeError, match="expected str, bytes, None or UNCHANGED"):
        to_python(cell, 25)


SAME_AS_PSYCOPG = frozenset(
    {"bool", "bytea", "cidr", "date", "float4", "float8", "inet", "int2", "int4", "int8", "interval"}
    | {"numeric", "oid", "time", "timestamp", "timestamptz", "timetz", "uuid"}
)
AS_INT = frozenset({"xid", "cid", "xid8"})


def by_psycopg(text: str, type_oid: int) -> Any:
    """Return the object that psycopg loads from a text, or the text for types that stay text."""
    element = catalog.BY_ARRAY_OID.get(type_oid)
    builtin = element or catalog.BY_OID.get(type_oid)
    if builtin is not None and builtin.name in AS_INT and element is None:
        return int(text)
    if builtin is None or (builtin.name not in SAME_AS_PSYCOPG and element is None):
        return text
    if builtin.name == "interval" and ("mon" in text or "year" in text):
        return text
    try:
        return Transformer().get_loader(type_oid, Format.TEXT).load(text.encode("utf-8", "surrogateescape"))
    except psycopg.DataError:
        return text


CHANGED_IN_19 = {catalog.BY_NAME["oid8"].oid, catalog.BY_NAME["pg_lsn"].oid}
"""Types that psycopg does not know, or whose text form differs between PostgreSQL 18 and 19."""


@pytest.mark.parametrize("name", sorted({*PAIRS, *PAIRS.values()}))
def test_values_of_the_captures_are_those_of_psycopg(name: str) -> None:
    texts = columns_of(PAIRS.get(name, name))
    types, compared = set(), 0
    for key, (oid, _, cells) in columns_of(name).items():
        if key in NOT_SENT | UNKNOWN_TYPES and name in PAIRS:
            continue
        if oid in CHANGED_IN_19 and name.startswith("pg19"):
            continue
        for cell, text in zip(cells, texts[key][2], strict=True):
            if isinstance(text, str) and not is_array_with_exceptions(text, oid):
                assert repr(to_python(cell, oid)) == repr(by_psycopg(text, oid)), (key, text)
                types.add(oid)
                compared += 1
            elif not isinstance(text, str):
                assert to_python(cell, oid) is text
    assert compared > 300
    assert len(types) > 30


def is_array_with_exceptions(text: str, type_oid: int) -> bool:
    """Return whether `to_python` leaves elements of the array as text that psycopg refuses or parses."""
    element = catalog.BY_ARRAY_OID.get(type_oid)
    if element is None:
        return False
    try:
        by_psycopg(text, type_oid)
    except psycopg.DataError:
        return True
    return element.name not in SAME_AS_PSYCOPG | {"text", "varchar", "bpchar", "name"} or "infinity" in text


def test_every_type_of_the_catalog_is_covered_by_an_example_or_is_text() -> None:
    with_objects = {name for name, _, expected in EXAMPLES if not isinstance(expected, str)}
    assert with_objects == SAME_AS_PSYCOPG | AS_INT


CORE_INSTALL = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

from decimal import Decimal
from logicalrep import values
from logicalrep.values import base_types, to_binary, to_python, to_text

assert to_python("9.50", 1700) == Decimal("9.50")
(binary,) = to_binary(["9.50"], 1700)
assert to_python(binary, 1700) == Decimal("9.50")
assert to_text([binary], 1700) == ["9.50"]
for name in ("to_arrow", "arrow_type", "from_arrow"):
    try:
        getattr(values, name)
    except ModuleNotFoundError as error:
        assert str(error) == f"logicalrep.values.{name} needs pyarrow: pip install 'logicalrep[arrow]'", error
        assert error.name == "pyarrow"
    else:
        raise AssertionError(name)
"""


def test_a_core_install_converts_values_without_arrow() -> None:
    subprocess.run([sys.executable, "-c", CORE_INSTALL], check=True)


def test_importing_values_does_not_import_arrow() -> None:
    code = "import sys, logicalrep.values; print(sorted({'numpy', 'pyarrow'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_every_public_name_exists() -> None:
    assert all(hasattr(values, name) for name in values.__all__)
    assert set(values.__all__) <= set(dir(values))
    with pytest.raises(AttributeError, match="has no attribute 'to_pandas'"):
        values.to_pandas  # noqa: B018
