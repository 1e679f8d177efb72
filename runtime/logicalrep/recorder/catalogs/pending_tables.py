"""Tables that may be incomplete: only the messages of the stream show whether they are.

A table is incomplete if a column was renamed and renamed back. The catalogs look the same after the harmless
`SET NOT NULL` and `DROP NOT NULL`. But only the renames can cause a Relation message with the other name.

A partitioned table is incomplete if a TRUNCATE that the server does not send has emptied all its partitions.
The server sends a TRUNCATE of the partitioned table, but not one that names only its partitions. The catalogs
look the same after both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from logicalrep.jsonlines import from_json
from logicalrep.messages import Relation
from logicalrep.recorder.catalogs.catalog import Description
from logicalrep.recording import IncompleteTable, SchemaVersion
from logicalrep.wire import stored_name


class PendingTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that may be incomplete, as two readings of the catalogs show."""

    table: IncompleteTable
    """What to report if the table is incomplete. The alteration was committed at or before its LSN."""
    descriptions: tuple[Description, ...] = ()
    """The harmless descriptions, if `truncated_by` is None: the table is incomplete if one of its Relation
    messages up to the LSN of `table` has a description that is not listed here."""
    truncated_by: int | None = None
    """Xid of the transaction that has truncated the table; the table is incomplete unless, in the stream, a
    Truncate of the table is the last change of this transaction. None if no Truncate is expected."""


def harmless_descriptions(
    old: Mapping[int, tuple[str, int, int]], new: Mapping[int, tuple[str, int, int]], added: int
) -> tuple[Description, ...]:
    """Return the harmless descriptions: columns of a Relation message that do not show a set-back.

    A set-back: a column had another name or type for a time between two readings of the catalogs. The
    columns of each reading are harmless, with one exception. A description has no attnums, so other columns
    with the same names and types have the same description. If the table may have had such other columns
    between the two readings, the columns of the reading are left out.

    Args:
        old: Published columns of the earlier reading, by number (`Catalog.sent_columns`).
        new: Published columns of the later reading.
        added: Number of columns that were added between the readings; some may have been dropped again.
    """
    gained, lost = new.keys() - old.keys(), old.keys() - new.keys()
    found = []
    if not lost or not added:
        found.append(tuple(old.values()))
    if not gained or (not lost and len(gained) == added):
        found.append(tuple(new.values()))
    return tuple(found)


def description_of(relation: Relation) -> Description:
    """Return the columns of a Relation message as a `Description`."""
    return tuple((stored_name(one.name), one.type_oid, one.type_modifier) for one in relation.columns)


def contradicted(pending: Iterable[PendingTable], versions: Iterable[SchemaVersion]) -> list[PendingTable]:
    """Return the pending tables that have a schema version which is not in their `descriptions`.

    `descriptions` has the columns with which a schema version does not make the table incomplete. Schema
    versions after the LSN of the pending table are ignored. Tables with `truncated_by` are left out.
    """
    relations: list[tuple[int, Any]] = [(one.lsn, from_json(one.relation)) for one in versions]
    return [
        one
        for one in pending
        if one.truncated_by is None
        and any(
            lsn <= one.table.lsn
            and relation.oid == one.table.oid
            and description_of(relation) not in one.descriptions
            for lsn, relation in relations
        )
    ]
