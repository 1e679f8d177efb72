"""Versions of all tables of a target that show the source at one moment, so that readers can join them.

A version of a Delta table is exact, which means equal to the source, as of each LSN after its last change, up
to the first change of the next version. The log of the table has these LSNs. A cut is an LSN for which each
table has an exact version. The end of a run is a cut, as are the LSNs between two transactions that were not
applied by the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

import msgspec

from logicalrep.apply import Difference, decode_differences
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location, PathOrUri, locate
from logicalrep.replica.ownership import read_owner
from logicalrep.replica.positions import read_reached
from logicalrep.targets import (
    MAY_DIFFER,
    NAME,
    NAMESPACE,
    NOTHING,
    THREADS,
    Position,
    State,
    decode_dropped,
    find_table,
    missing_entry,
    registered_oids,
    unregistered_tables,
)
from logicalrep.wire import format_lsn

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TableAt(msgspec.Struct, frozen=True):
    """The version of a Delta table that equals its relation as of the LSN of a `Cut`."""

    oid: int
    """OID of the relation."""
    namespace: str
    """Namespace of the relation; empty for pg_catalog, as in Relation messages."""
    name: str
    """Name of the relation."""
    place: str
    """Path or URI of the Delta table."""
    version: int | None
    """Version of the Delta table, or ID of the Iceberg snapshot; None if no change of the relation precedes
    the LSN."""
    may_differ: tuple[Difference, ...]
    """Reasons why the version may differ from the source; empty if no reason is known."""


class Cut(msgspec.Struct, frozen=True):
    """The versions of a target's tables that equal the source as of one LSN."""

    lsn: int
    """The versions contain all transactions with lower commit LSNs, and no others."""
    tables: dict[int, TableAt]
    """The versions of the tables, by relation OID."""


def versions_at(target: PathOrUri, lsn: int | None = None, *, time: datetime | None = None) -> Cut:
    """Return the version of each table of a target that shows the source as of one moment.

    The moment is given as an LSN, such as `pg_current_wal_lsn()` returns, or as a time. An LSN includes all
    transactions that the server had committed when its WAL ended there. Tables that were dropped on the
    server before the moment are left out.

    Args:
        target: The folder that holds the replica, as a path or URI.
        lsn: The LSN. If `lsn` and `time` are None, the result is the last moment for which each table has a
            version.
        time: The latest commit time, by the server's clock. The result is the last moment for which each
            table has a version without transactions that were committed later.

    Raises:
        ReplicaError: The target cannot be read, or some table has no version as of the LSN. The error then
            names the last LSN before it for which all tables have a version.
    """
    folder, owner = locate(target), read_owner(target)
    if owner is not None and (unregistered := unregistered_tables(folder, owner.recording)):
        raise missing_entry(folder, min(unregistered))
    reached = read_reached(folder)
    oids = sorted(reached.keys() | registered_oids(folder))
    with ThreadPoolExecutor(THREADS) as pool:
        tables = list(pool.map(lambda oid: _Table(folder, oid, *reached.get(oid, (NOTHING, -1))), oids))
    if not tables:
        raise ReplicaError(f"{folder}: the target has no tables: run `logicalrep replicate` first")
    greatest = max(one.reached for one in tables)
    cut = _last_cut(tables, greatest if lsn is None else lsn)
    if lsn is not None and cut < lsn:
        raise ReplicaError(
            f"{folder}: not every table has a version as of LSN {format_lsn(lsn)}. The last LSN before it "
            f"for which all tables have a version is {format_lsn(cut)}: use that LSN"
        )
    if time is not None:
        latest = ((time if time.tzinfo else time.astimezone()) - _EPOCH) // timedelta(microseconds=1)
        while late := [one.state_before(cut).after for one in tables if one.is_later(cut, latest)]:
            cut = _last_cut(tables, min(late))
    versions = (one.version_at(cut) for one in tables)
    return Cut(cut, {one.oid: one for one in versions if one is not None})


def _last_cut(tables: Sequence[_Table], lsn: int) -> int:
    """Return the last LSN, at most `lsn`, for which each table has a version that equals the source."""
    while (least := min(state.until for state in _states(tables, lsn))) < lsn:
        lsn = least
    return lsn


def _states(tables: Sequence[_Table], lsn: int) -> list[State]:
    """Return the last state of each table whose `after` is below an LSN, in the order of `tables`."""
    return [one.state_before(lsn) for one in tables]


class _Table:
    """A table of a target.

    Attributes:
        reached: The table has all changes with commit LSNs below this LSN.

    Args:
        target: The folder that holds the replica.
        oid: OID of the relation.
        position: Position of the table when the file `_reached.json` was written.
        reached: LSN from this file. It is used only if the table still has the position `position`.
            Otherwise the attribute `reached` is the commit LSN of the table's position.

    Raises:
        ReplicaError: The table cannot be read.
    """

    def __init__(self, target: Location, oid: int, position: Position, reached: int) -> None:
        self._target, self._oid = target, oid
        self._table = find_table(target, oid)
        found = NOTHING if self._table is None else self._table.position
        self.reached: int = reached if found == position else found.commit_lsn
        self._states: list[State] = []
        if self._table is None:
            self._older = iter([State(None, -1, self.reached, None)])
        else:
            self._older = self._table.states(self.reached)

    def state_before(self, lsn: int) -> State:
        """Return the last state of the table whose `after` is below an LSN.

        A state is the rows of the table between two commits. It equals the source as of the LSNs after
        `State.after`, up to `State.until`. If `until` too is below the LSN, the table has no version that
        equals the source as of the LSN.

        Raises:
            ReplicaError: The log of the table has no such state.
        """
        for state in chain(self._states, self._read_older()):
            if state.after < lsn:
                return state
        raise ReplicaError(
            f"{self._target}: no version as of this LSN or time: the log of the table with the relation OID "
            f"{self._oid} has no older version. Use a later LSN or time"
        )

    def is_later(self, lsn: int, time: int) -> bool:
        """Return whether the last change before an LSN with a known time was committed after `time`."""
        states = (one for one in chain(self._states, self._read_older()) if one.after < lsn)
        return next((one.commit_time > time for one in states if one.commit_time is not None), False)

    def _read_older(self) -> Iterator[State]:
        for state in self._older:
            self._states.append(state)
            yield state

    def version_at(self, lsn: int) -> TableAt | None:
        """Return the version as of an LSN; None without a Delta table, or if the relation was dropped."""
        if (table := self._table) is None:
            return None
        dropped, version = decode_dropped(table), self.state_before(lsn).version
        if dropped is not None and dropped.after_lsn < lsn:
            return None
        names = table.properties
        shown = None if version is None else table.at(version)
        properties = {} if shown is None else shown.properties
        return TableAt(
            self._oid,
            names.get(NAMESPACE, ""),
            names.get(NAME, ""),
            table.place.place,
            None if shown is None else shown.reader_version,
            decode_differences(properties.get(MAY_DIFFER)),
        )
