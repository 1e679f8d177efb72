"""What a recorder tells while it is at work. Each event can be written as JSON (`msgspec.json.encode`)."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Something that happened. Its name is in the key `event`."""

    time: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat())
    """When, by the clock of the recorder."""


class Connected(Event, frozen=True, kw_only=True):
    """A session begins."""

    session: int
    server_version: str
    slot: str
    proto_version: int
    options: dict[str, str]
    start_lsn: str


class Waiting(Event, frozen=True, kw_only=True):
    """The creation of the slot waits for the end of a transaction. Reported again when the cause changes."""

    xid: int | None
    """The transaction; None on a standby that waits until the primary logs its running transactions."""
    gid: str | None
    """Of a prepared transaction; None for others."""
    database: str | None
    pid: int | None
    """The server process of a transaction that is not prepared."""
    user: str | None
    application: str | None
    state: str | None
    """As in pg_stat_activity. None if the recorder's role may not see it; so with `since`."""
    since: str | None
    """When the transaction was prepared or has begun."""


class Snapshotted(Event, frozen=True, kw_only=True):
    """More of the initial contents was copied."""

    table: str
    rows: int
    """Of this table so far."""
    tables_done: int
    tables: int


class Progress(Event, frozen=True, kw_only=True):
    """How it goes, every second."""

    messages: int
    """Since the recorder was started."""
    messages_per_second: float
    """Since the last event of this kind."""
    lag_bytes: int | None
    """From what was acknowledged to the end of the server's WAL; None if that is not known. What has come is
    acknowledged when its segment is stored."""
    last_commit_time: str | None
    open_transactions: int
    acknowledged_lsn: str


class Stored(Event, frozen=True, kw_only=True):
    """A segment is safe on the disk."""

    path: str
    session: int
    messages: int
    transactions: int
    end_lsn: str


class Notice(Event, frozen=True, kw_only=True):
    """The server has sent a notice or a warning. Each text is reported once for each connection."""

    severity: str
    """WARNING, NOTICE, INFO, LOG or DEBUG, whatever the language of the server's messages."""
    sqlstate: str
    message: str
    """The primary message and the hint, in the language of the server's messages."""


class SnapshotKept(Event, frozen=True, kw_only=True):
    """A snapshot was asked for, and the recording has one already: it is continued."""

    recording: str
    """UUID of the recording."""


class TableIncomplete(Event, frozen=True, kw_only=True):
    """The recording lacks rows of a table. Told for each table at each start, and when it is noticed."""

    table: str
    lsn: str
    """End of the server's WAL when it was noticed."""
    reason: str


class PublicationAltered(Event, frozen=True, kw_only=True):
    """A recorded publication publishes something else than before."""

    publication: str
    changes: tuple[str, ...]


class Reconnecting(Event, frozen=True, kw_only=True):
    """The connection ended; the next attempt comes after a pause."""

    reason: str
    seconds: float


class Stopped(Event, frozen=True, kw_only=True):
    """The recorder has ended, with all stored and acknowledged."""

    messages: int
    acknowledged_lsn: str | None
    """None if it was stopped before it began to stream: then no slot is left, nor a snapshot half made."""
