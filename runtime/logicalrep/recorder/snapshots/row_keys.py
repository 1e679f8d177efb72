"""Keys of rows: which rows of a table a snapshot contains, and the SQL that selects these rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from logicalrep.messages import ColumnFlag, Relation
from logicalrep.recorder.client import Connection

RowKey: TypeAlias = tuple[str, ...]
"""The values of the columns of a replica identity, as text."""

Keys: TypeAlias = frozenset[RowKey] | None
"""The keys of the rows that a snapshot of a table contains; None for all rows."""

_PART_KEYS: Final = 10_000
"""Largest number of keys in one SQL condition."""


def merge_keys(one: Keys, other: Keys) -> Keys:
    """Return the keys of the rows that at least one of two snapshots contains; None for all rows."""
    return None if one is None or other is None else one | other


def covers(one: Keys, other: Keys) -> bool:
    """Return whether a snapshot of the rows with keys `one` contains all rows with keys `other`."""
    return one is None or (other is not None and other <= one)


def key_columns(relation: Relation) -> list[int]:
    """Return the indices of the columns of a relation's replica identity."""
    return [at for at, column in enumerate(relation.columns) if column.flags & ColumnFlag.KEY]


def key_conditions(connection: Connection, relation: Relation, keys: frozenset[RowKey]) -> Iterator[str]:
    """Yield SQL conditions, each for the rows with some of the keys; no key is in two conditions.

    A condition also selects rows whose key is equal to one of the keys and has another text, such as 1.0 and
    1.00. Two conditions may then select the same row.
    """
    columns = [relation.columns[at] for at in key_columns(relation)]
    names = ", ".join(quote_name(one.name) for one in columns)
    types = connection.query("SELECT " + ", ".join(f"format_type({one.type_oid}, -1)" for one in columns))[0]
    listed = sorted(keys)
    for first in range(0, len(listed), _PART_KEYS):
        rows = [[quote_text(value) for value in key] for key in listed[first : first + _PART_KEYS]]
        # The types in the first row of VALUES apply to all rows. Without VALUES, planning takes longer.
        rows[0] = [f"{value}::{type_}" for value, type_ in zip(rows[0], types, strict=True)]
        values = ", ".join(f"({', '.join(row)})" for row in rows)
        yield f"({names}) IN (VALUES {values})"


def quote_name(name: str) -> str:
    """Return a name as a quoted identifier; the name need not be valid UTF-8."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def quote_text(text: str) -> str:
    """Return a text as a string constant, which does not depend on standard_conforming_strings."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{doubled}'"
