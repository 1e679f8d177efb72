"""Whether the segments of a recording belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pgoutput.recording.model import Metadata
from pgoutput.wire import format_lsn


def find_gaps(segments: Sequence[Metadata], first: int = 1, last: int = 0) -> Iterator[str]:
    """Describe what is missing between segments, or does not fit.

    Args:
        segments: All of a recording, in the order of `list_segments`; or some that follow each other.
        first: The number that the first should have.
        last: The number that the last should have at least, as `last_acknowledged` returns it.
    """
    stream = [one for one in segments if one.kind == "stream"]
    snapshot = [one for one in segments if one.kind == "snapshot"]
    if segments and segments[0].number > first:
        yield _missing(first, segments[0].number - 1)
    for before, after in pairwise(segments):
        if after.number > before.number + 1:
            yield _missing(before.number + 1, after.number - 1)
        elif after.number <= before.number:
            yield f"segment {before.number} is followed by segment {after.number}: a file has the wrong name"
        for key in ("recording", "system_identifier", "database", "slot"):
            one, other = getattr(before.source, key), getattr(after.source, key)
            if one != other:
                yield f"segment {after.number} has {key} {other}, segment {before.number} has {one}"
    for before, after in pairwise([*snapshot[-1:], *stream]):
        pair = f"between segments {before.number} and {after.number}"
        if after.session < before.session:
            yield f"{pair}, session {before.session} is followed by session {after.session}"
        if before.kind == "stream" and not _follow(before, after):
            yield f"{pair}, position {before.next_position} is followed by {after.first_position}"
        if after.start_lsn != before.end_lsn:
            end, start = format_lsn(before.end_lsn), format_lsn(after.start_lsn)
            yield f"{pair}, the LSN {end} is followed by {start}"
    yield from find_missing_end(segments[-1].number if segments else first - 1, last)


def find_missing_end(found: int, last: int) -> Iterator[str]:
    """Describe the segments that are missing at the end of a recording.

    Args:
        found: Number of the last segment that is there; 0 if there is none.
        last: The number that it should have at least, as `last_acknowledged` returns it.
    """
    if last > found:
        yield f"{_missing(found + 1, last)}, which the recorder had stored and acknowledged"


def _follow(before: Metadata, after: Metadata) -> bool:
    """Whether positions go on.

    Where several sessions are written at a time, each has a range of its own, and leaves some of it out. That
    nothing is missing between them, their numbers and LSNs tell.
    """
    if after.session > before.session and after.number == before.number + 1:
        return after.first_position >= before.next_position
    return after.first_position == before.next_position


def _missing(first: int, last: int) -> str:
    return f"segment {first} is missing" if first == last else f"segments {first} to {last} are missing"
