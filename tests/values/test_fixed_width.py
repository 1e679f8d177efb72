"""The compiled kernel reads texts of fixed-width values as the Python modules do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import catalog, compiled
from logicalrep.values import arrow_type, fixed_reader, read_fixed_texts, to_arrow, to_text
from tests.columns.without_kernel import pure
from tests.effort import examples
from tests.values.binary_samples import BYTES
from tests.values.text_samples import TEXTS

NUMERIC_12_2 = (12 << 16 | 2) + 4
TYPES = [
    (one.oid, modifier)
    for one in catalog.TYPES
    for modifier in ([NUMERIC_12_2] if one.name == "numeric" else [-1])
    if fixed_reader(arrow_type(one.oid, modifier)) is not None
]
SAMPLES = {
    one.oid: [*TEXTS.get(one.name, ()), *to_text(BYTES.get(one.name, ()), one.oid)] or ["t"]
    for one in catalog.TYPES
}
"""Texts of each type, by OID."""
ODD = ["", "-", "-0", "00", "t", "9" * 18, "9" * 19, "12.5", "0.005", "1e5", "NaN", "2026-02-30", "infinity"]

pytestmark = pytest.mark.skipif(compiled.kernel is None, reason=compiled.HOW)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.StringArray, int, int]:
    """Texts of servers, some of them damaged, as a part of a longer array; their type OID and modifier."""
    oid, modifier = draw(st.sampled_from(TYPES))
    texts = draw(st.lists(st.none() | st.sampled_from(SAMPLES[oid]) | st.sampled_from(ODD), max_size=20))
    for row in draw(st.lists(st.integers(0, 19), max_size=3)):
        if row < len(texts) and (text := texts[row]) is not None:
            at = draw(st.integers(0, len(text)))
            texts[row] = text[:at] + draw(st.sampled_from(["", "0", "-", ".", " ", "é"])) + text[at + 1 :]
    first = draw(st.integers(0, 3))
    return pa.array(["12"] * first + texts, pa.string()).slice(first), oid, modifier


@given(column=columns())
@settings(max_examples=examples(1000))
def test_values_are_equal_with_and_without_kernel(column: tuple[pa.StringArray, int, int]) -> None:
    texts, oid, modifier = column
    array, rescued = to_arrow(texts, oid, modifier)
    with pure():
        wanted, wanted_rescued = to_arrow(texts, oid, modifier)
    array.validate(full=True)
    assert (str(array), rescued) == (str(wanted), wanted_rescued)  # as text, because NaN is not NaN


def test_texts_of_servers_are_read_by_the_kernel() -> None:
    texts = pa.array(["-12", None, "0", "9223372036854775808"], pa.string())
    read = read_fixed_texts(texts, pa.int64())
    assert read is not None
    array, unread = read
    assert array.to_pylist() == [-12, None, 0, None]
    assert unread.tolist() == [3]
    assert read_fixed_texts(texts, pa.string()) is None


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 1, 4], [-1, 0, 1], [2, 1, 3], [0, -1, 3]])
def test_invalid_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="the offsets of an array are not in their order"):
        read(np.array(offsets, np.int32), None)


def test_no_offsets_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer rows than none"):
        read(np.zeros(0, np.int32), None)


def test_a_null_mask_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="the null mask is too small"):
        read(np.zeros(10, np.int32), b"\xff")


def read(offsets: Any, known: bytes | None) -> Any:
    reader = fixed_reader(pa.int64())
    assert compiled.kernel is not None
    assert reader is not None
    return compiled.kernel.read_fixed_texts(b"123", offsets, known, *reader)
