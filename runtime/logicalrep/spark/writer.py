"""Write a DataFrame as a recording, with one segment for each Spark partition.

Spark tasks write segments to a hidden temporary folder. When all Spark tasks have finished, the driver moves
the segments to the recording. Each Spark partition has a reserved range of positions and LSNs, so Spark tasks
run independently.

Options:

- `path`: The folder of the recording, which is new or was written by Spark. All executors must be able to
  reach it.
- `table`: Qualified name of the table that the rows belong to, such as `public.orders`.
- `key`: Names of the primary key's columns, separated by commas.
- `operation`: Name of the column that contains the operation: `Insert`, `Update` or `Delete`. By default, all
  rows are inserts.
- `proto_version`: Version of the protocol; the latest by default.

The save mode `append` adds segments to the recording, `overwrite` replaces the recording.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from logicalrep.errors import RecordingError
from logicalrep.recording import find_segments, locate, sync_path
from logicalrep.spark.transactions import write_partition
from logicalrep.spark.write_plan import SegmentPlan, WrittenTable


class WrittenPartition(WriterCommitMessage):
    """A Spark task's message to the driver: the number of a Spark partition, and the path of its segment."""

    def __init__(self, partition: int, path: Path) -> None:
        self.partition = partition
        self.path = path


class RecordingWriter(DataSourceArrowWriter):
    """A writer of a DataFrame as a recording. The driver creates the writer and the temporary folder.

    Args:
        table: The table that the rows belong to.
        plan: The segments to write.
        overwrite: Whether the new segments replace the existing recording.
    """

    def __init__(self, table: WrittenTable, plan: SegmentPlan, *, overwrite: bool) -> None:
        self._table = table
        self._plan = plan
        self._overwrite = overwrite
        self._is_new = not plan.folder.exists()
        self._temporary = plan.folder / f".{uuid.uuid4().hex}.partial"
        self._temporary.mkdir(parents=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Write a Spark partition as a temporary segment, once for each attempt of the Spark task."""
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("write() must be called in a Spark task: write with df.write")
        return self._write(task.partitionId(), task.taskAttemptId(), iterator)

    def _write(self, partition: int, attempt: int, rows: Iterator[pa.RecordBatch]) -> WrittenPartition:
        folder = self._temporary / str(attempt)
        folder.mkdir()
        try:
            path = write_partition(folder, self._table, self._plan, partition, rows)
            return WrittenPartition(partition, path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Move the segments of all Spark partitions to the recording; if a move fails, undo the earlier ones.

        Raises:
            RecordingError: Another writer has changed the recording.
        """
        written = {one.partition: one.path for one in messages if isinstance(one, WrittenPartition)}
        for partition in range(max(written, default=0) + 1):  # Spark runs no task for some empty partitions
            if partition not in written:
                written[partition] = self._write(partition, -1 - partition, iter(())).path
        folder = self._plan.folder
        existing = [Path(one.path) for one in find_segments(locate(folder))]
        if not self._overwrite and len(existing) != self._plan.start.number - 1:
            raise RecordingError(
                f"{folder}: another writer has changed the recording at the same time; nothing was written: "
                "write again"
            )
        old = self._temporary / "old"
        old.mkdir()
        moves = [(path, old / path.name) for path in existing] if self._overwrite else []
        moves += [(written[partition], folder / written[partition].name) for partition in sorted(written)]
        _move_files(moves)
        sync_path(folder)
        self._remove_temporary()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the temporary segments that the Spark tasks of a failed Spark job have written."""
        self._remove_temporary()
        if self._is_new:
            with suppress(OSError):  # the folder is not empty, or does not exist
                self._plan.folder.rmdir()

    def _remove_temporary(self) -> None:
        # Rename the temporary folder first, so that tasks that still run cannot create files in it.
        gone = self._temporary.with_suffix(".gone")
        with suppress(OSError):
            self._temporary.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _move_files(moves: Sequence[tuple[Path, Path]]) -> None:
    """Rename files, given as pairs of old and new path; if a rename fails, undo the earlier renames."""
    done: list[tuple[Path, Path]] = []
    try:
        for old, new in moves:
            old.rename(new)
            done.append((old, new))
    except OSError:
        for old, new in reversed(done):
            new.rename(old)
        raise
