"""`from_arrow` returns the server's text, which converts to the same arrays again."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import catalog, compiled
from logicalrep.messages import Cell
from logicalrep.values import UUID_TYPE, arrow_type, default_type, from_arrow, to_arrow, to_text
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000
from tests.effort import examples
from tests.values.binary_samples import BYTES
from tests.values.text_samples import TEXTS

OID = {builtin.name: builtin.oid for builtin in catalog.TYPES}
ARRAY_OID = {builtin.name: builtin.array_oid for builtin in catalog.TYPES}
US, UTC_US = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def numeric(precision: int, scale: int) -> int:
    """Return the type modifier of `numeric(precision, scale)`."""
    return (precision << 16 | scale & 0x7FF) + 4


def test_text_of_every_type_round_trips_through_arrow() -> None:
    """`from_arrow` returns the text that `to_arrow` was given, except for rescued values."""
    held = 0
    for name in sorted(TEXTS.keys() | BYTES.keys()):
        cells: list[Cell] = [*to_text(BYTES.get(name, []), OID[name]), None]
        if name in ("text", "varchar", "json"):
            cells += to_text(TEXTS[name], OID[name])
        array, rescued = to_arrow(cells, OID[name])
        expected = [None if row in rescued else cell for row, cell in enumerate(cells)]
        for part in (slice(0, None), slice(3, 90)):  # a slice has an offset
            assert from_arrow(array[part], OID[name]).to_pylist() == expected[part], name
        held += len(cells) - len(rescued)
    assert held > 20_000


def test_uuids_of_16_bytes_have_the_server_text() -> None:
    known = [UUID(int=number * 3**79 % 2**128) for number in range(300)]
    texts = [None, *map(str, known), None]
    array, rescued = to_arrow(texts, OID["uuid"], type_=UUID_TYPE)
    assert (array.to_pylist()[1:-1], rescued) == ([one.bytes for one in known], {})
    for part in (slice(0, None), slice(3, 90), slice(0, 1), slice(0, 0)):  # a slice has an offset
        assert from_arrow(array[part], *default_type(UUID_TYPE)).to_pylist() == texts[part]
    lists: list[Cell] = [f"{{{known[7]},NULL}}", "{}", None, f"{{{known[8]}}}"]
    list_type = pa.list_(pa.field("element", UUID_TYPE))
    found, rescued = to_arrow(lists, ARRAY_OID["uuid"], type_=list_type)
    assert found.to_pylist() == [[known[7].bytes, None], [], None, [known[8].bytes]]
    assert from_arrow(found, ARRAY_OID["uuid"]).to_pylist() == lists
    assert (default_type(list_type), rescued) == ((ARRAY_OID["uuid"], -1), {})
    others: list[Cell] = [known[7].hex.upper(), known[7].hex[1:], f"{known[7]}-", known[7].bytes]
    found, rescued = to_arrow(others, OID["uuid"], type_=UUID_TYPE)
    assert found.to_pylist() == [known[7].bytes, None, None, known[7].bytes]
    assert rescued == {1: known[7].hex[1:], 2: f"{known[7]}-"}
    with pytest.raises(ValueError, match="cannot become the type text"):
        from_arrow(array, OID["text"])


@pytest.mark.parametrize("pure", [False, True])
def test_timestamps_of_all_years_have_the_server_text(monkeypatch: pytest.MonkeyPatch, pure: bool) -> None:
    if pure:
        monkeypatch.setattr(compiled, "kernel", None)
    days = range(UNIX_YEAR_1, UNIX_YEAR_10000, 86_400_000_000)
    leap_days = [datetime(year, 2, 29, tzinfo=UTC) for year in (4, 400, 1904, 2000, 9996)]
    values = [one + at * 345_678_901 % 86_400_000_000 for at, one in enumerate(days[::97])]
    values += [days[0] - 1, days[0], 0, -1, days[-1] + 86_399_999_999, days[-1] + 86_400_000_000]
    values += [int(day.timestamp()) * 1_000_000 + at for day in leap_days for at in (-1, 0, 86_400_000_000)]
    array = pa.array([None, *values], US)[1:]
    for name, type_ in (("timestamp", US), ("timestamptz", UTC_US)):
        cells = [struct.pack(">q", one - EPOCH_UNIX_MICROSECONDS) for one in values]
        assert from_arrow(array.cast(type_), OID[name]).to_pylist() == to_text(cells, OID[name])


@pytest.mark.parametrize(
    ("name", "modifier", "values", "texts"),
    [
        ("bool", -1, pa.array([True, False, None]), ["t", "f", None]),
        ("int2", -1, pa.array([-128, 127], pa.int8()), ["-128", "127"]),
        ("xid8", -1, pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), ["18446744073709551615"]),
        ("float4", -1, pa.array([0.1, 1e6, 0.0, -0.0, 1e-5], pa.float32()),
         ["0.1", "1e+06", "0", "-0", "1e-05"]),
        ("float8", -1, pa.array([1e14, 1e15, 1e23, math.nan, -math.inf]),
         ["100000000000000", "1e+15", "9.999999999999999e+22", "NaN", "-Infinity"]),
        ("numeric", numeric(10, 8), pa.array([Decimal("1e-8"), Decimal(0)], pa.decimal128(10, 8)),
         ["0.00000001", "0.00000000"]),
        ("numeric", numeric(10, 4), pa.array([Decimal("1.5")], pa.decimal128(4, 1)), ["1.5000"]),
        ("numeric", -1, pa.array([Decimal("1.50")], pa.decimal128(4, 2)), ["1.50"]),
        ("numeric", -1, pa.array(["NaN"]), ["NaN"]),
        ("text", -1, pa.array(["é", ""], pa.large_string()), ["é", ""]),
        ("bytea", -1, pa.array([b"", b"\0\xff", None]), ["\\x", "\\x00ff", None]),
        ("date", -1, pa.array([date(1, 1, 1), date(9999, 12, 31)]), ["0001-01-01", "9999-12-31"]),
        ("date", -1, pa.array([-719_163, 2_932_897], pa.int32()).cast(pa.date32()),
         ["0001-12-31 BC", "10000-01-01"]),
        ("timestamp", -1, pa.array([0, 1_500_000, 10_000_000, -1], US),
         ["1970-01-01 00:00:00", "1970-01-01 00:00:01.5", "1970-01-01 00:00:10",
          "1969-12-31 23:59:59.999999"]),
        ("timestamptz", -1, pa.array([0, -62_135_596_800_000_001], pa.timestamp("us", tz="+05:30")),
         ["1970-01-01 00:00:00+00", "0001-12-31 23:59:59.999999+00 BC"]),
        ("timestamp", -1, pa.array([5_000], pa.timestamp("ms")), ["1970-01-01 00:00:05"]),
        ("uuid", -1, pa.array(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
         ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        ("int4", -1, pa.nulls(2), [None, None]),
    ],
)  # fmt: skip
def test_arrow_values_become_the_servers_text(
    name: str, modifier: int, values: pa.Array, texts: list[str | None]
) -> None:
    found = from_arrow(values, OID[name], modifier)
    assert found.type == pa.string()
    assert found.to_pylist() == texts
    assert from_arrow(values.slice(1), OID[name], modifier).to_pylist() == texts[1:]


@pytest.mark.parametrize(
    ("name", "values", "texts"),
    [
        ("int4", [[1, None], [], None, [2]], ["{1,NULL}", "{}", None, "{2}"]),
        ("text", [["", "null", "a b", 'q"\\', ",", "a", "nulls", "é\n"]],
         ['{"","null","a b","q\\"\\\\",",",a,nulls,"é\n"}']),
        ("box", [["(2,2),(0,0)", "(1,1),(0,0)"]], ["{(2,2),(0,0);(1,1),(0,0)}"]),
        ("timestamptz", [[datetime(2000, 1, 1, tzinfo=UTC)]], ['{"2000-01-01 00:00:00+00"}']),
        ("bytea", [[b"\xff"]], ['{"\\\\xff"}']),
    ],
)  # fmt: skip
def test_arrow_lists_become_array_text(name: str, values: list[Any], texts: list[str | None]) -> None:
    array = pa.array(values, arrow_type(ARRAY_OID[name]))
    assert from_arrow(array, ARRAY_OID[name]).to_pylist() == texts
    assert from_arrow(array.slice(1), ARRAY_OID[name]).to_pylist() == texts[1:]
    large = array.cast(pa.large_list(array.type.value_type))
    assert from_arrow(large, ARRAY_OID[name]).to_pylist() == texts
    decimals = pa.array([[Decimal("1.50"), None]])
    assert from_arrow(decimals, ARRAY_OID["numeric"]).to_pylist() == ["{1.50,NULL}"]


@pytest.mark.parametrize(
    ("name", "modifier", "values", "why"),
    [
        ("int2", -1, pa.array([40_000]), "40000"),
        ("int4", -1, pa.array([1.5]), "1.5"),
        ("numeric", numeric(4, 1), pa.array([Decimal("1.25")]), "int2|data loss|rescal"),
        ("numeric", -1, pa.array([1.5]), "server's text"),
        ("uuid", -1, pa.array([b"\0"]), "server's text"),
        ("text", -1, pa.array([True]), "server's text"),
        ("text", -1, pa.array(["a\0b"]), "zero character"),
        ("timestamp", -1, pa.array([1], pa.timestamp("ns")), "lose"),
        ("bool", -1, pa.array([[True]]), "bool"),
    ],
)
def test_values_that_the_type_cannot_represent_are_refused(
    name: str, modifier: int, values: pa.Array, why: str
) -> None:
    with pytest.raises(ValueError, match=rf"a column of .* cannot become the type {name}: .*({why})"):
        from_arrow(values, OID[name], modifier)


def test_nested_lists_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot become the type int4\[\]"):
        from_arrow(pa.array([[[1]]]), ARRAY_OID["int4"])


@pytest.mark.parametrize(
    ("type_", "name", "modifier"),
    [
        (pa.bool_(), "bool", -1),
        (pa.int8(), "int2", -1),
        (pa.int64(), "int8", -1),
        (pa.float32(), "float4", -1),
        (pa.large_string(), "text", -1),
        (pa.large_binary(), "bytea", -1),
        (pa.decimal128(12, 3), "numeric", numeric(12, 3)),
        (pa.date32(), "date", -1),
        (US, "timestamp", -1),
        (UTC_US, "timestamptz", -1),
    ],
)
def test_default_type_of_an_arrow_type(type_: pa.DataType, name: str, modifier: int) -> None:
    assert default_type(type_) == (OID[name], modifier)
    assert default_type(pa.list_(type_)) == (ARRAY_OID[name], modifier)


@pytest.mark.parametrize(
    "type_",
    [
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.list_(pa.int32())),
        pa.duration("us"),
        pa.time64("us"),
        pa.decimal128(5, -2),
        pa.uint64(),
        pa.null(),
    ],
)
def test_arrow_types_without_a_default_type_are_refused(type_: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"there is no PostgreSQL type for .*to_json"):
        default_type(type_)


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
ESCAPED = st.text('"\\{},; nulNUL\t', max_size=6)
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXT | ESCAPED),
    (pa.binary(), st.binary(max_size=6)),
    (pa.decimal128(38, 12), st.decimals(-(10**25), 10**25, places=12)),
    (pa.decimal128(5, 0), st.integers(-99_999, 99_999).map(Decimal)),
    (pa.date32(), st.dates()),
    (US, MOMENTS),
    (UTC_US, MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC) + timedelta(0))),
]


@settings(max_examples=examples(400))
@given(st.sampled_from(SCALARS), st.booleans(), st.data())
def test_arrow_values_round_trip_through_text(
    scalar: tuple[pa.DataType, st.SearchStrategy[Any]], is_list: bool, data: st.DataObject
) -> None:
    type_, values = scalar
    drawn = data.draw(st.lists(st.none() | (st.lists(st.none() | values, max_size=4) if is_list else values)))
    array = pa.array(drawn, pa.list_(pa.field("element", type_)) if is_list else type_)
    oid, modifier = default_type(array.type)
    assert arrow_type(oid, modifier) == array.type
    found, rescued = to_arrow(from_arrow(array, oid, modifier).to_pylist(), oid, modifier)
    assert rescued == {}
    assert str(found.to_pylist()) == str(
        array.to_pylist()
    )  # str, so that NaN equals NaN and -0 differs from 0
