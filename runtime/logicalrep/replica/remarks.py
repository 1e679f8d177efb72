"""Apply the recorder's remarks about tables: mark incomplete tables; mark, archive or remove dropped tables.

The stream has no message for a dropped table, and a table must be marked even if it has no changes. So the
recorder stores remarks in the metadata of segments. They are applied after the changes of a micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from logicalrep.apply import Difference, TableResult, rename_columns, store_difference, store_foreign_change
from logicalrep.errors import ReplicaError
from logicalrep.recording import GoneTable, IncompleteTable, Location, Metadata, Recording
from logicalrep.replica.failed_tables import read_failed_tables, remove_failure
from logicalrep.replica.names import Names
from logicalrep.targets import (
    DROPPED,
    NAME,
    NAMESPACE,
    Table,
    archive_table,
    change_table,
    decode_dropped,
    find_table,
    registered_oids,
    remove_table,
)
from logicalrep.views import schema_versions
from logicalrep.wire import format_lsn

_LOG: Final = logging.getLogger(__name__)

Dropped: TypeAlias = Literal["keep", "archive", "drop"]
"""What happens to a table whose relation was dropped on the server: "keep" marks it, "archive" also gives its
folder a name with the date, "drop" removes it."""


def apply_remarks(
    recording: Recording, target: Location, segments: Sequence[int], dropped: Dropped, names: Names
) -> Iterator[TableResult]:
    """Mark incomplete tables; mark, archive or remove dropped tables; rename tables, as segments say.

    Applying the same segments again changes nothing. The recorder found the tables incomplete, dropped or
    renamed while or after it received the changes in these segments.

    Args:
        recording: The recording.
        target: The folder that holds the replica.
        segments: Successive numbers of segments, at least one, whose changes are applied.
        dropped: What happens to dropped tables.
        names: The names of the relations of the target.

    Yields:
        One result for each table that was marked, archived, removed or renamed, without counts of changes.

    Raises:
        RecordingError: A segment is missing or damaged.
        ReplicaError: A table cannot be read, marked or removed.
    """
    before = segments[0] - 1
    known = recording.metadata([before])[0].incomplete if before in recording.numbers else ()
    metadata = recording.metadata(segments)
    gone = [one for segment in metadata for one in segment.gone]
    copied = {
        version.relation.oid: segment.number
        for segment in (metadata if gone else ())
        if segment.kind == "snapshot"
        for version in schema_versions([segment])
    }
    reasons = {(one.oid, one.reason) for one in known}
    marks: list[tuple[IncompleteTable | GoneTable, Difference]] = [
        *(
            (one, Difference(one.lsn, one.reason))
            for one in metadata[-1].incomplete
            if (one.oid, one.reason) not in reasons
        ),
        *(
            (one, Difference(one.after_lsn, f"not published any more since {format_lsn(one.after_lsn)}"))
            for segment in metadata
            for one in segment.gone
            if not one.is_dropped and copied.get(one.oid, 0) < segment.number  # not published again since
        ),
    ]
    if marks or gone:
        existing = registered_oids(target)
        errors = {oid: table.error for oid, table in read_failed_tables(target).items()}
    for one, mark in marks:
        if one.oid in existing and (
            new := change_table(target, one.oid, partial(store_difference, new=mark))
        ):
            error = errors.get(one.oid, "")
            yield TableResult(one.oid, one.namespace, one.name, {}, may_differ=tuple(new), error=error)
    for one in gone:
        if one.is_dropped and one.oid in existing:
            text = _settle(target, one, dropped)
            names.note(one.oid, find_table(target, one.oid))
            error = "" if dropped == "drop" else errors.get(one.oid, "")
            yield TableResult(one.oid, one.namespace, one.name, {}, error=error, dropped=text)
    _rename_columns(target, metadata)
    yield from names.follow(metadata)


def _rename_columns(target: Location, segments: Sequence[Metadata]) -> None:
    """Rename columns of tables as segments say, unless the stream has described them later."""
    renamed = [one for segment in segments for one in segment.renamed if one.columns]
    described = {one.relation.oid: one.lsn for one in schema_versions(segments if renamed else ())}
    for one in renamed:
        if one.lsn <= described.get(one.oid, -1):
            continue
        try:
            change_table(target, one.oid, partial(rename_columns, renamed=one.columns))
        except ReplicaError as error:
            _LOG.warning("the columns of %s.%s are not renamed: %s", one.namespace, one.name, error)


def mark_foreign_changes(target: Location, oids: Iterable[int]) -> Iterator[TableResult]:
    """Mark those tables of `oids` whose rows another program has changed: they may differ from their source.

    Consume the iterator: each table is marked just before its result is yielded.

    Yields:
        One result for each table that was not marked before.

    Raises:
        ReplicaError: A table cannot be read or marked.
    """
    for oid in oids:
        if (table := find_table(target, oid)) is None:
            continue
        if marks := store_foreign_change(table):
            names = table.properties.get(NAMESPACE, ""), table.properties.get(NAME, "")
            yield TableResult(oid, *names, {}, may_differ=tuple(marks))


def removed_relations(recording: Recording, segments: Sequence[int], dropped: Dropped) -> set[int]:
    """Return the OIDs of the relations whose tables `apply_remarks` removes.

    Raises:
        RecordingError: A segment is missing or damaged.
    """
    if dropped != "drop":
        return set()
    return {one.oid for segment in recording.metadata(segments) for one in segment.gone if one.is_dropped}


def _settle(target: Location, gone: GoneTable, dropped: Dropped) -> str:
    """Mark, archive or remove a dropped table; return what was done: "its Delta table was removed"."""
    if dropped == "drop":
        remove_table(target, gone.oid)
        remove_failure(target, gone.oid)
        return "its Delta table was removed"
    if change_table(target, gone.oid, partial(_mark_dropped, gone)) is None:
        return "it has no Delta table"
    if dropped == "archive":
        return f"its Delta table is now in the folder {archive_table(target, gone)}"
    return "its Delta table stays"


def _mark_dropped(gone: GoneTable, table: Table) -> Table:
    if decode_dropped(table) != gone:
        table.set_properties({DROPPED: msgspec.json.encode(gone).decode()})
    return table
