"""State that all connections of a stand-in server share (shared memory in PostgreSQL)."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from logicalrep.standin.authentication import ScramVerifier
from logicalrep.standin.backend import Backend
from logicalrep.standin.faults import Faults
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.settings import Settings, version_number
from logicalrep.standin.slots import Slot, Slots
from logicalrep.standin.source import Source


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}+00"


class ServerState(msgspec.Struct, eq=False):
    """State that all connections of a stand-in server share."""

    source: Source
    """Source of the stream and of the catalog data."""
    faults: Faults
    """Faults that the server injects."""
    verifier: ScramVerifier | None
    """SCRAM verifier of the only user that may connect, or None to accept every client."""
    wal_sender_timeout: float
    """wal_sender_timeout, in seconds; 0 disables the timeout."""
    settings: Mapping[str, str]
    """Values of settings (GUC parameters), by name. They replace the default values, or add settings."""
    started: str = msgspec.field(default_factory=_now)
    """Time when the server was started or last switched its timeline, as the text of a timestamptz."""
    switch_lsns: list[int] = []
    """End LSN of each earlier timeline, oldest first."""
    acknowledged: dict[str, dict[int, datetime]] = {}
    """Time at which a client first acknowledged each LSN, by slot name and LSN; also for dropped slots."""
    slots: Slots = msgspec.field(default_factory=Slots)
    """Replication slots."""
    backends: dict[int, Backend] = {}
    """State of the open connections, by process ID."""
    created_publications: list[str] = []
    """Names of the publications that clients have created."""
    pids: Iterator[int] = msgspec.field(default_factory=lambda: itertools.count(1001))
    """Process IDs for new connections."""

    @property
    def timeline(self) -> int:
        """ID of the current timeline of the WAL."""
        return len(self.switch_lsns) + 1

    def switch_timeline(self) -> None:
        """Begin a new timeline at the highest LSN that was sent to a client, as a promoted standby does."""
        sent = (one.replication.sent_lsn for one in self.backends.values() if one.replication is not None)
        self.switch_lsns.append(max(sent, default=self.source.start_lsn))
        self.started = _now()

    @property
    def major_version(self) -> int:
        """Major version of PostgreSQL that the server reports."""
        return version_number(self.source.server_version) // 10_000

    def publications(self, mentioned: Iterable[str] = ()) -> Sequence[str]:
        """Return the names of the publications.

        Args:
            mentioned: Names in the client's query. If the source accepts any publication name, they are
                returned as well.
        """
        if self.source.publications is not None:
            return self.source.publications
        return list(dict.fromkeys((*self.created_publications, *mentioned)))

    def create_publication(self, name: str) -> None:
        """Add a publication, if the source accepts any publication name.

        Raises:
            ServerError: A publication of this name exists, or the source has a fixed list of publications.
        """
        if name in self.publications():
            raise ServerError("42710", f'publication "{name}" already exists')
        if self.source.publications is not None:
            raise ServerError(
                "0A000",
                f"the stand-in server serves only the publications {', '.join(self.source.publications)}: "
                f'"{name}" cannot be created',
            )
        self.created_publications.append(name)

    def create_slot(
        self,
        backend: Backend,
        name: str,
        plugin: str,
        *,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
    ) -> Slot:
        """Create a slot in the database of `backend`. Its confirmed flush LSN is the source's `start_lsn`.

        Raises:
            ServerError: The plugin is not pgoutput, or is not allowed by the setting output_plugin_libraries;
                the name is taken or not valid; or all slots are in use.
        """
        if plugin != "pgoutput":
            raise ServerError(
                "58P01",
                f'could not access file "{plugin}": No such file or directory',
                detail="A stand-in server has the plugin pgoutput only.",
            )
        self.check_plugin(plugin)
        lsn = self.source.start_lsn
        slot = Slot(name, backend.database, lsn, temporary, two_phase, failover, backend.pid)
        self.slots.create(slot)
        self.acknowledged.setdefault(name, {})
        return slot

    def acquire_slot(self, name: str, backend: Backend) -> Slot:
        """Return the slot of this name and mark it as active for a connection (ReplicationSlotAcquire).

        Raises:
            ServerError: The slot does not exist, is active, was invalidated, or belongs to another database.
        """
        slot = self.slots.acquire(name, backend.pid, backend.database)
        if slot.is_lost:
            slot.active_pid = None
            text, detail = next(texts for since, *texts in _LOST if self.major_version >= since)
            raise ServerError("55000", text.format(name), detail=detail)
        return slot

    def check_plugin(self, plugin: str) -> None:
        """Check that the setting output_plugin_libraries allows an output plugin (StartupDecodingContext).

        Raises:
            ServerError: The setting exists and does not list the plugin.
        """
        allowed = self.settings.get("output_plugin_libraries", plugin)
        if plugin not in (name.strip() for name in allowed.split(",")):
            raise ServerError(
                "42501",
                f'library "{plugin}" may not be used as an output plugin',
                "If it is safe for all REPLICATION users to use this library as an output plugin, add it to "
                '"output_plugin_libraries" and reload the server configuration.',
            )

    def open_backend(self, database: str, user: str) -> Backend:
        """Register a new connection and return its state."""
        settings = Settings(self.source.server_version, user, self.wal_sender_timeout, self.settings)
        backend = Backend(next(self.pids), secrets.randbits(32), database, user, settings)
        self.backends[backend.pid] = backend
        return backend

    def close_backend(self, backend: Backend) -> None:
        """Remove a connection and its temporary slots."""
        del self.backends[backend.pid]
        self.slots.drop_temporary(backend.pid)

    def cancel(self, pid: int, secret: int) -> None:
        """End the stream of a connection, if the secret key of the CancelRequest is right."""
        backend = self.backends.get(pid)
        if backend is not None and backend.secret == secret and backend.replication is not None:
            backend.replication.cancelled.set()


_LOST: Final = (
    (
        18,
        'can no longer access replication slot "{}"',
        'This replication slot has been invalidated due to "wal_removed".',
    ),
    (
        16,
        'can no longer get changes from replication slot "{}"',
        "This slot has been invalidated because it exceeded the maximum reserved size.",
    ),
    (
        0,
        'cannot read from logical replication slot "{}"',
        "This slot has been invalidated because it exceeded the maximum reserved size.",
    ),
)
"""Errors for an invalidated slot, newest first: first PostgreSQL version with the error, message, detail."""
