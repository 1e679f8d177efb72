"""State of one client's connection to a stand-in server (a backend process in PostgreSQL)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from logicalrep.standin.protocol import ServerError, parameter_status
from logicalrep.standin.settings import Settings
from logicalrep.standin.slots import Slot
from logicalrep.standin.values import Result, SqlValue


class TransactionStatus(Enum):
    """Transaction status of a connection, as ReadyForQuery reports it."""

    IDLE = b"I"
    IN_TRANSACTION = b"T"
    FAILED = b"E"


class PreparedStatement(msgspec.Struct):
    """A prepared statement of the extended query protocol."""

    sql: str
    """Text of the statement."""
    parameter_types: Sequence[int]
    """Type OIDs of the statement's parameters."""
    description: Result | None = None
    """Description of the statement's result columns; None before the first Describe message."""


class Portal(msgspec.Struct):
    """A prepared statement bound to parameter values. The first Describe or Execute message executes it."""

    statement: PreparedStatement
    """Prepared statement that the portal executes."""
    parameters: Sequence[SqlValue]
    """Values of the statement's parameters."""
    formats: Sequence[int]
    """Format codes (0 text, 1 binary): one per result column, one for all columns, or empty for text."""
    result: Result | None = None
    """Result of the statement, or None before the statement is executed."""
    rows: Iterator[Sequence[SqlValue]] = iter(())
    """Rows of the result that the client has not fetched yet."""


class ReplicationProgress(msgspec.Struct):
    """How much of the stream a walsender has sent and its client has written, for pg_stat_replication."""

    slot: Slot
    """Slot that the walsender streams from."""
    sent_lsn: int
    """LSN up to which all ended transactions have been sent completely."""
    written_lsn: int
    """Write position from the client's last status update, as an LSN."""
    cancelled: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Event that is set when a CancelRequest for the connection arrives."""


class Backend(msgspec.Struct, eq=False):
    """State of one client's connection to a stand-in server."""

    pid: int
    """Process ID that identifies the connection."""
    secret: int
    """Secret key that a CancelRequest for the connection must contain."""
    database: str
    """Name of the database that the client connected to."""
    user: str
    """Name of the user that the client connected as."""
    settings: Settings
    """Settings (GUC parameters) of the connection."""
    transaction_status: TransactionStatus = TransactionStatus.IDLE
    """Whether the connection is in a transaction, and whether the transaction failed."""
    statements: dict[str, PreparedStatement] = {}
    """Prepared statements, by name."""
    portals: dict[str, Portal] = {}
    """Portals, by name."""
    replication: ReplicationProgress | None = None
    """Progress of the walsender, or None while the connection does not stream."""
    notifications: bytes = b""
    """ParameterStatus messages that have not been sent to the client yet."""

    def change_setting(self, name: str, value: str) -> None:
        """Change a setting. Queue a ParameterStatus message if the server reports changes of this setting.

        Raises:
            ServerError: The setting is read-only, or the client encoding is not UTF8.
        """
        changed = self.settings.set(name, value)
        if changed is not None:
            self.notifications += parameter_status(changed, self.settings[changed])

    def take_notifications(self) -> bytes:
        """Return and clear the queued ParameterStatus messages."""
        notifications, self.notifications = self.notifications, b""
        return notifications

    def fail_transaction(self) -> None:
        """Mark the open transaction, if there is one, as failed."""
        if self.transaction_status is TransactionStatus.IN_TRANSACTION:
            self.transaction_status = TransactionStatus.FAILED

    def check_transaction(self) -> None:
        """Check that the connection is not in a failed transaction.

        Raises:
            ServerError: The current transaction failed and must be rolled back first.
        """
        if self.transaction_status is TransactionStatus.FAILED:
            raise ServerError(
                "25P02", "current transaction is aborted, commands ignored until end of transaction block"
            )
