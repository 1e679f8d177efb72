"""Events that a recorder reports while it runs, with a line of text and a level for logs and terminals.

`msgspec.json.encode` writes an event as JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from logicalrep._text import counted, listed


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Base class of the events. In JSON, the key `event` has the name of the class in lower case."""

    time: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat())
    """Time of the event by the clock of the recorder, in ISO 8601."""


class Connected(Event, frozen=True, kw_only=True):
    """The server has begun to stream; a session begins."""

    session: int
    """Number of the session in the recording, from 1."""
    server_version: str
    """Version of the server, such as `18.4`."""
    slot: str
    """Name of the replication slot."""
    proto_version: int
    """Version of the logical replication protocol."""
    options: dict[str, str]
    """Options of START_REPLICATION except the protocol version and publications, by name."""
    start_lsn: str
    """The session records the transactions that end after this LSN."""


class Waiting(Event, frozen=True, kw_only=True):
    """The creation of the slot waits for the end of a transaction.

    Reported again when the awaited transaction or its state changes.
    """

    xid: int | None
    """ID of the transaction; None on a standby that waits until the primary logs its running transactions."""
    gid: str | None
    """Global identifier if the transaction is prepared; otherwise None."""
    database: str | None
    """Database in which the transaction runs; None if `xid` is None."""
    pid: int | None
    """ID of the server process that runs the transaction; None if prepared, or if `xid` is None."""
    user: str | None
    """Role that runs or prepared the transaction; None if `xid` is None."""
    application: str | None
    """Name of the application that runs the transaction; None for a prepared transaction."""
    state: str | None
    """State in pg_stat_activity, such as `idle in transaction`; None if prepared or not visible."""
    since: str | None
    """Time when the transaction began or was prepared; None if not visible to the recorder's role."""


class Snapshotted(Event, frozen=True, kw_only=True):
    """More rows of a table were copied to the snapshot."""

    table: str
    """Name of the table, with its schema."""
    rows: int
    """Number of rows of this table that were copied so far from this snapshot."""
    tables_done: int
    """Number of tables that were copied completely."""
    tables: int
    """Number of all tables that the snapshot copies."""
    rows_of_all: int
    """Number of rows of all tables that were copied so far from this snapshot."""
    bytes_done: int
    """Size of the parts of the tables that were copied so far, in bytes; an estimate, like `bytes`."""
    bytes: int
    """Size of all tables that the snapshot copies, in bytes (pg_table_size)."""
    bytes_per_second: float
    """Average speed: the bytes copied from this snapshot, divided by the age of the snapshot in seconds."""
    snapshot_seconds: float
    """Age of the exported snapshot, in seconds."""


class Progress(Event, frozen=True, kw_only=True):
    """State of the running recorder, reported every second."""

    messages: int
    """Number of messages that were received since the recorder was started."""
    messages_per_second: float
    """Messages received per second since the preceding `Progress` event of the session."""
    lag_bytes: int | None
    """Bytes of WAL from the acknowledged LSN to the end of the server's WAL; None if the end is not known.
    Received messages are acknowledged when their segment is stored."""
    last_commit_time: str | None
    """Commit time of the last received transaction, in ISO 8601, as `logicalrep.wire.format_time`
    returns it; None before the session's first commit."""
    open_transactions: int
    """Number of received transactions that have not ended."""
    acknowledged_lsn: str
    """LSN up to which everything was acknowledged to the server."""
    received_bytes: int
    """Size of the messages that were received since the recorder was started, in bytes."""
    received_lsn: str
    """LSN up to which all transactions were received."""
    stored_lsn: str
    """LSN up to which everything is stored."""
    complete_lsn: str
    """LSN up to which all transactions that have ended are stored; above `stored_lsn` if others go on."""
    wal_lsn: str | None
    """End of the server's WAL, at most about 2 seconds ago; None if not known."""
    oldest_transaction_seconds: float | None
    """Seconds since the oldest of the open transactions began to arrive; None if none is open."""
    retained_wal_bytes: int | None
    """Bytes of WAL that the server retains because of the slot; None if not known."""
    wal_status: str | None
    """Column `wal_status` of pg_replication_slots, such as `reserved`; None before PostgreSQL 13."""
    safe_wal_bytes: int | None
    """Bytes of WAL that the server can write before the slot may lose WAL; None without a limit."""


class Stored(Event, frozen=True, kw_only=True):
    """A segment was stored: written to the disk, or put into the object store."""

    path: str
    """Path of the segment."""
    session: int
    """Number of the session in which the segment's messages were received."""
    messages: int
    """Number of messages in the segment, without its keyframe."""
    transactions: int
    """Number of transactions that were committed in the segment."""
    end_lsn: str
    """Transactions with an end LSN up to this one are stored."""


class Notice(Event, frozen=True, kw_only=True):
    """The server has sent a notice or a warning. Each text is reported once per connection."""

    severity: str
    """WARNING, NOTICE, INFO, LOG or DEBUG: in English, whatever the language of the server's messages."""
    sqlstate: str
    """SQLSTATE code, five characters."""
    message: str
    """Primary message and hint, in the language of the server's messages."""


class TableIncomplete(Event, frozen=True, kw_only=True):
    """The recording lacks rows or changes of a table.

    Reported when the recorder notices it, and at each start of the recorder.
    """

    table: str
    """Name of the table, with its schema."""
    lsn: str
    """End of the server's WAL when the recorder last noticed that changes of the table are missing."""
    reason: str
    """Text that describes why rows or changes are missing."""
    advice: str
    """Text that says how the table becomes complete; empty if copying the rows is impossible or useless."""


class TableComplete(Event, frozen=True, kw_only=True):
    """All rows of an incomplete table were copied into the running recording. The table is complete now."""

    table: str
    """Name of the table, with its schema."""
    lsn: str
    """The copied rows contain the transactions that committed before this LSN."""


class TableDropped(Event, frozen=True, kw_only=True):
    """The recorder noticed that a table was dropped on the server."""

    table: str
    """Name of the table, with its schema."""
    after_lsn: str
    """End of the server's WAL when the recorder last found the table in the catalogs."""


class RowsComplete(Event, frozen=True, kw_only=True):
    """The rows of a table that have the requested keys were copied into the running recording."""

    table: str
    """Name of the table, with its schema."""
    lsn: str
    """The copied rows contain the transactions that committed before this LSN."""
    keys: int
    """Number of requested keys."""


class TableNotCopied(Event, frozen=True, kw_only=True):
    """The rows of a table cannot be copied. The next session of the recorder tries again."""

    table: str
    """Name of the table, with its schema."""
    reason: str
    """Text that describes the error."""


class PublicationAltered(Event, frozen=True, kw_only=True):
    """A recorded publication was altered."""

    publication: str
    """Name of the publication."""
    changes: tuple[str, ...]
    """Texts that describe what was altered."""


class Reconnecting(Event, frozen=True, kw_only=True):
    """The connection was lost or refused; the recorder connects again after a pause."""

    reason: str
    """Text of the error that ended or refused the connection."""
    seconds: float
    """Length of the pause before the next connection attempt, in seconds."""


class Lost(Event, frozen=True, kw_only=True):
    """The recorder ends, because changes are lost and the recording cannot be continued."""

    reason: str
    """Text of the error."""


class Stopped(Event, frozen=True, kw_only=True):
    """The recorder has ended; all received messages are stored and acknowledged."""

    messages: int
    """Number of messages that were received since the recorder was started."""
    acknowledged_lsn: str | None
    """LSN up to which everything was acknowledged; None if the recorder was stopped before a stream began."""


def event_text(event: Event) -> str:
    """Return one line of text that describes an event, for logs and terminals."""
    return _LINES[type(event)][1](event)


def event_level(event: Event) -> int:
    """Return the level of an event in a log, such as `logging.INFO`.

    Events about problems have the level WARNING, and events about progress DEBUG.
    """
    if isinstance(event, Notice):
        return logging.WARNING if event.severity == "WARNING" else logging.INFO
    return _LINES[type(event)][0]


def _connected(event: Connected) -> str:
    options = "".join(f", {name} = {value}" for name, value in event.options.items())
    return (
        f"recording {event.slot} of PostgreSQL {event.server_version} from {event.start_lsn}, "
        f"protocol version {event.proto_version}{options}"
    )


def _waiting(event: Waiting) -> str:
    if event.xid is None:
        return (
            "waiting until the primary logs its running transactions: run SELECT pg_log_standby_snapshot() "
            "there, or wait for its next checkpoint"
        )
    names = "database", "user", "application", "state", "since"
    details = [f"{name} {value}" for name in names if (value := getattr(event, name))]
    if event.gid is not None:
        holder, advice = f'prepared transaction "{event.gid}"', "COMMIT PREPARED or ROLLBACK PREPARED it"
    else:
        holder, advice = f"transaction of the server process {event.pid}", "commit it, or roll it back"
    return f"waiting for the {holder} ({', '.join([f'xid {event.xid}', *details])}): {advice}"


def _progress(event: Progress) -> str:
    lag = "unknown" if event.lag_bytes is None else counted(event.lag_bytes, "byte")
    received = f"{counted(event.messages, 'message')}, {event.messages_per_second:,.0f} a second"
    still_open = f"{counted(event.open_transactions, 'transaction')} open"
    return f"{received}; lag {lag}; last commit {event.last_commit_time or 'not yet'}; {still_open}"


def _snapshotted(event: Snapshotted) -> str:
    rate = event.bytes_per_second
    left = f"{max(event.bytes - event.bytes_done, 0) / rate:,.0f} s left" if rate else "time left unknown"
    tables, rows = counted(event.tables, "table"), counted(event.rows_of_all, "row")
    return (
        f"snapshot of {event.snapshot_seconds:,.0f} s ago: {event.tables_done:,} of {tables}, "
        f"{rows}, {event.bytes_done / 1e6:,.0f} of {event.bytes / 1e6:,.0f} MB, "
        f"{rate / 1e6:,.0f} MB a second, {left}; {event.table}"
    )


def _stopped(event: Stopped) -> str:
    if event.acknowledged_lsn is None:
        return "stopped before the recording began: nothing is stored"
    # A recorder without messages may have stored copied rows: "0 messages, all stored" would mislead.
    messages = f"{counted(event.messages, 'message')}, " if event.messages else ""
    return f"stopped: {messages}all stored and acknowledged up to {event.acknowledged_lsn}"


def _stored(event: Stored) -> str:
    numbers = f"{counted(event.messages, 'message')}, {counted(event.transactions, 'commit')}"
    return f"{event.path}: {numbers}, up to {event.end_lsn}"


def _rows_complete(event: RowsComplete) -> str:
    return f"{event.table}: its rows with {counted(event.keys, 'key')} as of {event.lsn} were added"


def _incomplete(event: TableIncomplete) -> str:
    return "; ".join(filter(None, [f"incomplete: {event.table}: {event.reason}", event.advice]))


def _altered(event: PublicationAltered) -> str:
    return f"the publication {event.publication} was altered: {listed(event.changes, '; ')}"


_LINES: Final[dict[type[Event], tuple[int, Callable[[Any], str]]]] = {
    Connected: (logging.INFO, _connected),
    Waiting: (logging.WARNING, _waiting),
    TableIncomplete: (logging.WARNING, _incomplete),
    TableComplete: (logging.INFO, "complete: {0.table}: its rows as of {0.lsn} were added".format),
    RowsComplete: (logging.INFO, _rows_complete),
    TableDropped: (logging.WARNING, "{0.table} was dropped on the server after {0.after_lsn}".format),
    TableNotCopied: (logging.WARNING, "{0.table}: its rows cannot be copied: {0.reason}".format),
    PublicationAltered: (logging.WARNING, _altered),
    Notice: (logging.INFO, "{0.severity} of the server: {0.message}".format),
    Reconnecting: (logging.WARNING, "{0.reason}; the next attempt is in {0.seconds} s".format),
    Lost: (logging.ERROR, "the recording cannot be continued: {0.reason}".format),
    Stopped: (logging.INFO, _stopped),
    Stored: (logging.INFO, _stored),
    Progress: (logging.DEBUG, _progress),
    Snapshotted: (logging.DEBUG, _snapshotted),
}
