"""Tables that were set aside because their changes could not be applied, and the batches they have missed.

A target has a folder `_set_aside/OID` for each such table: a file `error`, and for each batch that had
changes of the table a file with the numbers of its segments. A batch is noted before the query's checkpoint
counts it as done, so no change is lost. A table that has missed batches is set aside, also if the file
`error` is lost.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location
from pgoutput.replica.storage import read_file, remove_empty_folder, remove_file, write_file

_FOLDER: Final = "_set_aside"
_ERROR: Final = "error"
_UNKNOWN: Final = "batches were missed; why is not known"


class Aside(msgspec.Struct, frozen=True):
    """A table that was set aside."""

    oid: int
    namespace: str
    name: str
    error: str


class Missed(msgspec.Struct, frozen=True):
    """A batch whose changes a table lacks, wholly or in part."""

    batch: int
    first: int
    """Number of the batch's first segment."""
    last: int


def read_aside(target: Location) -> dict[int, Aside]:
    """Return the tables that are set aside, by OID of the relation.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder = target / _FOLDER
    found = (_read(folder / str(oid), oid) for oid in _numbers(folder))
    return {aside.oid: aside for aside in found if aside is not None}


def _read(folder: Location, oid: int) -> Aside | None:
    if text := read_file(folder / _ERROR):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=Aside)
    return Aside(oid, "", "", _UNKNOWN) if _numbers(folder) else None


def set_aside(target: Location, aside: Aside, missed: Missed | None = None) -> None:
    """Note that a table is set aside, and a batch that it has missed.

    Raises:
        ReplicaError: The target cannot be written.
    """
    folder = target / _FOLDER / str(aside.oid)
    if missed is not None:
        write_file(folder / str(missed.batch), msgspec.json.encode(missed).decode())
    write_file(folder / _ERROR, msgspec.json.encode(aside).decode())


def read_missed(target: Location, oid: int) -> list[Missed]:
    """Return the batches that a table has missed, in order.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder = target / _FOLDER / str(oid)
    return [_missed(folder / str(batch)) for batch in _numbers(folder)]


def _missed(file: Location) -> Missed:
    try:
        return msgspec.json.decode(read_file(file), type=Missed)
    except msgspec.DecodeError as error:
        raise ReplicaError(f"{file}: {error}. Begin anew, with an empty target") from error


def catch_up(target: Location, oid: int, batch: int) -> None:
    """Note that a table has a batch that it had missed.

    Raises:
        ReplicaError: The target cannot be written.
    """
    remove_file(target / _FOLDER / str(oid) / str(batch))


def take_back(target: Location, oid: int) -> None:
    """Note that a table is no longer set aside, unless it has missed another batch meanwhile.

    Raises:
        ReplicaError: The target cannot be written.
    """
    folder = target / _FOLDER / str(oid)
    if _ERROR in folder.names():
        remove_file(folder / _ERROR)
    remove_empty_folder(folder)


def _numbers(folder: Location) -> list[int]:
    return sorted(int(name) for name in folder.names() if name.isdecimal())
