"""The folder of a recording: who writes to it, and what it has told the server."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, TypeVar
from uuid import uuid4

import msgspec

from pgoutput.errors import RecordingError
from pgoutput.recorder.publications import Published
from pgoutput.recorder.timelines import Timeline
from pgoutput.recording import (
    SNAPSHOT,
    STATE_FILE,
    Directory,
    IncompleteTable,
    Metadata,
    PublicationChange,
    SessionStart,
    list_segments,
    read_metadata,
    segment_name,
    sync_path,
)

_PUBLISHED: Final = "_published.json"
_PARTIAL_SNAPSHOT: Final = f".{SNAPSHOT}.partial"

_T = TypeVar("_T")


class State(msgspec.Struct, kw_only=True):
    """What is known of a recording beside its segments; the file _recording.json.

    Readers of Parquet pass over such names.
    """

    recording: str = msgspec.field(default_factory=lambda: str(uuid4()))
    """Identity of the recording, as in `Source`."""
    slot: str
    system_identifier: str
    database: str
    timelines: tuple[Timeline, ...] = ()
    """History of the WAL that was recorded, the current timeline last; empty before the first session."""
    server_start: str = ""
    """When the server of the last session was started: pg_postmaster_start_time()."""
    acknowledged_lsn: int | None = None
    """The server may have been told that up to here all is stored. None before the first time."""
    last_segment: int = 0
    """Number of the last segment that the server may have been told of; 0 if there was none."""
    snapshot: Literal["none", "running", "complete"] = "none"
    incomplete: tuple[IncompleteTable, ...] = ()
    """The tables that lack rows in the recording."""
    publication_changes: tuple[PublicationChange, ...] = ()
    """Those that are in no segment yet."""


class Folder:
    """The folder of a recording, locked; a context manager. Its methods may be called from several threads.

    Attributes:
        path: Where it is; it is created if need be.
        directory: The same, held open.
        state: None for a new recording.

    Raises:
        RecordingError: Another recorder is at work in it, or it has other things in it.
        OSError: It cannot be made, or cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._saving = Lock()
        self.directory = Directory(self.path)
        try:
            self._take_lock()
            self.check_place()
            self.state = self._load(STATE_FILE, State)
            if self.state is None and self._others():
                if self._names_of_recording():
                    text = f"{self.path}: {STATE_FILE} is missing: put it back, or use another folder"
                else:
                    text = f"{self.path}: the folder is not empty, and no recording: use a new one"
                raise RecordingError(text)
            self.published = self._load(_PUBLISHED, Published)
            self.directory.remove_partial()
            with self.directory.create("writable") as file:  # better now than when a slot was made for it
                file.write(b"\n")
            self.directory.remove_partial()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock it."""
        self.directory.close()

    def check_place(self) -> None:
        """See that the path still leads to the folder.

        Raises:
            RecordingError: The folder was moved, removed or replaced.
        """
        if not self.directory.in_place:
            raise RecordingError(
                f"{self.path}: the folder was moved or removed while it was recorded to; nothing more is "
                "acknowledged. Start again with the folder's new path (--out), or put it back"
            )

    def claim(self, slot: str, system_identifier: str, database: str) -> State:
        """Say whose stream the recording is; give its state.

        Raises:
            RecordingError: It is another's.
        """
        if self.state is None:
            return State(slot=slot, system_identifier=system_identifier, database=database)
        for name, value in (("slot", slot), ("system_identifier", system_identifier), ("database", database)):
            if (other := getattr(self.state, name)) != value:
                text = f"{self.path}: it is a recording of {name} {other}, not {value}: use another folder"
                raise RecordingError(text)
        last = self.last_segment()
        if self.state.last_segment > (0 if last is None else last.number):
            raise RecordingError(
                f"{self.path}: segments are missing, up to {segment_name(self.state.last_segment)}, and the "
                "server does not send them again: put them back, or record anew in another folder"
            )
        if last is not None and last.source.recording != self.state.recording:
            raise RecordingError(
                f"{self.path}: segment {last.number} is of the recording {last.source.recording}, and "
                f"{STATE_FILE} of the recording {self.state.recording}: put the right files back"
            )
        return self.state

    def save(self, state: State) -> None:
        """Write the state to the disk.

        Raises:
            RecordingError: The folder was moved or removed.
            OSError: The disk failed.
        """
        with self._saving:
            self._save(state)

    def update(self, **changes: Any) -> None:
        """Write the state to the disk with some of its fields changed.

        Args:
            changes: The new values; or functions that make them of the state, as no other thread changes it.

        Raises:
            RecordingError: As `save`.
            OSError: As `save`.
        """
        with self._saving:
            assert self.state is not None
            values = {name: new(self.state) if callable(new) else new for name, new in changes.items()}
            self._save(msgspec.structs.replace(self.state, **values))

    def _save(self, state: State) -> None:
        self.check_place()
        self.directory.replace(STATE_FILE, msgspec.json.encode(state) + b"\n")
        self.state = state

    def save_published(self, published: Published) -> None:
        """Write what is published to the disk; the next look is compared with it.

        Raises:
            RecordingError: As `save`.
            OSError: As `save`.
        """
        self.check_place()
        self.directory.replace(_PUBLISHED, msgspec.json.encode(published) + b"\n")
        self.published = published

    def last_segment(self) -> Metadata | None:
        """The metadata of the last segment; None if there is none."""
        try:
            return read_metadata(list_segments(self.path)[-1])
        except RecordingError:
            if self._names_of_recording():
                raise
            return None

    def stored_lsn(self, state: State) -> int:
        """What ended up to here is stored, or does not matter to the recording."""
        return max(state.acknowledged_lsn or 0, self.recorded_lsn())

    def recorded_lsn(self) -> int:
        """End of the last transaction that is stored; 0 if there is none."""
        last = self.last_segment()
        return 0 if last is None else last.end_lsn

    def start(self, lsn: int) -> SessionStart:
        """Where the next session goes on.

        Args:
            lsn: Where the first one begins.
        """
        last = self.last_segment()
        if last is None:
            return SessionStart(session=1, number=1, position=0, lsn=lsn)
        return SessionStart(
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
        self.check_place()
        for name in (_PARTIAL_SNAPSHOT, SNAPSHOT):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (_PUBLISHED, STATE_FILE):
            self.directory.remove(name)
        self.state = self.published = None
        return State(slot=state.slot, system_identifier=state.system_identifier, database=state.database)

    def finish_snapshot(self) -> None:
        """Give the snapshot its name."""
        self.check_place()
        sync_path(self.path / _PARTIAL_SNAPSHOT)
        self.directory.rename(_PARTIAL_SNAPSHOT, SNAPSHOT)
        sync_path(self.path)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self.directory.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{self.path}: another recorder is at work here; let it go on, or use another folder"
            raise RecordingError(text) from None

    def _others(self) -> list[str]:
        """Names of files in the folder that a new recording does not have."""
        return [name for name in self.directory.names() if name[0] != "." and name != _PUBLISHED]

    def _names_of_recording(self) -> list[str]:
        return [name for name in self.directory.names() if name[0].isdigit() or name == SNAPSHOT]

    def _load(self, name: str, type_: type[_T]) -> _T | None:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=type_)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}: it cannot be read ({error})") from None
