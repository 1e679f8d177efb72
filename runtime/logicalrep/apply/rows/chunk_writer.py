"""Write the data files that a chunk of changes adds to a Delta table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import NO_NUMBERS, Numbers, boolean_array, take
from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import DataFiles, small_files
from logicalrep.apply.rows.builder import RowBuilder
from logicalrep.apply.rows.keys import number_keys, number_values
from logicalrep.apply.rows.lookup import LookupResult, look_up_rows
from logicalrep.apply.rows.merge import Effects, MergeResult, merge_changes, read_effects
from logicalrep.apply.schema import MOMENT, TableLayout, delta_names
from logicalrep.errors import ReplicaError
from logicalrep.targets import DataFile
from logicalrep.views import new_columns, old_columns


class ChunkWriter:
    """A writer of a chunk of changes: looks up rows of the table, merges changes, writes data files.

    Args:
        files: The data files of the table.
        layout: The layout of the table, which already has the columns of the chunk.
        chunk: The changes.

    Attributes:
        unmatched: Commit LSNs of the changes that do not match the rows of the table, in order: an update or
            delete found no row, or another row has the new key of an insert or update. Changes of a snapshot
            do not count. The list is empty before the rows are looked up.
    """

    def __init__(self, files: DataFiles, layout: TableLayout, chunk: Chunk) -> None:
        self.unmatched: list[int] = []
        self._layout = layout
        self._chunk = chunk
        self._files = files
        names = [column.name for column in chunk.columns]
        changes = chunk.changes
        old, new = old_columns(chunk.relation, changes), new_columns(chunk.relation, changes)
        # With REPLICA IDENTITY FULL, an unchanged TOASTed value is sent in the old tuple only.
        self._new = [after.coalesce(before) for after, before in zip(new, old, strict=True)]
        key_columns = [names.index(name) for name in chunk.keys]
        in_table = delta_names(chunk.columns)
        self._key = [(in_table[at], chunk.columns[at]) for at in key_columns]
        self._unique = len(chunk.keys) < len(chunk.columns)
        operations = changes["operation"].combine_chunks()
        self._is_copied = np.asarray(pc.equal(operations, "Snapshot"))
        self._effects = read_effects(operations)
        # An update without an old tuple has not changed the key. A change without a new tuple has no new key:
        # its old key is used instead.
        has_old = changes["old"].combine_chunks().is_valid()
        begins = boolean_array(self._effects.begins)
        self._old_keys = [pc.if_else(has_old, old[at].texts, self._new[at].texts) for at in key_columns]
        self._new_keys = [
            pc.if_else(begins, self._new[at].texts, texts)
            for at, texts in zip(key_columns, self._old_keys, strict=True)
        ]

    @property
    def moves_keys(self) -> bool:
        """Whether some update changes the key of its row."""
        return self._old_keys != self._new_keys

    def write(self) -> tuple[list[DataFile], list[DataFile]]:
        """Write the rows that the chunk adds, and the remaining rows of data files that lose rows.

        Returns:
            The new data files, and the data files that they replace.

        Raises:
            ReplicaError: Rows cannot be found by key, because values of a key column were never sent; or a
                data file does not exist any more.
        """
        if self._chunk.truncates and self._layout.end is not None:
            found, merged = self._merge()
            added = self._added_rows(merged, found)
            replaced = list(self._files)
            remaining = (batch for file in replaced for batch in self._end_versions(file))
        else:
            added, ended = self.fold()
            small = small_files(self._files)
            replaced = [file for file in self._files if file.path in ended or file.path in small]
            remaining = (
                batch
                for file in replaced
                for batch in self._files.read_except(file, ended.get(file.path, NO_NUMBERS))
            )
        return self._files.write(chain(added, remaining)), replaced

    def fold(self) -> tuple[Iterator[pa.RecordBatch], dict[str, Numbers]]:
        """Return the rows that the chunk adds, and the rows that it removes from data files.

        With history, a row version that gets an end is removed and added again. The removed rows are returned
        as ascending row numbers, by path of the data file.

        Raises:
            ReplicaError: Rows cannot be found by key, because values of a key column were never sent; or a
                data file does not exist any more.
        """
        found, merged = self._merge()
        is_ended = merged.ended[len(self._chunk.changes) :] >= 0
        ended = {
            file.path: np.sort(found.number[is_ended & (found.file == index)])
            for index, file in enumerate(found.files)
        }
        ended = {path: numbers for path, numbers in ended.items() if len(numbers)}
        return self._added_rows(merged, found), ended

    def copied_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk that has only rows of a snapshot, which replace no row of the table."""
        found, merged = self._merge()
        return self._added_rows(merged, found)

    def _merge(self) -> tuple[LookupResult, MergeResult]:
        count = len(self._chunk.changes)
        effects = self._effects
        keys = self._old_keys
        if keys and self.moves_keys:
            keys = list(map(pa.concat_arrays, zip(self._old_keys, self._new_keys, strict=True)))
        if keys:
            numbers, first = number_keys([number_values(texts, {}) for texts in keys])
        elif self._unique:
            # REPLICA IDENTITY NOTHING has no key columns, so no row can be found.
            effects = Effects(np.zeros(count, np.bool_), effects.begins)
            numbers = first = np.arange(count)
        else:
            # With REPLICA IDENTITY FULL, a table without columns has an empty key, which all rows share.
            numbers, first = np.zeros(count, np.int64), np.zeros(1, np.int64)
        old, new = numbers[:count], numbers[-count:]
        is_searched = np.zeros(len(first), np.bool_)
        if (keys or not self._unique) and not self._chunk.truncates:
            is_searched[old[~self._is_copied]] = is_searched[new[~self._is_copied]] = True
        searched = np.flatnonzero(is_searched)
        found = self._look_up([texts.take(pa.array(first[searched])) for texts in keys], len(searched))
        index = np.full(len(first), -1, np.int64)
        index[searched] = np.arange(len(searched))

        def find_matches(changes: Numbers) -> dict[int, int]:
            if self._unique:
                self._refuse_partial_keys(found)
                return {}
            wanted = dict(zip(changes.tolist(), index[old[changes]].tolist(), strict=True))
            return {change: count + row for change, row in found.match_partly(wanted).items()}

        of_rows = np.where(found.keys < 0, -1, searched[found.keys] if len(searched) else -1)
        merged = merge_changes(of_rows, effects, old, new, unique=self._unique, find_matches=find_matches)
        if len(merged.unmatched):
            rows = self._chunk.changes.select(["commit_lsn", "xid"]).take(pa.array(merged.unmatched))
            self.unmatched = rows.filter(pc.not_equal(rows["xid"], 0))["commit_lsn"].to_pylist()
        return found, merged

    def _look_up(self, keys: list[pa.StringArray], count: int) -> LookupResult:
        """Look up the rows that changes may update or delete, with the columns that some change did not send.

        With history, the rows have all columns.

        Args:
            keys: The keys to look up: for each key column the texts of its values.
            count: Number of keys.
        """
        chunk, layout = self._chunk, self._layout
        if layout.end is not None:
            columns = set(layout.schema.names)
        else:
            columns = {
                name
                for name, cells in zip(delta_names(chunk.columns), self._new, strict=True)
                if (self._effects.begins & ~cells.sent).any()
            }
        return look_up_rows(self._files, layout, self._key, keys, count, columns, unique=self._unique)

    def _refuse_partial_keys(self, found: LookupResult) -> None:
        """Raise ReplicaError if a found row's key is partly unknown: a change may be meant for this row."""
        if columns := found.unsent_key_columns():
            chunk = self._chunk
            names = ", ".join(self._key[at][1].name for at in columns)
            raise ReplicaError(
                f"{chunk.namespace}.{chunk.name}: rows cannot be found by {names}: the key was altered, and "
                "the values of existing rows in these columns were never sent. "
                "Replicate anew, into an empty target"
            )

    def _added_rows(self, merged: MergeResult, found: LookupResult) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the chunk adds: new rows and, with history, row versions that get an end."""
        layout = self._layout
        schema = layout.schema
        rows = merged.current if layout.end is None else merged.begun
        arrays = RowBuilder(layout, self._chunk.columns, self._new, merged, found.rows).build(rows)
        if layout.start is not None and layout.end is not None:
            moments = read_moments(self._chunk.changes)
            arrays[layout.start] = take(moments, rows)
            arrays[layout.end] = take(moments, merged.ended[rows])
            changes = merged.ended[len(moments) :]
            closed = np.flatnonzero(changes >= 0)
            if len(closed):
                ends = take(moments, changes[closed])
                column = found.rows.schema.get_field_index(layout.end)
                versions = found.rows.take(pa.array(closed))
                yield from (
                    versions.set_column(column, layout.end, ends)
                    .select(schema.names)
                    .cast(schema)
                    .to_batches()
                )
        yield pa.record_batch(
            [arrays[name].cast(schema.field(name).type) for name in schema.names], schema=schema
        )

    def _end_versions(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield a data file's rows; current row versions get the moment of the TRUNCATE as `__END_AT`."""
        assert self._layout.end is not None
        column = self._layout.schema.get_field_index(self._layout.end)
        moment = read_moments(self._chunk.changes)[0]
        for batch in self._files.read(file):
            ends = batch[self._layout.end]
            filled = pc.if_else(ends.is_valid(), ends, moment)
            yield batch.set_column(column, self._layout.schema.field(column), filled)


def read_moments(changes: pa.Table) -> pa.StructArray:
    """Return commit LSN, position and commit time of each change, as structs of the type `MOMENT`."""
    columns = [changes[field.name].combine_chunks().cast(field.type) for field in MOMENT]
    return pa.StructArray.from_arrays(columns, fields=list(MOMENT))
