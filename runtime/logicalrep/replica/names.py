"""Keep each table of a target in the folder of its relation's name, while relations are renamed.

The metadata of segments say which name a relation has from which position on: by the schema versions, and by
the names that the recorder has read in the catalogs. Of several relations with one name, the last one to get
it owns its folder, `public.orders`. A table that has lost its name, and has no other yet, is in a folder with
its OID, `public.orders@16385`. The tables' properties have the names, so the next run completes what a kill
has interrupted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from logicalrep.apply import Difference, TableResult, decode_differences
from logicalrep.errors import ReplicaError
from logicalrep.recording import GoneTable, Location, Metadata
from logicalrep.targets import (
    MAY_DIFFER,
    NAME,
    NAMESPACE,
    SINCE,
    THREADS,
    Table,
    archive_name,
    change_table,
    decode_dropped,
    find_table,
    folder_name,
    move_table,
    rename_pause,
    table_names,
)
from logicalrep.views import schema_versions

_LOG: Final = logging.getLogger(__name__)

_MISPLACED: Final = (
    "its folder is named after another relation or an earlier name; `logicalrep tables` shows all folders"
)
"""Reason why a table that cannot be moved may differ from the relation that its folder names."""


class _Place(NamedTuple):
    folder: str
    namespace: str
    name: str
    since: int
    """Position in the recording from which on the relation has the name; -1 if unknown."""
    dropped: GoneTable | None

    @property
    def own(self) -> str:
        return folder_name(self.namespace, self.name)


class Names:
    """The names of the relations of a target, and the folders of their tables.

    Args:
        target: The folder that holds the replica.
    """

    def __init__(self, target: Location) -> None:
        self._target = target
        self._places: dict[int, _Place] = {}

    def note(self, oid: int, table: Table | None) -> None:
        """Note name and folder of a table that was just read, or that the relation has none (None)."""
        self._places.pop(oid, None)
        if table is not None:
            folder, found = table.place.path.rpartition("/")[2], table.properties
            names, since = (found.get(NAMESPACE, ""), found.get(NAME, "")), int(found.get(SINCE, -1))
            self._places[oid] = _Place(folder, *names, since, decode_dropped(table))

    def read(self, oids: Iterable[int]) -> None:
        """Read the tables of relations that are not known yet; leave out those that cannot be read."""
        for oid in {*oids} - self._places.keys():
            with suppress(ReplicaError):
                self.note(oid, find_table(self._target, oid))

    def of(self, oid: int) -> tuple[str, str] | None:
        """Return namespace and name of a relation; None if its table is not known."""
        return self._places[oid][1:3] if oid in self._places else None

    def since(self, oid: int) -> int:
        """Return the position from which on a relation has its name; -1 if unknown."""
        return self._places[oid].since if oid in self._places else -1

    def follow(self, segments: Sequence[Metadata]) -> Iterator[TableResult]:
        """Store the names that relations have got in segments in their tables, then move the tables.

        Yields:
            One result for each table with another name or folder than before.
        """
        before, marks = {**self._places}, dict[int, tuple[Difference, ...]]()
        for oid, namespace, name, since in self._names(segments):
            if (place := self._places.get(oid)) and place.dropped is None and since > place.since:
                self._places[oid] = place._replace(namespace=namespace, name=name, since=since)
        rivals = Counter(one.own for one in self._places.values() if one.dropped is None)
        for oid, place in self._places.items() if segments else ():
            is_renamed = place.own != before[oid].own
            if is_renamed or (place != before[oid] and (place.folder != place.own or rivals[place.own] > 1)):
                try:
                    marks[oid] = change_table(self._target, oid, partial(self._store, place)) or ()
                except ReplicaError as error:
                    _LOG.warning("the new name %s of a table is not stored: %s", place.own, error)
                    self._places[oid] = before[oid]
        self._move()
        for oid, place in sorted(self._places.items()):
            if place[:3] != before[oid][:3]:
                may_differ = marks.get(oid, ())
                yield TableResult(oid, *place[1:3], {}, may_differ=may_differ, folder=place.folder)

    def _names(self, segments: Sequence[Metadata]) -> Iterator[tuple[int, str, str, int]]:
        """Yield OID, namespace and name of relations, and the position from which on they have the name."""
        for segment in segments:
            for one in schema_versions([], segment.relations):
                if one.relation.oid in self._places:
                    yield one.relation.oid, one.schema.namespace, one.schema.name, one.position
            for new in segment.renamed:
                yield new.oid, new.namespace or "pg_catalog", new.name, segment.next_position

    def _store(self, place: _Place, table: Table) -> tuple[Difference, ...]:
        """Store a name in the properties of a table; return why the table may differ now, if it did not."""
        known = decode_differences(table.properties.get(MAY_DIFFER))
        reasons = tuple(one for one in known if one.reason != _MISPLACED)
        if rename_pause(self._target) is None and place.folder != place.own:
            reasons += (Difference(max(table.position.commit_lsn, 0), _MISPLACED),)
        new = {NAMESPACE: place.namespace, NAME: place.name, SINCE: str(place.since)}
        table.set_properties(
            new | ({} if reasons == known else {MAY_DIFFER: msgspec.json.encode(reasons).decode()})
        )
        return tuple(one for one in reasons if one not in known)

    def _wanted(self) -> dict[int, str]:
        """Return the folder that each table should have.

        A folder that cannot be renamed keeps its name, unless the table got it while its name was taken.
        """
        owners, is_movable = dict[str, int](), rename_pause(self._target) is not None
        places = sorted(self._places.items(), key=lambda item: (item[1].since, item[1].folder == item[1].own))
        for oid, one in places:
            if one.dropped is None and (is_movable or one.folder in (one.own, f"{one.own}@{oid}")):
                owners[one.own] = oid
        wanted = {oid: folder for folder, oid in owners.items()}
        for oid, one in places:
            if one.dropped is not None and one.folder in owners:
                wanted[oid] = archive_name(one.dropped)
            elif one.dropped is None and is_movable:
                wanted.setdefault(oid, f"{one.own}@{oid}")
        return wanted

    def _move(self) -> None:
        """Move the tables that are not in their folders; leave them where something else has the name."""
        places = self._places
        moves = {oid: folder for oid, folder in self._wanted().items() if folder != places[oid].folder}
        if not moves:
            return
        taken, holders = {*table_names(self._target)}, {one.folder: oid for oid, one in places.items()}
        chains, wanted = list[list[tuple[int, str]]](), {*moves.values()}
        for oid in sorted(moves, key=lambda oid: places[oid].folder in wanted):  # exchanges last
            chain = list[tuple[int, str]]()
            while oid in moves:
                chain.append((oid, moves.pop(oid)))
                oid = holders.get(chain[-1][1], -1)
            if chain and oid == chain[0][0]:
                chain.append((oid, f"{places[oid].own}@{oid}"))
            chains.append(chain)
        with ThreadPoolExecutor(THREADS) as pool:
            [*pool.map(lambda chain: self._move_chain(chain, taken), chains)]

    def _move_chain(self, chain: Sequence[tuple[int, str]], taken: set[str]) -> None:
        """Move tables, each into the folder that the next one has left. The last one moves first."""
        for number, (oid, folder) in enumerate(reversed(chain)):
            place = self._places[oid]
            if folder in taken:
                continue
            if number or place.folder == f"{folder}@{oid}":
                # A reader that has listed the log of the other table must not find these files.
                time.sleep(rename_pause(self._target) or 0)
            try:
                if (table := find_table(self._target, oid)) is not None:
                    move_table(self._target, oid, table.place, folder)
            except ReplicaError as error:
                _LOG.warning("the table in the folder %s stays there: %s", place.folder, error)
                continue
            taken.symmetric_difference_update((place.folder, folder))
            self._places[oid] = place._replace(folder=folder)
