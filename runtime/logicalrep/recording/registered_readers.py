"""The readers that are registered in a recording: `prune` keeps the segments that they have not read."""

from __future__ import annotations

from typing import Final

import msgspec

from logicalrep.errors import RecordingError
from logicalrep.recording.location import Location

_FOLDER: Final = "_readers"
_SUFFIX: Final = ".json"


class Reader(msgspec.Struct, frozen=True):
    """A reader that is registered in a recording: the recording keeps the segments that it has not read."""

    id: str
    """ID of the reader; for a replica, the ID of its query."""
    kind: str
    """What the reader writes: "tables" or "history"."""
    target: str
    """Path or URI of the folder that the reader writes to, without a password."""
    segment: int
    """Number of the last segment that the reader has read completely; 0 if it needs all segments."""
    lsn: int
    """End LSN of the segment with the number `segment`; 0 if the reader needs all segments."""
    time: str
    """When the reader had read that segment, in UTC, such as `2026-01-31 12:00:00+00:00`."""
    host: str
    """Name of the host that the reader ran on."""


_READER: Final = msgspec.json.Decoder(Reader)


def reader_file(folder: Location, id_: str) -> Location:
    """Return the location of the file that registers a reader in the folder of a recording."""
    return folder / _FOLDER / f"{id_}{_SUFFIX}"


def read_readers(folder: Location) -> list[Reader]:
    """Return the readers that are registered in the folder of a recording, sorted by ID.

    Raises:
        RecordingError: A file cannot be read.
    """
    found = []
    for name in sorted((folder / _FOLDER).names()):
        if not name.endswith(_SUFFIX):
            continue
        file = reader_file(folder, name.removesuffix(_SUFFIX))
        content = file.content()
        try:
            if content is not None:  # None: removed since the listing
                found.append(_READER.decode(content))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordingError(
                f"{file}: the registration of a reader is damaged ({error}): remove the file; the reader "
                "will register again"
            ) from None
    return found
