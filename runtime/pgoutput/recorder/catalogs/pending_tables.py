"""Tables that may be incomplete: the catalogs do not show whether they are, but later messages will.

After `SET NOT NULL` and `DROP NOT NULL`, the catalogs are as after two renames of a column, to another name
and back; but only after the renames can a Relation message with the other name come. After TRUNCATE of a
partitioned table, the catalogs are as after a TRUNCATE that names all its partitions; but the server sends
only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pgoutput.jsonlines import from_json
from pgoutput.messages import Relation
from pgoutput.recorder.catalogs.catalog import Description
from pgoutput.recording import IncompleteTable, SchemaVersion


class PendingTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that may be incomplete, as two readings of the catalogs show."""

    table: IncompleteTable
    """What to report if the table is incomplete; the catalogs show no transaction that ends after its LSN."""
    descriptions: tuple[Description, ...] = ()
    """If `truncated_by` is None: the table is incomplete if one of its Relation messages up to the LSN of
    `table` has other columns than each of these."""
    truncated_by: int | None = None
    """Xid of the transaction that has truncated the table; the table is incomplete unless, in the stream, a
    Truncate of the table is the last change of this transaction. None if no Truncate is expected."""


def harmless_descriptions(
    old: Mapping[int, tuple[str, int, int]], new: Mapping[int, tuple[str, int, int]], added: int
) -> tuple[Description, ...]:
    """Return the descriptions which, if sent, prove that no column had another name or type meanwhile.

    A description lacks the attnums of its columns. Therefore the columns of a reading are a proof only if the
    table cannot have had, at any time between the two readings, another set of equally many columns.

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
    return tuple((one.name, one.type_oid, one.type_modifier) for one in relation.columns)


def contradicted(pending: Iterable[PendingTable], versions: Iterable[SchemaVersion]) -> list[PendingTable]:
    """Return the pending tables for which a schema version differs from all harmless `descriptions`."""
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
