"""Changes that are merged at once begin and end the same rows as changes that are merged one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from logicalrep.apply.rows.keys import NEVER_SENT, NULL, number_keys, number_values
from logicalrep.apply.rows.merge import merge_changes, read_effects
from tests.effort import examples

pytestmark = pytest.mark.usefixtures("any_format")

OPERATIONS = ["Snapshot", "Insert", "Update", "Delete", "Truncate"]
CHANGES = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 3)), max_size=40)
"""Changes, each with the numbers of its old and its new key."""


@given(changes=CHANGES, rows=st.lists(st.integers(-1, 3), max_size=8), unique=st.booleans())
@settings(max_examples=examples(500))
def test_rows_are_those_of_changes_merged_one_by_one(
    changes: list[tuple[str, int, int]], rows: list[int], unique: bool
) -> None:
    """A row of the Delta table with the key -1 has a partly unknown key and matches any key."""
    if unique:
        rows = [key for at, key in enumerate(rows) if key < 0 or key not in rows[:at]]
    old, new = (np.array([change[at] for change in changes], np.int64) for at in (1, 2))
    partial = [len(changes) + at for at, key in enumerate(rows) if key < 0]
    merged = merge_changes(
        np.array(rows, np.int64),
        read_effects(pa.array([operation for operation, _, _ in changes], pa.string())),
        old,
        new,
        unique=unique,
        find_matches=lambda lost: dict(zip(lost.tolist(), partial, strict=False)),
    )
    found = [one.tolist() for one in (merged.begun, merged.ended, merged.previous, merged.current)]
    assert found == merge_one_by_one(rows, changes, unique=unique)


def merge_one_by_one(
    rows: list[int], changes: list[tuple[str, int, int]], *, unique: bool
) -> list[list[int]]:
    """Return the rows begun, ended, previous and current, as `MergeResult` has them."""
    current: dict[int, list[int]] = {}
    for number, key in enumerate(rows, len(changes)):
        current.setdefault(key, []).append(number)
    partial = iter(current.pop(-1, []))
    begun, ended, previous = [], [-1] * (len(changes) + len(rows)), [-1] * len(changes)
    for change, (operation, old, new) in enumerate(changes):
        if operation in ("Update", "Delete"):
            same = current.get(old)
            row = same.pop() if same else next(partial, None)
            if row is not None:
                ended[row] = change
                if operation == "Update":
                    previous[change] = row
        if operation in ("Snapshot", "Insert", "Update"):
            same = current.setdefault(new, [])
            if unique:  # the delete of a row was not sent, because the publication lacked the table then
                for row in same:
                    ended[row] = change
                same.clear()
            same.append(change)
            begun.append(change)
    return [begun, ended, previous, [row for row in begun if ended[row] < 0]]


VALUE = st.sampled_from([None, "", "a", "b", "-1"])
INTEGER = st.sampled_from([None, "-1", "0", "7", "10"])


@given(
    rows=st.lists(st.tuples(VALUE, VALUE, VALUE), max_size=30)
    | st.lists(st.tuples(INTEGER, VALUE, INTEGER), max_size=30),
    width=st.sampled_from([1, 3]),
)
@settings(max_examples=examples(200))
def test_equal_keys_have_equal_numbers(rows: list[tuple[str | None, ...]], width: int) -> None:
    rows = [row[:width] for row in rows]
    columns = [number_values(pa.array([row[at] for row in rows], pa.string()), {}) for at in range(width)]
    numbers, first = number_keys(columns)
    assert [rows[row] for row in first[numbers].tolist()] == rows
    assert sorted(first.tolist()) == sorted({rows.index(row) for row in rows})


def test_rescued_values_equal_no_value_of_the_type() -> None:
    nan, negative_nan = np.array([0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0000], np.uint64).view(np.float64)
    array = pa.array([0.0, -0.0, nan, negative_nan, None, None, None, None, 0.0])
    zero, minus, one_nan, other_nan, null, rescued, never, same, again = number_values(
        array, {5: "1e999", 6: None, 7: "1e999"}
    ).tolist()
    assert (null, never) == (NULL, NEVER_SENT)
    assert (again, other_nan, same) == (zero, one_nan, rescued)
    assert len({zero, minus, one_nan, null, rescued, never}) == 6
