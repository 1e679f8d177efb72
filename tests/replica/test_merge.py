"""Changes that are merged at once begin and end the same rows as changes that are merged one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput.replica.rows.keys import NEVER_SENT, NULL, number_keys, number_values
from pgoutput.replica.rows.merge import MergeResult, merge_changes, read_effects
from tests.effort import examples
from tests.replica import merge_reference

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
    operations = [operation for operation, _, _ in changes]
    old, new = (np.array([change[at] for change in changes], np.int64) for at in (1, 2))
    partial = [at for at, key in enumerate(rows) if key < 0]
    expected = merge_one_by_one(rows, operations, old.tolist(), new.tolist(), unique=unique)

    def find_matches(lost: np.ndarray) -> dict[int, int]:
        return dict(zip(lost.tolist(), [len(changes) + at for at in partial], strict=False))

    effects = read_effects(pa.array(operations, pa.string()))
    found = np.array(rows, np.int64)
    merged = merge_changes(found, effects, old, new, unique=unique, find_matches=find_matches)
    assert as_lists(merged) == as_lists(expected)


def merge_one_by_one(
    rows: list[int], operations: list[str], old: list[int], new: list[int], *, unique: bool
) -> MergeResult:
    """Return the result of `merge_reference` with the row numbers of `MergeResult`."""
    by_key: dict[merge_reference.Key, list[int]] = {}
    for at, key in enumerate(rows):
        if key >= 0:
            by_key.setdefault((str(key),), []).append(-1 - at)
    partial = iter([-1 - at for at, key in enumerate(rows) if key < 0])
    keys = ([(str(key),) for key in one] for one in (old, new))
    result = merge_reference.merge_changes(
        by_key, operations, *keys, unique=unique, find_match=lambda key: next(partial, None)
    )
    count = len(operations)
    ended, previous = np.full(count + len(rows), -1), np.full(count, -1)
    for row, change in result.ended.items():
        ended[row if row >= 0 else count - 1 - row] = change
    for change, row in result.previous.items():
        previous[change] = row if row >= 0 else count - 1 - row
    return MergeResult(np.array(result.begun, np.int64), ended, previous)


def as_lists(result: MergeResult) -> list[list[int]]:
    return [one.tolist() for one in (result.begun, result.ended, result.previous, result.current)]


VALUE = st.sampled_from([None, "", "a", "b", "-1"])


@given(rows=st.lists(st.tuples(VALUE, VALUE, VALUE), max_size=30), width=st.sampled_from([1, 3]))
@settings(max_examples=examples(200))
def test_equal_keys_have_equal_numbers(rows: list[tuple[str | None, ...]], width: int) -> None:
    rows = [row[:width] for row in rows]
    columns = [number_values(pa.array([row[at] for row in rows], pa.string()), {}) for at in range(width)]
    numbers, first = number_keys(columns)
    ordered = list(dict.fromkeys(rows))
    assert numbers.tolist() == [ordered.index(row) for row in rows]
    assert first.tolist() == [rows.index(row) for row in ordered]


def test_rescued_values_equal_no_value_of_the_type() -> None:
    nan, negative_nan = np.array([0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0000], np.uint64).view(np.float64)
    array = pa.array([0.0, -0.0, nan, negative_nan, None, None, None, None, 0.0])
    zero, minus, one_nan, other_nan, null, rescued, never, same, again = number_values(
        array, {5: "1e999", 6: None, 7: "1e999"}
    ).tolist()
    assert (null, never) == (NULL, NEVER_SENT)
    assert (again, other_nan, same) == (zero, one_nan, rescued)
    assert len({zero, minus, one_nan, null, rescued, never}) == 6
