"""Where segments lie: in a folder of this machine, or of any filesystem that pyarrow reaches."""

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
from pgoutput.recording.files import SUFFIX
from pgoutput.wire import is_utf8, shown_text

Place: TypeAlias = str | PathLike[str]
"""A path of this machine, or a URI as `pyarrow.fs.FileSystem.from_uri` takes it: `s3://bucket/recording`."""

SNAPSHOT: Final = "snapshot"
"""The folder, inside that of a recording, with the segments of the snapshot."""

STATE_FILE: Final = "_recording.json"
"""The recorder's state, in the folder of a recording. Readers of Parquet skip such names."""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SECRET: Final = re.compile(r"(://[^:@/]*:)[^@/]*(@)")
"""The password in a URI, which is not to stand in errors."""

_NAME: Final = re.compile(rf"([0-9]+){re.escape(SUFFIX)}")


class Location(msgspec.Struct, frozen=True):
    """A file or folder."""

    place: str
    """As `locate` takes it."""
    filesystem: fs.FileSystem
    path: str
    """In the filesystem."""

    def __truediv__(self, name: str) -> Location:
        return self._with(lambda path: f"{path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return _SECRET.sub(r"\1***\2", self.place)

    @property
    def parent(self) -> Location:
        """The folder that it is in."""
        return self._with(lambda path: path.rpartition("/")[0] or ".")

    def _with(self, change: Callable[[str], str]) -> Location:
        path, mark, query = self.place.partition("?" if _URI.match(self.place) else "\0")
        return Location(f"{change(path)}{mark}{query}", self.filesystem, change(self.path))

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder that is there."""
        return bool(self._info().type == fs.FileType.Directory)

    def names(self) -> list[str]:
        """The names in the folder; none if it is not there.

        Raises:
            RecordingError: The filesystem does not answer.
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
        """Return the bytes of a small file; None if it does not exist.

        Raises:
            RecordingError: It cannot be read.
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


def locate(place: Place) -> Location:
    """Where a path or URI leads.

    Raises:
        RecordingError: It is a URI that pyarrow does not know, or not valid UTF-8.
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
    """The segments of a recording, in their order: those of the snapshot first."""
    parts = (folder / SNAPSHOT, folder)
    return [
        part / name
        for part in parts
        for name in sorted(part.names())
        if name[0].isdigit() and name.endswith(SUFFIX)
    ]


def segment_number(location: Location) -> int:
    """The number of a segment, by its name.

    Raises:
        RecordingError: It has another name.
    """
    match = _NAME.fullmatch(location.path.rpartition("/")[2])
    if match is None:
        raise RecordingError(f"{location}: no segment has such a name; they are called 0000000001{SUFFIX}")
    return int(match[1])


class _State(msgspec.Struct):
    """What readers need of the recorder's state. Unknown fields are ignored."""

    last_segment: int = 0


_STATE: Final = msgspec.json.Decoder(_State)


def last_acknowledged(folder: Location) -> int:
    """Return the number of the last segment that the recorder acknowledged to the server; 0 if unknown.

    The recorder stores segments first and writes this number afterwards. Read it before the folder is
    listed: a segment that is then not in the folder was removed.

    Raises:
        RecordingError: The folder's state file cannot be read.
    """
    file = folder / STATE_FILE
    content = file.content()
    if content is None:
        return 0
    try:
        return _STATE.decode(content).last_segment
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{file}: it cannot be read ({error})") from None
