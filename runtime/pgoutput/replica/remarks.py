"""Apply what the recorder has noticed: mark incomplete tables, and mark or put aside dropped tables.

The stream does not tell that a table was dropped, and a table without changes shows no mark of its own. So
after the changes of a micro-batch, the metadata of its segments are applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import GoneTable, IncompleteTable, Location, Recording
from pgoutput.replica.batch import TableResult
from pgoutput.replica.failed_tables import read_failed_tables, remove_failure
from pgoutput.replica.registry import (
    DROPPED,
    archive_table,
    decode_dropped,
    find_table,
    folder_name,
    move_table,
    registered_oids,
    remove_table,
)
from pgoutput.replica.schema import Difference, store_difference
from pgoutput.wire import format_lsn

Dropped: TypeAlias = Literal["keep", "archive", "drop"]
"""What happens to a table whose relation was dropped on the server: it is marked and stays where it is, its
folder gets a name with the date, or it is removed."""


def apply_remarks(
    recording: Recording, target: Location, segments: Sequence[int], dropped: Dropped
) -> Iterator[TableResult]:
    """Mark incomplete tables, and mark or put aside dropped tables, as the metadata of segments say.

    Applying the same segments again changes nothing. The tables were found incomplete, or dropped, in these
    segments or after the changes in them.

    Args:
        recording: The recording.
        target: The folder that holds the replica.
        segments: Successive numbers of segments, at least one, whose changes are applied.
        dropped: What happens to dropped tables.

    Yields:
        One result for each table that was marked or put aside, without counts of changes.

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
        if one.oid in existing and one.is_dropped:
            text = _settle(target, one, dropped)
            error = "" if dropped == "drop" else errors.get(one.oid, "")
            yield TableResult(one.oid, one.namespace, one.name, {}, error=error, dropped=text)


def _mark_incomplete(target: Location, oid: int, difference: Difference) -> list[Difference]:
    found = find_table(target, oid)
    try:
        return [] if found is None else store_difference(found[1], difference)
    except (DeltaError, OSError) as error:
        raise ReplicaError(f"{target}: relation {oid} cannot be marked: {one_line(error)}") from error


def _settle(target: Location, table: GoneTable, dropped: Dropped) -> str:
    """Mark a dropped table, and put it aside if it shall be, or if another relation has its name now.

    Returns:
        What has happened to the table, as the end of a sentence.
    """
    successor = _successor(target, table)
    if dropped == "drop":
        remove_table(target, table.oid)
        remove_failure(target, table.oid)
        text = "its Delta table was removed"
    elif (found := find_table(target, table.oid)) is None:
        return "it has no Delta table"
    else:
        _mark_dropped(*found, table)
        text = "its Delta table stays"
        if dropped == "archive" or successor is not None:
            text = f"its Delta table is now in the folder {archive_table(target, table)}"
    if successor is not None:
        move_table(target, *successor, folder_name(table.namespace, table.name))
    return text


def _mark_dropped(place: Location, delta: DeltaTable, table: GoneTable) -> None:
    if decode_dropped(delta) == table:
        return
    properties = {DROPPED: msgspec.json.encode(table).decode()}
    try:
        delta.alter.set_table_properties(properties, raise_if_not_exists=False)
    except (DeltaError, OSError) as error:
        raise ReplicaError(f"{place}: the table cannot be marked: {one_line(error)}") from error


def _successor(target: Location, table: GoneTable) -> tuple[int, Location] | None:
    """Return OID and folder of the table that could not have its name, because the dropped table had it."""
    prefix = f"{folder_name(table.namespace, table.name)}@"
    for name in target.names():
        oid = name.removeprefix(prefix)
        if name != oid and oid.isdecimal() and int(oid) != table.oid:
            found = find_table(target, int(oid))
            if found is not None and found[0].path == (target / name).path:
                return int(oid), found[0]
    return None
