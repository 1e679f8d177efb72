"""Messages encoded from columns equal those that the codec encodes row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logicalrep import messages as m, v4
from logicalrep.columns import encode_cells, encode_deletes, encode_inserts, encode_updates
from logicalrep.errors import EncodeError
from logicalrep.messages import Cell, Message, TupleData
from logicalrep.wire import UNCHANGED
from tests.codec import corpus
from tests.versions import PLAIN

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

Rows = Sequence[TupleData]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
OID = st.integers(0, (1 << 32) - 1)


def columns(rows: Rows, binary: Sequence[bool]) -> list[pa.Array]:
    kinds = [pa.binary() if one else pa.string() for one in binary]
    cells = [[None if row[i] is UNCHANGED else row[i] for row in rows] for i in range(len(kinds))]
    return [pa.array(values, kind) for values, kind in zip(cells, kinds, strict=True)]


def masks(rows: Rows, width: int) -> list[pa.BooleanArray]:
    return [pa.array([row[i] is UNCHANGED for row in rows], pa.bool_()) for i in range(width)]


def cell(binary: bool, unchanged: bool) -> st.SearchStrategy[Cell]:
    value: st.SearchStrategy[Cell] = st.binary(max_size=12) if binary else TEXT
    return st.one_of(value, st.none(), st.just(UNCHANGED)) if unchanged else st.one_of(value, st.none())


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[bool], Rows, Rows, list[int] | int | None]:
    """Draw changes of a table: for each column whether it is binary; the new rows, old rows and xids."""
    binary = draw(st.lists(st.booleans(), min_size=1, max_size=5))
    new = st.tuples(*(cell(one, unchanged=True) for one in binary))
    old = st.tuples(*(cell(one, unchanged=False) for one in binary))
    rows = draw(st.lists(st.tuples(new, old, OID), max_size=5))
    xids = [row[2] for row in rows]
    return binary, [row[0] for row in rows], [row[1] for row in rows], draw(st.sampled_from([None, 7, xids]))


def expected(make: Callable[..., Message], rows: Sequence[dict[str, Any]], xid: Any) -> list[bytes]:
    xids = xid if isinstance(xid, list) else [xid] * len(rows)
    return [v4.encode(make(**row, xid=one)) for row, one in zip(rows, xids, strict=True)]


@given(table=tables(), oid=OID)
def test_messages_equal_those_of_the_codec(table: Any, oid: int) -> None:
    binary, new, old, xid = table
    given_xid = pa.array(xid, pa.uint32()) if isinstance(xid, list) else xid
    columns_, mask, before = columns(new, binary), masks(new, len(binary)), columns(old, binary)
    inserts = encode_inserts(oid, columns_, unchanged=mask, xid=given_xid)
    assert inserts.to_pylist() == expected(m.Insert, [{"relation_oid": oid, "new": one} for one in new], xid)
    for name in ("key", "old"):
        rows: list[dict[str, Any]] = [{"relation_oid": oid, name: one} for one in old]
        identity: dict[str, Any] = {name: before}
        deletes = encode_deletes(oid, **identity, xid=given_xid)
        assert deletes.to_pylist() == expected(m.Delete, rows, xid)
        updates = encode_updates(oid, columns_, **identity, unchanged=mask, xid=given_xid)
        assert updates.to_pylist() == expected(
            m.Update, [row | {"new": one} for row, one in zip(rows, new, strict=True)], xid
        )
    plain = encode_updates(oid, columns_, unchanged=mask, xid=given_xid)
    assert plain.to_pylist() == expected(m.Update, [{"relation_oid": oid, "new": one} for one in new], xid)


def same_bytes(name: str) -> int:
    """Check that a capture's changes, encoded from columns, equal the captured bytes; return their number."""
    count = 0
    for line in corpus.read(name)[1]:
        message = line.message
        if not isinstance(message, m.Insert | m.Update | m.Delete):
            continue
        tuples: dict[str, Any] = {field: getattr(message, field, None) for field in ("key", "old", "new")}
        if any(
            isinstance(one, str) and not one.isprintable() for row in tuples.values() for one in row or ()
        ):
            continue  # pa.array refuses text that is not UTF-8
        arrays = {
            field: columns([row], [isinstance(one, bytes) for one in row])
            for field, row in tuples.items()
            if row is not None
        }
        new = arrays.pop("new", None)
        options: Any = {**arrays, "xid": message.xid}
        if new is None:
            made = encode_deletes(message.relation_oid, **options)
        else:
            options["unchanged"] = masks([tuples["new"]], len(new))
            encode = encode_inserts if isinstance(message, m.Insert) else encode_updates
            made = encode(message.relation_oid, new, **options)
        if new or arrays.get("key") or arrays.get("old"):  # without columns the number of rows is unknown
            assert made.to_pylist() == [line.data]
            count += 1
    return count


@pytest.mark.parametrize("name", ["pg18_p1", "pg14_p2_stream_bin", "pg18_p4_par_msg"])
def test_messages_of_captures_are_encoded_byte_for_byte(name: str) -> None:
    assert same_bytes(name) > 100


def test_slices_and_large_types_are_accepted() -> None:
    column = pa.array(["zero", "one", None, "three"])
    made = encode_inserts(1, [column[1:3], column[1:3].cast(pa.large_string())])
    rows: list[TupleData] = [("one", "one"), (None, None)]
    assert made.to_pylist() == [PLAIN.encode(m.Insert(relation_oid=1, new=row)) for row in rows]


def test_bytes_under_a_null_are_not_sent() -> None:
    buffers = [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([0, 1, 7], np.int32)), pa.py_buffer(b"asecret")]
    column = pa.Array.from_buffers(pa.string(), 2, buffers)
    assert column.to_pylist() == ["a", None]
    made = encode_inserts(1, [column])
    assert made.to_pylist() == [
        PLAIN.encode(m.Insert(relation_oid=1, new=("a",))),
        PLAIN.encode(m.Insert(relation_oid=1, new=(None,))),
    ]


def test_null_in_an_unchanged_mask_counts_as_false() -> None:
    made = encode_inserts(1, [pa.array(["a", "b", "c"])], unchanged=[pa.array([None, True, False])])
    assert [PLAIN.decode(one) for one in made.to_pylist()] == [
        m.Insert(relation_oid=1, new=("a",)),
        m.Insert(relation_oid=1, new=(UNCHANGED,)),
        m.Insert(relation_oid=1, new=("c",)),
    ]


def test_encoded_cells_cannot_be_unchanged() -> None:
    cells = encode_cells([pa.array(["a"])])
    with pytest.raises(ValueError, match="needs a column of values, but Cells were passed"):
        encode_inserts(1, [cells], unchanged=[pa.array([True])])


def test_encoded_cells_can_be_used_in_several_messages() -> None:
    keys, rest = (
        pa.array(["1", "2", "3"]),
        encode_cells([pa.array(["x", None, "z"]), pa.array([b"", b"b", None])]),
    )
    rows: list[TupleData] = [("1", "x", b""), ("2", None, b"b"), ("3", "z", None)]
    assert encode_inserts(1, [keys, rest]).to_pylist() == [
        PLAIN.encode(m.Insert(relation_oid=1, new=row)) for row in rows
    ]
    some = encode_updates(1, [keys[1:], rest.slice(1, 3)]).to_pylist()
    assert some == [PLAIN.encode(m.Update(relation_oid=1, new=row)) for row in rows[1:]]
    assert encode_deletes(1, old=[rest.take(pa.array([2]))]).to_pylist() == [
        PLAIN.encode(m.Delete(relation_oid=1, old=("z", None)))
    ]


def test_encoded_cells_with_null_are_refused() -> None:
    cells = encode_cells([pa.array(["a"])]).take(pa.array([0, None]))
    with pytest.raises(EncodeError, match=r"^Insert\.new\[1\]: row 1: expected bytes, found None") as raised:
        encode_inserts(1, [pa.array(["1", "2"]), cells])
    assert (raised.value.message, raised.value.field) == ("Insert", "new[1]")


def test_a_zero_character_is_encoded() -> None:
    assert encode_inserts(1, [pa.array(["a\0b"])]).to_pylist() == [
        PLAIN.encode(m.Insert(relation_oid=1, new=("a\0b",)))
    ]


ONE = [pa.array(["1"])]


@pytest.mark.parametrize(
    ("call", "same"),
    [
        (
            lambda: encode_inserts(1 << 32, ONE),
            lambda: PLAIN.encode(m.Insert(relation_oid=1 << 32, new=("1",))),
        ),
        (
            lambda: encode_inserts(1, ONE, xid=-1),
            lambda: v4.encode(m.Insert(relation_oid=1, new=("1",), xid=-1)),
        ),
        (
            lambda: encode_inserts(1, ONE * 65536),
            lambda: PLAIN.encode(m.Insert(relation_oid=1, new=("1",) * 65536)),
        ),
        (lambda: encode_deletes(1), lambda: PLAIN.encode(m.Delete(relation_oid=1))),
        (
            lambda: encode_updates(1, ONE, key=ONE, old=ONE),
            lambda: PLAIN.encode(m.Update(relation_oid=1, new=("1",), key=("1",), old=("1",))),
        ),
    ],
)
def test_invalid_arguments_are_refused_with_the_codecs_error(
    call: Callable[[], object], same: Callable[[], object]
) -> None:
    with pytest.raises(EncodeError) as wanted:
        same()
    with pytest.raises(EncodeError) as raised:
        call()
    assert str(raised.value) == str(wanted.value)
    assert (raised.value.message, raised.value.field) == (wanted.value.message, wanted.value.field)


def test_an_out_of_range_xid_is_refused_with_its_row() -> None:
    with pytest.raises(EncodeError, match=r"^Insert\.xid: row 1: 4294967296 does not fit") as raised:
        encode_inserts(1, [pa.array(["1", "2"])], xid=pa.array([1, 1 << 32]))
    assert raised.value.field == "xid"


def huge(size: int) -> pa.Array:
    """Return a column with one value of `size` zero bytes, which take no physical memory."""
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(np.zeros(size, np.uint8))])


def test_a_value_of_more_than_1_gb_is_refused() -> None:
    with pytest.raises(
        EncodeError, match=r"^Insert\.new\[1\]: row 0: the value has 1073741824 bytes"
    ) as raised:
        encode_inserts(1, [*ONE, huge(1 << 30)])
    assert (raised.value.message, raised.value.field) == ("Insert", "new[1]")


def test_a_batch_of_more_than_2_gb_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"^Insert: 1 messages have 21\d+ bytes, more than 2 GB"):
        encode_inserts(1, [huge((1 << 30) - 1)] * 2)


def test_values_are_encoded_as_postgresql_text() -> None:
    columns_ = [
        pa.array([-1, None], pa.int64()),
        pa.array([True, False]),
        pa.array([1e20, 0.5]),
        pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
        pa.array([date(2000, 2, 29), None]),
        pa.array([datetime(2026, 1, 2, 3, 4, 5, 600_000), None], pa.timestamp("us", "UTC")),
        pa.array([[1, None], []], pa.list_(pa.int32())),
    ]
    rows: list[TupleData] = [
        ("-1", "t", "1e+20", "1.50", "2000-02-29", "2026-01-02 03:04:05.6+00", "{1,NULL}"),
        (None, "f", "0.5", None, None, None, "{}"),
    ]
    assert encode_inserts(1, columns_).to_pylist() == [
        PLAIN.encode(m.Insert(relation_oid=1, new=row)) for row in rows
    ]


def test_values_without_postgresql_text_are_refused() -> None:
    with pytest.raises(EncodeError, match=r"^Insert\.new\[1\]: .*zero character") as raised:
        encode_inserts(1, [*ONE, pa.array([["a\0"]])])
    assert (raised.value.message, raised.value.field) == ("Insert", "new[1]")


def test_columns_of_wrong_type_or_length_are_refused() -> None:
    with pytest.raises(TypeError, match=r"new\[1\]: Arrow type dictionary"):
        encode_inserts(1, [*ONE, pa.array(["1"]).dictionary_encode()])
    with pytest.raises(ValueError, match=r"different lengths: 1, 2"):
        encode_inserts(1, [*ONE, pa.array(["1", "2"])])
    with pytest.raises(ValueError, match=r"different lengths: 1, 2"):
        encode_cells([*ONE, pa.array(["1", "2"])])
