"""What becomes of rows by changes, in terms of keys: which rows end, which begin, and what they begin from.

A row is a number. Numbers from 0 on are changes, each of which begins a row at most; negative ones are rows
that the table has: -1 is its first, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

Key: TypeAlias = tuple[str | None, ...]
"""The values of a row's key columns, as text."""


class Outcome(msgspec.Struct, frozen=True):
    """What changes do to rows."""

    begun: list[int]
    """The rows that changes begin, in their order."""
    ended: dict[int, int]
    """The rows that changes end, and the change that does."""
    before: dict[int, int]
    """For a row that an update begins, the row that it was; none if that is not known."""

    @property
    def lasting(self) -> list[int]:
        """The rows that were begun, and not ended."""
        return [row for row in self.begun if row not in self.ended]


class Fold:
    """Follows rows through changes.

    Args:
        rows: The rows that the table has, by key.
        unique: Whether a key has one row at most. Else rows that are equal are told apart by nothing, and a
            change ends one of them.
        alike: Takes a row that may be the one with a key, of which the table has no other; raises
            where that cannot be known.
    """

    def __init__(
        self,
        rows: Mapping[Key, Sequence[int]],
        *,
        unique: bool,
        alike: Callable[[Key], int | None] = lambda key: None,
    ) -> None:
        self._rows = {key: [*same] for key, same in rows.items()}
        self._unique = unique
        self._alike = alike
        self._outcome = Outcome([], {}, {})

    def apply(
        self, operations: Sequence[str], old: Sequence[Key | None], new: Sequence[Key | None]
    ) -> Outcome:
        """Make changes; give what comes of them.

        Args:
            operations: Of each change, as in `pgoutput.views.CHANGES`.
            old: Keys of the rows that changes end.
            new: Keys of the rows that they begin.
        """
        for change, operation in enumerate(operations):
            ends, begins = _EFFECTS[operation]
            # REPLICA IDENTITY NOTHING has no key columns, but a key has one row at most: no row can be found.
            # REPLICA IDENTITY FULL of a table without columns has the empty key, which all rows share.
            if ends and (key := old[change]) is not None and (key or not self._unique):
                self._end(change, key, begins=begins)
            if begins and (key := new[change]) is not None:
                self._begin(change, key)
        return self._outcome

    def _end(self, change: int, key: Key, *, begins: bool) -> None:
        rows = self._rows.get(key)
        row = rows.pop() if rows else self._alike(key)
        if row is not None:
            self._outcome.ended[row] = change
            if begins:
                self._outcome.before[change] = row

    def _begin(self, change: int, key: Key) -> None:
        rows = self._rows.setdefault(key, [])
        if self._unique and key:
            # A row that is there already missed its end: the publication did not have the table for a while.
            self._outcome.ended.update(dict.fromkeys(rows, change))
            rows.clear()
        rows.append(change)
        self._outcome.begun.append(change)


_EFFECTS: Final = {
    "Snapshot": (False, True),
    "Insert": (False, True),
    "Update": (True, True),
    "Delete": (True, False),
    "Truncate": (False, False),
}
"""Whether a change ends a row, and whether it begins one."""
