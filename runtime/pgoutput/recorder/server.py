"""What must be right on the server before it can be recorded: settings, publications, the slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.recorder.connection import Connection, quote_identifier, quote_literal
from pgoutput.wire import format_lsn, parse_lsn, shown_text


class Server(msgspec.Struct, frozen=True):
    """A server, as IDENTIFY_SYSTEM and its settings describe it."""

    system_identifier: str
    database: str
    version: str
    major_version: int
    flush_lsn: int
    """The end of what is in its WAL for sure. Of a standby, of what it has replayed."""
    sender_timeout: float
    """wal_sender_timeout in seconds: it ends connections whose client is silent for so long; 0 if never."""


class Slot(msgspec.Struct, frozen=True):
    """A replication slot: its row of pg_replication_slots, as far as it matters and the server has it."""

    plugin: str | None
    database: str | None
    active_pid: int | None = None
    confirmed_flush_lsn: str | None = None
    two_phase: bool = False
    failover: bool = False
    wal_status: str | None = None
    invalidation_reason: str | None = None


def identify(connection: Connection) -> Server:
    """Ask a server what it is.

    Raises:
        ReplicationError: It cannot be recorded at all.
    """
    major_version = connection.server_version // 10_000
    if major_version < 10:
        raise ReplicationError("the server is older than PostgreSQL 10, which was the first to have pgoutput")
    system_identifier, _, flush_lsn, database = connection.query("IDENTIFY_SYSTEM")[0]
    if shown_text(str(database)) != database:
        raise ReplicationError(
            f"the name of the database {shown_text(str(database))} is not valid UTF-8, and a recording keeps "
            "it as text: rename the database"
        )
    settings = {str(name): str(value) for name, value in connection.query(_SETTINGS)}
    _check_wal_level(connection, settings["wal_level"], settings.get("effective_wal_level"))
    return Server(
        str(system_identifier),
        str(database),
        _setting(connection, "server_version").split()[0],
        major_version,
        parse_lsn(str(flush_lsn)),
        float(settings["wal_sender_timeout"]) / 1000,
    )


_SETTINGS: Final = """\
SELECT name, setting FROM pg_settings
WHERE name IN ('wal_level', 'effective_wal_level', 'wal_sender_timeout')"""


def _check_wal_level(connection: Connection, wal_level: str, effective: str | None) -> None:
    """Check that logical decoding is on, or that creating a slot switches it on.

    Args:
        connection: To the server.
        wal_level: Its setting.
        effective: effective_wal_level, which servers have since PostgreSQL 19: there a primary with
            wal_level = replica switches to logical as long as it has a logical slot, and standbys follow
            their primary (documentation, "Logical Decoding Concepts").

    Raises:
        ReplicationError: The server cannot decode.
    """
    if (effective or wal_level) == "logical":
        return
    if effective is None or wal_level == "minimal":
        level = "logical" if effective is None else "replica or logical"
        raise ReplicationError(
            f"wal_level is {wal_level}, and must be {level}: "
            "run ALTER SYSTEM SET wal_level = logical, then restart the server"
        )
    if connection.query("SELECT pg_is_in_recovery()") == [("t",)]:
        raise ReplicationError(
            f"effective_wal_level is {effective}, and a standby needs logical: create a logical slot on the "
            "primary, which switches it on, or set wal_level = logical there"
        )


def check_publications(connection: Connection, server: Server, publications: Sequence[str]) -> None:
    """See that the publications are there.

    Raises:
        ReplicationError: One is not.
    """
    names = ", ".join(map(quote_literal, publications))
    query = f"SELECT pubname FROM pg_publication WHERE pubname IN ({names})"
    there = {row[0] for row in connection.query(query)}
    for name in publications:
        if name not in there:
            raise ReplicationError(
                f"there is no publication {quote_identifier(name)} in the database {server.database}: run "
                f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE …, or FOR ALL TABLES"
            )


def find_slot(connection: Connection, name: str) -> Slot | None:
    """A replication slot; None if there is none of this name."""
    rows = connection.query(
        f"SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = {quote_literal(name)}"
    )
    return msgspec.json.decode(str(rows[0][0]), type=Slot) if rows else None


def check_slot(slot: Slot, name: str, server: Server, *, two_phase: bool, failover: bool = False) -> None:
    """See that a slot can be read from.

    Args:
        slot: The slot.
        name: Its name.
        server: Where it is.
        two_phase: Whether it must have the flag two_phase; else it must not.
        failover: Whether it must have the flag failover; else it may.

    Raises:
        ReplicationError: It cannot.
        ConnectionLost: It is in use just now.
    """
    if slot.plugin != "pgoutput":
        kind = "a physical slot" if slot.plugin is None else f"a slot of the plugin {slot.plugin}"
        raise ReplicationError(f"{name} is {kind}, not of pgoutput: choose another name for the slot")
    if slot.database != server.database:
        raise ReplicationError(
            f"the slot {name} belongs to the database {slot.database}, the connection is to {server.database}"
        )
    if slot.wal_status == "lost" or slot.invalidation_reason is not None:
        raise ReplicationError(
            f"the server has given up the slot {name} ({slot.invalidation_reason or 'wal_removed'}), and "
            f"changes are lost: drop it with {drop_command(name)}, and record anew in another folder"
        )
    if slot.two_phase != two_phase:
        has, then = ("has", "ask for two_phase") if slot.two_phase else ("lacks", "do without two_phase")
        raise ReplicationError(
            f"the slot {name} {has} the flag two_phase: {then}, or drop it with {drop_command(name)} "
            "and have it created anew"
        )
    if failover and not slot.failover:
        raise ReplicationError(
            f"the slot {name} lacks the flag failover: do without failover, or set the flag on a connection "
            f"with replication=database: ALTER_REPLICATION_SLOT {name} (FAILOVER true)"
        )
    if slot.active_pid is not None:
        raise ConnectionLost(
            f"the slot {name} is in use by another connection (server process {slot.active_pid}): "
            "end that one, or record from a slot of its own"
        )


def create_slot(
    connection: Connection,
    name: str,
    server: Server,
    *,
    two_phase: bool,
    failover: bool,
    export_snapshot: bool,
    stop: Callable[[], bool],
) -> tuple[int, str | None]:
    """Create a slot; return its consistent point, and the name of the snapshot as of then.

    It waits for the transactions that are in progress.

    Args:
        connection: To the server.
        name: The name of the slot.
        server: The server.
        two_phase: Whether it gives transactions when they are prepared.
        failover: Whether standbys keep it, so that it is there after a promotion.
        export_snapshot: Whether to export a snapshot.
        stop: Returns whether to stop waiting.

    Raises:
        Interrupted: `stop` has said so meanwhile.
        ReplicationError: The server refuses, because there are too many or the name is not one for a slot.
    """
    if failover and server.major_version < 17:
        raise ReplicationError(
            f"a slot with the flag failover needs PostgreSQL 17, the server is {server.major_version}: "
            "leave it out"
        )
    snapshot = "export" if export_snapshot else "nothing"
    old = "EXPORT_SNAPSHOT" if export_snapshot else "NOEXPORT_SNAPSHOT"
    flags = "".join(f", {flag}" for flag, on in (("TWO_PHASE", two_phase), ("FAILOVER", failover)) if on)
    new = f"(SNAPSHOT '{snapshot}'{flags})"
    rows = connection.query(
        f"CREATE_REPLICATION_SLOT {quote_identifier(name)} LOGICAL pgoutput "
        f"{new if server.major_version >= 15 else old}",
        stop=stop,
    )
    return parse_lsn(str(rows[0][1])), rows[0][2]


def drop_slot(connection: Connection, name: str) -> None:
    """Drop a slot, if it is there."""
    if find_slot(connection, name) is not None:
        connection.query(drop_command(name))


def start_command(
    slot: str, lsn: int, proto_version: int, publications: Sequence[str], options: dict[str, str]
) -> str:
    """START_REPLICATION for a slot, from an LSN."""
    names = ",".join(map(quote_identifier, publications))
    given: dict[str, Any] = {"proto_version": proto_version, "publication_names": names} | options
    listed = ", ".join(f"{name} {_replication_literal(str(value))}" for name, value in given.items())
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {format_lsn(lsn)} ({listed})"


def _replication_literal(text: str) -> str:
    """The text as the replication grammar has it, which knows no backslash escapes (repl_scanner.l)."""
    return "'" + text.replace("'", "''") + "'"


def _setting(connection: Connection, name: str) -> str:
    return str(connection.query(f"SHOW {name}")[0][0])


def drop_command(name: str) -> str:
    """The SQL that drops a slot."""
    return f"SELECT pg_drop_replication_slot({quote_literal(name)})"
