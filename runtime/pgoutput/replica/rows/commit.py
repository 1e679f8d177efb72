"""Apply a chunk of changes to a Delta table in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction

from pgoutput.errors import ReplicaError
from pgoutput.replica.chunks import Chunk
from pgoutput.replica.data_files import DataFile, DataFiles
from pgoutput.replica.delta_log import changes_metadata
from pgoutput.replica.rows.builder import RowBuilder
from pgoutput.replica.rows.cells import ColumnCells, columns_of_maps
from pgoutput.replica.rows.lookup import LookupResult, look_up_rows
from pgoutput.replica.rows.merge import Key, MergeResult, merge_changes
from pgoutput.replica.schema import MOMENT, TableLayout, delta_names


class ChunkCommit:
    """The commit of a chunk of changes: look up rows of the Delta table, merge changes, write data files.

    Args:
        table: The Delta table.
        layout: The layout of the Delta table, which already has the columns of the chunk.
        chunk: The changes.
    """

    def __init__(self, table: DeltaTable, layout: TableLayout, chunk: Chunk) -> None:
        self._table = table
        self._layout = layout
        self._chunk = chunk
        self._files = DataFiles(table, layout.schema)
        names = [column.name for column in chunk.columns]
        changes = chunk.changes
        old = columns_of_maps(changes["before"].combine_chunks(), names)
        # With REPLICA IDENTITY FULL, an unchanged TOASTed value is sent in the old tuple only.
        new = columns_of_maps(changes["after"].combine_chunks(), names)
        self._new = [after.coalesce(before) for after, before in zip(new, old, strict=True)]
        key_columns = [names.index(name) for name in chunk.keys]
        in_table = delta_names(chunk.columns)
        self._key = [(in_table[at], chunk.columns[at]) for at in key_columns]
        self._unique = len(chunk.keys) < len(chunk.columns)
        self._operations: list[str] = changes["operation"].to_pylist()
        has_old = changes["before"].combine_chunks().is_valid().to_pylist()
        new_keys = _read_keys([self._new[at] for at in key_columns], len(changes))
        old_keys = _read_keys([old[at] for at in key_columns], len(changes))
        self._new_keys = new_keys
        # An update without an old tuple has not changed the key.
        self._old_keys = [
            old if sent else new for sent, old, new in zip(has_old, old_keys, new_keys, strict=True)
        ]

    def run(self, transaction: Transaction) -> None:
        """Apply the changes to the Delta table in one commit with the given Delta transaction identifier.

        Raises:
            ReplicaError: A row has to be found by a key column whose value was never sent, or a data file
                does not exist any more.
            deltalake.exceptions.DeltaError: A concurrent commit has changed the table.
        """
        found = self._look_up()
        merged = merge_changes(
            found.rows_by_key,
            self._operations,
            self._old_keys,
            self._new_keys,
            unique=self._unique,
            find_match=(lambda key: self._refuse_partial_keys(found))
            if self._unique
            else found.take_partial_match,
        )
        removed: dict[str, list[int]] = {}
        for row in merged.ended:
            if row < 0:
                file, number = found.locations[-1 - row]
                removed.setdefault(file.path, []).append(number)
        self._commit(self._added_rows(merged, found), removed, transaction)

    def _look_up(self) -> LookupResult:
        """Look up the rows that changes may update or delete, with the columns that updates may copy."""
        chunk, layout = self._chunk, self._layout
        keys: dict[Key, None] = {}
        can_match = bool(chunk.keys) or not self._unique
        if can_match and not chunk.truncates and "Snapshot" not in self._operations:
            keys = dict.fromkeys(chain(self._old_keys, self._new_keys))
        if layout.end is not None:
            columns = set(layout.schema.names)
        else:
            begins = pc.is_in(chunk.changes["operation"], pa.array(["Insert", "Update"])).combine_chunks()
            columns = {
                name
                for name, cells in zip(delta_names(chunk.columns), self._new, strict=True)
                if pc.any(pc.and_not(begins, cells.sent)).as_py()
            }
        return look_up_rows(self._files, layout, self._key, list(keys), columns, unique=self._unique)

    def _refuse_partial_keys(self, found: LookupResult) -> None:
        """Raise ReplicaError if a found row has a partly unknown key: a change may concern that row."""
        if columns := found.unsent_key_columns():
            chunk = self._chunk
            names = ", ".join(self._key[at][1].name for at in columns)
            raise ReplicaError(
                f"{chunk.namespace}.{chunk.name}: rows cannot be found by {names}: the key was altered, and "
                "the values that rows of the Delta table have there were never sent. "
                "Replicate anew, into an empty target"
            )

    def _added_rows(self, merged: MergeResult, found: LookupResult) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the commit adds: new rows and, with history, row versions that get an end."""
        layout = self._layout
        schema = layout.schema
        rows = merged.current if layout.end is None else merged.begun
        arrays = RowBuilder(layout, self._chunk.columns, self._new, merged, found.rows).build(rows)
        if layout.start is not None and layout.end is not None:
            moments = _read_moments(self._chunk.changes)
            arrays[layout.start] = moments.take(pa.array(rows, pa.int64()))
            arrays[layout.end] = moments.take(pa.array([merged.ended.get(row) for row in rows], pa.int64()))
            closed = {-1 - row: change for row, change in merged.ended.items() if row < 0}
            if closed:
                ends = moments.take(pa.array(closed.values(), pa.int64()))
                column = found.rows.schema.get_field_index(layout.end)
                versions = found.rows.take(pa.array(closed.keys(), pa.int64()))
                yield from (
                    versions.set_column(column, layout.end, ends)
                    .select(schema.names)
                    .cast(schema)
                    .to_batches()
                )
        yield pa.record_batch(
            [arrays[name].cast(schema.field(name).type) for name in schema.names], schema=schema
        )

    def _commit(
        self, added: Iterator[pa.RecordBatch], removed: dict[str, list[int]], transaction: Transaction
    ) -> None:
        """Write the added rows, and the remaining rows of data files that lose rows; commit the new files.

        Args:
            added: The rows that the commit adds.
            removed: Numbers of the rows that the commit removes, by path of the data file; the first row of a
                file is 0.
            transaction: The Delta transaction identifier of the commit.
        """
        replaced: list[DataFile] | None
        if self._chunk.truncates and self._layout.end is None:
            replaced, remaining = None, iter(())  # all files of the table are replaced
        elif self._chunk.truncates:
            replaced = list(self._files)
            remaining = (batch for file in replaced for batch in self._end_versions(file))
        else:
            small = {file.path for file in self._files.small_files()}
            replaced = [file for file in self._files if file.path in removed or file.path in small]
            remaining = (
                batch
                for file in replaced
                for batch in _without(self._files.read(file), removed.get(file.path, ()))
            )
        files = self._files.write(chain(added, remaining))
        # A commit without files is made too: a retry without its transaction identifier would alter the
        # columns again.
        metadata = changes_metadata(self._chunk)
        self._files.commit(files, replaced, self._table.schema(), transaction, metadata)

    def _end_versions(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file; row versions without an end get the TRUNCATE as their `__END_AT`."""
        assert self._layout.end is not None
        column = self._layout.schema.get_field_index(self._layout.end)
        moment = _read_moments(self._chunk.changes)[0]
        for batch in self._files.read(file):
            ends = batch[self._layout.end]
            filled = pc.if_else(ends.is_valid(), ends, moment)
            yield batch.set_column(column, self._layout.schema.field(column), filled)


def _read_keys(columns: Sequence[ColumnCells], rows: int) -> list[Key]:
    if not columns:
        return [()] * rows
    return list(zip(*(cells.texts.to_pylist() for cells in columns), strict=True))


def _read_moments(changes: pa.Table) -> pa.StructArray:
    """Return `sequence` and `commit_time` of each change, as structs of the type of `__START_AT`."""
    columns = [changes[field.name].combine_chunks().cast(field.type) for field in MOMENT]
    return pa.StructArray.from_arrays(columns, fields=list(MOMENT))


def _without(batches: Iterator[pa.RecordBatch], rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches without the rows whose numbers are given; the first row of all has number 0."""
    removed = set(rows)
    first = 0
    for batch in batches:
        if removed:
            kept = [row for row in range(batch.num_rows) if first + row not in removed]
            first += batch.num_rows
            batch = batch.take(pa.array(kept, pa.int64()))
        yield batch
