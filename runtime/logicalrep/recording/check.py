"""Check that the segments of a recording belong together and that none is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from logicalrep.recording.segment_format import Metadata
from logicalrep.wire import format_lsn


def find_inconsistencies(segments: Sequence[Metadata], first: int = 1, last: int = 0) -> Iterator[str]:
    """Yield texts on missing segments, and on contradictions between the metadata of consecutive segments.

    Args:
        segments: Metadata of all segments of a recording, or of consecutive segments: first the segments of
            the snapshot, then the segments of the stream by number.
        first: Expected number of the first segment.
        last: Number of the last segment that the recorder acknowledged, as `last_acknowledged` returns it; 0
            if unknown. A segment of this number or a higher one must exist.
    """
    # The segments of the first snapshot are written in parallel, so their positions have gaps. Therefore
    # sessions, positions and LSNs are checked only from the last segment of the snapshot on.
    first_in_session = next((i for i, one in enumerate(segments) if one.session), len(segments))
    begin = max(first_in_session - 1, 0)
    if segments and segments[0].number > first:
        yield _missing(first, segments[0].number - 1)
    for before, after in pairwise(segments):
        if after.number > before.number + 1:
            yield _missing(before.number + 1, after.number - 1)
        elif after.number <= before.number:
            text = f"after segment {before.number}, expected segment {before.number + 1}"
            yield f"{text}, found segment {after.number}: a file has the wrong name"
        for key in ("recording", "system_identifier", "database", "slot"):
            one, other = getattr(before.source, key), getattr(after.source, key)
            if one != other and not (key == "system_identifier" and _is_upgraded(before, after)):
                yield f"segment {after.number} has the {key} {other}, but segment {before.number} has {one}"
    for before, after in pairwise(segments[begin:]):
        pair = f"between segments {before.number} and {after.number}"
        if after.session < before.session:
            yield f"{pair}, expected session {before.session} or later, found session {after.session}"
        if before.session and not _positions_fit(before, after):
            yield f"{pair}, expected position {before.next_position}, found {after.first_position}"
        if after.start_lsn != before.end_lsn:
            end, start = format_lsn(before.end_lsn), format_lsn(after.start_lsn)
            yield f"{pair}, expected LSN {end}, found {start}"
    yield from find_missing_end(segments[-1].number if segments else first - 1, last)


def _is_upgraded(before: Metadata, after: Metadata) -> bool:
    """Return whether segment `after` lists an upgrade of the server that segment `before` does not list."""
    new = after.source.upgrades[len(before.source.upgrades) :]
    return bool(new) and new[0].system_identifier == before.source.system_identifier


def find_missing_end(found: int, last: int) -> Iterator[str]:
    """Yield a text that names the segments missing at the end of a recording; nothing if none is missing.

    Args:
        found: Number of the last existing segment; 0 without segments.
        last: Number of the last segment that the recorder acknowledged, as `last_acknowledged` returns it.
    """
    if last > found:
        yield f"{_missing(found + 1, last)}, although acknowledged to the server: put missing files back"


def _positions_fit(before: Metadata, after: Metadata) -> bool:
    """Return whether the positions of a segment can follow the positions of the preceding segment.

    If several sessions are written concurrently, each session gets its own range of positions, larger than
    needed. Positions may therefore have gaps between sessions. At such gaps, only segment numbers and LSNs
    show missing segments.
    """
    if after.session > before.session and after.number == before.number + 1:
        return after.first_position >= before.next_position
    return after.first_position == before.next_position


def _missing(first: int, last: int) -> str:
    return f"segment {first} is missing" if first == last else f"segments {first} to {last} are missing"
