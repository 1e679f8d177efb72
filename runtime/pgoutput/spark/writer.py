"""What writes a DataFrame as a recording: a segment for each partition.

Tasks write into a folder that no reader looks at. When all have, the driver gives the segments their places;
their numbers, positions and LSNs are known before, since each partition has a range of its own.

Options:

- `path`: The folder of the recording, new or written by this; one that all executors have.
- `table`: Which table the rows are of, as `public.orders`.
- `key`: The columns of its primary key, with commas between them.
- `operation`: The column that says what is done, `Insert`, `Update` or `Delete`; else all rows are inserts.
- `proto_version`: Of the protocol; else the latest.

The mode `append` goes on with what is there, `overwrite` puts the new recording in its place.
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

from pgoutput.errors import RecordingError
from pgoutput.recording import find_segments, locate, sync_path
from pgoutput.spark.target import Place, Target
from pgoutput.spark.transactions import write_partition


class Written(WriterCommitMessage):
    """A partition that a task has written."""

    def __init__(self, partition: int, path: Path) -> None:
        self.partition = partition
        self.path = path


class RecordingWriter(DataSourceArrowWriter):
    """Writes rows of one table; is made by the driver, and makes the folder in which tasks write.

    Args:
        target: The table.
        place: Where they go.
        overwrite: Whether what is there goes.
    """

    def __init__(self, target: Target, place: Place, *, overwrite: bool) -> None:
        self._target = target
        self._place = place
        self._overwrite = overwrite
        self._is_new = not place.folder.exists()
        self._scratch = place.folder / f".{uuid.uuid4().hex}.partial"
        self._scratch.mkdir(parents=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a partition, from within a task, which may not be the only one that does."""
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("partitions are written by the tasks of Spark")
        return self._write(task.partitionId(), task.taskAttemptId(), iterator)

    def _write(self, partition: int, attempt: int, rows: Iterator[pa.RecordBatch]) -> Written:
        folder = self._scratch / str(attempt)
        folder.mkdir()
        try:
            return Written(partition, write_partition(folder, self._target, self._place, partition, rows))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the segments their places, all of them or none.

        Raises:
            RecordingError: The recording has changed meanwhile.
        """
        written = {one.partition: one.path for one in messages if isinstance(one, Written)}
        for partition in range(max(written, default=0) + 1):  # Spark has no task where nothing is to do
            if partition not in written:
                written[partition] = self._write(partition, -1 - partition, iter(())).path
        folder = self._place.folder
        there = [Path(one.path) for one in find_segments(locate(folder))]
        if not self._overwrite and len(there) != self._place.start.number - 1:
            raise RecordingError(
                f"{folder}: another writer was at work here at the same time; nothing is written"
            )
        old = self._scratch / "old"
        old.mkdir()
        moves = [(path, old / path.name) for path in there] if self._overwrite else []
        moves += [(written[partition], folder / written[partition].name) for partition in sorted(written)]
        _move(moves)
        sync_path(folder)
        self._remove_scratch()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was written."""
        self._remove_scratch()
        if self._is_new:
            with suppress(OSError):  # it is not empty, or not there
                self._place.folder.rmdir()

    def _remove_scratch(self) -> None:
        # Renamed first, so that tasks that are still at work find no place where to make another file.
        gone = self._scratch.with_suffix(".gone")
        with suppress(OSError):
            self._scratch.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _move(moves: Sequence[tuple[Path, Path]]) -> None:
    """Rename files, all or none."""
    done: list[tuple[Path, Path]] = []
    try:
        for one, other in moves:
            one.rename(other)
            done.append((one, other))
    except OSError:
        for one, other in reversed(done):
            other.rename(one)
        raise
