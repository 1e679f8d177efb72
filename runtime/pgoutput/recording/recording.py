"""The segments of a recording and their metadata, in a local folder or at a URI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pgoutput.errors import RecordingError
from pgoutput.recording.check import find_inconsistencies, find_missing_end
from pgoutput.recording.location import (
    Location,
    PathOrUri,
    find_segments,
    last_acknowledged,
    locate,
    segment_number,
)
from pgoutput.recording.reader import SegmentReader
from pgoutput.recording.segment_file import SUFFIX, segment_name
from pgoutput.recording.segment_format import Metadata

_THREADS: Final = 16
"""Number of segments whose metadata is read concurrently: a remote filesystem can be slow to answer."""


class Recording:
    """The segments of a recording and their metadata, by segment number.

    Metadata is read when first needed, and kept until `refresh`.

    Args:
        place: Path or URI of the recording's folder, or of one segment. With one segment, other segments of
            its folder can still be read by number.
        may_be_empty: Whether an existing folder without segments is accepted.

    Raises:
        RecordingError: `place` has no segments.
    """

    def __init__(self, place: PathOrUri, *, may_be_empty: bool = False) -> None:
        self.location: Location = locate(place)
        self._folder = self.location
        if _is_segment(self.location):
            self._folder = self.location.parent
        self._metadata: dict[int, tuple[Metadata, int]] = {}
        self._paths: dict[int, Location] = {}
        self.refresh()
        if not self._paths and not (may_be_empty and self.location.is_folder):
            raise RecordingError(f"{self.location}: no segments are here; `pgoutput record` writes them")

    @property
    def numbers(self) -> list[int]:
        """Numbers of the segments, ascending."""
        return sorted(self._paths)

    @property
    def last(self) -> Metadata | None:
        """Metadata of the last segment; None without segments.

        Raises:
            RecordingError: The segment is missing or damaged, or its file has the wrong name.
        """
        return self.metadata([self.numbers[-1]])[0] if self._paths else None

    @property
    def identity(self) -> str:
        """UUID of the recording, from its last segment; empty without segments.

        Raises:
            RecordingError: The segment is missing or damaged, or its file has the wrong name.
        """
        return self.last.source.recording if self.last else ""

    def refresh(self) -> None:
        """List the segments again, and drop the cached metadata of all segments but the last.

        Raises:
            RecordingError: A file does not have the name of a segment, two segments have the same number, or
                the last segments that the recorder acknowledged are missing.
        """
        if _is_segment(self.location):
            self._paths = {segment_number(self.location): self.location}
            return
        last = last_acknowledged(self.location)
        found = find_segments(self.location)
        self._paths = {segment_number(path): path for path in found}
        if len(self._paths) < len(found):
            raise RecordingError(f"{self.location}: two segments have one number")
        newest = max(self._paths, default=0)
        self._metadata = {number: known for number, known in self._metadata.items() if number == newest}
        for text in find_missing_end(newest, last):
            raise RecordingError(f"{self.location}: {text}")

    def metadata(self, numbers: Iterable[int]) -> list[Metadata]:
        """Return the metadata of the segments with these numbers.

        Raises:
            RecordingError: A segment is missing or damaged, or its file has the wrong name.
        """
        requested = list(numbers)
        self._read_metadata(requested)
        return [self._metadata[number][0] for number in requested]

    def size(self, number: int) -> int:
        """Return the size of a segment's rows before compression, in bytes.

        Raises:
            RecordingError: The segment is missing or damaged, or its file has the wrong name.
        """
        self._read_metadata([number])
        return self._metadata[number][1]

    def path(self, number: int) -> Location:
        """Return the location of the segment with this number; the file may not exist."""
        return self._paths.get(number) or self._folder / segment_name(number)

    def check(self, numbers: Sequence[int] | None = None) -> None:
        """Check that segments belong together and that none is missing.

        Args:
            numbers: Numbers of consecutive segments; None for the whole recording.

        Raises:
            RecordingError: A segment is missing or damaged, or contradicts the preceding segment.
        """
        checked = self.numbers if numbers is None else numbers
        is_whole = numbers is None and not _is_segment(self.location)
        first = 1 if is_whole else min(checked, default=1)
        if texts := list(find_inconsistencies(self.metadata(checked), first)):
            raise RecordingError(f"{self.location}: {'; '.join(texts)}")

    def _read_metadata(self, numbers: Iterable[int]) -> None:
        unread = [self.path(number) for number in numbers if number not in self._metadata]
        with ThreadPoolExecutor(_THREADS) as pool:
            for path, (metadata, size) in zip(unread, pool.map(_read, unread), strict=True):
                if metadata.number != segment_number(path):
                    raise RecordingError(
                        f"{path}: the file has the wrong name: it is segment {metadata.number}"
                    )
                self._metadata[metadata.number] = metadata, size


def _read(path: Location) -> tuple[Metadata, int]:
    """Return a segment's metadata, and the size of its rows before compression, in bytes."""
    with SegmentReader(path) as segment:
        return segment.metadata, segment.size


def _is_segment(location: Location) -> bool:
    return location.path.endswith(SUFFIX)
