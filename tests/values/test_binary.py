"""Binary cells become text and Arrow arrays; the fast conversions equal those through text."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from logicalrep import catalog
from logicalrep.messages import Cell
from logicalrep.values import arrow_type, common_type, to_arrow, to_text
from logicalrep.values.literals import quote_array_element, quote_range_bound, quote_record_field
from logicalrep.wire import UNCHANGED

OID = {builtin.name: builtin.oid for builtin in catalog.TYPES}
ARRAY_OID = {builtin.name: builtin.array_oid for builtin in catalog.TYPES}


def int4(value: int) -> bytes:
    return struct.pack(">i", value)


def test_all_kinds_of_cells_become_text() -> None:
    cells: list[Cell] = [None, UNCHANGED, "7", "caf\udce9", int4(8), b"\0"]
    assert to_text(cells, OID["int4"]) == [None, None, "7", "\0\\x636166e9", "8", "\0\\x00"]
    assert to_text([b"caf\xc3\xa9", b"caf\xe9", b"a\0"], OID["text"]) == [
        "café",
        "\0\\x636166e9",
        "\0\\x6100",
    ]
    assert to_text([], OID["int4"]) == []


def test_text_and_binary_mix_in_one_column() -> None:
    array, rescued = to_arrow(["1", int4(2), None, UNCHANGED, b"?", "x"], OID["int4"])
    assert array.equals(pa.array([1, 2, None, None, None, None], pa.int32()))
    assert rescued == {3: None, 4: "\\x3f", 5: "x"}


@pytest.mark.parametrize(
    ("name", "cells", "expected", "rescued"),
    [
        ("int4", [int4(-1), None], [-1, None], {}),
        ("int4", [int4(-1), b"\0\0\0\0\0"], [-1, None], {1: "\\x0000000000"}),
        ("oid", [b"\xff" * 4], [2**32 - 1], {}),
        ("bool", [b"\1", b"\0", b"\2"], [True, False, None], {2: "\\x02"}),
        ("bytea", [b"", b"\0\xff", None], [b"", b"\0\xff", None], {}),
        ("text", [b"a", b"\xe9"], ["a", None], {1: "\\xe9"}),
        ("text", [b"a", b"\0"], ["a", None], {1: "\\x00"}),
        ("json", [b"{}", None], ["{}", None], {}),
        ("jsonb", [b"\1{}", b"\2{}"], ["{}", None], {1: "\\x027b7d"}),
        ("float4", [struct.pack(">f", 0.1)], [struct.unpack("f", struct.pack("f", 0.1))[0]], {}),
        ("float8", [struct.pack(">d", -0.0), struct.pack(">d", 5e-324)], [-0.0, 5e-324], {}),
        ("date", [int4(2**31 - 1)], [None], {0: "infinity"}),
        ("date", [int4(-730_120)], [None], {0: "0001-12-31 BC"}),
        ("date", [int4(2_921_940)], [None], {0: "10000-01-01"}),
        ("timestamptz", [struct.pack(">q", -(2**63))], [None], {0: "-infinity"}),
        ("aclitem", [b"=r/postgres"], [None], {0: "\\x" + b"=r/postgres".hex()}),
    ],
)
def test_binary_cells_become_arrow_arrays(
    name: str, cells: list[Cell], expected: list[Any], rescued: dict[int, str]
) -> None:
    array, found = to_arrow(cells, OID[name])
    assert array.type == arrow_type(OID[name])
    assert (list(map(repr, array.to_pylist())), found) == (list(map(repr, expected)), rescued)


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("date", [(-730_119, "0001-01-01"), (2_921_939, "9999-12-31")]),
        (
            "timestamp",
            [
                (-63_082_281_600_000_000, "0001-01-01 00:00:00"),
                (252_455_615_999_999_999, "9999-12-31 23:59:59.999999"),
            ],
        ),
    ],
)
def test_dates_and_timestamps_at_the_edges_of_the_arrow_types(
    name: str, edges: list[tuple[int, str]]
) -> None:
    size = 4 if name == "date" else 8
    inside = [number.to_bytes(size, signed=True) for number, _ in edges]
    outside = [(edges[0][0] - 1).to_bytes(size, signed=True), (edges[1][0] + 1).to_bytes(size, signed=True)]
    array, rescued = to_arrow(inside, OID[name])
    assert (array, rescued) == to_arrow([text for _, text in edges], OID[name])
    assert rescued == {}
    array, rescued = to_arrow(inside + outside, OID[name])
    assert array.is_valid().to_pylist() == [True, True, False, False]
    assert rescued.keys() == {2, 3}


def test_a_numeric_zero_has_no_sign() -> None:
    zeros: list[Cell] = [struct.pack(">HhHH", 0, 0, 0x4000, 2), struct.pack(">HhHHH", 1, 0, 0x4000, 1, 0)]
    assert to_text(zeros, OID["numeric"]) == ["0.00", "0.0"]


@pytest.mark.parametrize("character", [*' \t\n\r\v\f"\\,', ""])
def test_characters_that_are_quoted_in_arrays_ranges_and_records(character: str) -> None:
    for quoted in (quote_array_element, quote_range_bound, quote_record_field):
        assert quoted(character).startswith('"')
        assert quoted("a") == "a"


def test_characters_that_are_quoted_in_some_of_arrays_ranges_and_records() -> None:
    somewhere = "()[]{};"
    assert [text for text in somewhere if quote_array_element(text) != text] == [*"{}"]
    assert [text for text in somewhere if quote_array_element(text, ";") != text] == [*"{};"]
    assert [text for text in somewhere if quote_range_bound(text) != text] == [*"()[]"]
    assert [text for text in somewhere if quote_record_field(text) != text] == [*"()"]
    assert [quote_array_element(text) for text in ("NULL", "null", "nulls")] == ['"NULL"', '"null"', "nulls"]


def test_all_nans_become_the_same_text_and_value() -> None:
    cells: list[Cell] = [struct.pack(">Q", 0xFFF8 << 48 | 5), "NaN"]
    array, rescued = to_arrow(cells[:1], OID["float8"])
    both, _ = to_arrow(cells, OID["float8"])
    assert rescued == {}
    assert array.buffers()[1].to_pybytes()[:8] * 2 == both.buffers()[1].to_pybytes()[:16]


DEC = pa.decimal128
INT16, INT32, INT64, FLOAT, DOUBLE, STRING = (
    pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
)  # fmt: skip


def of(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (INT16, INT16, INT16),
        (INT16, INT32, INT32),
        (INT16, INT64, INT64),
        (FLOAT, DOUBLE, DOUBLE),
        (INT32, DOUBLE, DOUBLE),
        (INT32, FLOAT, DOUBLE),
        (INT64, DOUBLE, STRING),
        (DEC(10, 2), DEC(12, 4), DEC(12, 4)),
        (DEC(10, 2), DEC(8, 4), DEC(12, 4)),
        (DEC(38, 0), DEC(38, 1), STRING),
        (DEC(10, 2), INT16, DEC(10, 2)),
        (DEC(4, 2), INT32, DEC(12, 2)),
        (DEC(4, 2), INT64, DEC(21, 2)),
        (DEC(38, 20), INT64, STRING),
        (DEC(10, 2), DOUBLE, STRING),
        (DEC(20, 0), INT64, DEC(20, 0)),
        (STRING, INT32, STRING),
        (pa.bool_(), INT16, STRING),
        (pa.binary(), STRING, STRING),
        (pa.date32(), pa.timestamp("us"), STRING),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), STRING),
        (of(INT16), of(INT64), of(INT64)),
        (of(INT16), of(STRING), of(STRING)),
        (of(INT16), INT16, STRING),
    ],
)
def test_common_type_of_two_arrow_types(a: pa.DataType, b: pa.DataType, expected: pa.DataType) -> None:
    assert common_type(a, b) == expected
    assert common_type(b, a) == expected
    assert common_type(a, expected) == expected


TYPICAL: list[tuple[int, int, list[str]]] = [
    (OID["bool"], -1, ["t", "f"]),
    (OID["int2"], -1, ["-32768", "32767"]),
    (OID["int4"], -1, ["-2147483648", "2147483647"]),
    (OID["int8"], -1, ["-9223372036854775808", "9223372036854775807"]),
    (OID["xid8"], -1, ["0", "18446744073709551615"]),
    (OID["float4"], -1, ["-1.5", "1e+20"]),
    (OID["float8"], -1, ["-0.1", "1e-300"]),
    (OID["numeric"], (10 << 16 | 2) + 4, ["-12345678.90", "0.01"]),
    (OID["numeric"], (8 << 16 | 4) + 4, ["1234.5678", "-9999.0000"]),
    (OID["numeric"], -1, ["12345.6", "NaN"]),
    (OID["text"], -1, ["", "x"]),
    (OID["bytea"], -1, ["\\x", "\\x00ff"]),
    (OID["date"], -1, ["0001-01-01", "9999-12-31"]),
    (OID["timestamp"], -1, ["2000-01-01 00:00:00.5", "9999-12-31 23:59:59"]),
    (OID["timestamptz"], -1, ["2000-01-01 00:00:00+00", "1999-01-01 00:00:00.000001+00"]),
    (OID["uuid"], -1, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    (ARRAY_OID["int2"], -1, ["{}", "{1,NULL}"]),
    (ARRAY_OID["int8"], -1, ["{9223372036854775807}"]),
    (ARRAY_OID["box"], -1, ["{(2,2),(0,0);(1,1),(0,0)}"]),
]


@pytest.mark.parametrize(("oid", "modifier", "texts"), TYPICAL)
def test_the_common_type_represents_the_values_of_both_types(
    oid: int, modifier: int, texts: list[str]
) -> None:
    for other_oid, other_modifier, others in TYPICAL:
        type_ = common_type(arrow_type(oid, modifier), arrow_type(other_oid, other_modifier))
        for column in ((oid, modifier, texts), (other_oid, other_modifier, others)):
            array, rescued = to_arrow([*column[2], None], *column[:2], type_)
            assert (array.type, array.null_count, rescued) == (type_, 1, {})
            if type_ == STRING:
                assert array.to_pylist() == [*column[2], None]


def test_a_binary_cell_converts_to_a_wider_column() -> None:
    for type_, expected in ((INT64, [5, 6]), (DOUBLE, [5.0, 6.0]), (DEC(12, 2), [Decimal(5), Decimal(6)])):
        assert to_arrow([int4(5), "6"], OID["int4"], -1, type_) == (pa.array(expected, type_), {})
    assert to_arrow([b"\0\xff"], OID["bytea"], -1, STRING) == (pa.array(["\\x00ff"]), {})
    assert to_arrow([b"?"], OID["int4"], -1, STRING) == (pa.array([None], STRING), {0: "\\x3f"})
