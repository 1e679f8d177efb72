"""Keep Delta tables equal to the source of a recording, in micro-batches.

A micro-batch is a range of segments. It is applied table by table, to the tables whose positions show that
they lack its changes. Each commit stores the position of its table, so after a kill, each table continues at
its position. `Query` decides what is applied, and an `Engine` applies it: in this process, or with
`logicalrep.spark` in the executors of Spark. Each engine can resume what the other began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from logicalrep._text import listed
from logicalrep._trace import mark_failed, span
from logicalrep.apply import TableResult, Updates
from logicalrep.recording import Location, PathOrUri, Recording, locate
from logicalrep.replica.applied import log_batch
from logicalrep.replica.micro_batch import Engine, MicroBatch, apply_in_process
from logicalrep.replica.ownership import Owner, check_owner, check_unchanged, claim_target
from logicalrep.replica.positions import Positions
from logicalrep.replica.registration import Registration
from logicalrep.replica.remarks import Dropped, apply_remarks, mark_foreign_changes, removed_relations
from logicalrep.replica.selection import Selection
from logicalrep.targets import restore_registry
from logicalrep.views import plan_changes

SEGMENTS_PER_BATCH: Final = 128
"""Maximum number of segments in a micro-batch.

The number is small, so that progress is visible and little work is repeated after a crash.
"""

_POLL_SECONDS: Final = 0.05
"""Seconds between two checks for the next segment in a local folder."""

_REMOTE_POLL_SECONDS: Final = 1.0
"""Seconds between two checks for the next segment on a remote filesystem; each check is a paid request."""

_IDLE_POLL_SECONDS: Final = 3.0
"""Seconds between two checks on a remote filesystem when there was no new segment for `_IDLE_SECONDS`."""

_IDLE_SECONDS: Final = 60.0

_REPORT_SECONDS: Final = 10.0
"""Seconds between two reports of the progress of a query that waits."""

_REMOTE_WAIT_SECONDS: Final = 120.0
"""Seconds after which a waiting query looks for packs (files of many segments) and newly selected tables."""

_LIST_SECONDS: Final = 600.0
"""Seconds between two listings of a recording on a remote filesystem."""


class Progress(msgspec.Struct, frozen=True):
    """How far a query has applied its micro-batch, or its last micro-batch while it waits for segments."""

    segment: int
    """Number of the last segment of the micro-batch."""
    last_segment: int
    """Number of the last segment of the recording."""
    applied: int
    """Number of the micro-batch's changes that were handed to their tables; 0 with Spark."""
    changes: int
    """Number of changes in the micro-batch; 0 while they are read from the segments, and with Spark."""
    applied_segment: int
    """Number of the last segment whose changes all tables without an error have; 0 for none."""


Report: TypeAlias = Callable[[int, Sequence[TableResult]], None]
"""A function called after each micro-batch with the number of its last segment and one result per changed
table."""


def replicate(
    recording: PathOrUri,
    target: PathOrUri,
    *,
    history: bool = False,
    follow: bool = False,
    latency: float = 0.0,
    updates: Updates | None = None,
    dropped: Dropped = "keep",
    stop: threading.Event | None = None,
    on_batch: Report | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Apply the changes of a recording that a target does not have yet, without Spark.

    The target has one Delta table per relation, equal to the source as of the last commit that was recorded.
    `replica_tables` lists the tables with their location, error, and the reasons why they may differ from the
    source. The function can be stopped or killed at any moment: each table stores its position, the next call
    continues each table there, and each change is applied exactly once. A table whose changes cannot be
    applied fails, and keeps its position. Its changes are applied again by the next call, or with `follow`
    after a pause of 5 seconds to 5 minutes. If they fail again, the table continues with the last snapshot of
    its rows after its position, if there is one. A target belongs to one recording; other recordings are
    refused. Before the first call, `select_tables` can restrict a target to some tables.

    Changes that are larger than 64 MiB are written to a temporary file in `tempfile.gettempdir()`.

    Args:
        recording: The recording, as a path or URI.
        target: The folder that holds the replica, as a path or URI.
        history: Whether to keep all versions of rows (SCD type 2). `__START_AT` and `__END_AT` contain the
            LSN, position and time of the changes that begin and end a version.
        follow: Whether to wait for new segments after the last segment, instead of returning.
        latency: With `follow`: least time from the beginning of one micro-batch to the next, in seconds. Each
            micro-batch makes one commit to each changed table, so a longer time saves work and files if many
            tables have few changes. A micro-batch of the maximum number of segments begins at once.
        updates: How commits remove rows from now on: "vectors" marks them in deletion vectors, so that a
            commit costs as much as its changes; "rewrite" writes the other rows of their data files again, so
            that every reader of Delta can read the table. None keeps the present way of each table; new Delta
            tables begin with "rewrite".
        dropped: What happens to the table of a relation that was dropped on the server: "keep" marks it,
            "archive" also renames its folder, "drop" removes it. If a new relation gets the same name, "keep"
            archives the table too.
        stop: If another thread or a signal handler sets this event, the function returns after the commit to
            a Delta table that is in progress.
        on_batch: Called after each micro-batch with the number of its last segment, and one result for each
            table that was changed.
        on_progress: Called while a micro-batch is applied, and every 10 seconds while no segment follows.

    Raises:
        RecordingError: The recording cannot be read, or lacks segments that the target does not have yet.
        ReplicaError: The target contains something other than a replica, belongs to another recording, or was
            removed or replaced while the function ran, or a file of the target cannot be read or written.
    """
    query = Query(
        recording,
        target,
        history=history,
        updates=updates,
        dropped=dropped,
        stop=stop,
        on_batch=on_batch,
        on_progress=on_progress,
    )
    query.run(follow=follow, latency=latency)


class _Stopped(BaseException):
    """Raised to stop a query. It is no `Exception`, because an `Exception` counts as the error of a table."""


class Query:
    """A query that applies the changes of a recording. The arguments are those of `replicate`.

    Args:
        engine: Applies the changes of a micro-batch.
    """

    def __init__(
        self,
        recording: PathOrUri,
        target: PathOrUri,
        *,
        history: bool,
        updates: Updates | None,
        dropped: Dropped,
        stop: threading.Event | None,
        on_batch: Report | None,
        on_progress: Callable[[Progress], None] | None,
        engine: Engine = apply_in_process,
    ) -> None:
        self._recording = Recording(recording, may_be_empty=True)
        self._target: Location = locate(target)
        self._output = "history" if history else "tables"
        self._updates = updates
        self._dropped: Dropped = dropped
        check_owner(target, self._output, self._recording.identity)
        self._positions: Positions | None = None
        self._owner: Owner | None = None
        self._registration: Registration | None = None
        self._selection = Selection(self._recording, self._target)
        self._stop = stop or threading.Event()
        self._report = on_batch
        self._progress = on_progress
        self._engine = engine
        self._follow = False
        self._listed = self._found = time.monotonic()
        """When the recording was listed last, and when a new segment was found last."""

    def run(self, *, follow: bool, latency: float = 0.0) -> None:
        """Apply micro-batches until there are no more segments, or with `follow` until stopped.

        Args:
            follow: Whether to wait for new segments after the last segment.
            latency: With `follow`: least time from the beginning of one micro-batch to the next, in seconds.
        """
        due, self._follow = 0.0, follow
        try:
            while not self._stop.is_set():
                numbers, now = self._next_segments(), time.monotonic()
                if numbers and follow and now < due and len(numbers) < SEGMENTS_PER_BATCH:
                    self._stop.wait(min(due - now, _REPORT_SECONDS))
                elif numbers:
                    due = now + latency
                    with span(
                        "logicalrep apply micro-batch", first_segment=numbers[0], last_segment=numbers[-1]
                    ) as recorded:
                        if failed := self._apply_batch(numbers):
                            mark_failed(recorded, listed(failed, "; "))
                self._show_progress(self._applied_segment, 0, 0)
                if numbers:
                    continue
                if not follow:
                    return
                self._await_segment()
        except _Stopped:
            return

    @property
    def _applied_segment(self) -> int:
        return 0 if self._positions is None else self._positions.least_segment

    def _next_segments(self) -> Sequence[int]:
        """Return the numbers of the next micro-batch's segments; none if there are no new segments."""
        recording = self._recording
        if not recording.numbers or self._positions is not None:
            recording.extend()
        if not recording.numbers:
            return ()
        if self._positions is None:
            restore_registry(self._target, recording.identity)
            self._positions = Positions(recording, self._target)
        positions, last = self._positions, recording.numbers[-1]
        if (selected := self._selection.first_segments(last)) is not None:
            positions.add(selected)
        positions.retry()
        first = positions.next_segment()
        if self._registration is None:
            self._begin(positions)
        if changed := positions.new_errors():
            self._finish(positions.least_segment, changed)
        if first > last:
            self._register()
            return ()
        recording.check_not_pruned(first)
        return range(first, min(last, first + SEGMENTS_PER_BATCH - 1) + 1)

    def _begin(self, positions: Positions) -> None:
        """Claim the target, register in the recording, and mark tables that other programs have changed."""
        recording = self._recording
        recording.check_not_pruned(positions.least_segment + 1)
        self._owner = claim_target(self._target.place, self._output, recording.identity)
        self._registration = Registration(recording, self._target, self._owner)
        self._register()
        # After a kill, some tables may not be in the folders of their names yet.
        moved = positions.names.follow(())
        if noted := [*mark_foreign_changes(self._target, sorted(positions.foreign)), *moved]:
            self._finish(positions.least_segment, noted)

    def _finish(self, segment: int, results: Sequence[TableResult]) -> None:
        if self._follow:
            results = [self._with_pause(one) if one.error else one for one in results]
        log_batch(segment, results)
        if self._report is not None:
            self._report(segment, results)

    def _with_pause(self, result: TableResult) -> TableResult:
        """Add to the error of a table when its changes are applied again."""
        assert self._positions is not None
        seconds = self._positions.pause(result.oid)
        text = f"{result.error}; the next attempt is in {seconds:.0f} s"
        return msgspec.structs.replace(result, error=text)

    def _apply_batch(self, numbers: Sequence[int]) -> list[str]:
        """Apply the changes of segments to the tables that lack them; return the failed tables' errors."""
        recording, positions, last = self._recording, self._positions, numbers[-1]
        assert positions is not None
        assert self._owner is not None
        before = [number for number in (numbers[0] - 1,) if number in recording.numbers]
        recording.check([*before, *numbers])
        check_unchanged(self._target.place, self._owner)
        show = partial(self._show_progress, last)
        results = self._engine(self._micro_batch(numbers, positions), show)
        if removed := removed_relations(recording, numbers, self._dropped):
            positions.forget(removed, last)
        positions.names.read(one.oid for one in results)
        remarks = list(apply_remarks(recording, self._target, numbers, self._dropped, positions.names))
        positions.advance(last, [one for one in results if one.oid not in removed])
        results += remarks
        self._finish(last, results)
        self._register()
        return positions.failed_tables()

    def _micro_batch(self, numbers: Sequence[int], positions: Positions) -> MicroBatch:
        selected, behind = self._selection.oids(), positions.behind(numbers[-1])
        # Until it is tried again after a pause, a failed table gets only changes from the first snapshot on
        # that replaces all its rows (`from_snapshot`). Leave it out if these segments have no snapshot.
        if not any(one.kind == "snapshot" for one in self._recording.metadata(numbers)):
            behind -= positions.errors.keys()
        return MicroBatch(
            recording=self._recording.identity,
            target=self._target.place,
            history=self._output == "history",
            updates=self._updates,
            tasks=tuple(plan_changes(self._recording, numbers)),
            known=positions.positions,
            from_snapshot=frozenset(positions.errors.keys() | positions.gaps),
            wanted=frozenset(behind if selected is None else behind.intersection(selected)),
            wants_others=selected is None and positions.has_new_relations(numbers[-1]),
        )

    def _register(self) -> None:
        """Store in the recording up to which segment the query has applied the changes to all tables."""
        if self._registration is not None and self._positions is not None:
            self._registration.update(self._positions.least_segment)

    def _show_progress(self, segment: int, applied: int, changes: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        if self._progress is not None:
            last = max(self._recording.numbers, default=0)
            self._progress(Progress(segment, last, applied, changes, self._applied_segment))

    def _await_segment(self) -> None:
        """Wait for a limited time until there is a new segment, or the query is stopped.

        The segments of a snapshot are in another folder. On a remote filesystem, until a segment of the
        stream follows them, new segments are found only by listing the recording.
        """
        recording = self._recording
        is_local, last = recording.location.is_local, recording.last
        is_beginning = last is None or last.kind == "snapshot"
        has_failed = self._positions is not None and bool(self._positions.errors)
        known, began = len(recording.numbers), time.monotonic()
        reported = now = began
        seconds = _REPORT_SECONDS if is_local or is_beginning or has_failed else _REMOTE_WAIT_SECONDS
        while now < began + seconds:
            remote = _REMOTE_POLL_SECONDS if now < self._found + _IDLE_SECONDS else _IDLE_POLL_SECONDS
            if self._stop.wait(_POLL_SECONDS if is_local else remote):
                return
            recording.extend(packs=False)
            now = time.monotonic()
            if len(recording.numbers) > known:
                self._found = now
                return
            if now > reported + _REPORT_SECONDS:
                reported = now
                self._show_progress(self._applied_segment, 0, 0)
        if is_local or is_beginning or now > self._listed + _LIST_SECONDS:
            self._listed = now
            recording.refresh()
