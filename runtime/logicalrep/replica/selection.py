"""The selected tables of a target: a replica of some tables of a recording.

A target that follows only some tables has the file `_selected_tables.json` with their names. A relation is
selected if it has had one of these names, or has a Delta table already: a renamed relation stays selected.

A relation that is selected later, because its name was added or because it was renamed, has no table, and so
no position. Its changes are read from the first segment with its schema version on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from logicalrep._text import one_line
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import (
    Location,
    PathOrUri,
    Recording,
    SchemaVersion,
    locate,
    make_folder,
    replace_file,
)
from logicalrep.replica.failed_tables import read_failed_tables
from logicalrep.replica.ownership import Owner, read_owner
from logicalrep.replica.positions import Positions
from logicalrep.replica.recorded_changes import complete_since
from logicalrep.replica.registration import Registration
from logicalrep.targets import read_file, registered_oids
from logicalrep.views import schema_versions
from logicalrep.wire import shown_text

_FILE: Final = "_selected_tables.json"


def select_tables(recording: PathOrUri, target: PathOrUri, tables: Collection[str]) -> list[str]:
    """Make a target follow only some tables of a recording, or more tables than before.

    Call it before `replicate`, with or without Spark. A query that is running applies the changes of added
    tables too.

    Args:
        recording: The recording that the target follows or will follow.
        target: The folder that holds the replica, as a path or URI.
        tables: Names of tables, such as `public.orders`. Tables that were selected before stay selected.

    Returns:
        Names in `tables` that no relation of the recording has had so far.

    Raises:
        RecordingError: The recording cannot be read or lacks segments, or changes of an added table were
            pruned and no snapshot after them has its rows.
        ReplicaError: The target follows all tables, or belongs to another recording.
    """
    folder, source = locate(target), Recording(recording, may_be_empty=True, may_be_missing=True)
    owner, selected = read_owner(target), selected_tables(folder)
    if selected is None and owner is not None:
        raise ReplicaError(
            f"{folder}: the target follows all tables. To replicate some tables only, use another target"
        )
    if owner is not None and source.identity and owner.recording != source.identity:
        raise ReplicaError(
            f"{folder}: tables cannot be added: the target belongs to recording {owner.recording}, but this "
            f"is recording {source.identity}. Give the recording of the target, or use a new target"
        )
    last = max(source.numbers, default=0)
    relations = Relations(source, tables)
    relations.read(last)
    if added := {*tables} - (selected or frozenset()):
        if owner is not None:
            _check_not_pruned(source, folder, relations, last)
            _keep_segments(source, folder, owner, relations)
        _store(folder, added | (selected or frozenset()))
    return sorted({*tables} - relations.names)


def _check_not_pruned(source: Recording, target: Location, relations: Relations, last: int) -> None:
    existing = existing_tables(target)
    for one in relations.selected.values():
        if one.oid in existing:
            continue
        try:
            complete_since(source, one.oid, one.first_segment, last)
        except RecordingError as error:
            raise RecordingError(f"{one.namespace}.{one.name} cannot be added: {error}") from error


def _keep_segments(source: Recording, target: Location, owner: Owner, relations: Relations) -> None:
    """Register that the target needs the segments of added tables, so that they are not pruned."""
    positions = Positions(source, target)
    positions.add({oid: one.first_segment for oid, one in relations.selected.items()})
    positions.next_segment()
    Registration(source, target, owner).update(positions.least_segment)


def _store(target: Location, names: Collection[str]) -> None:
    try:
        if target.is_local:
            make_folder(Path(target.path))
        replace_file(target / _FILE, msgspec.json.encode(sorted(names)))
    except OSError as error:
        raise ReplicaError(
            f"{target / _FILE}: the names of the selected tables cannot be stored: {one_line(error)}"
        ) from error


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


class Relations:
    """The relations of a recording that have, or once had, one of the given names.

    The relations are found in the metadata of the segments.

    Attributes:
        recording: The recording.
        selected: The relations that have had one of the names, by OID.
        names: All names that any relation of the recording has had.

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
                for one in segment.renamed:
                    names = shown_text(one.namespace) or "pg_catalog", shown_text(one.name)
                    self._name(one.oid, *names)
            self._read_through = last

    def _add(self, number: int, versions: Iterable[SchemaVersion]) -> None:
        for version in schema_versions([], versions):
            schema = version.schema
            self._first.setdefault(version.relation.oid, number)
            self._name(version.relation.oid, schema.namespace, schema.name)

    def _name(self, oid: int, namespace: str, name: str) -> None:
        """Note a name of a relation; select the relation if the name is selected and a change is recorded."""
        self.names.add(whole := f"{namespace}.{name}")
        if whole in self._tables and oid not in self.selected and oid in self._first:
            self.selected[oid] = SelectedRelation(oid, namespace, name, self._first[oid])


class Selection:
    """The relations whose changes a query applies.

    Args:
        recording: The recording that the query reads.
        target: The folder that the query writes to.
    """

    def __init__(self, recording: Recording, target: Location) -> None:
        self._recording, self._target = recording, target
        self._tables: frozenset[str] | None = None
        self._relations: Relations | None = None

    def first_segments(self, last: int) -> dict[int, int] | None:
        """Return the number of the first segment of each selected relation, by OID; None for all relations.

        The first segment is the first that has a schema version of the relation. The result is None if the
        target follows all relations.

        Args:
            last: Number of the last segment to look for relations in.

        Raises:
            RecordingError: A segment is missing or damaged.
            ReplicaError: The target cannot be read.
        """
        tables = selected_tables(self._target)
        if tables is None:
            return None
        if self._relations is None or tables != self._tables:
            self._tables, self._relations = tables, Relations(self._recording, tables)
        self._relations.read(last)
        return {oid: one.first_segment for oid, one in self._relations.selected.items()}

    def oids(self) -> Collection[int] | None:
        """Return the OIDs of the relations that a target follows; None for all relations.

        Call it after `first_segments`, which finds the selected relations.
        """
        if self._relations is None:
            return None
        return frozenset(chain(existing_tables(self._target), self._relations.selected))
