"""The segments of a recording and their metadata, in a local folder or at a URI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec.structs import replace

from logicalrep._text import listed
from logicalrep.errors import RecordingError
from logicalrep.recording.check import find_inconsistencies, find_missing_end
from logicalrep.recording.location import (
    Beginning,
    Location,
    PathOrUri,
    last_acknowledged,
    list_recording,
    locate,
    packed_numbers,
    read_beginning,
    segment_number,
)
from logicalrep.recording.reader import SegmentReader
from logicalrep.recording.segment_file import SUFFIX, segment_name
from logicalrep.recording.segment_format import IncompleteTable, Metadata
from logicalrep.wire import format_lsn

_THREADS: Final = 16
"""Maximum number of segments whose metadata is read concurrently: a remote filesystem can be slow."""


class Recording:
    """The segments of a recording and their metadata, by segment number.

    Metadata is read when first needed, and kept until `refresh`.

    Attributes:
        beginning: Where the recording begins, as of the last listing.

    Args:
        recording: Path or URI of the recording's folder, or of one segment. With one segment, other segments
            of its folder can still be read by number.
        may_be_empty: Whether an existing folder without segments is accepted.
        may_be_missing: Whether a folder that does not exist yet is accepted too.

    Raises:
        RecordingError: `recording` has no segments.
    """

    def __init__(
        self, recording: PathOrUri, *, may_be_empty: bool = False, may_be_missing: bool = False
    ) -> None:
        self.location: Location = locate(recording)
        self._folder = self.location
        if _is_segment(self.location):
            self._folder = self.location.parent
        self._metadata: dict[int, tuple[Metadata, int]] = {}
        self._incomplete: dict[tuple[IncompleteTable, ...], tuple[IncompleteTable, ...]] = {}
        """Maps each tuple of incomplete tables to itself, so that segments share equal tuples."""
        self._paths: dict[int, Location] = {}
        self.beginning: Beginning = Beginning()
        self._modified: int | None = None
        """When the folder was changed last, as of the last listing; None if the filesystem does not tell."""
        self.refresh()
        if not (self._paths or may_be_missing or (may_be_empty and self.location.is_folder)):
            raise RecordingError(
                f"{self.location}: no segments found: give the folder that `logicalrep record` writes"
            )

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
        last, self._modified = last_acknowledged(self.location), self.location.modified
        found, self.beginning = list_recording(self.location)
        self._paths = {segment_number(path): path for path in found}
        if len(self._paths) < len(found):
            raise RecordingError(
                f"{self.location}: two files are segments with the same number, one of them "
                f"{next(path for path in found if self._paths[segment_number(path)] is not path)}: remove one"
            )
        newest = max(self._paths, default=0)
        self._metadata = {number: known for number, known in self._metadata.items() if number == newest}
        self._incomplete.clear()
        for text in find_missing_end(newest, last):
            raise RecordingError(f"{self.location}: {text}")

    def extend(self, *, packs: bool = True) -> None:
        """Find segments that were stored after the last known segment; faster than `refresh`.

        The segments of a snapshot at the beginning of a recording are found in a local folder only.

        Args:
            packs: Whether to find segments that are already in packs. This is needed if the last search was
                some minutes ago. False saves requests: an object store gets one request if no segment is new.

        Raises:
            RecordingError: The filesystem cannot be read, or a local folder has segments for the first time,
                and `refresh` refuses them.
        """
        if _is_segment(self.location):
            return
        known = max(self._paths, default=0)
        last = self._last_file(known)
        if not self.location.is_local:
            if packs:
                last = max(last, last_acknowledged(self.location))
        elif last == known and (modified := self.location.modified) != self._modified:
            if not known:
                self.refresh()  # also lists the folder of the snapshot
                return
            self._modified = modified  # find packed segments in the listing, without the state file
            packed = map(packed_numbers, self.location.names())
            last = self._last_file(max([known, *(numbers[-1] for numbers in packed if numbers)]))
        if last > known:
            self._paths |= {number: self.path(number) for number in range(known + 1, last + 1)}
            self._metadata.clear()

    def _last_file(self, number: int) -> int:
        """Return the number of the last segment after `number` that has a file of its own.

        The search ends before the first segment that does not exist or is in a pack. The result is `number`
        if the next segment has no file of its own.
        """
        while self.path(number + 1).is_file:
            number += 1
        return number

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
        first = self.beginning.segment if is_whole else min(checked, default=1)
        if texts := list(find_inconsistencies(self.metadata(checked), first)):
            raise RecordingError(f"{self.location}: {listed(texts, '; ')}")

    def check_not_pruned(self, number: int) -> None:
        """Read again where the recording begins, and check that a segment was not pruned.

        Raises:
            RecordingError: The segment was pruned.
        """
        self.beginning = read_beginning(self._folder)
        if number < self.beginning.segment:
            raise RecordingError(
                f"{self.location}: segment {number} was pruned: the recording begins with segment "
                f"{self.beginning.segment} (LSN {format_lsn(self.beginning.lsn)}) and lacks earlier changes. "
                f"Read a copy of the recording that has segment {number}, or record anew in another folder"
            )

    def check_begins_before(self, lsn: int) -> None:
        """Check that no transaction with a commit LSN of at least `lsn` was pruned.

        Raises:
            RecordingError: Segments that may have such transactions were pruned.
        """
        if self.beginning.lsn > lsn:
            self.check_not_pruned(self.beginning.segment - 1)

    def _read_metadata(self, numbers: Iterable[int]) -> None:
        if not (unread := [self.path(number) for number in numbers if number not in self._metadata]):
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for path, (metadata, size) in zip(unread, pool.map(self._read, unread), strict=True):
                if metadata.number != segment_number(path):
                    raise RecordingError(
                        f"{path}: the file contains segment {metadata.number}, so its name is wrong: rename "
                        f"it to {segment_name(metadata.number)}"
                    )
                incomplete = self._incomplete.setdefault(metadata.incomplete, metadata.incomplete)
                self._metadata[metadata.number] = replace(metadata, incomplete=incomplete), size

    def _read(self, path: Location) -> tuple[Metadata, int]:
        """Return a segment's metadata, and the size of its rows before compression, in bytes."""
        try:
            with SegmentReader(path) as segment:
                return segment.metadata, segment.size
        except RecordingError:
            self.check_not_pruned(segment_number(path))
            raise


def _is_segment(location: Location) -> bool:
    return location.path.endswith(SUFFIX)
