"""The folder of a recording: its lock, its state file, and its segments."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, TypeVar
from uuid import uuid4

import msgspec

from logicalrep._text import listed, qualified_name
from logicalrep.errors import RecordingError, RecordingInUse
from logicalrep.recorder.catalogs import Catalog, CatalogChanges, PendingTable
from logicalrep.recorder.client import Timeline
from logicalrep.recording import (
    COPIES,
    SNAPSHOT,
    STATE_FILE,
    Directory,
    GoneTable,
    IncompleteTable,
    Location,
    Metadata,
    PathOrUri,
    PublicationChange,
    RenamedTable,
    SessionStart,
    Upgrade,
    list_segments,
    locate,
    make_folder,
    partial_name,
    read_metadata,
    segment_name,
    sync_path,
)

CATALOG_FILE: Final = "_published.json"
LEASE_FILE: Final = "_lease.json"
"""Name of the object with the lease of a recording in an object store."""

_SAVED: Final = (STATE_FILE, CATALOG_FILE, LEASE_FILE)
"""Names of files that a folder without a recording may contain, if a recorder was killed at its start."""

_LATEST: Final = "; then "
"""Text between the first and the latest reason of an incomplete table; a reason can contain `; `."""

_T = TypeVar("_T")


class State(msgspec.Struct, kw_only=True):
    """State of a recording, saved in the file _recording.json of the recording's folder.

    Readers of Parquet folders skip files whose names begin with an underscore.
    """

    recording: str = msgspec.field(default_factory=lambda: str(uuid4()))
    """UUID of the recording, also in the metadata of all its segments."""
    slot: str
    """Name of the replication slot."""
    system_identifier: str
    """Identifier of the database cluster, from IDENTIFY_SYSTEM."""
    upgrades: tuple[Upgrade, ...] = ()
    """Upgrades of the server since the recording began."""
    database: str
    """Name of the database."""
    timelines: tuple[Timeline, ...] = ()
    """Timelines of the WAL that was recorded, the current timeline last; empty before the first session."""
    server_start: str = ""
    """Start time of the server that streamed in the last session, as text of pg_postmaster_start_time()."""
    place: str = ""
    """Path or URL where the last session found the recording; empty before the first session."""
    acknowledged_lsn: int | None = None
    """LSN where the recording begins; later, the last acknowledged LSN that is not the end of a segment.

    The LSN is saved just before it is acknowledged. None until the slot of a new recording is ready.
    """
    last_segment: int = 0
    """Number of the last stored segment, which may be acknowledged already; 0 for none."""
    first_segments: tuple[int, ...] = ()
    """Numbers of the segments in a store whose objects packing must not remove: see `store_folder`."""
    snapshot: Literal["none", "running", "complete"] = "none"
    """How the recording has begun: `none` without a snapshot, `complete` with one.

    The value is `running` until the slot is created. The tables of an unfinished snapshot are incomplete.
    """
    incomplete: tuple[IncompleteTable, ...] = ()
    """Incomplete tables of the recording."""
    pending: tuple[PendingTable, ...] = ()
    """Tables that may be incomplete: messages that are not stored yet will show whether they are."""
    publication_changes: tuple[PublicationChange, ...] = ()
    """Changes of publications that are not yet in the metadata of a segment."""
    gone: tuple[GoneTable, ...] = ()
    """Dropped or unpublished tables that are not yet in the metadata of a segment."""
    publications_lsn: int = 0
    """LSN of the first reading of the catalogs with all recorded publications.

    Whether a publication existed before is not known.
    """
    renamed: tuple[RenamedTable, ...] = ()
    """Renamed tables that are not yet in the metadata of a segment."""
    altered_xid: int = 0
    """First xid that was not assigned when a publication was last found altered; 0 if none was altered.

    Also 0 once all earlier transactions are recorded: see `RememberedPublications`.
    """


class Folder:
    """The folder of a recording, locked against other recorders; a context manager, whose exit unlocks it.

    The methods may be called from several threads.

    Attributes:
        location: Where readers find the recording.
        path: Path of the folder.
        directory: The opened folder; still valid, unlike `path`, after the folder was moved.
        search_seconds: Seconds between two searches for requests for snapshots.
        save_seconds: Least number of seconds between two writes of the LSN while nothing is received.
        is_local: Whether the folder contains the recording. False for `StoreFolder`, with an object store.
        saved_state: State of the recording; None for a new recording.
        saved_catalog: The server's catalogs as last saved; None for a new recording.

    Args:
        path: Path of the folder. A folder that does not exist is created, for its owner only.
        place: URL of the recording; None if it is in the folder.

    Raises:
        RecordingInUse: Another recorder uses the folder.
        RecordingError: The folder has files that are not a recording, or other users can change its files.
        OSError: The folder cannot be created, or cannot be written to.
    """

    is_local: bool = True
    search_seconds: float = 1.0
    save_seconds: float = 0.0

    def __init__(self, path: str | Path, place: PathOrUri | None = None) -> None:
        self.path: Path = Path(path)
        self.location: Location = locate(self.path if place is None else place)
        make_folder(self.path)
        self._saving = Lock()
        self.saved_state: State | None = None
        self.directory: Directory = self._open_directory()
        try:
            self._check_permissions()
            self._take_lock()
            self.check_in_place()
            self.saved_state = self._load(STATE_FILE, State)
            if self.saved_state is None and any(
                name[0] != "." and name not in _SAVED for name in self.directory.names()
            ):
                if self._names_of_recording():
                    text = f"{self.location}: {STATE_FILE} is missing: put it back, or use another folder"
                else:
                    text = f"{self.location}: the folder has files, but no recording: use an empty folder"
                raise RecordingError(text)
            self.saved_catalog = self._load(CATALOG_FILE, Catalog)
            self.directory.remove_partial()
            # An unwritable folder fails here, before a slot is created.
            with self.directory.create("writable") as file:
                file.write(b"\n")
            # Remove only this file. remove_partial also removes the unfinished file of another process that
            # writes with replace_file. replace_file tries only twice, so a second call could make it fail.
            (self.path / partial_name("writable")).unlink(missing_ok=True)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock and close the folder."""
        self.directory.close()

    def check_in_place(self) -> None:
        """Check that the path still leads to the folder that was opened.

        Raises:
            RecordingError: The folder was moved, removed or replaced.
        """
        if not self.directory.in_place:
            raise RecordingError(
                f"{self.path}: the folder was moved or removed while the recorder wrote to it; the recorder "
                "acknowledges nothing more. Put the folder back, or start again with its new path "
                "(--recording)"
            )

    @property
    def state(self) -> State:
        """State of the recording. For a new recording, read `saved_state` (None) instead."""
        assert self.saved_state is not None
        return self.saved_state

    @property
    def catalog(self) -> Catalog:
        """The server's catalogs as last saved. For a new recording, read `saved_catalog` (None) instead."""
        assert self.saved_catalog is not None
        return self.saved_catalog

    def state_for(self, slot: str, system_identifier: str, database: str) -> State:
        """Return the state of the recording if it fits slot and server; a new state for a new recording.

        Raises:
            RecordingError: The folder has the recording of another slot or server, or segments are missing.
        """
        if self.saved_state is None:
            return State(slot=slot, system_identifier=system_identifier, database=database)
        for name, value in (("slot", slot), ("database", database), ("system_identifier", system_identifier)):
            if (other := getattr(self.state, name)) != value:
                text = (
                    f"{self.location}: the recording has the {name} {other}, not {value}: use another folder"
                )
                if name == "system_identifier":
                    text += "; or --after-upgrade, if this is the recorded server after pg_upgrade"
                raise RecordingError(text)
        last = self.last_segment()
        if self.state.last_segment > (0 if last is None else last.number):
            raise RecordingError(
                f"{self.location}: the last segments are missing, up to "
                f"{segment_name(self.state.last_segment)}, and the server cannot send their changes again: "
                "put the segments back, or record anew in another folder"
            )
        if last is not None and last.source.recording != self.state.recording:
            raise RecordingError(
                f"{self.location}: segment {last.number} belongs to the recording {last.source.recording}, "
                f"but {STATE_FILE} to the recording {self.state.recording}: put the files of one recording "
                "back"
            )
        return self.state

    def save(self, state: State) -> None:
        """Replace the state of the recording, and write the new state to the disk.

        Raises:
            RecordingError: The folder was moved or removed.
            OSError: The file cannot be written.
        """
        with self._saving:
            self._save(state)

    def update(self, **changes: Any) -> None:
        """Change fields of the state of the recording, and write the new state to the disk.

        Args:
            changes: New values, by field name. A value can be a function that gets the old state and returns
                the new value; no other thread changes the state during the call.

        Raises:
            RecordingError: The folder was moved or removed.
            OSError: The file cannot be written.
        """
        with self._saving:
            values = {name: new(self.state) if callable(new) else new for name, new in changes.items()}
            self._save(msgspec.structs.replace(self.state, **values))

    def _save(self, state: State) -> None:
        self.check_in_place()
        self.directory.replace(STATE_FILE, msgspec.json.encode(state) + b"\n")
        self.saved_state = state

    def save_catalog(self, catalog: Catalog) -> None:
        """Save the catalogs on the disk; the next reading of the catalogs is compared with them.

        Raises:
            RecordingError: The folder was moved or removed.
            OSError: The file cannot be written.
        """
        self.check_in_place()
        self.directory.replace(CATALOG_FILE, msgspec.json.encode(catalog) + b"\n")
        self.saved_catalog = catalog

    def save_changes(self, catalog: Catalog, changes: CatalogChanges) -> None:
        """Add changes of the catalogs to the state, then save the catalogs, both on the disk.

        After a crash between the two writes, the next comparison of the catalogs finds the changes again.

        Raises:
            RecordingError: The folder was moved or removed.
            OSError: A file cannot be written.
        """
        if any(msgspec.structs.astuple(changes)):
            dropped = {one.oid for one in changes.gone if one.is_dropped}
            self.update(
                incomplete=lambda state: tuple(
                    one for one in _merged(state.incomplete, changes.incomplete) if one.oid not in dropped
                ),
                publication_changes=lambda state: (*state.publication_changes, *changes.publications),
                gone=lambda state: tuple(
                    one for one in (*state.gone, *changes.gone) if one.oid not in catalog.tables
                ),
                renamed=lambda state: _last_names((*state.renamed, *changes.renamed)),
                pending=lambda state: (*state.pending, *changes.pending),
            )
        self.save_catalog(catalog)

    def incomplete_error(self, incomplete: Iterable[IncompleteTable]) -> RecordingError:
        """Return the error to raise in strict mode for incomplete tables of the recording."""
        texts = (f"{qualified_name(one.namespace, one.name)}: {one.reason}" for one in incomplete)
        tables = listed(texts, "; ")
        return RecordingError(
            f"{self.location}: the recording lacks rows of some tables ({tables}): record anew in another "
            "folder with --snapshot, or leave out --strict"
        )

    def last_segment(self) -> Metadata | None:
        """Return the metadata of the last segment, or None if there is no segment."""
        try:
            return read_metadata(list_segments(self.path)[-1])
        except RecordingError:
            if self._names_of_recording():
                raise
            return None

    def segments(self) -> Iterator[Location]:
        """Yield the locations of the segments, the last one first."""
        return map(locate, reversed(list_segments(self.path) if self.last_segment() else []))

    def stored_lsn(self, state: State) -> int:
        """Return the LSN up to which all transactions with published changes are known to be stored.

        It is the greater one of the acknowledged LSN in `state` and `recorded_lsn()`.
        """
        return max(state.acknowledged_lsn or 0, self.recorded_lsn())

    def recorded_lsn(self) -> int:
        """Return the end LSN of the last stored transaction, or 0 if there is none."""
        last = self.last_segment()
        return 0 if last is None else last.end_lsn

    def next_start(self, lsn: int) -> SessionStart:
        """Return session number, segment number, position and LSN at which the next session starts.

        Args:
            lsn: LSN to begin at if the recording has no segment.
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

    @property
    def copies(self) -> Path:
        """Path of the folder for copied rows that are not yet part of the recording."""
        return self.path / COPIES

    def reset(self, state: State) -> State:
        """Remove the snapshot and all state files; return the state of a new recording, which is not saved.

        The new state has the slot, system identifier and database of `state`.
        """
        self.check_in_place()
        for name in (COPIES, SNAPSHOT):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (CATALOG_FILE, STATE_FILE):
            self.directory.remove(name)
        self.saved_state = self.saved_catalog = None
        return State(slot=state.slot, system_identifier=state.system_identifier, database=state.database)

    def publish_snapshot(self) -> None:
        """Rename the folder of the copied rows to the name under which readers find the snapshot."""
        self.check_in_place()
        sync_path(self.copies)
        self.directory.rename(COPIES, SNAPSHOT)
        sync_path(self.path)

    def _open_directory(self) -> Directory:
        return Directory(self.path)

    def _check_permissions(self) -> None:
        """Check that no other user owns the folder, or can replace files in it.

        The permissions of the group are not checked: Kubernetes gives them to the group of a volume.

        Raises:
            RecordingError: Another user owns the folder, or all users can write to it.
        """
        status = os.fstat(self.directory.descriptor)
        if status.st_uid != os.geteuid():
            raise RecordingError(
                f"{self.path}: the folder belongs to another user (ID {status.st_uid}): run the recorder as "
                "that user, give the folder to the user of the recorder (chown), or use another folder"
            )
        if status.st_mode & stat.S_IWOTH:
            raise RecordingError(
                f"{self.path}: all users can write to the folder: run `chmod o-w` on the folder, or use "
                "another folder"
            )

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self.directory.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{self.path}: another recorder writes to this folder: stop it, or use another folder"
            raise RecordingInUse(text) from None

    def _names_of_recording(self) -> list[str]:
        """Return the names of the segments, and the name of the snapshot's folder if it exists."""
        return [name for name in self.directory.names() if name[0].isdigit() or name == SNAPSHOT]

    def _load(self, name: str, type_: type[_T]) -> _T | None:
        try:
            content = self.directory.read(name)
            return None if content is None else msgspec.json.decode(content, type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordingError(
                f"{self.location / name}: the file is damaged ({error}): restore it from a copy, or record "
                "anew in another folder"
            ) from None


def _last_names(renamed: Iterable[RenamedTable]) -> tuple[RenamedTable, ...]:
    """Return each table once, with its last name and with all its renamed columns."""
    last: dict[int, RenamedTable] = {}
    for one in renamed:
        columns = last[one.oid].columns + one.columns if one.oid in last else one.columns
        last[one.oid] = msgspec.structs.replace(one, columns=columns)
    return tuple(last.values())


def _merged(
    known: Iterable[IncompleteTable], found: Iterable[IncompleteTable]
) -> tuple[IncompleteTable, ...]:
    """Return known and newly found incomplete tables, each table once.

    The result for a table that is in both arguments has the LSN of `found`. Its text has the first reason of
    `known` and the reason of `found`; equal reasons are not repeated.
    """
    merged = {one.oid: one for one in known}
    for one in found:
        old = merged.get(one.oid)
        if old is not None:
            reasons = old.lost.partition(_LATEST)[0], one.lost
            lost = _LATEST.join(dict.fromkeys(filter(None, reasons)))
            one = msgspec.structs.replace(one, lost=lost, altered=one.altered or old.altered)
        merged[one.oid] = one
    return tuple(merged.values())
