"""Locations of recordings: local paths, and URIs of the filesystems that pyarrow supports."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import PathLike, fspath
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import fs

from logicalrep._text import one_line
from logicalrep.errors import RecordingError
from logicalrep.recording.object_store import parse_store_url, store_filesystem
from logicalrep.recording.segment_file import SUFFIX, segment_name
from logicalrep.recording.segment_format import SchemaVersion, decode_metadata
from logicalrep.wire import is_utf8, shown_text

PathOrUri: TypeAlias = str | PathLike[str]
"""A local path, the URL of an object store such as `s3://bucket/recording`, or a URI for pyarrow."""

SNAPSHOT: Final = "snapshot"
"""Name of the folder in a recording that contains the segments of the snapshot."""

COPIES: Final = ".tables.partial"
"""Name of the folder in a recording with the rows of tables that the recorder is copying."""

STATE_FILE: Final = "_recording.json"
"""Name of the file with the recorder's state, in the folder of a recording.

Parquet readers skip names that begin with an underscore."""

BEGINNING_FILE: Final = "_pruned.json"
"""Name of the file that says where a pruned recording begins, in the folder of the recording."""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SECRET: Final = re.compile(r"(://[^:@/]*:)[^@/]*(@)")
"""Pattern for the password in a URI; errors must not show passwords."""

_NAME: Final = re.compile(rf"([0-9]+){re.escape(SUFFIX)}")
_PACK: Final = re.compile(r"([0-9]{10})-([0-9]{10})\.zip")

_LISTINGS: Final = 3
"""Maximum number of attempts to list the segments; one listing can lack some of them."""

_READS: Final = 10
"""Maximum number of attempts to read an object that may be replaced meanwhile."""


class Location(msgspec.Struct, frozen=True):
    """Location of a file or folder, which may not exist, in a local or remote filesystem.

    The operator `/` appends a file name. `str` shows `***` in place of a password.
    """

    place: str
    """The location as a path or URI, as `locate` accepts it; may contain a password."""
    filesystem: fs.FileSystem
    path: str
    """Path of the file or folder within `filesystem`."""

    def __truediv__(self, name: str) -> Location:
        return self._with(lambda path: f"{path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return _SECRET.sub(r"\1***\2", self.place)

    @property
    def parent(self) -> Location:
        """Location of the containing folder."""
        return self._with(lambda path: path.rpartition("/")[0] or ".")

    def _with(self, change: Callable[[str], str]) -> Location:
        path, mark, query = self.place.partition("?" if _URI.match(self.place) else "\0")
        return Location(f"{change(path)}{mark}{query}", self.filesystem, change(self.path))

    @property
    def is_folder(self) -> bool:
        """Whether the location is an existing folder."""
        return bool(self._info().type == fs.FileType.Directory)

    @property
    def is_file(self) -> bool:
        """Whether the location is an existing file."""
        if self.is_local:
            return bool(self._info().type == fs.FileType.File)
        try:  # one request; a query of the type of a missing path takes two
            self.filesystem.open_input_file(self.path).close()
        except FileNotFoundError:
            return False
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(f"{self}: the file cannot be opened: {one_line(error)}") from error
        return True

    @property
    def modified(self) -> int | None:
        """Time of the last change, in nanoseconds since 1970; None if it is unknown or nothing exists."""
        time: int | None = self._info().mtime_ns
        return time

    def names(self) -> list[str]:
        """Return the names of the folder's files and folders; an empty list if the folder does not exist.

        Raises:
            RecordingError: The filesystem cannot be read, or a name is not valid UTF-8.
        """
        try:
            selector = fs.FileSelector(self.path, allow_not_found=True)
            return [info.base_name for info in self.filesystem.get_file_info(selector)]
        except UnicodeDecodeError as error:
            name = shown_text(error.object.decode("utf-8", "surrogateescape"))
            raise RecordingError(
                f"{self}: the name of {name} is not valid UTF-8: rename or remove it"
            ) from None
        except (OSError, pa.ArrowException) as error:
            if self.is_local and isinstance(error, FileNotFoundError):
                return []  # another process has created the folder between Arrow's two requests
            raise RecordingError(f"{self}: the folder cannot be listed: {one_line(error)}") from error

    def content(self) -> bytes | None:
        """Return the bytes of a small file; None if the file does not exist.

        Raises:
            RecordingError: The file cannot be read.
        """
        try:
            for _ in range(_READS):
                with self.filesystem.open_input_file(self.path) as file:
                    content = bytes(file.read())
                # Return the content only if it has the size of the object. Arrow asks for the size first: if
                # the object is replaced before it is read, its content is cut off, or other bytes follow.
                if self.is_local or self._info().size in (len(content), None):
                    return content
        except (OSError, pa.ArrowException) as error:
            # An object that is removed after Arrow has asked for its size fails with another OSError.
            if isinstance(error, FileNotFoundError) or self._info().type == fs.FileType.NotFound:
                return None
            raise RecordingError(f"{self}: the file cannot be read: {one_line(error)}") from error
        raise RecordingError(
            f"{self}: in {_READS} attempts, the store returned another number of bytes than the size that it "
            "reports: store the object without a Content-Encoding"
        )

    @property
    def is_local(self) -> bool:
        """Whether the location is in the local filesystem."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def _info(self) -> fs.FileInfo:
        try:
            return self.filesystem.get_file_info(self.path)
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(f"{self}: the filesystem cannot be queried: {one_line(error)}") from error


def locate(place: PathOrUri) -> Location:
    """Return the location of a path or URI; existence is not checked.

    Raises:
        RecordingError: pyarrow does not support the URI, a setting of the object store is missing, or the
            path is not valid UTF-8.
    """
    text = fspath(place)
    if not is_utf8(text):
        raise RecordingError(
            f"{text}: the path is not valid UTF-8, so Arrow cannot open it: rename the file or folder"
        )
    if not _URI.match(text):
        return Location(text, fs.LocalFileSystem(), text)
    try:
        url = parse_store_url(text)
        return Location(text, *(fs.FileSystem.from_uri(text) if url is None else store_filesystem(url)))
    except (OSError, ValueError, pa.ArrowException) as error:
        shown = _SECRET.sub(r"\1***\2", text)
        raise RecordingError(
            f"{shown}: the URI cannot be opened ({one_line(error).replace(text, shown)})"
        ) from error


def find_segments(folder: Location) -> list[Location]:
    """Return the locations of a recording's segments in order, the snapshot's segments first; may be empty.

    Pruned segments are left out, even if their files still exist. A segment in a pack is returned with the
    location that it had as a separate file; `SegmentReader` then reads it from the pack.

    Raises:
        RecordingError: The filesystem cannot be read, or a name is not valid UTF-8.
    """
    return list_recording(folder)[0]


def list_recording(folder: Location) -> tuple[list[Location], Beginning]:
    """Return the locations of a recording's segments, as `find_segments` does, and where it begins.

    Raises:
        RecordingError: The filesystem cannot be read, or a name is not valid UTF-8.
    """
    found: list[Location] = []
    beginning = Beginning()
    for _ in range(_LISTINGS):
        before = len(found)
        listed = [
            (parent / name, name)
            for parent in (folder / SNAPSHOT, folder)
            for name in sorted(_segment_names(parent))
        ]
        beginning = read_beginning(folder)  # read last: pruned segments are not missing
        found = [place for place, name in listed if name >= segment_name(beginning.segment)]
        # Stop if no segment is missing, or if this listing has as many segments as the one before. A listing
        # can lack both a new pack (a ZIP file of segments) and the segments that the pack replaces; the next
        # listing has the pack.
        last = segment_name(beginning.segment + len(found) - 1)
        if not found or len(found) == before or found[-1].path.endswith(last):
            break
    return found, beginning


def _segment_names(folder: Location) -> set[str]:
    """Return the file names of the segments in a folder, also of those in packs."""
    names = folder.names()
    packed = {segment_name(number) for name in names for number in packed_numbers(name)}
    return packed.union(name for name in names if name[0].isdigit() and name.endswith(SUFFIX))


def pack_name(first: int, last: int) -> str:
    """Return the file name of the pack that contains the segments number `first` to `last`."""
    return f"{first:010}-{last:010}.zip"


def packed_numbers(name: str) -> range:
    """Return the numbers of the segments in a pack, given its name or path; empty for other files."""
    match = _PACK.fullmatch(name.rpartition("/")[2])
    return range(int(match[1]), int(match[2]) + 1) if match else range(0)


def segment_number(location: Location) -> int:
    """Return the number of a segment, from its file name.

    Raises:
        RecordingError: The file name is not that of a segment.
    """
    match = _NAME.fullmatch(location.path.rpartition("/")[2])
    if match is None:
        raise RecordingError(f"{location}: expected the file name of a segment, such as 0000000001{SUFFIX}")
    return int(match[1])


class _State(msgspec.Struct):
    """The field of the recorder's state file that readers of a recording need."""

    last_segment: int = 0


_STATE: Final = msgspec.json.Decoder(_State)


def last_acknowledged(folder: Location) -> int:
    """Return the number of the last segment that the recorder acknowledged to the server; 0 if unknown.

    The recorder stores a segment before it writes the segment's number to its state file. If the
    folder is listed after this call, an acknowledged segment that is missing from the list was removed.

    Raises:
        RecordingError: The recorder's state file cannot be read.
    """
    file = folder / STATE_FILE
    content = file.content()
    if content is None:
        return 0
    try:
        return _STATE.decode(content).last_segment
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{file}: the file is damaged ({error}): restore it from a copy") from None


class Beginning(msgspec.Struct, frozen=True):
    """Where a recording begins, if earlier segments were pruned; the defaults mean that none was pruned."""

    segment: int = 1
    """Number of the first segment."""
    lsn: int = 0
    """End LSN of the last pruned segment; 0 if nothing was pruned."""
    time: str = ""
    """Time of the last pruning, in UTC, such as `2026-01-31 12:00:00+00:00`; empty if nothing was pruned."""
    relations: tuple[SchemaVersion, ...] = ()
    """The last schema version that each relation had in the pruned segments."""


_BEGINNING: Final = msgspec.json.Decoder(Beginning)


def read_beginning(folder: Location) -> Beginning:
    """Return where a recording begins, from the file `_pruned.json` in its folder.

    Raises:
        RecordingError: The file cannot be read.
    """
    file = folder / BEGINNING_FILE
    content = file.content()
    try:
        return Beginning() if content is None else decode_metadata(content, _BEGINNING)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RecordingError(f"{file}: the file is damaged ({error}): restore it from a copy") from None
