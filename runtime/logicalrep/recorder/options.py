"""Stream options that a recorder requests, checked against the versions of server and protocol."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal, TypeAlias

import msgspec

from logicalrep.errors import ReplicationError
from logicalrep.messages import Streaming
from logicalrep.recording import IncompleteTable
from logicalrep.versions import LATEST_RELEASED, OPTIONS, SERVERS


class RecorderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the stream that a recorder requests from the server."""

    proto_version: int | None = None
    """Protocol version; None for the newest released version that the server supports."""
    streaming: Streaming | None = None
    """Whether large transactions are sent while in progress (`off`, `on` or `parallel`); None for the last of
    these values that the protocol version supports."""
    two_phase: bool = False
    """Whether transactions are sent when they are prepared. The slot's flag two_phase must match."""
    binary: bool = False
    """Whether values are sent in binary format, if their type has a binary format."""
    messages: bool = False
    """Whether messages of pg_logical_emit_message are sent."""
    origin: Literal["any", "none"] | None = None
    """`none` omits changes that were replicated from another server; None and `any` include such changes."""

    def negotiate(self, server_version: int) -> tuple[int, dict[str, str]]:
        """Return the protocol version and the other options of START_REPLICATION for a server.

        Args:
            server_version: Major version of the server.

        Raises:
            ReplicationError: The server or the protocol version is too old for an option.
        """
        newest = max((v for v, server in SERVERS.items() if server <= server_version), default=0)
        default = min(newest, LATEST_RELEASED)
        proto_version = default if self.proto_version is None else self.proto_version
        if proto_version not in SERVERS:
            known = ", ".join(map(str, SERVERS))
            raise ReplicationError(f"there is no protocol version {proto_version}; there are {known}")
        if proto_version > newest:
            raise ReplicationError(
                f"protocol version {proto_version} needs PostgreSQL {SERVERS[proto_version]} or later, but "
                f"the server is PostgreSQL {server_version}: request version {default}, or no version"
            )
        streaming = OPTIONS["streaming"].items()
        supported = (value for value, need in streaming if need.proto_version <= proto_version)
        requested = {
            "streaming": self.streaming or [*supported][-1],  # the last value that the version supports
            "two_phase": "on" if self.two_phase else "off",
            "binary": "on" if self.binary else "off",
            "messages": "on" if self.messages else "off",
            "origin": self.origin,
        }
        options = {name: value for name, value in requested.items() if value not in (None, "off")}
        for name, value in options.items():
            need = OPTIONS[name][str(value)]
            if need.server > server_version:
                raise ReplicationError(
                    f"{name} = {value} needs PostgreSQL {need.server} or later, but the server is PostgreSQL "
                    f"{server_version}: leave out the option {name}"
                )
            if need.proto_version > proto_version:
                raise ReplicationError(
                    f"{name} = {value} needs protocol version {need.proto_version} or later, not "
                    f"{proto_version}: leave out the option {name}, or request version {need.proto_version}"
                )
        return proto_version, {name: str(value) for name, value in options.items()}


Resync: TypeAlias = Literal["never", "on-ddl"]
"""When a recorder copies the rows of published tables anew without a request: `never`, or `on-ddl`, after an
ALTER TABLE that has changed existing rows without sending them."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a `Recorder` that are the same for all its sessions."""

    slot: str
    """Name of the replication slot."""
    publications: tuple[str, ...]
    """Names of the publications to record."""
    options: RecorderOptions
    """Stream options to request from the server."""
    create_slot: bool
    """Whether to create the slot of a new recording if it does not exist."""
    failover: bool
    """Whether the slot must have the flag failover, so that standbys keep the slot."""
    after_upgrade: bool
    """Whether to continue the recording if pg_upgrade has upgraded the recorded server to this server."""
    snapshot: bool
    """Whether to begin a new recording with a snapshot, and to copy the rows of incomplete tables later."""
    resync: Resync
    """When to copy the rows of tables anew, also without `snapshot`."""
    workers: int
    """Largest number of ranges of tables (64 MiB each) that are copied in parallel."""
    max_snapshot_age: float | None
    """Age in seconds at which no more ranges are copied from a snapshot; None for no limit."""
    strict: bool
    """Whether an incomplete table ends the recorder with an error."""
    segment_bytes: int
    """Total size of messages at which a segment ends, in bytes."""
    segment_seconds: float
    """Age in seconds at which a segment ends; later if it has only unfinished transactions."""

    def copies(self, table: IncompleteTable, published: Container[int]) -> bool:
        """Return whether the recorder copies the rows of an incomplete table without a request of a user.

        Args:
            table: The table.
            published: OIDs of the published tables.
        """
        is_due = self.snapshot or (self.resync == "on-ddl" and table.altered)
        return is_due and bool(table.lost) and table.oid in published

    def refused(
        self, incomplete: Iterable[IncompleteTable], published: Container[int]
    ) -> list[IncompleteTable]:
        """Return the incomplete tables that end a strict recorder, because it does not complete them.

        These are the tables that the recorder does not copy (see `copies`), and those of which the server
        never sends all changes. Always [] if `strict` is False.

        Args:
            incomplete: The incomplete tables.
            published: OIDs of the published tables.
        """
        return [one for one in incomplete if self.strict and (one.lasting or not self.copies(one, published))]
