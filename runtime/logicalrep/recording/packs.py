"""Packs: ZIP files of successive small segments, so that a recording has few files.

The members of a pack are segment files, byte for byte, stored without compression. The name of a pack
contains the numbers of its segments. Readers open a segment by its path, as if the segment were a file of
its own.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from shutil import copyfileobj
from typing import IO, BinaryIO, Final

import pyarrow as pa

from logicalrep.errors import RecordingError
from logicalrep.recording.location import Location, packed_numbers, segment_number
from logicalrep.recording.segment_file import segment_name

_COPY_BYTES: Final = 1 << 20
"""Number of bytes that are copied at once."""

_ATTEMPTS: Final = 3
"""Maximum number of attempts to open a segment, because a larger pack can replace the pack meanwhile."""

_END: Final = struct.Struct("<4s6xHIIH")
"""End of the central directory: signature, number of entries, size, offset, length of the comment."""

_ENTRY: Final = struct.Struct("<4s6xH8xII14xI")
"""Entry of the central directory: signature, method, stored and original size, offset of the member."""

_MEMBER: Final = struct.Struct("<4s22xHH")
"""Header of a member: signature, lengths of its name and of its extra fields."""

_NAME_BYTES: Final = len(segment_name(1))


class StoredSegment(io.RawIOBase):
    """A segment, opened as a readable file; the segment may be in a pack, a file of several segments.

    Reading can go on after a pack has replaced the segment's file, or a larger pack has replaced the pack.

    Attributes:
        file: Location of the file that contains the segment: a pack, or the segment's own file.

    Args:
        segment: Location of the segment.

    Raises:
        FileNotFoundError: The segment does not exist.
        RecordingError: The folder cannot be read.
        OSError: The pack is damaged, or the storage failed.
    """

    def __init__(self, segment: Location) -> None:
        self._segment = segment
        self._position = 0
        self._file: pa.NativeFile = pa.BufferReader(b"")  # for `close`, if the segment cannot be opened
        self._open()

    def _open(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._find()
            except FileNotFoundError:
                raise
            except OSError:  # maybe the pack was removed after it was opened
                if self._segment.is_local or attempt == _ATTEMPTS:
                    raise

    def _find(self) -> None:
        segment = self._segment
        try:
            self.file: Location = segment
            self._file = segment.filesystem.open_input_file(segment.path)
        except FileNotFoundError:
            if (packed := _open_pack(segment)) is None:
                raise
            self.file, self._file = packed
        if self.file is segment:
            self._begin, self._size = 0, self._file.size()
            return
        try:
            number = segment_number(segment)
            self._begin, self._size = _member(self._file, number - packed_numbers(self.file.path)[0], number)
        except (struct.error, ValueError) as error:
            self._file.close()
            raise OSError(f"the pack {self.file} is damaged ({error}): restore it from a copy") from None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def tell(self) -> int:
        """Return the position in the segment, in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position in the segment; return the new position."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes, or fewer at the end; all bytes if `size` is None or negative."""
        left = max(self._size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                data = self._file.read_at(count, self._begin + self._position)
                break
            except OSError:
                # Raise the error of a local file: an open file stays readable after its removal, so opening
                # it again would not help. An object may have been replaced by a pack: find and open it again.
                if self._segment.is_local or attempt == _ATTEMPTS:
                    raise
                self._file.close()
                self._open()
        self._position += len(data)
        return bytes(data)


def _member(file: pa.NativeFile, index: int, number: int) -> tuple[int, int]:
    """Return offset and size of the member at `index` in a pack, which is the segment `number`.

    All names have the same length, so that only one entry of the central directory is read.

    Raises:
        ValueError: The pack is damaged.
        struct.error: The pack is too short.
    """
    end, entries, size, offset, _ = _END.unpack(file.read_at(_END.size, max(file.size() - _END.size, 0)))
    step = size // max(entries, 1)
    entry = file.read_at(step, offset + index * step)
    mark, method, stored, length, begin = _ENTRY.unpack_from(entry)
    name = entry[-_NAME_BYTES:].decode(errors="replace")
    listed = (end, mark, method, name) == (b"PK\5\6", b"PK\1\2", 0, segment_name(number))
    header, *lengths = _MEMBER.unpack_from(file.read_at(_MEMBER.size, begin))
    if not listed or index >= entries or header != b"PK\3\4" or stored != length:
        raise ValueError(f"the ZIP directory has no valid entry for {segment_name(number)}")
    return begin + _MEMBER.size + sum(lengths), length


def _open_pack(segment: Location) -> tuple[Location, pa.NativeFile] | None:
    """Open the pack that contains a segment; return its location and file, or None if there is no pack."""
    folder = segment.parent
    try:
        number = segment_number(segment)
    except RecordingError:
        return None
    for attempt in range(_ATTEMPTS):
        if attempt or folder.place not in _PACKS:
            packs = ((packed_numbers(name), folder / name) for name in folder.names())
            _PACKS[folder.place] = [(numbers, pack) for numbers, pack in packs if numbers]
        for pack in [pack for numbers, pack in _PACKS[folder.place] if number in numbers]:
            with suppress(FileNotFoundError):  # the pack is part of a larger pack now
                return pack, pack.filesystem.open_input_file(pack.path)
    return None


_PACKS: Final[dict[str, list[tuple[range, Location]]]] = {}
"""Maps a folder's path or URI to the packs in its last listing: segment numbers and location of each."""


def write_pack(file: BinaryIO, sources: Iterable[tuple[str, BinaryIO]]) -> None:
    """Write a pack, a ZIP file that contains several segments.

    Args:
        file: The file to write, empty.
        sources: Names and contents of successive files: segments, and packs whose segments are copied one by
            one.

    Raises:
        OSError: A file cannot be read or written, or a pack is damaged.
    """
    with zipfile.ZipFile(file, "w") as pack:
        for name, source in sources:
            try:
                for member, content in _segments_of(name, source):
                    with pack.open(zipfile.ZipInfo(member), "w") as out:
                        copyfileobj(content, out, _COPY_BYTES)
            except zipfile.BadZipFile as error:
                raise OSError(f"the pack {name} is damaged ({error}): restore it from a copy") from None


def _segments_of(name: str, file: BinaryIO) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield names and contents of the segments in a file, which is a segment or a pack."""
    if not packed_numbers(name):
        yield name, file
        return
    with zipfile.ZipFile(file) as pack:
        for member in pack.infolist():
            with pack.open(member) as content:
                yield member.filename, content
