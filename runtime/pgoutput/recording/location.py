"""Locations of recordings: local paths, and URIs of the filesystems that pyarrow supports."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import PathLike, fspath
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import fs

from pgoutput._text import one_line
from pgoutput.errors import RecordingError
from pgoutput.recording.segment_file import SUFFIX
from pgoutput.wire import is_utf8, shown_text

PathOrUri: TypeAlias = str | PathLike[str]
"""A local path, or a URI for `pyarrow.fs.FileSystem.from_uri`, such as `s3://bucket/recording`."""

SNAPSHOT: Final = "snapshot"
"""Name of the folder in a recording that contains the segments of the snapshot."""

STATE_FILE: Final = "_recording.json"
"""Name of the file with the recorder's state, in the folder of a recording.

Parquet readers skip names that begin with an underscore."""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SECRET: Final = re.compile(r"(://[^:@/]*:)[^@/]*(@)")
"""Pattern for the password in a URI; errors must not show passwords."""

_NAME: Final = re.compile(rf"([0-9]+){re.escape(SUFFIX)}")


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
            raise RecordingError(f"{self}: {one_line(error)}") from error

    def content(self) -> bytes | None:
        """Return the bytes of a small file; None if the file does not exist.

        Raises:
            RecordingError: The file cannot be read.
        """
        try:
            with self.filesystem.open_input_file(self.path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(f"{self}: {one_line(error)}") from error

    def _info(self) -> fs.FileInfo:
        try:
            return self.filesystem.get_file_info(self.path)
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(f"{self}: {one_line(error)}") from error


def locate(place: PathOrUri) -> Location:
    """Return the location of a path or URI; existence is not checked.

    Raises:
        RecordingError: pyarrow does not support the URI, or the path is not valid UTF-8.
    """
    text = fspath(place)
    if not is_utf8(text):
        raise RecordingError(
            f"{text}: Arrow opens no path that is not valid UTF-8: rename the file or folder"
        )
    if not _URI.match(text):
        return Location(text, fs.LocalFileSystem(), text)
    try:
        return Location(text, *fs.FileSystem.from_uri(text))
    except (OSError, ValueError, pa.ArrowException) as error:
        shown = _SECRET.sub(r"\1***\2", text)
        raise RecordingError(f"{shown}: {one_line(error).replace(text, shown)}") from error


def find_segments(folder: Location) -> list[Location]:
    """Return the locations of a recording's segments in order, the snapshot's segments first; may be empty.

    Raises:
        RecordingError: The filesystem cannot be read, or a name is not valid UTF-8.
    """
    return [
        parent / name
        for parent in (folder / SNAPSHOT, folder)
        for name in sorted(parent.names())
        if name[0].isdigit() and name.endswith(SUFFIX)
    ]


def segment_number(location: Location) -> int:
    """Return the number of a segment, from its file name.

    Raises:
        RecordingError: The file name is not that of a segment.
    """
    match = _NAME.fullmatch(location.path.rpartition("/")[2])
    if match is None:
        raise RecordingError(f"{location}: not the name of a segment; segments are called 0000000001{SUFFIX}")
    return int(match[1])


class _State(msgspec.Struct):
    """The fields of the recorder's state file that readers of a recording need."""

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
        raise RecordingError(f"{file}: it cannot be read ({error})") from None
