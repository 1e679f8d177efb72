"""Replication slots: find, check, create and drop a slot, and start to stream from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from psycopg import sql

from logicalrep.errors import ChangesLost, ConnectionLost, ReplicationError
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.client.server import Server
from logicalrep.recorder.options import Settings
from logicalrep.recording import Source
from logicalrep.wire import format_lsn, parse_lsn


class Slot(msgspec.Struct, frozen=True):
    """A replication slot: the columns of pg_replication_slots that the recorder checks.

    A column that the server's version lacks has the default value of its field.
    """

    plugin: str | None
    """Output plugin; None for a physical slot."""
    database: str | None
    """Database of the slot; None for a physical slot."""
    active_pid: int | None = None
    """Server process that streams from the slot; None if the slot is not in use."""
    confirmed_flush_lsn: str | None = None
    """LSN up to which the client has acknowledged."""
    two_phase: bool = False
    """Whether the slot sends transactions when they are prepared."""
    failover: bool = False
    """Whether standbys keep a copy of the slot (slot synchronization)."""
    catalog_xmin: str | int | None = None
    """Oldest xid whose changes of the catalogs the slot may need."""
    restart_lsn: str | None = None
    """LSN from which on the server retains WAL for the slot; None if the slot has lost WAL."""
    wal_status: str | None = None
    """`lost` if the server has removed WAL that the slot needs."""
    safe_wal_size: int | None = None
    """Bytes of WAL that the server can write before the slot may lose WAL; None without a limit."""
    invalidation_reason: str | None = None
    """Reason why the server has invalidated the slot; None for a valid slot."""


def find_slot(connection: Connection, name: str) -> Slot | None:
    """Return the replication slot with this name, or None if it does not exist."""
    query = "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = {}"
    rows = connection.query(sql.SQL(query).format(name))
    return msgspec.json.decode(rows[0][0], type=Slot) if rows else None


def check_slot(slot: Slot, server: Server, settings: Settings) -> None:
    """Check that a recorder can stream from a slot.

    Args:
        slot: The slot.
        server: The server of the connection.
        settings: Settings of the recorder. The slot's flag two_phase must equal the option `two_phase`. The
            slot must have the flag failover if `failover` is True; otherwise the flag is not checked.

    Raises:
        ChangesLost: The slot has lost WAL.
        ReplicationError: The slot belongs to another plugin or database, or lacks a flag.
        ConnectionLost: Another connection streams from the slot.
    """
    name = settings.slot
    if slot.plugin != "pgoutput":
        kind = "a physical slot" if slot.plugin is None else f"a slot of the plugin {slot.plugin}"
        raise ReplicationError(
            f"expected {name} to be a slot of the plugin pgoutput, found {kind}: choose another slot name"
        )
    if slot.database != server.database:
        raise ReplicationError(
            f"the slot {name} belongs to the database {slot.database}, but the connection is to the database "
            f"{server.database}: connect to the slot's database, or use another slot"
        )
    if slot.wal_status == "lost" or slot.invalidation_reason is not None:
        raise ChangesLost(
            f"the server has invalidated the slot {name} ({slot.invalidation_reason or 'wal_removed'}), so "
            f"changes are lost: drop the slot with {drop_command(name)}, and record anew in another folder"
        )
    if slot.two_phase != settings.options.two_phase:
        has, advice = ("has", "set") if slot.two_phase else ("lacks", "leave out")
        raise ReplicationError(
            f"the slot {name} {has} the flag two_phase: {advice} the option two_phase, or drop the slot with "
            f"{drop_command(name)} and let the recorder create a new one"
        )
    if settings.failover and not slot.failover:
        raise ReplicationError(
            f"the slot {name} lacks the flag failover: leave out the option failover, or set the flag on a "
            f"connection with replication=database: ALTER_REPLICATION_SLOT {name} (FAILOVER true)"
        )
    if slot.active_pid is not None:
        raise ConnectionLost(
            f"the slot {name} is in use by another connection (server process {slot.active_pid}): "
            "end that connection, or record from another slot"
        )


def create_slot(
    connection: Connection, server: Server, settings: Settings, stop: Callable[[], bool]
) -> tuple[int, str | None]:
    """Create a slot, after all transactions in progress have ended.

    Args:
        connection: Replication connection to the server.
        server: The server of the connection.
        settings: Settings of the recorder: name and flags of the slot, and whether to make a snapshot.
        stop: Returns whether to stop waiting.

    Returns:
        The slot's consistent point, and the name of the exported snapshot of the database as of that point;
        None as the name if the settings ask for no snapshot.

    Raises:
        Interrupted: `stop` returned True before the slot was created.
        ReplicationError: The server has no free slot, does not allow the name, or lacks an option.
    """
    if settings.failover and server.major_version < 17:
        raise ReplicationError(
            "a slot with the flag failover needs PostgreSQL 17 or later, but the server is PostgreSQL "
            f"{server.major_version}: leave out the option failover"
        )
    if server.major_version >= 15:
        flags = (("TWO_PHASE", settings.options.two_phase), ("FAILOVER", settings.failover))
        listed = "".join(f", {flag}" for flag, on in flags if on)
        options = f"(SNAPSHOT '{'export' if settings.snapshot else 'nothing'}'{listed})"
    else:
        options = "EXPORT_SNAPSHOT" if settings.snapshot else "NOEXPORT_SNAPSHOT"
    slot = sql.Identifier(settings.slot).as_string()
    rows = connection.query(f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput {options}", stop=stop)
    return parse_lsn(rows[0][1]), rows[0][2]


def create_temporary_slot(connection: Connection, stop: Callable[[], bool]) -> tuple[int, str]:
    """Create a slot that ends with the connection, and export a snapshot as of its consistent point.

    Args:
        connection: Replication connection to the server.
        stop: Returns whether to stop waiting.

    Returns:
        The slot's consistent point, and the name of the exported snapshot of the database as of that point.

    Raises:
        Interrupted: `stop` returned True before the slot was created.
        ReplicationError: The server has no free slot.
    """
    is_new = connection.server_version >= 150_000
    options = "(SNAPSHOT 'export')" if is_new else "EXPORT_SNAPSHOT"
    name = f"logicalrep_{connection.backend_pid}"
    command = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput {options}"
    row = connection.query(command, stop=stop)[0]
    return parse_lsn(row[1]), row[2]


def drop_slot(connection: Connection, name: str) -> None:
    """Drop a slot if it exists."""
    if find_slot(connection, name) is not None:
        connection.query(drop_command(name))


def drop_command(name: str) -> str:
    """Return the SQL that drops a slot."""
    return sql.SQL("SELECT pg_drop_replication_slot({})").format(name).as_string()


def start_command(source: Source, lsn: int) -> str:
    """Return the START_REPLICATION command that streams from a slot, beginning at an LSN."""
    names = ",".join(sql.Identifier(name).as_string() for name in source.publications)
    values: dict[str, Any] = {"proto_version": source.proto_version, "publication_names": names}
    values |= source.options
    listed = ", ".join(f"{name} {_replication_literal(str(value))}" for name, value in values.items())
    quoted_slot = sql.Identifier(source.slot).as_string()
    return f"START_REPLICATION SLOT {quoted_slot} LOGICAL {format_lsn(lsn)} ({listed})"


def _replication_literal(text: str) -> str:
    """Return a text as a literal of the replication grammar, which has no backslash escapes (repl_scanner.l).

    `psycopg.sql.Literal` would write an escape string if the text has a backslash.
    """
    return "'" + text.replace("'", "''") + "'"
