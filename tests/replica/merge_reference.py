"""Reference for `pgoutput.replica.rows.merge`: changes are merged one after the other.

A change *begins* the row that an insert or update writes. It *ends* the row that an update or delete replaces
or removes. Rows are numbers: a number from 0 on is the row that the change with this index begins. A negative
number is a row of the Delta table: -1 is the first row that was looked up, -2 the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

Key: TypeAlias = tuple[str | None, ...]
"""A key: the values of a row's key columns, as text; None for NULL."""


class MergeResult(msgspec.Struct, frozen=True):
    """The result of merging changes into rows: which rows the changes write, replace and remove."""

    begun: list[int]
    """Numbers of the rows that inserts and updates write, in the order of the changes."""
    ended: dict[int, int]
    """Index of the change that replaces or removes a row, by row number."""
    previous: dict[int, int]
    """Number of the row before an update, by number of the row after it; only for updates of known rows."""

    @property
    def current(self) -> list[int]:
        """Numbers of the rows that a change writes and no later change replaces or removes."""
        return [row for row in self.begun if row not in self.ended]


def merge_changes(
    rows: Mapping[Key, Sequence[int]],
    operations: Sequence[str],
    old: Sequence[Key],
    new: Sequence[Key],
    *,
    unique: bool,
    find_match: Callable[[Key], int | None],
) -> MergeResult:
    """Apply changes in order; return which rows the changes write, and which they replace or remove.

    Args:
        rows: Row numbers of the Delta table's rows, by the key that the rows have.
        operations: The operation of each change, such as "Insert".
        old: For each change, the key of the row that an update or delete replaces or removes.
        new: For each change, the key of the row that an insert or update writes.
        unique: Whether a key identifies at most one row. If not, equal rows cannot be distinguished, and a
            change ends any one of the equal rows.
        find_match: Called with a key that no row has. Returns the number of a row whose key is partly unknown
            and may be this key, or None. Raises an error if it cannot be decided whether there is such a row.
    """
    current = {key: [*same] for key, same in rows.items()}
    result = MergeResult([], {}, {})
    for change, operation in enumerate(operations):
        ends, begins = _EFFECTS[operation]
        # REPLICA IDENTITY NOTHING has no key columns, so no row can be found.
        # REPLICA IDENTITY FULL of a table without columns has the empty key, which all rows share.
        if ends and ((key := old[change]) or not unique):
            same = current.get(key)
            row = same.pop() if same else find_match(key)
            if row is not None:
                result.ended[row] = change
                if begins:
                    result.previous[change] = row
        if begins:
            same = current.setdefault(key := new[change], [])
            if unique and key:
                # The delete of an existing row was not sent, because the publication lacked the table then.
                result.ended.update(dict.fromkeys(same, change))
                same.clear()
            same.append(change)
            result.begun.append(change)
    return result


_EFFECTS: Final = {
    "Snapshot": (False, True),
    "Insert": (False, True),
    "Update": (True, True),
    "Delete": (True, False),
    "Truncate": (False, False),
}
"""By operation: whether a change replaces or removes a row, and whether the change writes a row."""
