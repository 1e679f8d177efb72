"""The lease of a recording in an object store: at most one recorder writes, the one with the newest lease.

Each owner of the lease has a number, one more than the owner before. Another recorder takes the lease if the
owner has given it up, or has not renewed it while the other recorder has waited: the clocks of two machines
are not compared. Preconditions of the writes keep a recorder without the lease from changing the recording:
see `StoreDirectory`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from logicalrep.errors import RecordingError, RecordingInUse
from logicalrep.recorder.client import Interrupted
from logicalrep.recorder.storage.folder import LEASE_FILE
from logicalrep.recording import Location, ObjectStore, StoreUnavailable, Superseded, Version

LEASE_SECONDS: float = 60.0
"""Time without a renewal after which another recorder takes the lease, in seconds."""

_POLL_SECONDS: Final = 0.5
"""Seconds between two reads of the lease while another recorder has it."""


class LeaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the lease's object."""

    lease: int
    """Number of the lease: one more with each new owner."""
    owner: str
    """ID of the working folder of the owner."""
    recorder: str
    """Host and process ID of the owner, for people."""
    seconds: float
    """Time for which a renewal is valid, in seconds."""
    expires: float
    """Time at which the lease expires unless it is renewed, in seconds since 1970; 0 if it was given up."""


def is_leased(file: Location) -> bool:
    """Return whether the lease in an object, which may not exist, is valid.

    Raises:
        RecordingError: The object cannot be read.
    """
    content = file.content()
    return content is not None and _decode(content, file).expires > time.time()


def _decode(content: bytes, place: object) -> LeaseFile:
    try:
        return msgspec.json.decode(content, type=LeaseFile)
    except ValueError as error:
        raise RecordingError(
            f"{place}: the lease is damaged ({error}): restore the object, or record anew at another URL"
        ) from None


class Lease:
    """The lease of a recording, which a thread renews until `release`.

    Attributes:
        number: Number of the lease.
        is_continued: Whether the owner before was a recorder with the same working folder.

    Args:
        store: The recording's objects.
        owner: ID of the recorder's working folder, which the recorder has locked. A lease with this owner is
            taken at once, because the earlier recorder with this folder has ended.
        stop: Returns whether to stop waiting for the lease of another recorder.

    Raises:
        RecordingInUse: Another recorder has the lease, and renews it.
        Interrupted: `stop` has returned True.
        StoreUnavailable: The store does not answer.
    """

    def __init__(self, store: ObjectStore, owner: str, stop: Callable[[], bool]) -> None:
        self._store = store
        self._owner = owner
        self.is_continued: bool = False
        self._error: RecordingError | None = None
        self._lock = threading.Lock()
        self.number, self._version = self._take(stop)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logicalrep-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise an error if this recorder has noticed that it lost the lease.

        Raises:
            RecordingError: Another recorder has taken the lease.
        """
        if self._error is not None:
            raise self._error

    def lost(self) -> RecordingError:
        """Return the error to raise for a lost lease; from then on, `check` raises the error too."""
        if self._error is None:
            found = self._read()
            by = "" if found is None else f" ({found[0].recorder})"
            self._error = RecordingInUse(
                f"{self._store}: another recorder{by} has taken the lease of the recording; this recorder "
                "stores and acknowledges nothing more. Start only one recorder for each recording"
            )
        return self._error

    def is_held(self) -> bool:
        """Return whether the store still names this recorder as the owner.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        found = self._read()
        return found is not None and found[0].lease == self.number and found[0].owner == self._owner

    def release(self) -> None:
        """Stop the renewals; let the next recorder take the lease at once, if the store answers."""
        self._ended.set()
        self._thread.join()
        if self._error is None:
            with suppress(StoreUnavailable, RecordingError):  # the lease then expires
                self._renew(0.0)

    def _take(self, stop: Callable[[], bool]) -> tuple[int, Version]:
        seen: Version | None = None
        since = time.monotonic()
        while not stop():
            found = self._read()
            number = 1 if found is None else found[0].lease + 1
            content = self._content(number, LEASE_SECONDS)
            try:
                if found is None:
                    return number, self._store.create(LEASE_FILE, content)
                lease, version = found
                self.is_continued = lease.owner == self._owner
                is_free = self.is_continued or not lease.expires
                if is_free or (seen == version and time.monotonic() - since > lease.seconds):
                    return number, self._store.replace(LEASE_FILE, content, version)
            except (FileExistsError, Superseded):
                # If the lease has this content, the write has succeeded, and only the store's reply was lost.
                # Otherwise another recorder was faster: try again.
                if (now := self._store.get(LEASE_FILE)) is not None and now[0] == content:
                    return number, now[1]
                continue
            if seen is None:
                seen, since = version, time.monotonic()
            elif seen != version:
                raise RecordingInUse(
                    f"{self._store}: another recorder ({lease.recorder}) writes to this URL: stop it, or "
                    "use another URL"
                )
            time.sleep(_POLL_SECONDS)
        raise Interrupted

    def _run(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / 3):
            try:
                self._renew(LEASE_SECONDS)
            except StoreUnavailable:
                continue
            except RecordingError as error:
                self._error = error
                return

    def _renew(self, seconds: float) -> None:
        with self._lock:
            try:
                content = self._content(self.number, seconds)
                self._version = self._store.replace(LEASE_FILE, content, self._version)
            except Superseded:
                found = self._read()
                if found is None or (found[0].lease, found[0].owner) != (self.number, self._owner):
                    raise self.lost() from None
                self._version = found[1]  # this recorder's own renewal: only the store's reply was lost

    def _read(self) -> tuple[LeaseFile, Version] | None:
        if (found := self._store.get(LEASE_FILE)) is None:
            return None
        return _decode(found[0], f"{self._store}/{LEASE_FILE}"), found[1]

    def _content(self, number: int, seconds: float) -> bytes:
        lease = LeaseFile(
            lease=number,
            owner=self._owner,
            recorder=f"host {socket.gethostname()}, process {os.getpid()}",
            seconds=LEASE_SECONDS,
            expires=time.time() + seconds if seconds else 0.0,
        )
        return msgspec.json.encode(lease) + b"\n"
