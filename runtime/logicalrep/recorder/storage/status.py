"""The end of a recording, and whether a recorder writes it."""

from __future__ import annotations

import fcntl
import os

import msgspec

from logicalrep.errors import RecordingError
from logicalrep.recorder.storage.folder import LEASE_FILE
from logicalrep.recorder.storage.lease import is_leased
from logicalrep.recording import STATE_FILE, Location, PathOrUri, Recording, locate, parse_store_url
from logicalrep.wire import shown_text


class _State(msgspec.Struct):
    acknowledged_lsn: int | None = None
    place: str = ""


def stored_lsn(folder: PathOrUri) -> int:
    """Return the LSN up to which a recording is known to have all transactions with published changes.

    Raises:
        RecordingError: The folder is not a recording that a recorder has written.
    """
    state = _read_state(folder)
    last = Recording(folder, may_be_empty=True).last
    return max(state.acknowledged_lsn or 0, 0 if last is None else last.end_lsn)


def check_place(folder: PathOrUri) -> None:
    """Check that a recording is where its recorder wrote last; otherwise it may be a copy of the original.

    Do not record into a copy: both recordings have the same slot, so the original would lack the changes that
    the copy gets.

    Raises:
        RecordingError: The recorder wrote elsewhere, or no recorder has written a recording to the folder.
    """
    place, here = _read_state(folder).place, current_place(locate(folder))
    if place and place != here:
        raise RecordingError(
            f"{here}: the recorder wrote to {place}, so this recording may be a copy, and both would read "
            "the same slot: start `logicalrep record` for the one recording that you want to continue"
        )


def current_place(location: Location) -> str:
    """Return the path of a recording without symbolic links, or its URL."""
    if not location.is_local:
        return str(parse_store_url(location.place))
    return shown_text(os.path.realpath(location.path))


def _read_state(folder: PathOrUri) -> _State:
    file = locate(folder) / STATE_FILE
    try:
        return msgspec.json.decode(file.content() or b"", type=_State)
    except ValueError as error:
        raise RecordingError(
            f"{file}: the file is missing or damaged ({error}): give a folder that `logicalrep record` writes"
        ) from None


def is_recording(folder: PathOrUri) -> bool:
    """Return whether a recorder is writing a recording now.

    Raises:
        RecordingError: The object store of the recording cannot be read.
        OSError: The folder does not exist.
    """
    location = locate(folder)
    if not location.is_local:
        return is_leased(location / LEASE_FILE)
    descriptor = os.open(location.path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
