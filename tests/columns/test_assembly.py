"""Encoding columns gives the same messages and errors with and without the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logicalrep import compiled, messages as m, v4
from logicalrep.columns import (
    Cells,
    assembly,
    cells as cells_module,
    encode_begins,
    encode_cells,
    encode_commits,
    encode_copy_data,
    encode_deletes,
    encode_inserts,
    encode_updates,
    encode_xlog_data,
)
from logicalrep.errors import EncodeError
from tests.columns.without_kernel import outcome, pure

pytestmark = pytest.mark.skipif(compiled.kernel is None, reason=compiled.HOW)

MANY = 1 << 31
TYPES = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]
VALUE = st.one_of(
    st.text("aé€😀\0", max_size=6), st.integers(14, 18).map("x".__mul__), st.integers(30, 66).map("y".__mul__)
)
OTHERS = [pa.array([1]), pa.array([True]), pa.array(["a"]).dictionary_encode()]


@st.composite
def arrays(draw: st.DrawFn, rows: int, types: Sequence[pa.DataType] = TYPES, nulls: bool = True) -> pa.Array:
    """Draw a slice of a longer string or binary array, whose NULLs also have bytes in the data buffer."""
    before, behind = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    count = before + rows + behind
    texts = draw(st.lists(VALUE, min_size=count, max_size=count))
    type_ = draw(st.sampled_from(types))
    _, offsets, data = pa.array([text.encode() for text in texts], pa.large_binary()).cast(type_).buffers()
    there = None
    if nulls and draw(st.booleans()):
        flags = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        there = pa.array(flags, pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_, count, [there, offsets, data])[before : before + rows]


@st.composite
def masks(draw: st.DrawFn, rows: int) -> pa.BooleanArray | None:
    before = draw(st.integers(0, 9))
    flag = st.sampled_from([True, False, None]) if draw(st.booleans()) else st.booleans()
    flags = draw(st.lists(flag, min_size=before + rows, max_size=before + rows))
    return draw(st.sampled_from([None, pa.array(flags, pa.bool_())[before:]]))


@st.composite
def tuples(draw: st.DrawFn, rows: int) -> list[Any]:
    """Draw the columns of tuples; some columns are encoded already, by `encode_cells`."""
    columns: list[Any] = draw(st.lists(arrays(rows), min_size=1, max_size=4))
    if draw(st.integers(0, 3)) == 0:
        columns.append(encode_cells(draw(st.lists(arrays(rows), min_size=1, max_size=2))))
    if draw(st.integers(0, 19)) == 0:
        columns.append(draw(st.sampled_from(OTHERS)).take(pa.array([0] * rows, pa.int64())))
    return columns


@st.composite
def calls(draw: st.DrawFn) -> Callable[[], pa.Array]:
    """Draw a function that encodes columns with encode_inserts, encode_updates or encode_deletes."""
    rows = draw(st.integers(0, 20))
    oid = draw(st.sampled_from([1, (1 << 32) - 1, 1 << 32]))
    some_xids = pa.array(draw(st.lists(st.integers(-1, 1 << 32), min_size=rows, max_size=rows)), pa.int64())
    options: dict[str, Any] = {"xid": draw(st.sampled_from([None, 0, (1 << 32) - 1, some_xids]))}
    before: dict[str, Any] = {
        name: draw(tuples(rows)) for name in draw(st.sampled_from([(), ("key",), ("old",)]))
    }
    if draw(st.integers(0, 3)) == 0:
        return lambda: encode_deletes(oid, **before, **options)
    new = draw(tuples(rows))
    if draw(st.booleans()):
        options["unchanged"] = [None if isinstance(one, Cells) else draw(masks(rows)) for one in new]
    if before:
        return lambda: encode_updates(oid, new, **before, **options)
    return lambda: encode_inserts(oid, new, **options)


@given(call=calls(), over=st.integers(-1, 1), longest=st.sampled_from([17, MANY]))
def test_changes_are_equal_with_and_without_kernel(
    call: Callable[[], pa.Array], over: int, longest: int
) -> None:
    with pure():
        wanted = outcome(call)
    assert outcome(call) == wanted
    size = sum(map(len, wanted[1])) if isinstance(wanted[1], list) else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "_MAX_BYTES", size - over)
        patch.setattr(cells_module, "_MAX_VALUE_BYTES", longest)
        limited = outcome(call)
        if size and longest == MANY:
            assert limited[0] == (EncodeError if over > 0 else wanted[0])
        with pure():
            assert outcome(call) == limited


INTEGER = st.one_of(
    st.integers(-2, 2),
    st.sampled_from([(1 << 32) - 1, 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 63, -1 << 32]),
)


@st.composite
def numbers(draw: st.DrawFn, rows: int) -> Any:
    values = draw(st.lists(INTEGER, min_size=rows, max_size=rows))
    kinds = [
        kind
        for kind in ("int64", "uint64")
        if all(np.iinfo(kind).min <= one <= np.iinfo(kind).max for one in values)
    ]
    kind = draw(st.sampled_from([*kinds, "float64"] if kinds else ["float64"]))
    if kind == "float64" and draw(st.booleans()):
        return pa.array([None] * rows, pa.int64())
    made = np.array(values, kind)
    return draw(st.sampled_from([made, np.repeat(made, 2)[::2], pa.array(made)]))


@given(data=st.data(), rows=st.integers(0, 9))
def test_begins_commits_and_envelopes_are_equal_with_and_without_kernel(
    data: st.DataObject, rows: int
) -> None:
    one, two, three = (data.draw(numbers(rows)) for _ in range(3))
    content = data.draw(arrays(rows, [pa.binary(), pa.large_binary(), pa.string()]))
    calls_: list[Callable[[], pa.Array]] = [
        lambda: encode_begins(one, two, three),
        lambda: encode_commits(one, two, three),
        lambda: encode_xlog_data(one, two, content),
        lambda: encode_copy_data(content),
    ]
    for call in calls_:
        with pure():
            wanted = outcome(call)
        assert outcome(call) == wanted


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 1, 4], [-1, 0, 1], [2, 1, 3], [0, -1, 3]])
def test_invalid_offsets_are_refused(offsets: list[int]) -> None:
    assert compiled.kernel is not None
    with pytest.raises(ValueError, match="the offsets of an array"):
        compiled.kernel.join_parts([(0, [None, np.array(offsets, np.int32), b"abc"])], 2, MANY)


ENDS = np.array([0, 1, 2], np.int32)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ((0, [None, ENDS[:2], b"ab"]), "8 bytes, less than the 12"),
        ((1, [None, ENDS, b"ab"]), "12 bytes, less than the 16"),
        ((-1, [None, ENDS, b"ab"]), "begins before its buffers"),
        ((0, [None, ENDS, b"ab"], 116, False, (b"", 0)), "0 bytes, less than the 1"),
        ((0, [None, ENDS, b"ab"], 116, False, (b"\0", 7)), "1 bytes, less than the 2"),
        ((0, [None, ENDS, b"ab"], 116, False, (b"\0", -1)), "begins before its buffers"),
        ((0, [b"", ENDS, b"ab"], 116, True, None), "0 bytes, less than the 1"),
        ((np.zeros(1, np.int64), 4), "8 bytes, less than the 16"),
        ((np.zeros(4, np.int64)[::2], 4), "not contiguous"),
        ((np.zeros(2, np.int64), 9), "1 to 8 bytes"),
    ],
)
def test_too_small_buffers_are_refused(part: Any, why: str) -> None:
    assert compiled.kernel is not None
    with pytest.raises(ValueError, match=why):
        compiled.kernel.join_parts([part], 2, MANY)


def test_messages_are_not_overwritten_by_later_ones() -> None:
    size = 100_000  # large enough for its own memory mapping: see set_pool_limit
    made = [encode_inserts(1, [pa.array([letter * size])]) for letter in "abc"]
    del made[1]
    made.append(encode_inserts(1, [pa.array(["d" * size])]))
    left = [one.to_pylist() for one in made]
    assert left == [[v4.encode(m.Insert(relation_oid=1, new=(letter * size,)))] for letter in "acd"]
