"""Positions of the tables of a target in a recording.

Each table stores its position: its last applied change, which may be in an old segment. For each table, the
file `_reached.json` of a target caches the end of a segment: between the position and this end, the relation
has no changes. If a table has another position than the file says, because table or file was replaced by an
older copy, the segments are searched, so a wrong file is harmless.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from logicalrep._pauses import Pauses
from logicalrep._text import qualified_name
from logicalrep.apply import TableResult
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import Location, Recording
from logicalrep.replica.failed_tables import (
    FailedTable,
    read_failed_tables,
    record_failure,
    remove_failure,
)
from logicalrep.replica.names import Names
from logicalrep.replica.ownership import read_owner
from logicalrep.replica.recorded_changes import complete_since, last_copy
from logicalrep.targets import (
    NOTHING,
    THREADS,
    Position,
    find_table,
    read_file,
    registered_oids,
    write_file,
)
from logicalrep.wire import format_lsn

_FILE: Final = "_reached.json"

_FIRST_PAUSE: Final = 5.0
_GREATEST_PAUSE: Final = 300.0
"""Longest pause, in seconds, before changes are applied to a failed table again. Pauses double."""


class _Table(msgspec.Struct):
    position: Position = NOTHING
    reached: Position = NOTHING
    """The end of a segment, or `position`. The relation has no changes between `position` and `reached`."""
    namespace: str = ""
    name: str = ""


class _File(msgspec.Struct, frozen=True):
    target: str
    """UUID of the target."""
    recording: str
    """UUID of the recording."""
    reached: Position
    """The end of a segment, up to which relations that are not in `tables` have no changes."""
    tables: dict[int, _Table]


class Positions:
    """The positions of the tables of a target, and which segments have changes after them.

    Attributes:
        errors: By relation OID, why changes cannot be applied to a table.
        foreign: OIDs of relations whose rows another program has changed since the table's last commit of
            changes.
        gaps: OIDs of relations whose changes are skipped up to the next snapshot that replaces all rows.

    Args:
        recording: The recording; it has segments.
        target: The folder that holds the replica.

    Raises:
        RecordingError: The recording lacks segments that were read, or has other segments in their place.
        ReplicaError: The target cannot be read.
    """

    def __init__(self, recording: Recording, target: Location) -> None:
        self._recording, self._target = recording, target
        self.names: Names = Names(target)
        self._pauses = Pauses(_FIRST_PAUSE, _GREATEST_PAUSE)
        self.errors: dict[int, str] = {}
        self.foreign: set[int] = set()
        self.gaps: set[int] = set()
        known = _read(target / _FILE)
        if known is None or (known.target, known.recording) != (_target_id(target), recording.identity):
            known = _File("", "", NOTHING, {})
        self._check_recording(known.reached)
        self._reached = known.reached
        self._failed = {*read_failed_tables(target)}
        """OIDs of the relations whose error is stored."""
        oids = sorted({*registered_oids(target), *self._failed, *known.tables})
        self._told: set[int] = set()
        """OIDs of the relations whose error was reported, by `new_errors` or in a result."""
        with ThreadPoolExecutor(THREADS) as pool:
            self._tables = dict(zip(oids, pool.map(self._read_table, oids), strict=True))
        for oid in oids:
            self._continue(oid, known.tables.get(oid, _Table()))
        for oid in self._failed & self.errors.keys():
            self._replace_rows(oid)

    def _continue(self, oid: int, known: _Table) -> None:
        """Complete a table whose position was just read: assign its field `reached`, and a missing name.

        If the position is still that of `known`, `reached` is copied from `known`. Otherwise `reached`
        becomes the new position. A missing name is copied from `known`. A table that cannot be read stays as
        known. A table whose position is beyond the end of the recording gets an error.

        Args:
            oid: OID of the relation.
            known: The table before its position was read: from the file `_reached.json`, or from memory.
        """
        if oid in self.errors:
            self._tables[oid] = known
            return
        table, end = self._tables[oid], self._end(self._recording.numbers[-1])
        if known.position == table.position:
            table.reached = known.reached
        else:
            table.reached = table.position
            self.gaps.discard(oid)
        if not table.name:
            table.namespace, table.name = known.namespace, known.name
        if table.position > end:
            self.errors[oid] = (
                f"the table has changes up to LSN {format_lsn(table.position.commit_lsn)}, but the recording "
                f"ends at LSN {format_lsn(end.commit_lsn)}: put the missing segments back"
            )

    def retry(self) -> None:
        """Remove the errors of failed tables whose pause has ended, so that their changes are applied again.

        The positions of these tables are read again. A new pause begins for those that cannot be read, and
        for failed tables that have had none.
        """
        ended = self._pauses.ended() & self.errors.keys()
        for oid in sorted(ended):
            del self.errors[oid]
            self._read_again(oid)
            if oid in self.errors:
                self._replace_rows(oid)
        self._told -= ended & self.errors.keys()
        for oid in self.errors:
            if oid in ended or oid not in self._pauses:
                self._pauses.begin(oid)

    def pause(self, oid: int) -> float:
        """Return the seconds until changes are applied to a failed table again; 0 for other tables."""
        return self._pauses.remaining(oid) if oid in self.errors else 0.0

    def add(self, first_segments: Mapping[int, int]) -> None:
        """Add relations that have no table yet; their changes are read from their first segment on.

        Args:
            first_segments: Number of the first segment that may have changes of a relation, by relation OID.
        """
        for oid, first in first_segments.items():
            if oid not in self._tables:
                self._tables[oid] = _Table(reached=self._end(first - 1))

    def find(self, name: str) -> list[int]:
        """Return the OIDs of the relations named so, as `public.orders`; the last to get the name first."""
        found = (oid for oid, one in self._tables.items() if f"{one.namespace}.{one.name}" == name)
        return sorted(found, key=self.names.since, reverse=True)

    @property
    def positions(self) -> dict[int, Position]:
        """The positions of the tables, by relation OID; `NOTHING` for a table that does not exist."""
        return {oid: table.position for oid, table in self._tables.items()}

    @property
    def least_segment(self) -> int:
        """Number of the last segment whose changes all tables have; 0 for none.

        Tables that cannot be continued, because their segments were pruned, do not count.
        """
        ends = (
            one.reached
            for oid, one in self._tables.items()
            if not (oid in self.errors and self._is_pruned(one.reached))
        )
        return min(map(self._last_segment, {self._reached, *ends}))

    def next_segment(self) -> int:
        """Return the number of the first segment with changes that some table may lack.

        Tables with an error do not count. A table whose next segments were pruned continues with the last
        snapshot that replaces its rows. If there is no such snapshot, the table gets an error.

        Raises:
            ReplicaError: The error of a table cannot be stored.
        """
        for oid, table in self._tables.items():
            if oid not in self.errors and self._is_pruned(table.reached):
                table.reached = self._find_snapshot(oid, table.reached)
        self._update_failures()
        ends = {one.reached for oid, one in self._tables.items() if oid not in self.errors}
        return min(map(self._last_segment, {self._reached, *ends})) + 1

    def _find_snapshot(self, oid: int, reached: Position) -> Position:
        """Return the position at which a table continues if its next segments were pruned.

        It is the end of the segment before the last snapshot that replaces the rows of the relation. If there
        is no such snapshot, the table gets an error, and the result is `reached`.

        Args:
            oid: OID of the relation.
            reached: Position up to which the table has all changes.
        """
        try:
            number = complete_since(self._recording, oid, 1, self._recording.numbers[-1])
        except RecordingError as error:
            self.errors[oid] = str(error)
            return reached
        self.gaps.add(oid)
        return self._end(number - 1)

    def new_errors(self) -> list[TableResult]:
        """Return a result for each table that has failed or recovered, if no result has reported that yet."""
        last = self._recording.numbers[-1]
        lost = self._told - self.errors.keys() - self.behind(last)
        changed = sorted((self.errors.keys() - self._told) | lost)
        self._told = (self._told - lost) | self.errors.keys()
        tables = ((oid, self._tables[oid]) for oid in changed)
        return [
            TableResult(oid, table.namespace, table.name, {}, error=self.errors.get(oid, ""))
            for oid, table in tables
        ]

    def failed_tables(self) -> list[str]:
        """Return the names of the failed tables with their errors, such as `public.orders: …`."""
        tables = ((self._tables[oid], error) for oid, error in sorted(self.errors.items()))
        return [f"{qualified_name(one.namespace, one.name)}: {error}" for one, error in tables]

    def reached(self, oid: int) -> Position:
        """Return a position up to which a relation's table has all changes; mostly the end of a segment."""
        return self._tables[oid].reached if oid in self._tables else self._reached

    def last_segment(self, oid: int) -> int:
        """Return the number of the last segment whose changes a relation's table has.

        0 if there is none, or if the next segment was pruned.
        """
        return self._last_segment(self.reached(oid))

    def behind(self, segment: int) -> set[int]:
        """Return the OIDs of the relations whose tables may lack changes of segments up to `segment`."""
        end = self._end(segment)
        return {oid for oid, table in self._tables.items() if table.reached < end}

    def has_new_relations(self, segment: int) -> bool:
        """Return whether segments up to `segment` may have changes of relations without a position."""
        return self._reached < self._end(segment)

    def forget(self, oids: Iterable[int], segment: int) -> None:
        """Store that tables will be removed, so that no segments up to number `segment` are read for them.

        Raises:
            ReplicaError: The target cannot be written.
        """
        for oid in oids:
            self.errors.pop(oid, None)
            self._tables[oid] = _Table(reached=self._end(segment))
        self._store()

    def advance(self, segment: int, results: Iterable[TableResult]) -> None:
        """Store that all changes up to the end of a segment were applied, except to tables with an error.

        Args:
            segment: Number of the segment.
            results: The results of the tables whose positions have changed, or that have failed.

        Raises:
            ReplicaError: The target cannot be written.
        """
        end, again, results = self._end(segment), set[int](), list(results)
        for oid in self.gaps.difference(one.oid for one in results):
            # If Spark repeats a task whose first attempt has applied the snapshot, the second attempt has
            # nothing to apply, and returns no result. Only the table's new position shows that the table has
            # the snapshot.
            self._read_again(oid)
        for one in results:
            if one.error:
                if one.oid in self._failed:
                    again.add(one.oid)
                self.errors[one.oid] = one.error
                self._failed.add(one.oid)
                self._told.add(one.oid)
                self._pauses.begin(one.oid)
                record_failure(self._target, FailedTable(one.oid, one.namespace, one.name, one.error))
            else:
                self.errors.pop(one.oid, None)
                self.gaps.discard(one.oid)
                self._told.discard(one.oid)
                self._pauses.forget(one.oid)
            table = self._tables.setdefault(one.oid, _Table(reached=self._reached))
            table.position = max(one.position, table.position)
            table.namespace, table.name = one.namespace, one.name
        for oid, table in self._tables.items():
            table.namespace, table.name = self.names.of(oid) or (table.namespace, table.name)
            if oid not in self.errors:
                table.reached = max(table.reached, end)
        self._reached = max(self._reached, end)
        for oid in again - self.gaps:
            self._replace_rows(oid)
        self._store()
        self._update_failures()

    def _replace_rows(self, oid: int) -> None:
        """Skip a table's changes up to the last snapshot that replaces its rows; do nothing if there is none.

        Called for a table that has failed again. Snapshots that the table has applied do not count.
        """
        first = self._last_segment(self._tables[oid].reached) + 1
        number = last_copy(self._recording, oid, first, self._recording.numbers[-1])
        if number is not None:
            del self.errors[oid]
            self.gaps.add(oid)
            self._tables[oid].reached = self._end(number - 1)

    def _store(self) -> None:
        stored = _File(_target_id(self._target), self._recording.identity, self._reached, self._tables)
        write_file(self._target / _FILE, msgspec.json.encode(stored).decode())

    def _update_failures(self) -> None:
        """Store the new errors of tables; remove stored errors of tables that lack no changes any more."""
        for oid in self.errors.keys() - self._failed:
            table = self._tables[oid]
            record_failure(self._target, FailedTable(oid, table.namespace, table.name, self.errors[oid]))
        self._failed |= self.errors.keys()
        if healed := self._failed - self.errors.keys():
            for oid in healed - self.behind(self._recording.numbers[-1]):
                remove_failure(self._target, oid)
                self._failed.discard(oid)
                self._pauses.forget(oid)

    def _read_again(self, oid: int) -> None:
        known, self._tables[oid] = self._tables[oid], self._read_table(oid)
        self._continue(oid, known)

    def _read_table(self, oid: int) -> _Table:
        try:
            table = find_table(self._target, oid)
        except ReplicaError as error:
            self.errors[oid] = str(error)
            return _Table()
        if table is None:
            return _Table()
        self.names.note(oid, table)
        if table.foreign_change():
            self.foreign.add(oid)
        return _Table(table.position, NOTHING, *(self.names.of(oid) or ()))

    def _check_recording(self, reached: Position) -> None:
        """Raise RecordingError if the last segment that the target has read does not end at `reached`.

        A recording that was restored to an earlier end, and continued, has other positions after this end.
        """
        if reached == NOTHING:
            return
        recording = self._recording
        number = self._last_segment(reached)
        if number in recording.numbers and self._end(number) != reached:
            end = format_lsn(reached.commit_lsn)
            raise RecordingError(
                f"{recording.location}: the target has read segments up to LSN {end}, but no segment ends at "
                "this LSN: segments are missing or were replaced. Put the segments back, or replicate anew "
                "into a new target"
            )

    def _end(self, segment: int) -> Position:
        """Return the end of a segment, as a position that sorts after the segment's changes.

        The field `row` is the segment's number. Without it, a segment without messages would have the same
        end as the segment before it. For a pruned segment, the result is the beginning of the recording. For
        number 0, the result is `NOTHING`.
        """
        if segment < self._recording.beginning.segment:
            return Position(self._recording.beginning.lsn, -1, -1) if segment else NOTHING
        (found,) = self._recording.metadata([segment])
        return Position(found.end_lsn, found.next_position, segment)

    def _last_segment(self, position: Position) -> int:
        """Return the number of the last segment that ends at or before a position.

        0 if there is none, or if the next segment was pruned.
        """
        if self._is_pruned(position):
            return 0
        numbers = self._recording.numbers
        for number in (position.row, numbers[-1]):  # most positions are the end of one of these
            if numbers[0] <= number <= numbers[-1] and self._end(number) == position:
                return number
        found = bisect_right(numbers, position, key=self._end)
        return numbers[found - 1] if found else self._recording.beginning.segment - 1

    def _is_pruned(self, position: Position) -> bool:
        beginning = self._recording.beginning
        return beginning.segment > 1 and position.commit_lsn < beginning.lsn


def read_reached(target: Location) -> dict[int, tuple[Position, int]]:
    """Return a position and an LSN for each table, by OID, from the file `_reached.json` of a target.

    A table that still has this position has all changes with commit LSNs below this LSN. The result is empty
    if the file is missing, is damaged, or was copied from another target.
    """
    known = _known_tables(target)
    return {oid: (one.position, one.reached.commit_lsn) for oid, one in known.items()}


def read_names(target: Location) -> dict[int, tuple[str, str]]:
    """Return namespace and name of each table, as stored in a target's file `_reached.json`, by OID.

    The result is empty in the cases of `read_reached`.
    """
    return {oid: (one.namespace, one.name) for oid, one in _known_tables(target).items()}


def _known_tables(target: Location) -> dict[int, _Table]:
    known = _read(target / _FILE)
    return {} if known is None or known.target != _target_id(target) else known.tables


def _target_id(target: Location) -> str:
    owner = read_owner(target.place)
    return "" if owner is None else owner.id


def _read(file: Location) -> _File | None:
    """Return the content of the file `_reached.json`; None if it does not exist or is damaged."""
    try:
        return msgspec.json.decode(read_file(file), type=_File)
    except (msgspec.DecodeError, ReplicaError):
        return None
