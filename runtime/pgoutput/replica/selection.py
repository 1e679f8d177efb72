"""The selected tables of a target: a replica of some tables of a recording.

A target that follows only some tables has the file `_selected_tables.json` with their names. A relation is
selected if it has had one of these names, or has a Delta table already: a renamed table is followed further.

Changes of other relations are skipped for good when a micro-batch is committed. When a relation is selected
later, because its name was added or because it was renamed, its earlier changes become missed micro-batches
of a failed table, and `retry_tables` applies them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final

import msgspec
import pyarrow.compute as pc

from pgoutput.errors import RecordingError, ReplicaError
from pgoutput.recording import Location, PathOrUri, Recording, SchemaVersion, SegmentReader, locate
from pgoutput.replica.checkpoint import CHECKPOINT_FOLDER, Checkpoint
from pgoutput.replica.failed_tables import FailedTable, MissedBatch, read_failed_tables, record_failure
from pgoutput.replica.ownership import read_owner
from pgoutput.replica.registry import registered_oids
from pgoutput.replica.small_files import read_file, write_file
from pgoutput.views import ChangesView, plan_changes, read, schema_versions

_FILE: Final = "_selected_tables.json"

_MISSED: Final = "the table was selected after changes of it had been skipped; the next run applies them"


def select_tables(
    recording: PathOrUri, target: PathOrUri, tables: Collection[str], checkpoint: PathOrUri | None = None
) -> list[str]:
    """Make a target follow only some tables of a recording, or more tables than before.

    Call it before `replicate`, with or without Spark. If changes of an added table were skipped before, it
    becomes a failed table, and `retry_tables` applies them. No query may be writing to the target: a running
    query fails.

    Args:
        recording: The recording that the target follows or will follow.
        target: The folder that holds the replica, as a path or URI.
        tables: Names of tables, such as `public.orders`. Tables that were selected before stay selected.
        checkpoint: Location of the query's checkpoint; a folder in the target if None.

    Returns:
        Those of the names that no relation of the recording has had so far.

    Raises:
        RecordingError: The recording cannot be read, or skipped changes of an added table were pruned and no
            snapshot after them has its rows.
        ReplicaError: The target follows all tables, or its last run was interrupted within a micro-batch.
    """
    folder, source = locate(target), Recording(recording, may_be_empty=True, may_be_missing=True)
    selected = selected_tables(folder)
    if selected is None and read_owner(target) is not None:
        raise ReplicaError(f"{folder}: the target follows all tables. Write some tables to another target")
    relations = Relations(source, {*tables})
    if added := {*tables} - (selected or frozenset()):
        place = folder / CHECKPOINT_FOLDER if checkpoint is None else locate(checkpoint)
        _add(folder, Checkpoint(place), Relations(source, added))
        write_file(folder / _FILE, msgspec.json.encode(sorted(added | (selected or frozenset()))).decode())
    relations.read(max(source.numbers, default=0))
    return sorted({*tables} - relations.names)


def _add(target: Location, checkpoint: Checkpoint, relations: Relations) -> None:
    """Record the micro-batches that the relations with added names have missed."""
    if checkpoint.batch < 0:
        return
    if not checkpoint.is_committed:
        raise ReplicaError(
            f"{target}: the last run was interrupted, or another run is active. Run once without adding "
            "tables, then add them"
        )
    applied = checkpoint.offset
    relations.read(applied.segment)
    existing = existing_tables(target)
    late = [one for oid, one in relations.selected.items() if oid not in existing]
    begins = {one.oid: _complete_since(relations.recording, one, applied.segment) for one in late}
    checkpoint.plan(applied)  # a query that is running cannot plan this micro-batch any more, and fails
    for one in late:
        one.record_missed(target, MissedBatch(checkpoint.batch, begins[one.oid], applied.segment))
    checkpoint.commit()


def _complete_since(recording: Recording, relation: SelectedRelation, last: int) -> int:
    """Return the number of a segment: from it on, the recording has all rows of a relation.

    Raises:
        RecordingError: The recording has all rows in none of the segments up to number `last`.
    """
    try:
        recording.check_not_pruned(relation.first_segment)
    except RecordingError as error:
        for number in reversed([number for number in recording.numbers if number <= last]):
            if recording.metadata([number])[0].kind == "snapshot" and _replaces(
                recording, number, relation.oid
            ):
                return number
        name = f"{relation.namespace}.{relation.name}"
        raise RecordingError(
            f"{name} cannot be added: {error}; or add its rows to the recording (`pgoutput snapshot --table "
            f"{name}`), replicate them, and add the table then"
        ) from None
    return relation.first_segment


def _replaces(recording: Recording, number: int, oid: int) -> bool:
    """Return whether a snapshot that ends in a segment replaces all rows of a relation."""
    for task in plan_changes(recording, [number]):
        with SegmentReader(task.place) as segment:
            changes = ChangesView(segment, task, lambda schema: schema.relation.oid == oid)
            if any(
                pc.any(pc.equal(rows["operation"], "Truncate")).as_py() for rows in read(segment, changes)
            ):
                return True
    return False


def selected_tables(target: Location) -> frozenset[str] | None:
    """Return the names of the tables that a target follows; None if it follows all tables.

    Raises:
        ReplicaError: The target cannot be read.
    """
    file = target / _FILE
    text = read_file(file)
    if not text:
        return None
    try:
        return frozenset(msgspec.json.decode(text, type=list[str]))
    except msgspec.DecodeError as error:
        raise ReplicaError(f"{file}: {error}. Name the tables again, with the option --table") from error


def existing_tables(target: Location) -> set[int]:
    """Return the OIDs of the relations that have a Delta table, or a failed table.

    Raises:
        ReplicaError: The target cannot be read.
    """
    return registered_oids(target) | read_failed_tables(target).keys()


class SelectedRelation(msgspec.Struct):
    """A relation that has had a selected name."""

    oid: int
    namespace: str
    name: str
    first_segment: int
    """Number of the first segment with a schema version of the relation."""
    selected_segment: int
    """Number of the first segment in which the relation had a selected name."""

    def record_missed(self, target: Location, missed: MissedBatch) -> None:
        """Record that changes of the relation were skipped."""
        record_failure(target, FailedTable(self.oid, self.namespace, self.name, _MISSED), missed)


class Relations:
    """The relations of a recording that have had one of some names, from the metadata of its segments.

    Attributes:
        recording: The recording.
        selected: The relations that have had one of the names, by OID.
        names: Names of all relations.

    Args:
        recording: The recording.
        tables: The names, such as `public.orders`.
    """

    def __init__(self, recording: Recording, tables: Collection[str]) -> None:
        self.recording: Recording = recording
        self.selected: dict[int, SelectedRelation] = {}
        self.names: set[str] = set()
        self._tables = tables
        self._first: dict[int, int] = {}
        self._read_through = 0

    def read(self, last: int) -> None:
        """Read the metadata of the segments up to number `last` that were not read yet.

        Raises:
            RecordingError: A segment is missing or damaged.
        """
        while self._read_through < last:
            first = max(self._read_through + 1, self.recording.beginning.segment)
            numbers = [number for number in self.recording.numbers if first <= number <= last]
            try:
                segments = self.recording.metadata(numbers)
            except RecordingError:
                if self.recording.beginning.segment <= first:
                    raise
                continue  # segments were pruned since the recording was listed
            if first > self._read_through + 1:
                self._add(self._read_through + 1, self.recording.beginning.relations)
            for segment in segments:
                self._add(segment.number, segment.relations)
            self._read_through = last

    def _add(self, number: int, versions: Iterable[SchemaVersion]) -> None:
        for version in schema_versions([], versions):
            schema = version.schema
            oid, name = version.relation.oid, f"{schema.namespace}.{schema.name}"
            self.names.add(name)
            first = self._first.setdefault(oid, number)
            if name in self._tables and oid not in self.selected:
                self.selected[oid] = SelectedRelation(oid, schema.namespace, schema.name, first, number)


class Selection:
    """The relations that a query applies.

    Args:
        recording: The recording that the query reads.
        target: The folder that the query writes to.

    Raises:
        ReplicaError: The target cannot be read.
    """

    def __init__(self, recording: Recording, target: Location) -> None:
        tables = selected_tables(target)
        self._relations = None if tables is None else Relations(recording, tables)
        self._target = target

    def oids(self, batch: int, first: int, last: int) -> Collection[int] | None:
        """Return the OIDs of the relations that a micro-batch is applied to; None for all relations.

        A relation that was renamed to a selected name in these segments becomes a failed table, which has
        missed the segments before.

        Args:
            batch: Number of the micro-batch.
            first: Number of the micro-batch's first segment.
            last: Number of its last segment.

        Raises:
            RecordingError: A segment is missing or damaged.
            ReplicaError: The target cannot be read or written.
        """
        if self._relations is None:
            return None
        self._relations.read(last)
        existing = existing_tables(self._target)
        for oid, one in self._relations.selected.items():
            if oid not in existing and one.first_segment < first <= one.selected_segment:
                one.record_missed(self._target, MissedBatch(batch - 1, one.first_segment, first - 1))
        return frozenset(chain(existing, self._relations.selected))
