"""`to_binary` and `encode_binary` refuse invalid texts with a clear error.

test_server.py compares the results for valid texts with those of a server.
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import catalog
from logicalrep.messages import Cell
from logicalrep.values import encode_binary, to_binary, to_text
from logicalrep.wire import UNCHANGED
from tests.effort import examples
from tests.values.binary_samples import BYTES
from tests.values.text_samples import TEXTS

OID = {builtin.name: builtin.oid for builtin in catalog.TYPES}
ARRAY_OID = {builtin.name: builtin.array_oid for builtin in catalog.TYPES}
WITHOUT = {
    "aclitem",
    "gtsvector",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
}
"""Types whose binary form cannot be made from text."""


def test_cells_that_are_not_text_are_returned_unchanged() -> None:
    cells: list[Cell] = [None, UNCHANGED, "7", b"\0\0\0\x08"]
    assert to_binary(cells, OID["int4"]) == [None, UNCHANGED, b"\0\0\0\x07", b"\0\0\0\x08"]
    assert to_binary([], OID["int4"]) == []


@pytest.mark.parametrize("name", sorted(OID))
def test_every_type_is_converted_or_refused_by_name(name: str) -> None:
    for oid in (OID[name], ARRAY_OID[name]):
        if name in WITHOUT and oid:
            with pytest.raises(ValueError, match=f"the type {name} has no binary form"):
                encode_binary("x", oid)
        elif oid:
            assert to_binary([None], oid) == [None]


def test_types_that_are_not_built_in_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the type with OID 70000 has no .*: a domain is sent as its base"):
        encode_binary("happy", 70_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bool", "true"),
        ("int2", "32768"),
        ("int4", "1.5"),
        ("int4", "1_000"),
        ("int4", " 1"),
        ("int4", "\u0661"),  # a digit in Unicode, but not for the server
        ("oid", "-1"),
        ("float4", "1e39"),
        ("float4", "1e-46"),
        ("float8", "1e309"),
        ("float8", "1e-400"),
        ("float8", "nan"),
        ("float8", "0x10"),
        ("numeric", "1e5"),
        ("numeric", "0." + "1" * 16_384),
        ("numeric", "1" * 131_073),
        ("text", "a\0"),
        ("text", "\ud800"),
        ("char", "ab"),
        ("bytea", "\\x0"),
        ("bytea", "abc"),
        ("uuid", "a0eebc99"),
        ("date", "2001-02-29"),
        ("date", "0000-01-01"),
        ("date", "5874898-01-01"),
        ("date", "01/02/2003"),
        ("time", "24:00:00.000001"),
        ("time", "12:60:00"),
        ("timetz", "12:00:00+16"),
        ("timestamp", "2000-01-01T00:00:00"),
        ("timestamp", "294277-01-01 00:00:00"),
        ("timestamptz", "2000-01-01 00:00:00"),
        ("interval", ""),
        ("interval", "1 year "),
        ("interval", "1 day 2 days"),
        ("interval", f"{2**31} days"),
        ("inet", "1.2.3.4/33"),
        ("inet", "fe80::1%eth0"),
        ("cidr", "10.0.0.1/8"),
        ("macaddr", "08:00:2b:01:02"),
        ("point", "(1,2"),
        ("box", "(1,2)"),
        ("line", "{1,x,3}"),
        ("int4range", "[1,2"),
        ("int4range", "[1,2,3)"),
        ("int4multirange", "{[1,2),}"),
        ("money", "$1.00"),
        ("regclass", "pg_class"),
        ("tsvector", "a"),
        ("tsvector", "'a':0"),
        ("tsquery", "'a' &"),
        ("tsquery", "'a' 'b'"),
        ("tsquery", "('a'"),
        ("tsquery", "'a')"),
        ("tsquery", "()"),
        ("pg_lsn", "0"),
        ("bit", "012"),
        ("jsonpath", "a\0"),
    ],
)
def test_a_text_that_no_server_writes_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"is not what a server writes for the type {name} \(.+\)") as error:
        encode_binary(text, OID[name])
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "}", "1", "{1", "{1,}", "{,1}", "{1}{2}", "{1},2", "{1}}", "{{1},2}", "{1,{2}}"),
        *("{{1},{2,3}}", "{{}}", "{{1},{}}", "{{{{{{{1}}}}}}}", "[1:2]={1}"),
        *("[2:1]={}", "[1:1][1:1]={1}", '{"1}', "{1\\}", "[2147483648:2147483648]={1}"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_an_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not what a server writes for the type int4"):
        encode_binary(text, ARRAY_OID["int4"])


def test_a_timestamptz_may_have_any_zone() -> None:
    """A walsender writes times in the TimeZone of its role or database."""
    for text in ("2000-01-01 05:30:00+05:30", "1999-12-31 23:59:59.5-00:00:00", "1999-12-31 19:00:00-05"):
        (micros,) = struct.unpack(">q", encode_binary(text, OID["timestamptz"]))
        assert micros in (0, -500_000)
    assert encode_binary("0044-03-15 12:00:00+00 BC", OID["timestamptz"]) == encode_binary(
        "0044-03-15 12:00:00 BC", OID["timestamp"]
    )


def test_a_float4_is_rounded_only_once() -> None:
    """Rounding to a double first would give the midpoint of two float4 values, then the wrong float4."""
    above = f"{1 + 2**-24:.24f}"[:-1] + "600000000001"
    assert encode_binary(above, OID["float4"]) == struct.pack(">f", 1 + 2**-23)
    assert encode_binary(f"{1 + 2**-24:.24f}", OID["float4"]) == struct.pack(">f", 1.0)


ALPHABET = st.text("019 -+.:,;/\\'\"()[]{}<>=&|!eEx\0aNULBC\u00e9\u0661", max_size=20)
LISTED = sorted(OID.keys() - WITHOUT)


@settings(max_examples=examples(500))
@given(st.sampled_from(LISTED), st.booleans(), ALPHABET, st.data())
def test_arbitrary_text_is_converted_or_refused(
    name: str, is_array: bool, text: str, data: st.DataObject
) -> None:
    if name in TEXTS and data.draw(st.booleans()):  # a valid value with one random change
        value = data.draw(st.sampled_from(TEXTS[name]))
        at = data.draw(st.integers(0, len(value)))
        text = value[:at] + text[:2] + value[at + len(text) % 3 :]
    oid = (ARRAY_OID[name] if is_array else OID[name]) or OID[name]
    try:
        cell = encode_binary(text, oid)
    except ValueError:
        return
    (shown,) = to_text([cell], oid)
    assert shown is not None
    assert encode_binary(shown, oid) == cell


@pytest.mark.parametrize("name", sorted(TEXTS.keys() | BYTES.keys()))
@pytest.mark.parametrize("piece", ['"', "{", "(", "0", "'", "1,", "[1,", "!", "'a' & ", "1 day ", "\\", '""'])
def test_long_text_is_converted_or_refused_in_linear_time(name: str, piece: str) -> None:
    text = piece * (20_000 // len(piece))
    started = time.process_time()
    for oid in (OID[name], ARRAY_OID[name]):
        for given_ in (text, "{" + text, "'" + text + "x", "[" + text + ",", "{[" + text + ",1)x}"):
            if oid:
                with suppress(ValueError):
                    encode_binary(given_, oid)
    assert time.process_time() - started < 30
