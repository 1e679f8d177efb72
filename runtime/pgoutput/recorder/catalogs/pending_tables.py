"""Tables that may be incomplete: the catalogs look as after a harmless statement, and the stream decides.

`ALTER COLUMN … SET NOT NULL` and `DROP NOT NULL` leave the same catalogs as a rename and a rename back, but
only after a rename can the stream describe the columns otherwise. TRUNCATE of a table with partitions leaves
the same catalogs as a TRUNCATE that names all partitions, which the stream does not contain.
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
    """What to report. Its LSN is behind the end of all transactions that the second reading has seen."""
    descriptions: tuple[Description, ...] = ()
    """The table is incomplete if the stream, up to the LSN of `table`, describes it in any other way."""
    truncated_by: int | None = None
    """The table is incomplete unless the last change of the transaction with this xid is, in the stream, a
    Truncate of the table. None if no Truncate is needed."""


def harmless_descriptions(
    old: Mapping[int, tuple[str, int, int]], new: Mapping[int, tuple[str, int, int]], added: int
) -> tuple[Description, ...]:
    """Return the descriptions that prove that no column had another name or type between two readings.

    A description does not contain the attnums of its columns. The description of a reading is a proof only if
    the table cannot have had, at any time between the readings, another set of equally many columns.

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
    """Return the columns of a Relation message."""
    return tuple((one.name, one.type_oid, one.type_modifier) for one in relation.columns)


def contradicted(pending: Iterable[PendingTable], versions: Iterable[SchemaVersion]) -> list[PendingTable]:
    """Return the pending tables that a schema version describes otherwise than their `descriptions`."""
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
