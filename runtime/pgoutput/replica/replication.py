"""Keep Delta tables equal to the source of a recording, in one process and without Spark.

A micro-batch is planned in the checkpoint, applied, and committed in the checkpoint. If the process is killed
in between, the next query applies the same segments again, and the transaction identifiers of the Delta
tables say which commits are there already. Checkpoint and tables are those of `pgoutput.spark.replicate`, so
that either can resume what the other has begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from pgoutput._trace import span
from pgoutput.errors import RecordingError
from pgoutput.recording import Location, PathOrUri, Recording, SegmentReader, locate
from pgoutput.replica.applied import log_batch
from pgoutput.replica.batch import TableResult, apply_repeatedly
from pgoutput.replica.checkpoint import CHECKPOINT_FOLDER, Checkpoint, Offset
from pgoutput.replica.chunks import Chunk, split_changes
from pgoutput.replica.failed_tables import FailedTable, MissedBatch, read_failed_tables, record_failure
from pgoutput.replica.ownership import Owner, check_owner, claim_target
from pgoutput.replica.registration import Registration
from pgoutput.replica.remarks import Dropped, apply_remarks
from pgoutput.replica.selection import Selection
from pgoutput.replica.sorted_changes import SortedChanges
from pgoutput.views import ChangesView, RelationSchema, plan_changes, read

SEGMENTS_PER_BATCH: Final = 128
"""Maximum number of segments in a micro-batch.

The number is small, so that progress is visible and little work is repeated after a crash.
"""

_POLL_SECONDS: Final = 0.05
"""Seconds between two looks for the next segment in a local folder."""

_REMOTE_POLL_SECONDS: Final = 1.0
"""Seconds between two looks for the next segment on any other filesystem."""

_LIST_SECONDS: Final = 10.0
"""Seconds between two listings of a recording without new segments."""


class Progress(msgspec.Struct, frozen=True):
    """How far a micro-batch was applied. While a query waits for segments, that of the last micro-batch."""

    segment: int
    """Number of the last segment of the micro-batch."""
    last_segment: int
    """Number of the last segment of the recording."""
    applied: int
    """Number of the micro-batch's changes that were handed to their tables."""
    changes: int
    """Number of changes in the micro-batch; 0 while they are read from the segments."""
    applied_segment: int
    """Number of the last segment of the last micro-batch that was applied completely; 0 for none."""


Report: TypeAlias = Callable[[int, Sequence[TableResult]], None]
"""A function called after each micro-batch with the micro-batch's number and one result per changed table."""


def replicate(
    recording: PathOrUri,
    target: PathOrUri,
    *,
    history: bool = False,
    follow: bool = False,
    dropped: Dropped = "keep",
    checkpoint: PathOrUri | None = None,
    stop: threading.Event | None = None,
    report: Report | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Apply the changes of a recording that a target does not have yet, without Spark.

    The target has one Delta table per relation, equal to the source as of the last commit that was recorded.
    `replica_tables` lists the tables with their location, error, and the reasons why they may differ from the
    source. `retry_tables` applies the micro-batches that failed tables have missed. The function can be
    stopped or killed at any moment: the next call with the same target and checkpoint resumes, and each
    change is applied exactly once. `pgoutput.spark.replicate` can resume too, and its queries can be resumed
    here. Target and checkpoint belong to one recording; other recordings are refused. Before the first call,
    `select_tables` can restrict a target to some tables.

    Changes that are larger than 64 MiB are written to a temporary file in `tempfile.gettempdir()`.

    Args:
        recording: The recording, as a path or URI.
        target: The folder that holds the replica, as a path or URI. Only one query may write to it.
        history: Whether to keep all versions of rows (SCD type 2). `__START_AT` and `__END_AT` contain the
            LSN, position and time of the changes that begin and end a version.
        follow: Whether to wait for new segments after the last segment, instead of returning.
        dropped: What happens to the table of a relation that was dropped on the server: "keep" marks it,
            "archive" also renames its folder, "drop" removes it. If a new relation gets the name, the table
            of the dropped one is archived.
        checkpoint: Location of the query's checkpoint; a folder in the target if None.
        stop: If another thread or a signal handler sets this event, the function returns after the commit to
            a Delta table that is in progress.
        report: Called after each micro-batch with the number of the micro-batch, and one result for each
            table that has changes in the micro-batch.
        progress: Called while a micro-batch is applied, and every 10 seconds while no segment follows.

    Raises:
        RecordingError: The recording cannot be read, or lacks segments that the target does not have yet.
        ReplicaError: The target contains something other than a replica, target or checkpoint belong to
            another recording or query, or a file of the target cannot be read or written.
    """
    query = _Query(
        recording, target, history, dropped, checkpoint, stop or threading.Event(), report, progress
    )
    query.run(follow=follow)


class _Stopped(BaseException):
    """The query was asked to stop. Not an Exception, which would be the error of one table."""


class _Query:
    """A query that applies the changes of a recording. The arguments are those of `replicate`."""

    def __init__(
        self,
        recording: PathOrUri,
        target: PathOrUri,
        history: bool,
        dropped: Dropped,
        checkpoint: PathOrUri | None,
        stop: threading.Event,
        report: Report | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._recording = Recording(recording, may_be_empty=True)
        self._target: Location = locate(target)
        self._output = "history" if history else "tables"
        self._dropped: Dropped = dropped
        check_owner(target, self._output, self._recording.identity)
        location = self._target / CHECKPOINT_FOLDER if checkpoint is None else locate(checkpoint)
        self._checkpoint = Checkpoint(location)
        self._applied_segment = self._checkpoint.applied.segment
        self._registration: Registration | None = None
        self._selection = Selection(self._recording, self._target)
        self._stop = stop
        self._report = report
        self._progress = progress

    def run(self, *, follow: bool) -> None:
        """Apply micro-batches until there are no more segments, or with `follow` until stopped."""
        try:
            while not self._stop.is_set():
                if numbers := self._next_segments():
                    segments = {"first_segment": numbers[0], "last_segment": numbers[-1]}
                    with span("pgoutput apply micro-batch", batch=self._checkpoint.batch, **segments):
                        self._apply_batch(numbers)
                self._show_progress(self._applied_segment, 0, 0)
                if numbers:
                    continue
                self._register()
                if not follow:
                    return
                self._await_segment()
        except _Stopped:
            return

    def _next_segments(self) -> Sequence[int]:
        """Plan the next micro-batch unless one is planned that was not committed; return its segments.

        Return an empty sequence if the recording has no new segments.
        """
        planned, recording = self._checkpoint, self._recording
        if not planned.is_committed and planned.applied == planned.offset:
            planned.commit()  # a run was killed while it added tables: the micro-batch has no segments
        first = planned.offset.segment + 1
        if max(recording.numbers, default=0) < first:
            recording.extend()
        last = max(recording.numbers, default=0)
        self._check_offset(last)
        if not planned.is_committed:
            return range(planned.end_of(planned.batch - 1).segment + 1, first)
        if last < first:
            return ()
        recording.check_not_pruned(first)
        numbers = range(first, min(last, first + SEGMENTS_PER_BATCH - 1) + 1)
        planned.plan(Offset(numbers[-1], recording.identity))
        return numbers

    def _check_offset(self, last: int) -> None:
        """Raise RecordingError if the checkpoint belongs to another recording, or has read more segments."""
        done, place = self._checkpoint.offset, self._recording.location
        if last and done.segment and done.recording != self._recording.identity:
            raise RecordingError(
                f"{place}: this is recording {self._recording.identity}, but the checkpoint belongs to "
                f"recording {done.recording}. Read that recording, or begin anew with a new target and a new "
                "checkpoint"
            )
        if last < done.segment:
            raise RecordingError(
                f"{place}: the checkpoint has read segment {done.segment}, but the last segment here is "
                f"{last or 'none'}: new segments would be skipped. Put the missing segments back, or begin "
                "anew with a new target and a new checkpoint"
            )

    def _apply_batch(self, numbers: Sequence[int]) -> None:
        """Apply the changes of segments to the tables, and commit the micro-batch in the checkpoint."""
        batch, recording = self._checkpoint.batch, self._recording
        owner = Owner(self._checkpoint.query, self._output, recording.identity)
        claim_target(self._target.place, owner, batch=batch)
        self._register()
        before = [number for number in (numbers[0] - 1,) if number in recording.numbers]
        recording.check([*before, *numbers])
        oids = self._selection.oids(batch, numbers[0], numbers[-1])
        errors = {oid: table.error for oid, table in read_failed_tables(self._target).items()}
        with SortedChanges() as changes:
            self._read_segments(numbers, changes, oids)
            results = [
                apply_repeatedly(
                    partial(self._chunks, changes, oid, numbers[-1]),
                    self._target,
                    owner.query,
                    batch,
                    owner.recording,
                    history=self._output == "history",
                    error=errors.get(oid, ""),
                )
                for oid in sorted(changes.counts)
            ]
        results = [one for one in results if not one.is_empty]
        for one in results:
            if one.error:
                missed = MissedBatch(batch, numbers[0], numbers[-1])
                record_failure(self._target, FailedTable(one.oid, one.namespace, one.name, one.error), missed)
        results += apply_remarks(recording, self._target, numbers, self._dropped)
        log_batch(batch, results)
        if self._report is not None:
            self._report(batch, results)
        self._checkpoint.commit()
        self._applied_segment = numbers[-1]
        self._register()

    def _register(self) -> None:
        """Register the query in the recording, with the segments that it does not need any more."""
        planned, recording = self._checkpoint, self._recording
        if planned.batch < 0:
            return
        if self._registration is None:
            owner = Owner(planned.query, self._output, recording.identity)
            self._registration = Registration(recording, self._target, owner)
        self._registration.update(planned.applied.segment)

    def _read_segments(
        self, numbers: Sequence[int], changes: SortedChanges, oids: Collection[int] | None
    ) -> None:
        def is_wanted(schema: RelationSchema) -> bool:
            return oids is None or schema.relation.oid in oids

        for task in plan_changes(self._recording, numbers):
            self._show_progress(numbers[-1], 0, 0)
            with SegmentReader(task.place) as segment:
                for rows in read(segment, ChangesView(segment, task, is_wanted)):
                    changes.append(rows)

    def _chunks(self, changes: SortedChanges, oid: int, segment: int) -> Iterator[Chunk]:
        """Return the changes of a relation; the progress is shown while they are read."""

        def watched() -> Iterator[pa.RecordBatch]:
            applied = sum(count for other, count in changes.counts.items() if other < oid)
            for rows in changes.sorted(oid):
                self._show_progress(segment, applied, changes.counts.total())
                yield rows
                applied += rows.num_rows

        return split_changes(watched())

    def _show_progress(self, segment: int, applied: int, changes: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        if self._progress is not None:
            last = max(self._recording.numbers, default=0)
            self._progress(Progress(segment, last, applied, changes, self._applied_segment))

    def _await_segment(self) -> None:
        """Wait until there is a new segment, or the query is stopped.

        Segments of a snapshot are in a folder of their own: from time to time, the whole recording is listed.
        """
        recording = self._recording
        is_local = recording.location.is_local
        began, known = time.monotonic(), len(recording.numbers)
        while len(recording.numbers) == known:
            if self._stop.wait(_POLL_SECONDS if is_local else _REMOTE_POLL_SECONDS):
                return
            recording.extend()
            if time.monotonic() > began + _LIST_SECONDS:
                break
        else:
            return
        recording.refresh()
