"""A line of text and a level for each event of a recorder, for logs and terminals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from pgoutput._text import counted
from pgoutput.recorder.events import (
    Connected,
    Event,
    Notice,
    Progress,
    PublicationAltered,
    Reconnecting,
    RowsComplete,
    Snapshotted,
    Stopped,
    Stored,
    TableComplete,
    TableDropped,
    TableIncomplete,
    TableNotCopied,
    Waiting,
)


def event_text(event: Event) -> str:
    """Return a line about an event."""
    return _LINES[type(event)][1](event)


def event_level(event: Event) -> int:
    """Return the level of an event in a log, such as `logging.INFO`.

    Trouble is a WARNING, and events about progress are DEBUG.
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
    messages = counted(event.messages, "message")
    return f"stopped: {messages}, all stored and acknowledged up to {event.acknowledged_lsn}"


def _stored(event: Stored) -> str:
    numbers = f"{counted(event.messages, 'message')}, {counted(event.transactions, 'commit')}"
    return f"{event.path}: {numbers}, up to {event.end_lsn}"


def _rows_complete(event: RowsComplete) -> str:
    return f"{event.table}: its rows with {counted(event.keys, 'key')} as of {event.lsn} were added"


def _incomplete(event: TableIncomplete) -> str:
    return "; ".join(filter(None, [f"incomplete: {event.table}: {event.reason}", event.advice]))


def _altered(event: PublicationAltered) -> str:
    return f"the publication {event.publication} was altered: {'; '.join(event.changes)}"


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
    Stopped: (logging.INFO, _stopped),
    Stored: (logging.INFO, _stored),
    Progress: (logging.DEBUG, _progress),
    Snapshotted: (logging.DEBUG, _snapshotted),
}
