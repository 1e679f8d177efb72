"""Reasons why a Delta table may differ from its source, the server's table.

The replication stream does not contain what ALTER TABLE does to existing rows, and a recording may lack rows
of a table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.schema.alteration import TableAlteration
from logicalrep.apply.schema.layout import TableLayout, delta_names, renamed_columns
from logicalrep.targets import KEY, MAY_DIFFER, Table
from logicalrep.views import Column

_UNMATCHED: Final = (
    "changes did not match the table's rows: an update or delete found no row, or an insert found one"
)
"""The reason that `store_unmatched` stores."""


class Difference(msgspec.Struct, frozen=True):
    """A reason why a Delta table may differ from its source, the server's table."""

    lsn: int
    """Commit LSN from which on the table may differ from its source."""
    reason: str
    """The reason as an English sentence, for example that a column was added."""


def decode_differences(text: str | None) -> tuple[Difference, ...]:
    """Return the reasons stored in the table property `logicalrep.may_differ`; empty if `text` is None.

    Raises:
        ValueError: The text is not JSON written by `update_properties`.
    """
    return msgspec.json.decode(text, type=tuple[Difference, ...]) if text else ()


def update_properties(table: Table, files: DataFiles, layout: TableLayout, chunk: Chunk) -> list[Difference]:
    """Store the relation's key, and reasons why the table may differ from its source, in table properties.

    The properties are committed only if they differ from the stored properties. The caller commits the
    changes afterwards, so a crash loses no reason.

    Args:
        table: The table.
        files: The data files that the chunk is applied to.
        layout: The layout of the data files, before the chunk is applied.
        chunk: The changes that are about to be applied.

    Returns:
        The reasons that the properties did not contain before.
    """
    properties, new = changed_properties(table, files, layout, chunk)
    if properties:
        table.set_properties(properties)
    return new


def store_unmatched(table: Table, unmatched: Sequence[int]) -> list[Difference]:
    """Store in a table property that changes did not match the rows; call it before committing the changes.

    Args:
        table: The table.
        unmatched: Commit LSNs of the changes, in order; nothing is stored if there are none.

    Returns:
        A list of the new reason; an empty list if the property contained it before.
    """
    return store_difference(table, Difference(unmatched[0], _UNMATCHED)) if unmatched else []


def store_foreign_change(table: Table) -> list[Difference]:
    """If another program has changed rows since the last commit of changes, store this in a table property.

    Returns:
        A list of the new reason; an empty list if no other program has changed rows, or if the property
        contained the reason before.
    """
    reason = table.foreign_change()
    lsn = max(table.position.commit_lsn, 0)
    return store_difference(table, Difference(lsn, reason)) if reason else []


def store_difference(table: Table, new: Difference) -> list[Difference]:
    """Store in a table property why the table may differ from its source.

    Returns:
        A list of the new reason; an empty list if the property contained it before.
    """
    known = decode_differences(table.properties.get(MAY_DIFFER))
    if any(one.reason == new.reason for one in known):
        return []
    table.set_properties({MAY_DIFFER: msgspec.json.encode([*known, new]).decode()})
    return [new]


def changed_properties(
    table: Table, files: DataFiles, layout: TableLayout, chunk: Chunk
) -> tuple[dict[str, str], list[Difference]]:
    """Return table properties to store before a chunk is applied, and the new reasons among them.

    The properties have the relation's key, and reasons why the table may differ from its source.
    New reasons are those that the stored properties lack. Both results are empty if nothing is to be stored.
    """
    stored = table.properties
    # After a Truncate, all rows of the table are in the recording, so the known reasons no longer apply.
    known = () if chunk.truncates else decode_differences(stored.get(MAY_DIFFER))
    reasons = {one.reason for one in known}
    new = [one for one in incomplete_reasons(chunk) if one.reason not in reasons]
    is_known = bool(layout.columns) or not layout.values
    following = chunk.relation.following_columns
    if chunk.is_alteration:
        alteration = TableAlteration(layout, chunk)
        altered = altered_columns(alteration.compared(layout), alteration.columns, following)
    else:
        altered = altered_columns(layout.columns if is_known else None, chunk.columns, following)
    if altered and not chunk.truncates and _has_rows(files, layout):
        difference = Difference(chunk.changes["commit_lsn"][0].as_py(), "; ".join(altered))
        new += [difference] if difference not in known else []
    properties = dict[str, str]()
    if KEY in stored and not chunk.is_alteration:
        properties[KEY] = encode_key(chunk)
    if new or (chunk.truncates and MAY_DIFFER in stored):
        properties[MAY_DIFFER] = msgspec.json.encode([*known, *new]).decode()
    return (properties if properties.items() - stored.items() else {}), new


def encode_key(chunk: Chunk) -> str:
    """Return the value of the table property `KEY`: the replica identity's columns as a JSON array of names.

    The array is empty if these are all columns (REPLICA IDENTITY FULL). Tables with history have no `KEY`.
    """
    is_key = len(chunk.keys) < len(chunk.columns)
    names = dict(zip((column.name for column in chunk.columns), delta_names(chunk.columns), strict=True))
    return msgspec.json.encode([names[name] for name in chunk.keys] if is_key else []).decode()


def _has_rows(files: DataFiles, layout: TableLayout) -> bool:
    """Return whether data files have current rows; with history, rows whose `__END_AT` is NULL."""
    if layout.end is None:
        return any(batch.num_rows for file in files for batch in files.read(file, []))
    return any(batch[layout.end].null_count for file in files for batch in files.read(file, [layout.end]))


def altered_columns(
    old: Sequence[Column] | None, new: Sequence[Column], following_columns: Collection[str] = ()
) -> list[str]:
    """Return the schema changes that may have given existing rows values that the server never sent.

    PostgreSQL keeps the order of columns and appends new columns. So if a column has moved behind a column
    that came after it, the moved column was dropped and added again.

    Args:
        old: Previous columns of the relation; None if they are not known.
        new: Current columns of the relation.
        following_columns: Names of columns whose values in existing rows follow from earlier values.

    Returns:
        One English sentence for each altered column.
    """
    if old is None:
        return []
    reasons: list[str] = []
    old_index = {column.name: index for index, column in enumerate(old)}
    old_names = renamed_columns(old, new)
    highest = -1
    is_again = False
    for column in new:
        index = old_index.get(old_names.get(column.name, column.name))
        is_following = column.name in following_columns
        if index is None:
            if not is_following:
                text = f"column {column.name} was added, and may have a default value in existing rows"
                reasons.append(text)
            continue
        is_again = is_again or index < highest
        highest = index
        if is_again:
            reasons.append(f"column {column.name} was dropped and added again")
        elif _type(old[index]) != _type(column) and not is_following:
            reasons.append(f"column {column.name} changed its type, and USING may have changed its values")
    return reasons


def incomplete_reasons(chunk: Chunk) -> list[Difference]:
    """Return why the recording lacks rows of a chunk's relation; an empty list if it has all rows."""
    reason = chunk.relation.incomplete
    return [] if reason is None else [Difference(chunk.changes["commit_lsn"][0].as_py(), reason)]


def _type(column: Column) -> tuple[int, int]:
    return column.type_oid, column.type_modifier
