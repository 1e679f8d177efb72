"""Tables of a recording's replicas that were found equal to the source, in one file for each replica.

The files are in the folder of the recording. Older versions of readers and recorders ignore the files.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Final

import msgspec

from logicalrep.errors import RecordingError
from logicalrep.recording.location import Location, PathOrUri, locate
from logicalrep.recording.small_files import replace_file

_PREFIX: Final = "_verified-"
_SUFFIX: Final = ".json"


class Verified(msgspec.Struct, frozen=True):
    """The result of a comparison that found a Delta table equal to its source."""

    lsn: int
    """The table was equal as of this LSN."""
    time: str
    """Time of the comparison in UTC, such as `2026-01-31 12:00:00+00:00`."""
    rows: int
    """Number of compared rows."""


class VerifiedTable(msgspec.Struct, frozen=True):
    """A table of a replica that was found equal to its source."""

    target: str
    """Path or URI of the folder that holds the replica."""
    oid: int
    table: str
    """Name of the table, such as `public.orders`."""
    verified_through: Verified


def store_verified_tables(
    folder: PathOrUri, target: str, equal: Collection[VerifiedTable], compared: Collection[int]
) -> None:
    """Store the results of comparisons in the folder of a recording.

    Only one process at a time may compare a replica; several replicas may be compared at the same time.

    Args:
        folder: Path or URI of the recording.
        target: Path or URI of the folder that holds the replica.
        equal: Tables of the replica that were found equal.
        compared: OIDs of the compared tables, whose earlier results are removed.

    Raises:
        OSError: The file cannot be written.
        RecordingError: The object store refuses the file.
    """
    location = locate(folder)
    name = f"{_PREFIX}{sha256(target.encode()).hexdigest()[:16]}{_SUFFIX}"
    tables = [one for one in _read(location / name) if one.oid not in compared]
    replace_file(location / name, msgspec.json.encode([*tables, *equal]) + b"\n")


def verified_tables(recording: PathOrUri | Location) -> list[VerifiedTable]:
    """Return the tables of a recording's replicas that were equal to the source when last compared.

    Args:
        recording: Path, URI or location of the recording.

    Raises:
        RecordingError: A file cannot be read.
    """
    location = recording if isinstance(recording, Location) else locate(recording)
    names = (name for name in location.names() if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
    return [one for name in sorted(names) for one in _read(location / name)]


def _read(file: Location) -> list[VerifiedTable]:
    try:
        content = file.content()
        return [] if content is None else msgspec.json.decode(content, type=list[VerifiedTable])
    except (OSError, ValueError) as error:
        raise RecordingError(
            f"{file}: the file cannot be read ({error}): remove it, and run `logicalrep verify` again"
        ) from None
