"""Tables that were set aside because their changes could not be applied, and the batches they have missed.

A target has a folder `_set_aside/OID` for each such table: a file `error`, and for each batch that had
changes of the table a file with the numbers of its segments. A batch is noted before the query's checkpoint
counts it as done, so no change is lost.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from pgoutput.errors import CaptureError
from pgoutput.replica.storage import read_file, remove_file, remove_folder, write_file
from pgoutput.segments.location import Location

_FOLDER: Final = "_set_aside"
_ERROR: Final = "error"


T = TypeVar("T")


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
        CaptureError: The target cannot be read.
    """
    folder = target / _FOLDER
    texts = {oid: read_file(folder / str(oid) / _ERROR) for oid in _numbers(folder)}
    return {oid: _decode(folder / str(oid) / _ERROR, text, Aside) for oid, text in texts.items() if text}


def set_aside(target: Location, aside: Aside, missed: Missed | None = None) -> None:
    """Note that a table is set aside, and a batch that it has missed.

    Raises:
        CaptureError: The target cannot be written.
    """
    folder = target / _FOLDER / str(aside.oid)
    if missed is not None:
        write_file(folder / str(missed.batch), msgspec.json.encode(missed).decode())
    write_file(folder / _ERROR, msgspec.json.encode(aside).decode())


def read_missed(target: Location, oid: int) -> list[Missed]:
    """Return the batches that a table has missed, in order.

    Raises:
        CaptureError: The target cannot be read.
    """
    folder = target / _FOLDER / str(oid)
    files = [folder / str(batch) for batch in _numbers(folder)]
    return [_decode(file, read_file(file), Missed) for file in files]


def catch_up(target: Location, oid: int, batch: int) -> None:
    """Note that a table has a batch that it had missed.

    Raises:
        CaptureError: The target cannot be written.
    """
    remove_file(target / _FOLDER / str(oid) / str(batch))


def take_back(target: Location, oid: int) -> None:
    """Note that a table is no longer set aside.

    Raises:
        CaptureError: The target cannot be written.
    """
    folder = target / _FOLDER / str(oid)
    remove_file(folder / _ERROR)
    remove_folder(folder)


def _numbers(folder: Location) -> list[int]:
    return sorted(int(name) for name in folder.names() if name.isdecimal())


def _decode(file: Location, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise CaptureError(f"{file}: {error}") from error
