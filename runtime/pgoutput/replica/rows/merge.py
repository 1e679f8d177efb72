"""Merge changes into rows: find out which rows the changes add, which they end, and what they update.

A change *begins* the row that an insert or update writes. It *ends* the row that an update or delete replaces
or removes. Rows are numbers: a number from 0 on is the row that the change with this index begins. A negative
number is a row of the Delta table: -1 is the first row that was looked up, -2 the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

Key: TypeAlias = tuple[str | None, ...]
"""A key: the values of a row's key columns, as text."""


class MergeResult(msgspec.Struct, frozen=True):
    """The result of merging changes into rows: which rows the changes begin and end, as row numbers."""

    begun: list[int]
    """Rows that the changes begin, in the order of the changes."""
    ended: dict[int, int]
    """Index of the change that ends a row, by row."""
    previous: dict[int, int]
    """The row before an update, by the row after the update. Updates of unknown rows are left out."""

    @property
    def current(self) -> list[int]:
        """Rows that a change begins and no later change ends."""
        return [row for row in self.begun if row not in self.ended]


class Merge:
    """A merge of changes into the rows of a Delta table.

    Args:
        rows: Numbers of the table's rows that have a key, by key.
        unique: Whether a key identifies at most one row. If not, equal rows cannot be distinguished, and a
            change ends any one of the equal rows.
        find_match: Called with a key that is not in `rows`. Returns a row whose key is partly unknown and may
            be this key, or None. Raises an error if that cannot be decided.
    """

    def __init__(
        self,
        rows: Mapping[Key, Sequence[int]],
        *,
        unique: bool,
        find_match: Callable[[Key], int | None] = lambda key: None,
    ) -> None:
        self._rows = {key: [*same] for key, same in rows.items()}
        self._unique = unique
        self._find_match = find_match
        self._result = MergeResult([], {}, {})

    def apply(
        self, operations: Sequence[str], old: Sequence[Key | None], new: Sequence[Key | None]
    ) -> MergeResult:
        """Apply changes in order; return which rows the changes begin and end.

        Args:
            operations: The operation of each change, as in `pgoutput.views.CHANGES`.
            old: For each change, the key of the row that the change ends.
            new: For each change, the key of the row that the change begins.
        """
        for change, operation in enumerate(operations):
            ends, begins = _EFFECTS[operation]
            # REPLICA IDENTITY NOTHING has no key columns, so no row can be found.
            # REPLICA IDENTITY FULL of a table without columns has the empty key, which all rows share.
            if ends and (key := old[change]) is not None and (key or not self._unique):
                self._end(change, key, begins=begins)
            if begins and (key := new[change]) is not None:
                self._begin(change, key)
        return self._result

    def _end(self, change: int, key: Key, *, begins: bool) -> None:
        rows = self._rows.get(key)
        row = rows.pop() if rows else self._find_match(key)
        if row is not None:
            self._result.ended[row] = change
            if begins:
                self._result.previous[change] = row

    def _begin(self, change: int, key: Key) -> None:
        rows = self._rows.setdefault(key, [])
        if self._unique and key:
            # The delete of an existing row was not sent, because the publication lacked the table then.
            self._result.ended.update(dict.fromkeys(rows, change))
            rows.clear()
        rows.append(change)
        self._result.begun.append(change)


_EFFECTS: Final = {
    "Snapshot": (False, True),
    "Insert": (False, True),
    "Update": (True, True),
    "Delete": (True, False),
    "Truncate": (False, False),
}
"""Two flags by operation: whether a change ends a row, and whether it begins a row."""
