"""Text cells become typed Arrow arrays; values that a type cannot represent are rescued."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from logicalrep import catalog
from logicalrep.messages import Cell, Type
from logicalrep.values import arrow_type, base_types, to_arrow
from logicalrep.values.literals import parse_array
from logicalrep.wire import UNCHANGED
from tests.messages import make_column, make_relation

OID = {builtin.name: builtin.oid for builtin in catalog.TYPES}
ARRAY_OID = {builtin.name: builtin.array_oid for builtin in catalog.TYPES}


def numeric(precision: int, scale: int) -> int:
    """Return the type modifier of `numeric(precision, scale)`."""
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("oid", "modifier", "expected"),
    [
        (OID["bool"], -1, pa.bool_()),
        (OID["int2"], -1, pa.int16()),
        (OID["oid"], -1, pa.int64()),
        (OID["xid8"], -1, pa.decimal128(20, 0)),
        (OID["float4"], -1, pa.float32()),
        (OID["numeric"], -1, pa.string()),
        (OID["numeric"], numeric(12, 3), pa.decimal128(12, 3)),
        (OID["numeric"], numeric(38, 0), pa.decimal128(38, 0)),
        (OID["numeric"], numeric(39, 0), pa.string()),
        (OID["numeric"], numeric(3, -2), pa.decimal128(5, 0)),
        (OID["numeric"], numeric(2, 4), pa.decimal128(4, 4)),
        (OID["timestamp"], 3, pa.timestamp("us")),
        (OID["timestamptz"], -1, pa.timestamp("us", tz="UTC")),
        (OID["varchar"], 24, pa.string()),
        (OID["jsonb"], -1, pa.string()),
        (ARRAY_OID["int4"], -1, pa.list_(pa.field("element", pa.int32()))),
        (ARRAY_OID["numeric"], numeric(6, 2), pa.list_(pa.field("element", pa.decimal128(6, 2)))),
        (70000, -1, pa.string()),
    ],
)
def test_type_and_modifier_give_an_arrow_type(oid: int, modifier: int, expected: pa.DataType) -> None:
    assert arrow_type(oid, modifier) == expected


REPRESENTABLE: list[tuple[int, int, str, Any]] = [
    (OID["bool"], -1, "t", True),
    (OID["bool"], -1, "f", False),
    (OID["int8"], -1, "-9223372036854775808", -(2**63)),
    (OID["oid"], -1, "4294967295", 2**32 - 1),
    (OID["xid8"], -1, "18446744073709551615", Decimal(2**64 - 1)),
    (OID["float8"], -1, "5e-324", 5e-324),
    (OID["float8"], -1, "0", 0.0),
    (OID["numeric"], numeric(4, 4), "-0.1234", Decimal("-0.1234")),
    (OID["numeric"], numeric(38, 0), "9" * 38, Decimal("9" * 38)),
    (OID["float8"], -1, "-Infinity", float("-inf")),
    (OID["float8"], -1, "1.7976931348623157e+308", 1.7976931348623157e308),
    (OID["numeric"], numeric(12, 3), "-123456789.123", Decimal("-123456789.123")),
    (OID["numeric"], -1, "NaN", "NaN"),
    (OID["bytea"], -1, "\\x00ff", b"\x00\xff"),
    (OID["bytea"], -1, "\\x", b""),
    (OID["date"], -1, "2024-02-29", date(2024, 2, 29)),
    (OID["date"], -1, "0001-01-01", date(1, 1, 1)),
    (OID["timestamp"], -1, "9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999)),
    (OID["timestamp"], -1, "2024-02-29 12:34:56.5", datetime(2024, 2, 29, 12, 34, 56, 500000)),
    (OID["timestamptz"], -1, "2024-02-29 12:34:56+05:30", datetime(2024, 2, 29, 7, 4, 56, tzinfo=UTC)),
    (OID["timestamptz"], -1, "1883-11-18 17:25:08+05:21:10", datetime(1883, 11, 18, 12, 3, 58, tzinfo=UTC)),
    (OID["timestamptz"], -1, "1883-11-18 12:03:58-04:56:02", datetime(1883, 11, 18, 17, 0, tzinfo=UTC)),
    (OID["text"], -1, "", ""),
    (OID["time"], -1, "24:00:00", "24:00:00"),
    (ARRAY_OID["int4"], -1, "{1,NULL,-3}", [1, None, -3]),
    (ARRAY_OID["int4"], -1, "{}", []),
    (ARRAY_OID["text"], -1, '{a,"b c","NULL",NULL,""}', ["a", "b c", "NULL", None, ""]),
    (ARRAY_OID["text"], -1, '{"q\\"\\\\x{},"}', ['q"\\x{},']),
    (ARRAY_OID["bytea"], -1, '{"\\\\x00ff","\\\\x"}', [b"\x00\xff", b""]),
    (ARRAY_OID["box"], -1, "{(2,2),(0,0);(1,1),(0,0)}", ["(2,2),(0,0)", "(1,1),(0,0)"]),
    (70000, -1, "(\"Main St\",1)", '("Main St",1)'),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "modifier", "text", "expected"), REPRESENTABLE)
def test_a_text_becomes_the_value_of_its_arrow_type(
    oid: int, modifier: int, text: str, expected: Any
) -> None:
    array, rescued = to_arrow([text, None], oid, modifier)
    assert (array.type, array.to_pylist(), rescued) == (arrow_type(oid, modifier), [expected, None], {})


@pytest.mark.parametrize(
    ("oid", "modifier", "cell", "text"),
    [
        (OID["numeric"], numeric(12, 3), "NaN", "NaN"),
        (OID["numeric"], numeric(4, 1), "12345.6", "12345.6"),
        (OID["numeric"], numeric(38, 0), str(2**128 + 5), str(2**128 + 5)),
        (OID["numeric"], numeric(5, 0), "1" + "0" * 200, "1" + "0" * 200),
        (OID["numeric"], numeric(4, 4), "1.0", "1.0"),
        (OID["numeric"], numeric(4, 2), "1.234", "1.234"),
        (OID["xid8"], -1, "9" * 39, "9" * 39),
        (OID["float8"], -1, "1e400", "1e400"),
        (OID["float4"], -1, "-1e39", "-1e39"),
        (OID["float8"], -1, "-0.001e-400", "-0.001e-400"),
        (OID["date"], -1, "0000-01-01", "0000-01-01"),
        (OID["timestamp"], -1, "0000-12-31 00:00:00", "0000-12-31 00:00:00"),
        (OID["date"], -1, "infinity", "infinity"),
        (OID["date"], -1, "0044-03-15 BC", "0044-03-15 BC"),
        (OID["date"], -1, "5874897-12-31", "5874897-12-31"),
        (OID["date"], -1, "2024-02-30", "2024-02-30"),
        (OID["timestamp"], -1, "-infinity", "-infinity"),
        (OID["timestamp"], -1, "294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999"),
        (OID["timestamptz"], -1, "4713-01-01 00:00:00+00 BC", "4713-01-01 00:00:00+00 BC"),
        (OID["timestamptz"], -1, "0001-01-01 00:00:00+14", "0001-01-01 00:00:00+14"),
        (OID["timestamptz"], -1, "9999-12-31 23:59:59-14", "9999-12-31 23:59:59-14"),
        (OID["int2"], -1, "40000", "40000"),
        (OID["int4"], -1, "1 ", "1 "),
        (OID["bool"], -1, "true", "true"),
        (OID["bytea"], -1, "\\001", "\\001"),
        (OID["text"], -1, "caf\udce9", "\\x636166e9"),
        (OID["text"], -1, b"\x00\xff", "\\x00ff"),
        (OID["text"], -1, UNCHANGED, None),
        (ARRAY_OID["int4"], -1, "{{1,2},{3,4}}", "{{1,2},{3,4}}"),
        (ARRAY_OID["int4"], -1, "[2:4]={7,8,9}", "[2:4]={7,8,9}"),
        (ARRAY_OID["date"], -1, "{2024-01-01,infinity}", "{2024-01-01,infinity}"),
        (ARRAY_OID["text"], -1, '{"unfinished}', '{"unfinished}'),
        (ARRAY_OID["text"], -1, "{a,}", "{a,}"),
        (ARRAY_OID["text"], -1, "{", "{"),
        (ARRAY_OID["text"], -1, "{a\\}", "{a\\}"),
        (ARRAY_OID["text"], -1, "{\\}", "{\\}"),
        (ARRAY_OID["numeric"], numeric(5, 0), "{1,999999}", "{1,999999}"),
    ],
)
def test_a_value_that_the_arrow_type_cannot_represent_is_rescued(
    oid: int, modifier: int, cell: Cell, text: str | None
) -> None:
    array, rescued = to_arrow([None, cell, None], oid, modifier)
    assert (array.to_pylist(), rescued) == ([None, None, None], {1: text})


def test_a_rescued_value_does_not_affect_other_rows() -> None:
    array, rescued = to_arrow(["2024-01-01", "2024-02-30", "infinity", None, "2024-01-02"], OID["date"])
    assert array.to_pylist() == [date(2024, 1, 1), None, None, None, date(2024, 1, 2)]
    assert rescued == {1: "2024-02-30", 2: "infinity"}
    array, rescued = to_arrow(["{1}", "{x}", "{2,99999999999}", "{3,4}"], ARRAY_OID["int4"])
    assert array.to_pylist() == [[1], None, None, [3, 4]]
    assert rescued == {1: "{x}", 2: "{2,99999999999}"}


@pytest.mark.parametrize("builtin", catalog.TYPES, ids=lambda builtin: builtin.name)
def test_arbitrary_text_becomes_a_value_or_is_rescued(builtin: catalog.BuiltinType) -> None:
    cells: list[Cell] = [
        "",
        "x",
        "{",
        "\0",
        "\\x0",
        "9" * 400,
        "-",
        "0000-00-00",
        "NaN",
        "\udcff",
        b"",
        UNCHANGED,
        None,
    ]
    for oid in (builtin.oid, builtin.array_oid):
        array, rescued = to_arrow(cells, oid)
        for row, cell in enumerate(cells):
            assert cell is None or array[row].is_valid or row in rescued
            assert not (array[row].is_valid and row in rescued)


def test_an_empty_column_becomes_an_empty_array() -> None:
    for builtin in catalog.TYPES:
        array, rescued = to_arrow([], builtin.oid)
        assert (len(array), rescued) == (0, {})


@pytest.mark.parametrize(
    ("text", "items"),
    [("{}", []), ("{a}", ["a"]), ("{null}", [None]), ('{"a\\\\b"}', ["a\\b"]), ("{{a}}", None), ("", None)],
)
def test_parse_array_returns_elements_or_none(text: str, items: list[str | None] | None) -> None:
    assert parse_array(text) == items


def test_domains_become_their_base_types() -> None:
    columns = tuple(make_column(f"c{oid}", oid) for oid in (70000, 70001, 70002, 23))
    types = {
        70000: Type(oid=70000, namespace="", name="int4"),
        70001: Type(oid=70001, namespace="pg_catalog", name="_text"),
        70002: Type(oid=70002, namespace="app", name="int4"),
    }
    relation = base_types(
        make_relation(*columns, namespace="app"),
        types,
    )
    assert [c.type_oid for c in relation.columns] == [OID["int4"], ARRAY_OID["text"], 70002, OID["int4"]]


def test_arrays_of_timestamps_whose_zone_has_seconds() -> None:
    moment = datetime(1883, 11, 18, 12, 3, 58, tzinfo=UTC)
    text = '{"1883-11-18 17:25:08+05:21:10",NULL,"1883-11-18 12:03:58+00"}'
    array, rescued = to_arrow([text, None], 1185)
    assert (array.to_pylist(), rescued) == ([[moment, None, moment], None], {})


def test_a_timestamp_that_its_zone_moves_out_of_range_is_rescued() -> None:
    texts = ["0001-01-01 00:00:00+00:00:01", "9999-12-31 23:59:59-00:00:01", "2020-01-01 00:00:00+00"]
    array, rescued = to_arrow(texts, OID["timestamptz"])
    assert (array.null_count, rescued) == (2, dict(enumerate(texts[:2])))
