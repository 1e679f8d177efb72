"""Whether the segments of a recording belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pgoutput.segments.model import Metadata
from pgoutput.wire import format_lsn


def find_gaps(segments: Sequence[Metadata]) -> Iterator[str]:
    """What is missing between segments, or does not fit.

    Args:
        segments: All of a recording, in the order of `list_segments`.
    """
    stream = [one for one in segments if one.kind == "stream"]
    snapshot = [one for one in segments if one.kind == "snapshot"]
    first = segments[0].number
    if first != 1:
        yield f"segments 1 to {first - 1} are missing" if first > 2 else "segment 1 is missing"
    for before, after in pairwise(segments):
        if after.number != before.number + 1:
            missing = f"{before.number + 1} to {after.number - 1}"
            yield f"between segments {before.number} and {after.number}, {missing} are missing"
        for key in ("system_identifier", "database", "slot"):
            one, other = getattr(before.source, key), getattr(after.source, key)
            if one != other:
                yield f"segment {after.number} has {key} {other}, segment {before.number} has {one}"
    for before, after in pairwise([*snapshot[-1:], *stream]):
        pair = f"between segments {before.number} and {after.number}"
        if after.session < before.session:
            yield f"{pair}, session {before.session} is followed by session {after.session}"
        if before.kind == "stream" and after.first_position != before.next_position:
            yield f"{pair}, position {before.next_position} is followed by {after.first_position}"
        if after.start_lsn != before.end_lsn:
            end, start = format_lsn(before.end_lsn), format_lsn(after.start_lsn)
            yield f"{pair}, the LSN {end} is followed by {start}"
