"""Checks of a server before it is recorded: its version, its settings, its publications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from psycopg import sql

from logicalrep._text import listed
from logicalrep.errors import ReplicationError
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.client.errors import PublicationMissing
from logicalrep.wire import is_utf8, parse_lsn, shown_text


class Server(msgspec.Struct, frozen=True):
    """Properties of a server, from IDENTIFY_SYSTEM and its settings."""

    system_identifier: str
    """Identifier of the database cluster; the same for a primary and its standbys."""
    database: str
    """Name of the database that the connection uses."""
    version: str
    """Full version of the server, such as `18.4`."""
    major_version: int
    """Major version of the server, such as 18."""
    flush_lsn: int
    """LSN up to which a primary has flushed its WAL, or up to which a standby has replayed WAL."""
    sender_timeout: float
    """wal_sender_timeout: seconds until the server disconnects a silent client; 0 for never."""


_SETTINGS: Final = """\
SELECT name, setting FROM pg_settings
WHERE name IN ('wal_level', 'effective_wal_level', 'wal_sender_timeout')"""


def identify(connection: Connection) -> Server:
    """Return the properties of a server.

    Raises:
        ReplicationError: The server is too old, or its settings do not allow logical decoding.
    """
    major_version = connection.server_version // 10_000
    if major_version < 10:
        raise ReplicationError(
            f"the server is PostgreSQL {major_version}, but logicalrep needs PostgreSQL 10 or later: upgrade "
            "the server"
        )
    system_identifier, _, flush_lsn, database = connection.query("IDENTIFY_SYSTEM")[0]
    if not is_utf8(database):
        raise ReplicationError(
            f"the name of the database {shown_text(database)} is not valid UTF-8, and a recording keeps "
            "it as text: rename the database"
        )
    settings: dict[str, str] = dict(connection.query(_SETTINGS))
    _check_wal_level(connection, settings["wal_level"], settings.get("effective_wal_level"))
    return Server(
        system_identifier,
        database,
        connection.query("SHOW server_version")[0][0].split()[0],
        major_version,
        parse_lsn(flush_lsn),
        float(settings["wal_sender_timeout"]) / 1000,
    )


def _check_wal_level(connection: Connection, wal_level: str, effective: str | None) -> None:
    """Check that logical decoding is on, or that creating a slot switches it on.

    Args:
        connection: Connection to the server.
        wal_level: Setting wal_level of the server.
        effective: Setting effective_wal_level, which servers have since PostgreSQL 19; None on older servers.
            With wal_level = replica, a primary switches to logical as long as it has a logical slot, and
            standbys follow their primary (documentation, "Logical Decoding Concepts").

    Raises:
        ReplicationError: The server cannot decode its WAL.
    """
    if (effective or wal_level) == "logical":
        return
    if effective is None or wal_level == "minimal":
        level = "logical" if effective is None else "replica or logical"
        raise ReplicationError(
            f"wal_level must be {level}, but is {wal_level}: "
            "run ALTER SYSTEM SET wal_level = logical, then restart the server"
        )
    if connection.query("SELECT pg_is_in_recovery()") == [("t",)]:
        raise ReplicationError(
            f"effective_wal_level of the standby must be logical, but is {effective}: on the primary, create "
            "a logical slot (this raises effective_wal_level), or set wal_level = logical and restart"
        )


def check_publications(
    connection: Connection, server: Server, publications: Sequence[str], *, is_recorded: bool
) -> None:
    """Check that publications exist; `is_recorded` says whether the recording has begun.

    Raises:
        PublicationMissing: A publication does not exist.
    """
    names = sql.SQL(", ").join(map(sql.Literal, publications))
    query = sql.SQL("SELECT pubname FROM pg_publication WHERE pubname IN ({})").format(names)
    existing = {name for (name,) in connection.query(query)}
    for name in publications:
        if name not in existing:
            quoted = sql.Identifier(name).as_string()
            others = connection.query("SELECT pubname FROM pg_publication ORDER BY 1")
            alike = [sql.Identifier(one).as_string() for (one,) in others if one.lower() == name.lower()]
            raise PublicationMissing(
                f"there is no publication {quoted} in the database {server.database}"
                + (f", but {listed(alike)}, which differs in case" if alike else "")
                + (": if it was renamed, rename it back; or " if is_recorded else ": ")
                + f"run CREATE PUBLICATION {quoted} FOR TABLE …, or FOR ALL TABLES"
                + (", or correct the name" if alike else "")
            )
