"""The recorded changes that bring copied rows with given keys up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from logicalrep._build import build
from logicalrep._roles import has_role, tuples
from logicalrep.messages import Message, Relation
from logicalrep.recorder.snapshots.row_keys import key_columns
from logicalrep.wire import UNCHANGED

Key: TypeAlias = tuple[object, ...]
"""Cells of the columns of the replica identity, as bytes."""


class ChangesOfKeys(msgspec.Struct):
    """The recorded changes of rows with given keys since these rows were copied."""

    keys: set[Key]
    """The keys of the copied rows, and the keys that the changes have given to these rows."""
    keeps_copied: bool
    """Whether the changes apply to the copied rows; False if they come after a TRUNCATE of the table."""
    changes: list[Message]


def changes_of_keys(
    relation: Relation, keys: Iterable[Key], later: Iterable[tuple[Relation, Message]], version: int
) -> ChangesOfKeys | None:
    """Return the recorded changes of rows with given keys since these rows were copied.

    If an update gives one of these rows a new key, the later changes with the new key are returned too. If an
    update gives one of the keys to another row, an Insert of that row is returned in place of the update.

    Args:
        relation: Description of the relation, as of the copied rows.
        keys: The keys of the copied rows.
        later: Relation message and change message of each change of the relation after the rows were copied.
        version: Protocol version.

    Returns:
        The changes; None if the relation was altered, or if an update has given one of the keys to a row that
        was not copied, without sending all values of that row.
    """
    found = ChangesOfKeys(set(keys), True, [])
    columns = key_columns(relation)
    for described, message in later:
        if described != relation:
            return None
        if has_role(message, "truncate"):
            found.keeps_copied, found.changes = False, []
            continue
        cells_of = [cells for _, cells in tuples(message)]
        rows = list(zip(named_keys(message, columns), cells_of, strict=True))
        is_insert = has_role(message, "insert")
        if not is_insert and rows[0][0] in found.keys:
            found.keys.add(rows[-1][0])
            found.changes.append(message)
        elif not has_role(message, "delete"):
            for key, cells in rows if is_insert else rows[-1:]:
                if key in found.keys:
                    if any(cell is UNCHANGED for cell in cells):
                        return None
                    found.changes.append(build("insert", version, relation=relation.oid, new=cells))
    return found


def deletes(relation: Relation, keys: Iterable[Key], version: int) -> Iterator[Message]:
    """Yield a Delete message of the protocol version `version` for each key."""
    columns = key_columns(relation)
    for key in keys:
        cells: list[str | None] = [None] * len(relation.columns)
        for column, value in zip(columns, key, strict=True):
            cells[column] = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else None
        yield build("delete", version, relation=relation.oid, key=tuple(cells))


def named_keys(message: Message, columns: list[int]) -> Iterator[Key]:
    """Yield the cells of `columns` in each tuple of a change, as bytes.

    The old or key tuple comes before the new tuple. A cell that is UNCHANGED in the new tuple is taken from
    the old or key tuple.
    """
    before: list[object] = []
    for _, cells in tuples(message):
        key: list[object] = [cells[column] for column in columns]
        if before:
            key = [old if cell is UNCHANGED else cell for old, cell in zip(before, key, strict=True)]
        yield tuple(
            cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell for cell in key
        )
        before = key
