"""Pack small segments, so that a recording with short segments does not have many files.

When there are enough small segments, one pack replaces them. When there are enough packs, a larger pack
replaces these. A pack is flushed to the disk before the files that it replaces are removed. After a crash in
between, the pack and these files have the same content; the next session removes the files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import ceil
from queue import SimpleQueue
from threading import Thread
from typing import Final

import msgspec

from logicalrep.recording import Directory, pack_name, packed_numbers, segment_name, write_pack

_LOG: Final = logging.getLogger(__name__)

FILE_SECONDS: Final = 10.0
"""Least number of seconds that a pack covers, unless it is large. Segments that cover more are not packed."""

_PACK_BYTES: Final = 64 << 20
"""Largest size of a pack, in bytes."""

_PACK_SEGMENTS: Final = 10_000
"""Largest number of segments in a pack."""

_PACKS: Final = 10
"""Number of packs that a larger pack replaces."""

_MOST_SEGMENTS: Final = 100
"""Largest number of segments that are awaited before the first pack, even if segments are very short."""

_LEVELS: Final = 3
"""Number of sizes of packs, each `_PACKS` times the one before."""


class _File(msgspec.Struct, frozen=True):
    """A segment, or a pack (a file of several segments), in the folder of a recording."""

    name: str
    first: int
    """Number of the file's first segment."""
    last: int
    bytes: int

    @property
    def segments(self) -> int:
        """Number of segments in the file."""
        return self.last - self.first + 1


class Packer:
    """Replaces small segments by packs (files of several segments) while the recording is written.

    Files that pruning removes meanwhile are not packed.

    Args:
        directory: Folder of the recording. Files that are part of a pack are removed from it.
        segment_seconds: Age in seconds at which a segment ends. Segments of `FILE_SECONDS` or more are not
            packed.
        kept: Numbers of segments whose files are not removed when a pack contains the segments.

    Raises:
        OSError: The folder cannot be read, or a file cannot be removed.
    """

    def __init__(self, directory: Directory, segment_seconds: float, kept: Collection[int] = ()) -> None:
        self._directory = directory
        self._kept = {segment_name(number) for number in kept}
        self._least = _packed_at_once(segment_seconds)
        self._files: list[_File] = []
        packed = []
        for file in sorted(self._stored(), key=lambda file: (file.first, -file.last)):
            if self._files and file.last <= self._files[-1].last:
                packed.append(file)
            else:
                self._files.append(file)
        self._remove(packed)

    def add(self, number: int) -> None:
        """Note that a segment was stored, and pack segments if enough are stored.

        The newest segment stays a file of its own.

        Args:
            number: Number of the segment.

        Raises:
            OSError: A file cannot be read, written or removed.
        """
        if self._least == 1 or (self._files and number <= self._files[-1].last):
            return
        name = segment_name(number)
        self._files.append(_File(name, number, number, self._directory.size(name)))
        while files := self._next_files():
            self._pack(files)

    def _stored(self) -> Iterator[_File]:
        for name, size in self._directory.sizes().items():
            if numbers := packed_numbers(name):
                yield _File(name, numbers[0], numbers[-1], size)
            elif name[:-8].isdecimal() and name == segment_name(int(name[:-8])):
                yield _File(name, int(name[:-8]), int(name[:-8]), size)

    def _next_files(self) -> Sequence[_File]:
        """Return the next files to be replaced by a pack; an empty sequence if there are too few."""
        end = len(self._files) - 1
        for level in range(_LEVELS):
            begin = end
            while begin and self._fits(begin - 1, begin == end, self._least * _PACKS**level):
                begin -= 1
            *full, last = _groups(self._files[begin:end])
            for group in full:
                if len(group) > 1:
                    return group
            if len(last) >= (_PACKS if level else self._least):
                return last
            end = begin
        return ()

    def _fits(self, place: int, is_last: bool, limit: int) -> bool:
        """Return whether a file, which may be a pack, can become part of a new pack.

        It can if it has fewer than `limit` segments, and the next file begins with the next segment number.

        Args:
            place: Index of the file in `_files`.
            is_last: Whether the file is the last of the new pack; then the next file is not checked.
            limit: Number of segments from which on a file is too large.
        """
        file = self._files[place]
        return file.segments < limit and (is_last or file.last + 1 == self._files[place + 1].first)

    def _pack(self, files: Sequence[_File]) -> None:
        first, last, directory = files[0].first, files[-1].last, self._directory
        name = pack_name(first, last)
        with ExitStack() as opened:
            try:
                sources = [(file.name, opened.enter_context(directory.open(file.name))) for file in files]
            except FileNotFoundError:
                self._forget_removed(directory)
                return
            pack = opened.enter_context(directory.create(name))
            write_pack(pack, sources)
            pack.flush()
            os.fsync(pack.fileno())
            size = pack.tell()
        directory.publish(name)
        place = self._files.index(files[0])
        self._files[place : place + len(files)] = [_File(name, first, last, size)]
        self._remove(files)

    def _remove(self, files: Iterable[_File]) -> None:
        """Remove files whose segments are in a pack."""
        if names := [file.name for file in files if file.name not in self._kept]:
            self._directory.remove(*names)

    def _forget_removed(self, directory: Directory) -> None:
        names = {*directory.names()}
        self._files = [file for file in self._files if file.name in names]


class PackerThread:
    """A thread that packs segments in an object store, because each request takes time; a context manager.

    If packing fails, the segments stay separate objects, and the thread tries again when the next segment is
    stored.

    Args:
        directory: The recording. Objects that are part of a pack are removed from it.
        segment_seconds: Age in seconds at which a segment ends.
        kept: Numbers of segments whose objects are not removed when a pack contains the segments.
    """

    def __init__(self, directory: Directory, segment_seconds: float, kept: Collection[int]) -> None:
        self._begin = partial(Packer, directory, segment_seconds, kept)
        self._is_needed = _packed_at_once(segment_seconds) > 1
        self._numbers: SimpleQueue[int | None] = SimpleQueue()
        self._is_over = False
        self._thread = Thread(target=self._run, name="logicalrep-packer", daemon=True)

    def __enter__(self) -> PackerThread:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the thread when the pack that it is writing is finished."""
        self._is_over = True
        self._numbers.put(None)
        self._thread.join()

    def add(self, number: int) -> None:
        """Note that a segment was stored; the thread packs segments if enough are stored."""
        if self._is_needed:
            self._numbers.put(number)

    def _run(self) -> None:
        packer: Packer | None = None
        while (number := self._numbers.get()) is not None and not self._is_over:
            try:
                if packer is None:
                    packer = self._begin()  # the listing contains `number` already
                else:
                    packer.add(number)
            except Exception as error:  # the recorder goes on without packs
                _LOG.warning("segments cannot be packed; the next segment starts another try: %s", error)
                packer = None


def _packed_at_once(segment_seconds: float) -> int:
    """Return how many segments are awaited before a pack replaces them; 1 if segments are not packed.

    Segments that cover `FILE_SECONDS` or more are not packed.
    """
    return min(ceil(FILE_SECONDS / max(segment_seconds, 0.001)), _MOST_SEGMENTS)


def _groups(files: Iterable[_File]) -> list[list[_File]]:
    """Divide successive files into the fewest groups that each fit into a pack; `[[]]` without files."""
    groups: list[list[_File]] = [[]]
    size = segments = 0
    for file in files:
        size, segments = size + file.bytes, segments + file.segments
        if groups[-1] and (size > _PACK_BYTES or segments > _PACK_SEGMENTS):
            groups.append([])
            size, segments = file.bytes, file.segments
        groups[-1].append(file)
    return groups
