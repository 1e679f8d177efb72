"""Find and read the recorded changes that the tables of a target lack."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc

from logicalrep.apply import SortedChanges, is_after
from logicalrep.errors import RecordingError
from logicalrep.recording import Recording, SegmentReader
from logicalrep.targets import Position
from logicalrep.views import LsnRange, plan_changes, read_changes


def read_missing(recording: Recording, missing: Mapping[int, Position], lsn: int) -> SortedChanges:
    """Return recorded changes: for each relation, those after a given position and before an LSN.

    Args:
        recording: The recording.
        missing: By relation OID, the position after which the relation's changes are returned.
        lsn: The LSN: all changes have lower commit LSNs.

    Raises:
        RecordingError: A segment is damaged, missing or was pruned.
    """
    first = min(missing.values(), default=Position(lsn, 0, 0))
    begin = max(first.commit_lsn, 0)
    numbers = []
    for number in reversed(recording.numbers):
        (one,) = recording.metadata([number])
        if one.end_lsn < first.commit_lsn:
            break  # all earlier segments end even earlier
        # In segments of a snapshot, the LSN of all commits is `end_lsn`, so the position decides which
        # segments have changes after `first`.
        if (one.end_lsn, one.next_position) > first and one.start_lsn < lsn:
            numbers.append(number)
    else:
        recording.check_begins_before(begin)
    found = SortedChanges()
    for task in plan_changes(recording, numbers[::-1], LsnRange(begin, lsn - 1)):
        with SegmentReader(task.place) as segment:
            for changes in read_changes(segment, task, lambda schema: schema.relation.oid in missing):
                follows = is_after(changes.rows, missing[changes.relation.oid])
                rows = changes.rows.filter(pc.and_(follows, pc.less(changes.rows["commit_lsn"], lsn)))
                if rows.num_rows:
                    found.append(changes.with_rows(rows))
    return found


def complete_since(recording: Recording, oid: int, first: int, last: int) -> int:
    """Return the number of the segment from which on the changes of a relation yield all its rows.

    Args:
        recording: The recording.
        oid: OID of the relation.
        first: Number of the first segment with changes of the relation, which may have been pruned.
        last: Number of the last segment to read.

    Returns:
        `first`; if it was pruned, the last segment in which a snapshot replaces the rows of the relation.

    Raises:
        RecordingError: Segment `first` was pruned, and no such snapshot follows.
    """
    try:
        recording.check_not_pruned(first)
    except RecordingError as error:
        if (number := last_copy(recording, oid, first, last)) is None:
            raise RecordingError(
                f"{error}; or copy the rows of the table again with `logicalrep snapshot`, and then repeat "
                "this command"
            ) from None
        return number
    return first


def last_copy(recording: Recording, oid: int, first: int, last: int) -> int | None:
    """Return the number of the last segment in which a snapshot replaces the rows of a relation.

    Args:
        recording: The recording.
        oid: OID of the relation.
        first: Number of the first segment to read, which may have been pruned.
        last: Number of the last segment to read.

    Returns:
        The number; None if there is no such segment.

    Raises:
        RecordingError: A segment is missing or damaged.
    """
    for number in reversed([number for number in recording.numbers if first <= number <= last]):
        if recording.metadata([number])[0].kind == "snapshot" and _replaces(recording, number, oid):
            return number
    return None


def _replaces(recording: Recording, number: int, oid: int) -> bool:
    """Return whether the copied rows in a segment replace all rows of a relation.

    They do if a transaction that commits in the segment has a Truncate of the relation.
    """
    for task in plan_changes(recording, [number]):
        with SegmentReader(task.place) as segment:
            changes = read_changes(segment, task, lambda schema: schema.relation.oid == oid)
            if any(pc.any(pc.equal(one.rows["operation"], "Truncate")).as_py() for one in changes):
                return True
    return False
