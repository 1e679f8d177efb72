"""Apply the recorder's remarks about tables: mark incomplete tables; mark, archive or remove dropped tables.

The stream has no message for a dropped table, and a table must be marked even if it has no changes. So the
recorder stores remarks in the metadata of segments. They are applied after the changes of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from pgoutput.apply import Difference, TableResult, store_difference, store_foreign_change
from pgoutput.recording import GoneTable, IncompleteTable, Location, Recording
from pgoutput.replica.failed_tables import read_failed_tables, remove_failure
from pgoutput.targets import (
    DROPPED,
    NAME,
    NAMESPACE,
    Table,
    archive_table,
    decode_dropped,
    find_table,
    folder_name,
    move_table,
    registered_oids,
    remove_table,
)
from pgoutput.wire import format_lsn

Dropped: TypeAlias = Literal["keep", "archive", "drop"]
"""What happens to a table whose relation was dropped on the server: "keep" marks it, "archive" also gives its
folder a name with the date, "drop" removes it."""


def apply_remarks(
    recording: Recording, target: Location, segments: Sequence[int], dropped: Dropped
) -> Iterator[TableResult]:
    """Mark incomplete tables; mark, archive or remove dropped tables, as the metadata of segments say.

    Applying the same segments again changes nothing. The recorder found the tables incomplete or dropped
    while or after it received the changes in these segments.

    Args:
        recording: The recording.
        target: The folder that holds the replica.
        segments: Successive numbers of segments, at least one, whose changes are applied.
        dropped: What happens to dropped tables.

    Yields:
        One result for each table that was marked, archived or removed, without counts of changes.

    Raises:
        RecordingError: A segment is missing or damaged.
        ReplicaError: A table cannot be read, marked, moved or removed.
    """
    before = segments[0] - 1
    known = recording.metadata([before])[0].incomplete if before in recording.numbers else ()
    metadata = recording.metadata(segments)
    gone = [one for segment in metadata for one in segment.gone]
    reasons = {(one.oid, one.reason) for one in known}
    marks: list[tuple[IncompleteTable | GoneTable, Difference]] = [
        *(
            (one, Difference(one.lsn, one.reason))
            for one in metadata[-1].incomplete
            if (one.oid, one.reason) not in reasons
        ),
        *(
            (one, Difference(one.after_lsn, f"not published any more since {format_lsn(one.after_lsn)}"))
            for one in gone
            if not one.is_dropped
        ),
    ]
    if not (marks or gone):
        return
    existing = registered_oids(target)
    errors = {oid: table.error for oid, table in read_failed_tables(target).items()}
    for one, mark in marks:
        if one.oid in existing and (new := _mark_incomplete(target, one.oid, mark)):
            error = errors.get(one.oid, "")
            yield TableResult(one.oid, one.namespace, one.name, {}, may_differ=tuple(new), error=error)
    for one in gone:
        # With "drop", call `_settle` even if the dropped table is missing: a killed run may have removed it,
        # but not yet moved the newer table of the same name to the folder that became free.
        if one.is_dropped and (one.oid in existing or dropped == "drop"):
            text = _settle(target, one, dropped)
            error = "" if dropped == "drop" else errors.get(one.oid, "")
            if one.oid not in existing:
                continue
            yield TableResult(one.oid, one.namespace, one.name, {}, error=error, dropped=text)


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


def _mark_incomplete(target: Location, oid: int, difference: Difference) -> list[Difference]:
    table = find_table(target, oid)
    return [] if table is None else store_difference(table, difference)


def _settle(target: Location, table: GoneTable, dropped: Dropped) -> str:
    """Mark, archive or remove a dropped table; then give its folder to a newer table of the same name.

    The argument `dropped` says what to do: "keep" marks the table, and archives it if there is a newer table.

    Returns:
        What has happened to the table, such as "its Delta table was removed".
    """
    successor = _successor(target, table)
    if dropped == "drop":
        remove_table(target, table.oid)
        remove_failure(target, table.oid)
        text = "its Delta table was removed"
    elif (found := find_table(target, table.oid)) is None:
        return "it has no Delta table"
    else:
        _mark_dropped(found, table)
        text = "its Delta table stays"
        if dropped == "archive" or successor is not None:
            text = f"its Delta table is now in the folder {archive_table(target, table)}"
    if successor is not None:
        move_table(target, *successor, folder_name(table.namespace, table.name))
    return text


def _mark_dropped(table: Table, gone: GoneTable) -> None:
    if decode_dropped(table) != gone:
        table.set_properties({DROPPED: msgspec.json.encode(gone).decode()})


def _successor(target: Location, table: GoneTable) -> tuple[int, Location] | None:
    """Return OID and folder of a newer table with the name of a dropped table; None if there is none.

    The folder of the newer table is called NAME@OID, because the dropped table had the folder NAME.
    """
    prefix = f"{folder_name(table.namespace, table.name)}@"
    for name in target.names():
        oid = name.removeprefix(prefix)
        if name != oid and oid.isdecimal() and int(oid) != table.oid:
            found = find_table(target, int(oid))
            if found is not None and found.place.path == (target / name).path:
                return int(oid), found.place
    return None
