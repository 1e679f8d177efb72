"""The rows of a replica's Delta table as of an LSN: after all transactions with lower commit LSNs.

The rows are those of the newest version of the Delta table that does not go beyond the LSN. If this version
lacks recorded changes, the changes are applied to a copy of the version in a temporary folder. The data files
of the copy are hard links, or are fetched if the table is not in a local folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep.apply import (
    Chunk,
    DataFiles,
    TableLayout,
    apply_changes,
    delta_names,
    follow_schema,
    read_layout,
)
from logicalrep.errors import ReplicaError
from logicalrep.messages import Relation
from logicalrep.recording import Location, Recording, locate
from logicalrep.replica.ownership import Owner
from logicalrep.replica.positions import Positions
from logicalrep.replica.recorded_changes import read_missing
from logicalrep.targets import (
    MAY_DIFFER,
    NOTHING,
    THREADS,
    Position,
    Table,
    copy_format,
    find_table,
    register_table,
)
from logicalrep.views import ChangedRelation, Column
from logicalrep.wire import stored_name


class TableAsOf:
    """The rows of a Delta table as of an LSN; with history, the versions that are current at that LSN.

    Attributes:
        columns: The relation's columns, in order: name in the Delta table, and description.
        rescued: Name of the column with rescued values.
        may_differ: Value of the table property `logicalrep.may_differ`.

    Args:
        table: The Delta table; None if no change of the relation was recorded.
        layout: The layout of the table; its columns are those of the relation.
    """

    def __init__(self, table: Table | None, layout: TableLayout) -> None:
        self.columns: list[tuple[str, Column]] = list(
            zip(delta_names(layout.columns), layout.columns, strict=True)
        )
        self.rescued: str = layout.rescued
        self.may_differ: str = "" if table is None else table.properties.get(MAY_DIFFER, "")
        self._end = layout.end
        self._files = None if table is None else DataFiles(table)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with the columns of the relation and the column of rescued values.

        Raises:
            ReplicaError: A data file of the version does not exist any more.
        """
        names = [*(name for name, _ in self.columns), self.rescued]
        ended = [] if self._end is None else [self._end]
        for file in self._files or ():
            for batch in self._files.read(file, [*names, *ended]) if self._files else ():
                yield (batch.filter(pc.is_null(batch[self._end])) if ended else batch).select(names)


class TablesAsOf:
    """Tables of a replica as of an LSN; a context manager, whose exit removes temporary files.

    The recorded changes that the Delta tables lack are read once for all tables.

    Args:
        recording: The recording, which has all transactions with a commit LSN below `lsn`.
        target: The folder that holds the replica.
        owner: What the target contains and which recording it follows, from its file `_owner.json`.
        oids: OIDs of the relations for which `table` and `pending` can be called.
        lsn: The LSN.

    Raises:
        RecordingError: A segment of the recording is missing or damaged.
        ReplicaError: The target cannot be read.
    """

    def __init__(
        self,
        recording: Recording,
        target: Location,
        owner: Owner,
        oids: Collection[int],
        lsn: int,
    ) -> None:
        self._recording, self._target = recording.identity, target
        self._history = owner.output == "history"
        self._behind: set[int] = set()
        missing: dict[int, Position] = {}
        """By relation OID, the position after which the relation's changes are read from the recording."""
        positions = Positions(recording, target) if recording.numbers else None
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(partial(_find_version, target, lsn), oids)
            self._versions = dict(zip(oids, found, strict=True))
        for oid, version in self._versions.items():
            if isinstance(version, _Version):
                missing[oid] = version.applied
                if version.is_newest:
                    self._behind.add(oid)
                    if positions is not None:
                        missing[oid] = max(version.applied, positions.reached(oid))
        self._changes = read_missing(recording, missing, lsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._changes.__exit__(*exception)

    def pending(self, oid: int) -> int:
        """Return how many changes with commit LSNs below `lsn` are recorded but not yet in a Delta table.

        Args:
            oid: OID of the relation of the table.
        """
        return self._changes.counts[oid] if oid in self._behind else 0

    def table(self, relation: Relation, folder: Path) -> TableAsOf:
        """Return the rows that a relation's Delta table has as of the LSN.

        Args:
            relation: Description of the relation as of the LSN, with base types in place of domains.
            folder: A local folder for copies of tables, on the disk of a local target. It must not be removed
                while the rows are read.

        Raises:
            ReplicaError: The table, or a version of it that is needed, cannot be read, or the recorded
                changes cannot be applied.
        """
        version = self._versions[relation.oid]
        if isinstance(version, ReplicaError):
            raise version
        columns = tuple(
            Column(stored_name(one.name), one.type_oid, one.type_modifier) for one in relation.columns
        )
        table = version.table
        if table is not None and not self._changes.counts[relation.oid]:
            layout = read_layout(table, stored_name(relation.name))
            if layout.columns == columns:
                return TableAsOf(table, layout)
        copies = locate(folder)
        if table is not None:
            copy_format(self._target, copies)
            table.copy(folder / str(relation.oid))
            register_table(copies, relation.oid, str(relation.oid))
        read = partial(self._changes.sorted, relation.oid)
        result = apply_changes(read, copies, relation.oid, self._recording, history=self._history)
        if result is not None and result.error:
            raise ReplicaError(
                f"{self._target}: the recorded changes of {result.name} cannot be applied: {result.error}"
            )
        return _with_columns(copies, relation, columns, history=self._history)


class _Version(NamedTuple):
    """The newest version of a table that does not go beyond an LSN."""

    table: Table | None
    """The version; None if the table had no changes before the LSN."""
    applied: Position
    is_newest: bool
    """Whether the table has no later version."""


def _find_version(target: Location, lsn: int, oid: int) -> _Version | ReplicaError:
    try:
        found = find_table(target, oid)
        if found is None:
            return _Version(None, NOTHING, True)
        version = found.version_before(lsn)
        is_newest = version.number == found.version
        table = None if version.number < 0 else found if is_newest else found.at(version.number)
        return _Version(table, version.applied, is_newest)
    except ReplicaError as error:
        return error


def _with_columns(
    copies: Location, relation: Relation, columns: tuple[Column, ...], *, history: bool
) -> TableAsOf:
    """Give a table's copy the columns of its relation as of the LSN; return the copy's rows.

    The columns are changed in the same way as by the next change of the relation.

    Args:
        copies: The folder that holds the copies.
        relation: Description of the relation as of the LSN.
        columns: Columns of `relation`, which the copy gets.
        history: Whether the replica keeps all versions of rows.
    """
    table, name = find_table(copies, relation.oid), stored_name(relation.name)
    if table is None:
        return TableAsOf(None, TableLayout(pa.schema([]), "", columns=columns))
    layout = read_layout(table, name)
    if layout.columns != columns:
        keys = tuple(column.name for column, one in zip(columns, relation.columns, strict=True) if one.flags)
        described = ChangedRelation(relation.oid, relation.namespace, name, columns, keys)
        follow_schema(table, layout, Chunk(described, pa.table({})), history=history)
        layout = read_layout(table, name)
    return TableAsOf(table, msgspec.structs.replace(layout, columns=columns))
