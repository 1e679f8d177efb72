"""Replace all rows of a Delta table in one commit.

The new rows are first written to uncommitted data files: chunk by chunk, in bounded memory. Without
history, one commit then replaces all data files of the table by these files. With history, one commit ends
and begins the row versions in which the table differs from these files.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import DataFiles, StagedFiles
from logicalrep.apply.rows.chunk_writer import ChunkWriter, read_moments
from logicalrep.apply.rows.versions import write_versions
from logicalrep.apply.schema import (
    TableLayout,
    convert_batch,
    follow_schema,
    keeps_files,
    make_layout,
    read_layout,
)
from logicalrep.targets import ChangeRange, Position, Table


class Replacement:
    """The rows that replace all rows of a Delta table, in uncommitted data files.

    After a crash, VACUUM removes the data files from the table's folder.

    Args:
        table: The table.
        old: The layout of the table if it has history; otherwise None, because no row of the table is kept.
        chunk: The first chunk. It begins with a truncate.
    """

    def __init__(self, table: Table, old: TableLayout | None, chunk: Chunk) -> None:
        self._table = table
        self._name = f"{chunk.namespace}.{chunk.name}"
        self._history = old is not None
        self._target = self._make_target(chunk, old)
        self._moment: pa.StructScalar = read_moments(chunk.changes.slice(0, 1))[0]
        self._schema_changes = [_without_changes(chunk)]
        self._changes: list[ChangeRange] = []
        self.unmatched: list[int] = []
        """Commit LSNs of the changes that do not match the rows of the data files, as in `ChunkWriter`."""
        self.layout = _without_moments(self._target)
        """The layout of the data files, which have no `__START_AT` and `__END_AT`."""
        self.files = StagedFiles(table, self.layout.schema)
        """The uncommitted data files with the new rows."""

    @property
    def last(self) -> Position:
        """Position of the last change that was added."""
        return self._changes[-1].last

    def add(self, chunk: Chunk) -> None:
        """Apply the changes of a chunk to the rows of the data files.

        Raises:
            ReplicaError: Rows cannot be found by key, because values of a key column were never sent.
        """
        if chunk.columns != self.layout.columns:
            self._follow_schema(chunk)
        if chunk.truncates:
            self.discard()
        self._changes.append(chunk.range)
        writer = ChunkWriter(self.files, self.layout, chunk)
        if chunk.is_copied:
            self.files.append(writer.copied_rows())
        else:
            self.files.replace(*writer.write())
            self.unmatched += writer.unmatched

    def commit(self) -> None:
        """Replace the rows of the table in one commit, which also sets its position to the last change.

        Raises:
            ConflictError: A concurrent commit has changed the table. To commit the same data files, call
                the function again.
        """
        if self._history:
            self._commit_versions()
        else:
            self._table.commit(self.files, None, ChangeRange.join(self._changes), self.layout.schema)

    def discard(self) -> None:
        """Delete the data files. They must not be part of a commit."""
        self.files.replace((), list(self.files))

    def _make_target(self, chunk: Chunk, old: TableLayout | None) -> TableLayout:
        return make_layout(chunk.columns, self._table.place.parent, history=self._history, old=old)

    def _follow_schema(self, chunk: Chunk) -> None:
        """Give the new rows the columns of a chunk.

        The data files that already have new rows stay if they fit the new columns. Otherwise they are
        rewritten.
        """
        self._schema_changes.append(_without_changes(chunk))
        self._target = self._make_target(chunk, self._target)
        old, self.layout = self.layout, _without_moments(self._target)
        source, self.files = self.files, StagedFiles(self._table, self.layout.schema)
        if keeps_files(old, self.layout, chunk):
            self.files.replace(source, ())
            return
        batches = (batch for file in source for batch in source.read(file))
        self.files.append(convert_batch(batch, old, self.layout, chunk.columns) for batch in batches)
        source.replace((), list(source))

    def _commit_versions(self) -> None:
        """End and begin row versions in one commit, so that the current versions equal the new rows."""
        layout = read_layout(self._table, self._name)
        while self._schema_changes:
            layout = follow_schema(self._table, layout, self._schema_changes[0], history=True)
            del self._schema_changes[0]
        added, removed = write_versions(DataFiles(self._table), layout, self.files, self._moment)
        self._table.commit(added, removed, ChangeRange.join(self._changes))
        self.discard()


def _without_changes(chunk: Chunk) -> Chunk:
    return msgspec.structs.replace(chunk, changes=chunk.changes.schema.empty_table())


def _without_moments(layout: TableLayout) -> TableLayout:
    """Return a layout without the columns `__START_AT` and `__END_AT`."""
    fields = [field for field in layout.schema if field.name not in (layout.start, layout.end)]
    return msgspec.structs.replace(layout, schema=pa.schema(fields), start=None, end=None)
