"""The rows that a Delta table of a replica has as of an LSN: all transactions with lower commit LSNs.

The newest version of the Delta table that does not go beyond the LSN is completed with the recorded changes
that it lacks. The changes are applied to a copy of the table: its data files are hard links in a temporary
folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import fs

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.messages import Relation
from pgoutput.recording import Location, Recording, locate
from pgoutput.replica.batch import apply_changes
from pgoutput.replica.chunks import Chunk, Column
from pgoutput.replica.data_files import DataFiles
from pgoutput.replica.delta_log import LOG_FOLDER, NOTHING, Applied, Version, version_before
from pgoutput.replica.recorded_changes import sorted_changes, store_changes
from pgoutput.replica.registry import find_table, register_table
from pgoutput.replica.schema import TableLayout, delta_names, follow_schema, read_layout
from pgoutput.views import CHANGES, LsnRange
from pgoutput.wire import shown_text

_QUERY = "as of"
"""ID of the query that applies changes to the copy of a Delta table."""


class TableAsOf:
    """The rows of a Delta table as of an LSN; with history, the versions that are current at that LSN.

    Attributes:
        columns: Name in the Delta table, and description, of each column of the relation, in their order.
        rescued: Name of the column with rescued values.

    Args:
        table: The Delta table; None if no change of the relation was recorded.
        layout: The layout of the table; its columns are those of the relation.
    """

    def __init__(self, table: DeltaTable | None, layout: TableLayout) -> None:
        self.columns: list[tuple[str, Column]] = list(
            zip(delta_names(layout.columns), layout.columns, strict=True)
        )
        self.rescued: str = layout.rescued
        self._end = layout.end
        self._files = None if table is None else DataFiles(table, layout.schema)

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


def table_as_of(
    recording: Recording, target: Location, relation: Relation, lsn: int, folder: Path, *, history: bool
) -> TableAsOf:
    """Return the rows that a relation's Delta table has as of an LSN.

    Args:
        recording: The recording, which has all transactions with a commit LSN below `lsn`.
        target: The folder that holds the replica.
        relation: Description of the relation as of the LSN, with base types in place of domains.
        lsn: The LSN.
        folder: An empty folder for temporary files, in the filesystem of the target. It must stay while the
            rows are read.
        history: Whether the target keeps all versions of rows.

    Raises:
        ReplicaError: The table, or a version of it that is needed, cannot be read, or the recorded changes
            cannot be applied.
        RecordingError: A segment of the recording is missing or damaged.
    """
    columns = tuple(Column(shown_text(one.name), one.type_oid, one.type_modifier) for one in relation.columns)
    found = find_table(target, relation.oid)
    version = Version(-1, NOTHING)
    if found is not None:
        version = version_before(found[0], found[1].version(), lsn)
    changes = os.path.join(folder, "changes")
    pending = _store_pending(recording, relation.oid, version.applied, lsn, changes)
    if found is not None and not pending:
        table = DeltaTable(found[0].place, version=version.number)
        layout = read_layout(table, shown_text(relation.name))
        if layout.columns == columns:
            return TableAsOf(table, layout)
    copies = locate(folder)
    if found is not None:
        _link_table(found[0], version.number, folder)
        register_table(copies, relation.oid, found[0].place.rpartition("/")[2])
    for result in apply_changes(
        sorted_changes(changes), folder, _QUERY, 0, recording=recording.identity, history=history
    ):
        if result.error:
            raise ReplicaError(f"the recorded changes up to the LSN cannot be applied: {result.error}")
    return _with_columns(copies, relation, columns, history=history)


def _store_pending(recording: Recording, oid: int, applied: Applied, lsn: int, file: str) -> int:
    """Write the changes of a relation that follow `applied` and precede an LSN; return their number."""

    def is_pending(batch: pa.RecordBatch) -> pa.BooleanArray:
        lsns, positions = batch["commit_lsn"], batch["position"]
        is_later = pc.or_(
            pc.greater(lsns, applied.commit_lsn),
            pc.and_(pc.equal(lsns, applied.commit_lsn), pc.greater(positions, applied.position)),
        )
        return pc.and_(is_later, pc.less(lsns, lsn))

    numbers = [
        one.number
        for one in recording.metadata(recording.numbers)
        # In segments of a snapshot, the LSN of all commits is `end_lsn`.
        if (one.end_lsn, one.next_position - 1) > applied and one.start_lsn < lsn
    ]
    lsns = LsnRange(max(applied.commit_lsn, 0), lsn - 1)
    return store_changes(recording, oid, numbers, file, lsns, is_pending)


def _link_table(place: Location, version: int, folder: Path) -> None:
    """Create a copy of a version of a Delta table whose files are hard links.

    Raises:
        ReplicaError: The table is not in a local folder, or a file of the version does not exist any more.
    """
    if not isinstance(place.filesystem, fs.LocalFileSystem):
        raise ReplicaError(
            f"{place}: only Delta tables in local folders can be compared while changes are applied: "
            "wait until the replica has applied all recorded changes"
        )
    source = Path(place.path)
    copy = folder / source.name
    paths: Sequence[str] = pa.table(DeltaTable(place.place, version=version).get_add_actions())[
        "path"
    ].to_pylist()
    names = [name for name in os.listdir(source / LOG_FOLDER) if name[:20].isdecimal()]
    log = [f"{LOG_FOLDER}/{name}" for name in names if int(name[:20]) <= version]
    for path in [*log, *paths]:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / path, copy / path)
        except OSError as error:
            raise ReplicaError(f"{place}: version {version} cannot be read: {one_line(error)}") from error


def _with_columns(
    copies: Location, relation: Relation, columns: tuple[Column, ...], *, history: bool
) -> TableAsOf:
    """Return the rows of a copy; give it the columns of the relation, as its next change would."""
    found = find_table(copies, relation.oid)
    if found is None:
        return TableAsOf(None, TableLayout(pa.schema([]), "", columns=columns))
    table, name = found[1], shown_text(relation.name)
    layout = read_layout(table, name)
    if layout.columns != columns:
        keys = tuple(column.name for column, one in zip(columns, relation.columns, strict=True) if one.flags)
        chunk = Chunk(relation.oid, relation.namespace, name, columns, keys, CHANGES.empty_table())
        follow_schema(table, layout, chunk, history=history)
        table = DeltaTable((found[0]).place)
        layout = read_layout(table, name)
    return TableAsOf(table, msgspec.structs.replace(layout, columns=columns))
