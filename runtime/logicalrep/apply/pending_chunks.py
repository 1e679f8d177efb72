"""Chunks of a relation's changes that are merged into new data files, and committed together."""

from __future__ import annotations

from collections import Counter

from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import MAX_SMALL_FILES, PendingFiles
from logicalrep.apply.rows import ChunkWriter
from logicalrep.apply.schema import changed_properties, read_layout
from logicalrep.targets import ChangeRange, Table


class PendingChunks:
    """Successive chunks of a relation that are not committed yet.

    Attributes:
        changes: For each chunk, first commit LSN, last position and last commit time of its changes.
        counts: Number of changes, by operation.
        unmatched: Commit LSNs of the changes that do not match the rows of the table, as in `ChunkWriter`.
        written_again: Number of unchanged rows that the commit has rewritten, as in `TableResult`.

    Args:
        table: The Delta table of the relation.
        name: Name of the relation, for errors.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.changes: list[ChangeRange] = []
        self.counts: Counter[str] = Counter()
        self.unmatched: list[int] = []
        self.written_again: int = 0
        self._layout = read_layout(table, name)
        self._files = PendingFiles(table)

    @property
    def is_full(self) -> bool:
        """Whether there are so many new data files that looking up rows becomes slow."""
        return self._files.count > MAX_SMALL_FILES

    def fits(self, table: Table, chunk: Chunk) -> bool:
        """Return whether a chunk can be added: if it changes neither columns nor properties of the table."""
        return (
            chunk.columns == self._layout.columns
            and not changed_properties(table, self._files, self._layout, chunk)[0]
        )

    def fold(self, chunk: Chunk) -> None:
        """Apply a chunk, for which `fits` is true, to the uncommitted data files.

        Raises:
            ReplicaError: Rows cannot be found by key, because values of a key column were never sent; or a
                data file does not exist any more.
        """
        writer = ChunkWriter(self._files, self._layout, chunk)
        self._files.change(*writer.fold())
        self.unmatched += writer.unmatched
        self.changes.append(chunk.range)
        self.counts += chunk.counts

    def commit(self, table: Table) -> None:
        """Commit all chunks.

        After an error of the commit, the new data files stay, because the commit may have succeeded. If it
        has failed, VACUUM removes them.

        Raises:
            ConflictError: A concurrent commit has changed the table.
        """
        try:
            merged = self._files.merge()
        except BaseException:
            self.discard()
            raise
        changes = ChangeRange.join(self.changes)
        table.commit(merged.added, merged.removed, changes, deleted=merged.deleted)
        removed = self._files.removed
        changed = [file for file in merged.removed if file.path in removed]
        self.written_again = sum(file.rows - file.deleted - len(removed[file.path]) for file in changed)
        self._files.delete(file.path for file in merged.unused)

    def discard(self) -> None:
        """Delete the new data files. They must not be part of a commit."""
        self._files.discard()
