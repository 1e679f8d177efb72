"""The recording of a recorder in an object store.

The recorder writes segments to a local working folder, then puts them into the store. Nothing in the working
folder is needed by another recorder: state, catalogs and segments are in the store.

A recorder that has lost its lease can write one more segment at most, whatever the timing. A new recorder
first writes the number of its lease into the state files. From then on the old recorder cannot replace the
state files. A recorder writes them after each segment, so the old recorder fails there, but the segment
before them may still arrive. The new recorder then finds that its own next segment exists, and begins another
session after it. Therefore the first segment of each session keeps its object, also when a pack contains the
segment: if the object were removed, the segment of an old recorder could be created in its place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

import msgspec

from logicalrep.errors import ConnectionLost, RecordingError
from logicalrep.recorder.storage.folder import CATALOG_FILE, Folder
from logicalrep.recorder.storage.lease import Lease
from logicalrep.recording import (
    LEASE_KEY,
    STATE_FILE,
    Directory,
    Location,
    Metadata,
    ObjectStore,
    SessionStart,
    Superseded,
    Version,
    packed_numbers,
    parse_store_url,
    partial_name,
    read_beginning,
    read_metadata,
    segment_name,
)

_FENCED: Final = (STATE_FILE, CATALOG_FILE)
"""Names of the state files, which contain the lease number of the recorder that has written them."""

_OWNER_FILE: Final = ".owner"
"""Name of the file in a working folder that contains the folder's ID."""


class _Number(msgspec.Struct):
    """The field of a state file that contains the number of the lease."""

    lease: int = 0


class StoreDirectory(Directory):
    """A working folder whose finished files are objects in a store.

    Args:
        path: Path of the working folder.
        store: The recording's objects. Call the method `fence` of the directory before the first write, so
            that earlier recorders cannot write any more.
    """

    _lease: Lease

    def __init__(self, path: Path, store: ObjectStore) -> None:
        super().__init__(path)
        self._store = store
        self._versions: dict[str, Version] = {}

    def fence(self, lease: Lease) -> None:
        """Write the number of a lease into the state files, so that earlier recorders cannot change them.

        Args:
            lease: The recorder's lease.

        Raises:
            RecordingError: The lease was lost.
            StoreUnavailable: The store does not answer.
        """
        self._lease = lease
        self.segment_marks = {LEASE_KEY: b"%d" % lease.number}
        for name in _FENCED:
            content = b"{}\n"
            while self._number(content) != self._lease.number:
                if (found := self._store.get(name)) is not None:
                    content, self._versions[name] = found
                if self._number(content) > self._lease.number:
                    raise self._lease.lost()
                with suppress(Superseded, FileExistsError):  # an earlier recorder was faster: try again
                    content = self._write(name, content)

    def read(self, name: str) -> bytes | None:
        """Return the content of a state file or other small object; None if it is missing or was removed."""
        found = self._store.get(name)
        return None if found is None or found[0] == self._numbered(b"{}\n") else found[0]

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the recording's objects in the store that begin with `prefix`."""
        return list(self._store.sizes(prefix))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the recording's objects in the store, in bytes, by name."""
        return self._store.sizes()

    def size(self, name: str) -> int:
        """Return the size of an object, in bytes.

        Raises:
            FileNotFoundError: The object does not exist.
            StoreUnavailable: The store does not answer.
        """
        if (size := self._store.size(name)) is None:
            raise FileNotFoundError(name)
        return size

    def open(self, name: str) -> BinaryIO:
        """Read an object into memory; return it as an opened file.

        Raises:
            FileNotFoundError: The object does not exist.
            StoreUnavailable: The store does not answer.
        """
        if (found := self._store.get(name)) is None:
            raise FileNotFoundError(name)
        return BytesIO(found[0])

    def publish(self, name: str) -> None:
        """Store a file, which `create` has opened, as an object.

        Raises:
            ConnectionLost: The store does not answer. Or the object exists with another content, because the
                previous recorder has stored it; the next session continues after it.
            RecordingError: The lease was lost, or the store refuses the object.
        """
        self._lease.check()
        partial = self.path / partial_name(name)
        try:
            self._store.create(name, partial)
        except FileExistsError as error:
            if not self._lease.is_held():
                raise self._lease.lost() from None
            if packed_numbers(name):  # packs of the same segments are equal
                return
            raise ConnectionLost(
                f"{error}: the previous recorder has stored this object; the next session continues after it"
            ) from None
        finally:
            partial.unlink(missing_ok=True)

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a small object.

        Raises:
            RecordingError: The lease was lost.
            StoreUnavailable: The store does not answer.
        """
        self._lease.check()
        if name not in _FENCED:  # a snapshot request, which other programs write too
            self._store.put(name, content)
            return
        while True:
            try:
                self._write(name, content)
                return
            except (Superseded, FileExistsError):
                found = self._store.get(name)
                if found is None or self._number(found[0]) != self._lease.number:
                    raise self._lease.lost() from None
                self._versions[name] = found[1]  # this recorder's own write: only the store's reply was lost

    def remove(self, *names: str) -> None:
        """Remove objects; replace a state file by one that has only the number of the lease.

        A removal has no precondition, so it can still happen if the lease is lost after it was checked. Then
        no data is lost: the objects are finished snapshot requests, or segments that are also in a pack.

        Raises:
            RecordingError: The lease was lost.
            StoreUnavailable: The store does not answer.
        """
        for name in _FENCED:
            if name in names:
                self.replace(name, b"{}\n")
        if removed := [name for name in names if name not in _FENCED]:
            if not self._lease.is_held():
                raise self._lease.lost()
            self._store.delete(*removed)

    def _write(self, name: str, content: bytes) -> bytes:
        content, version = self._numbered(content), self._versions.get(name)
        if version is None:
            self._versions[name] = self._store.create(name, content)
        else:
            self._versions[name] = self._store.replace(name, content, version)
        return content

    def _numbered(self, content: bytes) -> bytes:
        """Return the JSON object `content` of a state file with the number of the lease as field `lease`."""
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        return msgspec.json.encode(fields | {"lease": self._lease.number}) + b"\n"

    @staticmethod
    def _number(content: bytes) -> int:
        return msgspec.json.decode(content, type=_Number).lease


class StoreFolder(Folder):
    """A recording in an object store, as its recorder uses it; a context manager, whose exit calls `close`.

    Args:
        place: URL of the recording.
        stop: Returns whether to stop waiting for the lease of another recorder.

    Raises:
        RecordingError: Another recorder writes the recording, or the URL has objects that are no recording.
        ConnectionLost: The store does not answer.
        Interrupted: `stop` has returned True.
        OSError: The working folder cannot be created, or cannot be written to.
    """

    is_local = False
    # Each search for requests of snapshots, and each saving of the LSN, is a paid request to the store.
    search_seconds = 60.0
    save_seconds = 30.0

    def __init__(self, place: str, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._store = ObjectStore(place)
        self._lease: Lease | None = None
        self._last: Metadata | None = None
        """Metadata that the last call of `last_segment` has returned."""
        name = hashlib.sha256(str(self._store).encode()).hexdigest()[:16]
        super().__init__(_state_folder() / name, place)

    def close(self) -> None:
        """Give up the lease, and unlock the working folder."""
        if self._lease is not None:
            self._lease.release()
        super().close()

    def check_in_place(self) -> None:
        """Check that the recorder has not lost the lease.

        Raises:
            RecordingError: Another recorder has taken the lease, or the working folder was removed.
        """
        super().check_in_place()
        if self._lease is not None:
            self._lease.check()

    def segments(self) -> Iterator[Location]:
        """Yield the locations of the segments, the last one first."""
        # The numbers are not taken from a listing of the store, which may be stale, and is slow for many
        # segments.
        first = read_beginning(self.location).segment
        return (self.location / segment_name(number) for number in range(self._last_number(), first - 1, -1))

    def last_segment(self) -> Metadata | None:
        """Return the metadata of the last segment, or None if there is no segment."""
        number = self._last_number()
        if number and (self._last is None or self._last.number != number):
            self._last = read_metadata(self.location / segment_name(number))
        return self._last

    def next_start(self, lsn: int) -> SessionStart:
        """Return where the next session starts; save its first segment's number in `State.first_segments`."""
        start, beginning = super().next_start(lsn), read_beginning(self.location).segment
        first = {*self.state.first_segments, *range(self.state.last_segment + 1, start.number + 1)}
        self.update(first_segments=tuple(sorted(number for number in first if number >= beginning)))
        return start

    def _last_number(self) -> int:
        number = 0 if self.saved_state is None else self.saved_state.last_segment
        while self._store.size(segment_name(number + 1)) is not None:
            number += 1
        return number

    def _open_directory(self) -> StoreDirectory:
        self._objects = StoreDirectory(self.path, self._store)
        return self._objects

    def _take_lock(self) -> None:
        super()._take_lock()
        self._lease = Lease(self._store, self._owner(), self._stop)
        self._objects.fence(self._lease)
        if not self._lease.is_continued:  # the copied rows may be of an earlier recording, or stored already
            shutil.rmtree(self.copies, ignore_errors=True)

    def _owner(self) -> str:
        """Return the ID of the working folder, by which the lease names its owner."""
        file = self.path / _OWNER_FILE
        with suppress(FileNotFoundError):
            if owner := file.read_text():
                return owner
        file.write_text(owner := str(uuid4()))
        return owner


def _state_folder() -> Path:
    """Return the folder that contains working folders; no other user can create it first.

    systemd sets STATE_DIRECTORY to the folders of a unit's StateDirectory, separated by colons.

    Raises:
        RecordingError: The user has no home, and no environment variable names another folder.
    """
    if folders := os.environ.get("STATE_DIRECTORY"):
        return Path(folders.partition(":")[0], "working")
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "logicalrep")
    except RuntimeError:
        raise RecordingError(
            "the recorder needs a working folder, but its user has no home folder: set the environment "
            "variable XDG_STATE_HOME to a local folder"
        ) from None


def open_folder(place: str, stop: Callable[[], bool]) -> Folder:
    """Open the folder of a recording, for a recorder.

    Args:
        place: Path of the folder, or URL of an object store.
        stop: Returns whether to stop waiting for the lease of another recorder.
    """
    return Folder(place) if parse_store_url(place) is None else StoreFolder(place, stop)
