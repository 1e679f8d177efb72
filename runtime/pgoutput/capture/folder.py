"""The folder of a recording: who writes to it, and what it has told the server."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

import msgspec

from pgoutput.errors import CaptureError
from pgoutput.segments import (
    SNAPSHOT,
    Metadata,
    Start,
    list_segments,
    read_metadata,
    remove_partial,
    segment_name,
)
from pgoutput.segments.files import sync

_STATE: Final = "_recording.json"
_PARTIAL_SNAPSHOT: Final = f".{SNAPSHOT}.partial"


class State(msgspec.Struct, kw_only=True):
    """What is known of a recording beside its segments; the file _recording.json.

    Readers of Parquet pass over such names.
    """

    recording: str = msgspec.field(default_factory=lambda: str(uuid4()))
    """Identity of the recording, as in `Source`."""
    slot: str
    system_identifier: str
    database: str
    acknowledged_lsn: int | None = None
    """The server may have been told that up to here all is stored. None before the first time."""
    last_segment: int = 0
    """Number of the last segment when that was noted; 0 if there was none."""
    snapshot: Literal["none", "running", "complete"] = "none"


class Folder:
    """The folder of a recording, locked; a context manager.

    Attributes:
        path: Where it is; it is created if need be.
        state: None for a new recording.

    Raises:
        CaptureError: Another recorder is at work in it, or it has other things in it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            self._take_lock()
            self.state = self._load()
            remove_partial(self.path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock it."""
        os.close(self._lock)

    def claim(self, slot: str, system_identifier: str, database: str) -> State:
        """Say whose stream the recording is; give its state.

        Raises:
            CaptureError: It is another's.
        """
        if self.state is None:
            return State(slot=slot, system_identifier=system_identifier, database=database)
        for name, value in (("slot", slot), ("system_identifier", system_identifier), ("database", database)):
            if (other := getattr(self.state, name)) != value:
                text = f"{self.path}: it is a recording of {name} {other}, not {value}: use another folder"
                raise CaptureError(text)
        last = self.last_segment()
        if self.state.last_segment > (0 if last is None else last.number):
            raise CaptureError(
                f"{self.path}: segments are missing, up to {segment_name(self.state.last_segment)}, and the "
                "server does not send them again: put them back, or record anew in another folder"
            )
        return self.state

    def save(self, state: State) -> None:
        """Write the state to the disk."""
        path = self.path / _STATE
        partial = path.with_name(f".{_STATE}.partial")
        partial.write_bytes(msgspec.json.encode(state) + b"\n")
        sync(partial)
        partial.rename(path)
        sync(self.path)
        self.state = state

    def last_segment(self) -> Metadata | None:
        """The metadata of the last segment; None if there is none."""
        try:
            return read_metadata(list_segments(self.path)[-1])
        except CaptureError:
            if any(self.path.glob("[0-9]*")):
                raise
            return None

    def stored_lsn(self, state: State) -> int:
        """What ended up to here is stored, or does not matter to the recording."""
        last = self.last_segment()
        return max(state.acknowledged_lsn or 0, 0 if last is None else last.end_lsn)

    def start(self, lsn: int) -> Start:
        """Where the next session goes on.

        Args:
            lsn: Where the first one begins.
        """
        last = self.last_segment()
        if last is None:
            return Start(session=1, number=1, position=0, lsn=lsn)
        return Start(
            session=last.session + 1,
            number=last.number + 1,
            position=last.next_position,
            lsn=last.end_lsn,
            prepared=last.prepared,
        )

    def partial_snapshot(self) -> Path:
        """An empty folder for a snapshot that is being made."""
        path = self.path / _PARTIAL_SNAPSHOT
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def forget(self, state: State) -> State:
        """Begin anew: remove a snapshot that was not finished; give the state of a new recording."""
        for name in (_PARTIAL_SNAPSHOT, SNAPSHOT):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / _STATE).unlink()
        self.state = None
        return msgspec.structs.replace(state, snapshot="none", acknowledged_lsn=None)

    def finish_snapshot(self) -> None:
        """Give the snapshot its name."""
        sync(self.path / _PARTIAL_SNAPSHOT)
        (self.path / _PARTIAL_SNAPSHOT).rename(self.path / SNAPSHOT)
        sync(self.path)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{self.path}: another recorder is at work here; let it go on, or use another folder"
            raise CaptureError(text) from None

    def _load(self) -> State | None:
        path = self.path / _STATE
        try:
            return msgspec.json.decode(path.read_bytes(), type=State)
        except FileNotFoundError:
            if any(not one.name.startswith(".") for one in self.path.iterdir()):
                text = f"{self.path}: the folder is not empty, and no recording: use a new one"
                raise CaptureError(text) from None
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CaptureError(f"{path}: it cannot be read ({error})") from None
