"""The selected tables of a target: a replica of some tables of a recording.

A target that follows only some tables has the file `_selected_tables.json` with their names. A relation is
selected if it has had one of these names, or has a Delta table already: a renamed relation stays selected.

A micro-batch skips changes of other relations, and the query does not read them again. When a relation is
selected later, because its name was added or because it was renamed, its earlier changes become missed
micro-batches of a failed table, and `retry_tables` applies them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Final

import msgspec

from pgoutput._text import one_line
from pgoutput.errors import RecordingError, ReplicaError
from pgoutput.recording import Location, PathOrUri, Recording, SchemaVersion, locate, replace_file
from pgoutput.replica.checkpoint import CHECKPOINT_FOLDER, Checkpoint
from pgoutput.replica.failed_tables import (
    FailedTable,
    MissedBatch,
    read_failed_tables,
    record_failure,
    remove_failure,
    remove_missed_batch,
)
from pgoutput.replica.ownership import Owner, read_owner
from pgoutput.replica.recorded_changes import complete_since
from pgoutput.replica.registration import Registration
from pgoutput.replica.registry import registered_oids
from pgoutput.replica.small_files import read_file
from pgoutput.views import schema_versions

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
        Names in `tables` that no relation of the recording has had so far.

    Raises:
        RecordingError: The recording cannot be read or lacks segments, or skipped changes of an added table
            were pruned and no snapshot after them has its rows.
        ReplicaError: The target follows all tables, or belongs to another recording or checkpoint, or another
            query is writing to it.
    """
    folder, source = locate(target), Recording(recording, may_be_empty=True, may_be_missing=True)
    owner, selected = read_owner(target), selected_tables(folder)
    if selected is None and owner is not None:
        raise ReplicaError(
            f"{folder}: the target follows all tables. To replicate some tables only, use another target"
        )
    if added := {*tables} - (selected or frozenset()):
        names = added | (selected or frozenset())
        if owner is None:
            _store(folder, names)
        else:
            place = folder / CHECKPOINT_FOLDER if checkpoint is None else locate(checkpoint)
            _Addition(source, folder, owner, place, added).store(names)
    relations = Relations(source, tables)
    relations.read(max(source.numbers, default=0))
    return sorted({*tables} - relations.names)


def _store(target: Location, names: Collection[str]) -> None:
    try:
        if target.is_local:
            os.makedirs(target.path, exist_ok=True)
        replace_file(target / _FILE, msgspec.json.encode(sorted(names)))
    except OSError as error:
        raise ReplicaError(f"{target / _FILE}: {one_line(error)}") from error


class _Addition:
    """The addition of tables to a target that a query has written to.

    Each step may be the last one before a kill, and queries may start in between: first the relations become
    failed tables, so that every query records the micro-batches that they miss from then on; then the names
    are stored; then a micro-batch without segments is planned, which fails if a query has planned one since.

    Args:
        recording: The recording.
        target: The folder that holds the replica.
        owner: The owner of the target.
        checkpoint: Location of the query's checkpoint.
        tables: Names of the added tables.

    Raises:
        ReplicaError: Target and checkpoint do not belong to this recording or to each other.
    """

    def __init__(
        self,
        recording: Recording,
        target: Location,
        owner: Owner,
        checkpoint: Location,
        tables: Collection[str],
    ) -> None:
        self._recording, self._target, self._owner, self._place = recording, target, owner, checkpoint
        self._checkpoint = Checkpoint(checkpoint)
        self._relations = Relations(recording, tables)
        self._existing = existing_tables(target)
        last = max(recording.numbers, default=0)
        if (
            recording.identity != owner.recording
            or self._checkpoint.query != owner.query
            or last < self._checkpoint.offset.segment
        ):
            raise ReplicaError(
                f"{target}: tables cannot be added: the target was written from recording {owner.recording} "
                f"by query {owner.query}. Give that recording, with all its segments, and the same checkpoint"
            )

    def store(self, names: Collection[str]) -> None:
        """Record the micro-batches that the relations have missed, and store the names of all tables."""
        planned = self._checkpoint
        done = planned.batch if planned.is_committed else planned.batch - 1
        applied = planned.applied.segment
        self._relations.read(applied)
        late = [one for oid, one in self._relations.selected.items() if oid not in self._existing]
        firsts = [self._complete_since(one, applied) for one in late]
        for one, first in zip(late, firsts, strict=True):
            one.record_missed(self._target, MissedBatch(done, first, applied))
        self._keep_segments(late, firsts, done, applied)
        _store(self._target, names)
        if not planned.is_committed:  # its query was killed, or runs with the tables of before
            self._record_since(done)
            return
        try:
            planned.plan(planned.offset)
        except ReplicaError as error:
            self._record_since(done)
            raise ReplicaError(f"{error}. The tables were added; the next run applies their rows") from error
        planned.commit()

    def _complete_since(self, relation: SelectedRelation, last: int) -> int:
        try:
            return complete_since(self._recording, relation.oid, relation.first_segment, last)
        except RecordingError as error:
            name = f"{relation.namespace}.{relation.name}"
            raise RecordingError(f"{name} cannot be added: {error}") from error

    def _keep_segments(
        self, late: Sequence[SelectedRelation], firsts: Sequence[int], batch: int, segment: int
    ) -> None:
        """Register that the missed segments are needed; take the records back if they were pruned before."""
        Registration(self._recording, self._target, self._owner).update(segment)
        try:
            for first in firsts:
                self._recording.check_not_pruned(first)
        except RecordingError:
            for one in late:
                remove_missed_batch(self._target, one.oid, batch)
                remove_failure(self._target, one.oid)
            raise

    def _record_since(self, done: int) -> None:
        """Record the micro-batches after number `done` that were planned meanwhile."""
        latest = Checkpoint(self._place)
        self._recording.refresh()
        self._relations.read(latest.offset.segment)
        for batch in range(done + 1, latest.batch + 1):
            first, last = latest.end_of(batch - 1).segment + 1, latest.end_of(batch).segment
            for oid, one in self._relations.selected.items():
                if oid not in self._existing and one.first_segment <= last:
                    one.record_missed(self._target, MissedBatch(batch, first, last))


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
        raise ReplicaError(
            f'{file}: {error}. Replace its content by a JSON array of the names, such as ["public.orders"]'
        ) from error


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
            try:
                segments = self.recording.metadata(range(first, last + 1))
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
            oid, name = version.relation.oid, schema.qualified_name
            self.names.add(name)
            first = self._first.setdefault(oid, number)
            if name in self._tables and oid not in self.selected:
                self.selected[oid] = SelectedRelation(oid, schema.namespace, schema.name, first, number)


class Selection:
    """The relations that a query applies.

    Args:
        recording: The recording that the query reads.
        target: The folder that the query writes to.
    """

    def __init__(self, recording: Recording, target: Location) -> None:
        self._recording, self._target = recording, target
        self._tables: frozenset[str] | None = None
        self._relations: Relations | None = None

    def oids(self, batch: int, first: int, last: int) -> Collection[int] | None:
        """Return the OIDs of the relations that a micro-batch is applied to; None for all relations.

        Call it after the micro-batch was planned. A relation that was renamed to a selected name in these
        segments becomes a failed table, which has missed the segments before.

        Args:
            batch: Number of the micro-batch.
            first: Number of the micro-batch's first segment.
            last: Number of its last segment.

        Raises:
            RecordingError: A segment is missing or damaged.
            ReplicaError: The target cannot be read or written.
        """
        tables = selected_tables(self._target)
        if tables is None:
            return None
        if self._relations is None or tables != self._tables:
            self._tables, self._relations = tables, Relations(self._recording, tables)
        self._relations.read(last)
        existing = existing_tables(self._target)
        for oid, one in self._relations.selected.items():
            if oid not in existing and one.first_segment < first <= one.selected_segment:
                one.record_missed(self._target, MissedBatch(batch - 1, one.first_segment, first - 1))
        return frozenset(chain(existing, self._relations.selected))
