"""Merge changes into rows: which rows end, which rows begin, and which row an updated row was before.

Rows are numbers here. A number from 0 on is the row that the change with this index begins. A negative number
is a row of the table: -1 is the first row that was looked up, -2 the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

Key: TypeAlias = tuple[str | None, ...]
"""The values of a row's key columns, as text."""


class MergeResult(msgspec.Struct, frozen=True):
    """The rows that changes begin and end."""

    begun: list[int]
    """Rows that the changes begin, in order."""
    ended: dict[int, int]
    """The change that ends a row, by row."""
    previous: dict[int, int]
    """The row before an update, by the row after it. Rows whose previous row was not found are left out."""

    @property
    def current(self) -> list[int]:
        """Rows that the changes begin and do not end."""
        return [row for row in self.begun if row not in self.ended]


class Merge:
    """A merge of changes into the rows of a table.

    Args:
        rows: The rows of the table, by key.
        unique: Whether a key identifies at most one row. Otherwise equal rows cannot be distinguished, and a
            change ends any one of them.
        find_match: Returns a row that may have a key for which `rows` has no row, or None. Raises an error
            if that cannot be decided.
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
        """Apply changes in order; return which rows they begin and end.

        Args:
            operations: The operation of each change, as in `pgoutput.views.CHANGES`.
            old: The key of the row that each change ends.
            new: The key of the row that each change begins.
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
"""Whether a change ends a row, and whether it begins a row, by operation."""
