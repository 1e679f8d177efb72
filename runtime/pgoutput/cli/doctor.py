"""The command `pgoutput doctor`: what stands in the way of a recording, what it costs, and what helps.

Each check of the server is a query that returns a row for each problem. The checks need no privileges, and
change nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from shutil import disk_usage
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import msgspec
import typer

from pgoutput._extras import MissingExtraError, install_line, require
from pgoutput._text import counted, one_line
from pgoutput.cli.printing import printable, refused_values, version_line
from pgoutput.errors import PgoutputError
from pgoutput.recording import Location, locate

if TYPE_CHECKING:
    from pgoutput.recorder import Connection

Level: TypeAlias = Literal["error", "warning", "advice"]

FREE_BYTES: Final = 1 << 30
"""Least free space of the disk of a recording or replica, in bytes."""


_PACKAGES: Final = {
    "psycopg": ("recorder", "no server can be recorded from here"),
    "deltalake": ("replica", "no Delta tables can be written here"),
    "pyiceberg": ("iceberg", "no Iceberg tables can be written here"),
    "obstore": ("store", "no recording can be written to an object store"),
    "pyspark": ("spark", "no recording can be read in Spark"),
}
"""Extra and use of each package that a part of pgoutput needs."""


class Finding(msgspec.Struct, frozen=True):
    """Something that a check has found."""

    level: Level
    """`error` if recording, copying or verifying fails, `warning` if data or the server are at risk."""
    check: str
    """Name of the check."""
    found: str
    cost: str
    """What happens if nothing is done."""
    remedy: str
    """SQL or a shell command that helps, or what else to do."""


class Report(msgspec.Struct, frozen=True):
    """Output of `pgoutput doctor`."""

    pgoutput: str
    """Versions of pgoutput and Python."""
    server: str
    """Version of the server; empty without a connection."""
    checks: int
    """Number of checks that were made."""
    findings: tuple[Finding, ...]


class _Check(msgspec.Struct, frozen=True):
    """A check of the server; `{0}` in a text is the first column of the query, `{1}` the second."""

    name: str
    level: Level
    query: str
    """Has the names `{slot}` and `{publications}`; returns a row for each problem."""
    found: str
    cost: str
    remedy: str
    since: int = 10
    """First major version with what the query needs."""
    before: int = 1000
    """First major version for which the check is not needed."""


_TABLES: Final = """\
FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
JOIN pg_namespace n ON nspname = schemaname JOIN pg_class c ON relnamespace = n.oid AND relname = tablename
WHERE pubname = ANY ({publications})"""

_NAME: Final = "format('%I.%I', nspname, relname)"
_HAS_KEY: Final = "EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"
_RELOADED: Final = "SELECT pg_reload_conf();"

_CHECKS: Final = (
    _Check(
        "wal_level",
        "error",
        "SELECT setting FROM pg_settings WHERE name = 'wal_level' AND setting <> 'logical'",
        "wal_level is {0}",
        "no logical slot can be created",
        "ALTER SYSTEM SET wal_level = logical; -- then restart the server",
        before=19,
    ),
    _Check(
        "wal_level",
        "error",
        "SELECT setting FROM pg_settings WHERE name = 'wal_level' AND setting = 'minimal'",
        "wal_level is minimal",
        "no logical slot can be created",
        "ALTER SYSTEM SET wal_level = replica; -- then restart the server",
        since=19,
    ),
    _Check(
        "free slot",
        "error",
        "SELECT count(*), count(*) + 1 FROM pg_replication_slots HAVING "
        "count(*) >= current_setting('max_replication_slots')::int AND "
        "count(*) FILTER (WHERE slot_name = {slot}) = 0",
        "all {0} replication slots are in use",
        "the slot cannot be created",
        "ALTER SYSTEM SET max_replication_slots = {1}; -- then restart the server; or drop an unused slot",
    ),
    _Check(
        "free sender",
        "error",
        "SELECT count(*), count(*) + 2 FROM pg_stat_replication HAVING "
        "count(*) >= current_setting('max_wal_senders')::int",
        "all {0} WAL senders are in use",
        "no client can stream",
        "ALTER SYSTEM SET max_wal_senders = {1}; -- then restart the server",
    ),
    _Check(
        "sender timeout",
        "warning",
        "SELECT 1 FROM pg_settings WHERE name = 'wal_sender_timeout' AND setting = '0'",
        "wal_sender_timeout is 0",
        "a recorder whose machine has gone keeps the slot in use until the server is restarted",
        f"ALTER SYSTEM SET wal_sender_timeout = '1min'; {_RELOADED}",
    ),
    _Check(
        "WAL limit",
        "warning",
        "SELECT 1 FROM pg_settings WHERE name = 'max_slot_wal_keep_size' AND setting = '-1'",
        "max_slot_wal_keep_size is -1",
        "while no recorder runs, the server retains all WAL, until its disk is full; "
        "with a limit, the slot is lost instead",
        f"ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; {_RELOADED}",
        since=13,
    ),
    _Check(
        "publication",
        "error",
        "SELECT quote_ident(name) FROM unnest({publications}::text[]) name "
        "WHERE name NOT IN (SELECT pubname FROM pg_publication)",
        "the publication {0} does not exist",
        "nothing can be recorded",
        "CREATE PUBLICATION {0} FOR ALL TABLES; -- or FOR TABLE …",
    ),
    _Check(
        "published tables",
        "warning",
        "SELECT quote_ident(pubname) FROM pg_publication WHERE pubname = ANY ({publications}) "
        "AND NOT EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = pg_publication.pubname)",
        "the publication {0} has no tables",
        "no changes are recorded",
        "ALTER PUBLICATION {0} ADD TABLE …;",
    ),
    _Check(
        "published operations",
        "warning",
        "SELECT quote_ident(pubname) FROM pg_publication p WHERE pubname = ANY ({publications}) "
        "AND NOT (pubinsert AND pubupdate AND pubdelete "
        "AND coalesce((to_jsonb(p) ->> 'pubtruncate')::bool, true))",
        "the publication {0} leaves out operations",
        "replicas keep rows that are changed or gone on the server",
        "ALTER PUBLICATION {0} SET (publish = 'insert, update, delete, truncate');",
    ),
    _Check(
        "replica identity",
        "error",
        f"SELECT DISTINCT {_NAME}, CASE WHEN {_HAS_KEY} THEN 'REPLICA IDENTITY DEFAULT' "
        f"ELSE 'ADD PRIMARY KEY (…)' END {_TABLES} AND (pubupdate OR pubdelete) AND relkind = 'r' AND ("
        f"relreplident = 'n' OR relreplident = 'd' AND NOT {_HAS_KEY} OR relreplident = 'i' AND NOT EXISTS "
        "(SELECT FROM pg_index WHERE indrelid = c.oid AND indisreplident)) ORDER BY 1",
        "{0} has no replica identity",
        "the server refuses each UPDATE and DELETE of the table",
        "ALTER TABLE {0} {1}; -- or REPLICA IDENTITY FULL",
    ),
    _Check(
        "replica identity FULL",
        "advice",
        f"SELECT DISTINCT {_NAME} {_TABLES} AND relreplident = 'f' AND {_HAS_KEY} ORDER BY 1",
        "{0} has the replica identity FULL, although it has a primary key",
        "the WAL has each updated or deleted row as a whole, and a replica needs more memory for it",
        "ALTER TABLE {0} REPLICA IDENTITY DEFAULT; -- unless readers need the old values",
    ),
    _Check(
        "schema privilege",
        "error",
        "SELECT DISTINCT format('%I', nspname), quote_ident(current_user) "
        f"{_TABLES} AND NOT has_schema_privilege(n.oid, 'USAGE') ORDER BY 1",
        "the role {1} may not use the schema {0}",
        "its tables cannot be copied (--snapshot) or verified",
        "GRANT USAGE ON SCHEMA {0} TO {1};",
    ),
    _Check(
        "table privilege",
        "error",
        f"SELECT DISTINCT {_NAME}, quote_ident(current_user) "
        f"{_TABLES} AND NOT has_any_column_privilege(c.oid, 'SELECT') ORDER BY 1",
        "the role {1} may not read {0}",
        "the table cannot be copied (--snapshot) or verified",
        "GRANT SELECT ON {0} TO {1};",
    ),
    _Check(
        "row security",
        "error",
        f"SELECT DISTINCT {_NAME}, quote_ident(current_user) "
        f"{_TABLES} AND has_any_column_privilege(c.oid, 'SELECT') AND row_security_active(c.oid) ORDER BY 1",
        "row-level security hides rows of {0} from the role {1}",
        "the table cannot be copied (--snapshot) or verified",
        "ALTER ROLE {1} BYPASSRLS;",
    ),
    _Check(
        "slot",
        "error",
        "SELECT slot_name, coalesce('a slot of the plugin ' || plugin, 'a physical slot') "
        "FROM pg_replication_slots WHERE slot_name = {slot} AND plugin IS DISTINCT FROM 'pgoutput'",
        "{0} is {1}",
        "it cannot be recorded",
        "choose another name for the slot",
    ),
    _Check(
        "slot",
        "error",
        "SELECT slot_name, database FROM pg_replication_slots "
        "WHERE slot_name = {slot} AND database <> current_database()",
        "the slot {0} belongs to the database {1}",
        "it cannot be recorded from this database",
        "choose another name for the slot, or connect to {1}",
    ),
    _Check(
        "slot",
        "error",
        "SELECT slot_name, coalesce(to_jsonb(s) ->> 'invalidation_reason', 'wal_removed') "
        "FROM pg_replication_slots s WHERE slot_name = {slot} AND (to_jsonb(s) ->> 'wal_status' = 'lost' "
        "OR to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL)",
        "the slot {0} is lost ({1})",
        "changes are missing, and the recording cannot be continued",
        "SELECT pg_drop_replication_slot('{0}'); -- then record anew in another folder",
    ),
    _Check(
        "slot",
        "warning",
        "SELECT slot_name, pg_size_pretty((to_jsonb(s) ->> 'safe_wal_size')::bigint) "
        "FROM pg_replication_slots s "
        "WHERE slot_name = {slot} AND to_jsonb(s) ->> 'wal_status' IN ('extended', 'unreserved') "
        "AND to_jsonb(s) ->> 'safe_wal_size' IS NOT NULL",
        "the slot {0} holds more WAL than max_wal_size",
        "the slot is lost after {1} of further WAL",
        "start the recorder, or find out why it lags: pgoutput status",
        since=13,
    ),
    _Check(
        "slot",
        "warning",
        "SELECT slot_name, pg_size_pretty(wal.bytes) FROM pg_replication_slots, LATERAL (SELECT "
        "pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
        "ELSE pg_current_wal_lsn() END, restart_lsn) bytes) wal "
        "WHERE slot_name = {slot} AND NOT active AND wal.bytes > 1 << 30",
        "no client streams from the slot {0}, which retains {1} of WAL",
        "the disk of the server fills",
        "start the recorder, or, if nobody needs the slot: SELECT pg_drop_replication_slot('{0}');",
    ),
    _Check(
        "open transaction",
        "warning",
        "SELECT pid, round(extract(epoch FROM clock_timestamp() - xact_start) / 3600), coalesce(usename, '') "
        "FROM pg_stat_activity WHERE backend_xid IS NOT NULL "
        "AND xact_start < clock_timestamp() - interval '1 hour' ORDER BY xact_start",
        "a transaction of the user {2} is open for {1} h (server process {0})",
        "no slot can be created before it ends, and slots retain WAL from its beginning on",
        "SELECT pg_terminate_backend({0});",
    ),
    _Check(
        "prepared transaction",
        "warning",
        "SELECT quote_literal(gid), round(extract(epoch FROM clock_timestamp() - prepared) / 3600) "
        "FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '1 hour' ORDER BY prepared",
        "the transaction {0} is prepared for {1} h",
        "no slot can be created before it ends, and slots retain WAL from its beginning on",
        "COMMIT PREPARED {0}; -- or ROLLBACK PREPARED",
    ),
    _Check(
        "DDL events",
        "advice",
        "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname LIKE 'pgoutput%')",
        "the event trigger that describes ALTER TABLE in the stream is not installed",
        "renamed columns, and the constant defaults of added columns, are copied anew or reported",
        "pgoutput install-ddl-events --dsn … # as the owner of the database",
    ),
    _Check(
        "minor release",
        "warning",
        "SELECT current_setting('server_version') WHERE current_setting('server_version_num')::int IN ("
        "SELECT major * 10000 + minor "
        "FROM (VALUES (13, 20), (14, 17), (15, 12), (16, 8), (17, 4)) v(major, last), "
        "generate_series(0, last) minor)",
        "PostgreSQL {0} is older than the minor releases of May 2025",
        "transactions that are open while a publication is altered are sent as if it were not",
        "install the latest minor release",
    ),
)


def examine(dsn: str, slot: str, publications: Sequence[str], places: Sequence[str], *, json: bool) -> None:
    """Print what stands in the way of a recording; exit with 1 if there is an error.

    Args:
        dsn: Connection string of libpq.
        slot: Name of the slot, which need not exist; empty to leave its checks out.
        publications: Names of the publications; empty for all of the database.
        places: Paths or URIs of recordings and replicas.
        json: Whether to print a JSON object.
    """
    findings = [*_examine_machine(places)]
    server, checks = "", len(_PACKAGES) + len(places)
    try:
        require("recorder", "psycopg")
        with refused_values():
            server, made, found = _examine_server(dsn, slot, publications)
        checks += made
        findings += found
    except (PgoutputError, MissingExtraError) as error:
        findings.append(
            Finding("error", "connection", one_line(str(error)), "the server cannot be checked", "")
        )
    findings.sort(key=lambda one: get_args(Level).index(one.level))
    report = Report(f"{version_line()}, Python {python_version()}", server, checks, tuple(findings))
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    else:
        for line in _lines(report):
            print(printable(line))
    if any(one.level == "error" for one in findings):
        raise typer.Exit(1)


def _examine_machine(places: Sequence[str]) -> Iterator[Finding]:
    """Yield what this machine lacks."""
    for package, (extra, use) in _PACKAGES.items():
        if find_spec(package) is None:
            yield Finding("advice", "packages", f"{package} is missing", use, install_line(extra))
    for place in places:
        try:
            free = _free_bytes(locate(place))
        except (PgoutputError, OSError, ImportError) as error:
            yield Finding("error", "place", one_line(str(error)), f"nothing can be written to {place}", "")
            continue
        if free < FREE_BYTES:
            text = f"{place}: {free:,} bytes are free on its disk"
            yield Finding("error", "disk", text, "the recorder ends when the disk is full", "make room")


def _free_bytes(place: Location) -> int:
    """Return the free space of a local disk in bytes, and that of a store as the greatest int.

    Raises:
        OSError: The place cannot be read, or a local folder cannot be written.
        RecordingError: The store does not answer.
    """
    if not place.is_local:
        place.names()
        return sys.maxsize
    folder = next(one for one in (Path(place.path), *Path(place.path).absolute().parents) if one.exists())
    with TemporaryFile(dir=folder):
        return disk_usage(folder).free


def _examine_server(dsn: str, slot: str, publications: Sequence[str]) -> tuple[str, int, list[Finding]]:
    """Return the version of a server, how many checks were made, and what they have found.

    Raises:
        PgoutputError: The server cannot be reached.
    """
    from pgoutput.recorder import Connection

    findings: list[Finding] = []
    with Connection(dsn) as connection:
        version = connection.query("SHOW server_version")[0][0].split()[0]
        if not publications:
            publications = [row[0] for row in connection.query("SELECT pubname FROM pg_publication")]
        major = connection.server_version // 10_000
        checks = [one for one in _CHECKS if one.since <= major < one.before]
        for check in checks:
            findings += _run(connection, check, slot, publications)
    try:
        Connection(dsn, replication=True).close()
    except PgoutputError as error:
        findings.append(
            Finding(
                "error",
                "replication connection",
                one_line(str(error)),
                "nothing can be recorded",
                "",
            )
        )
    return f"PostgreSQL {version}", len(checks) + 1, findings


def _run(connection: Connection, check: _Check, slot: str, publications: Sequence[str]) -> Iterator[Finding]:
    from psycopg import sql

    query = sql.SQL(check.query).format(slot=slot, publications=sql.Literal(list(publications)))
    for row in connection.query(query):
        texts = (text.format(*row) for text in (check.found, check.cost, check.remedy))
        yield Finding(check.level, check.name, *texts)


def _lines(report: Report) -> Iterator[str]:
    """Yield the lines to print."""
    yield report.pgoutput
    if report.server:
        yield report.server
    for one in report.findings:
        yield f"{one.level:8} {one.found}"
        if one.cost:
            yield f"{'':8} {one.cost}"
        if one.remedy:
            yield f"{'':8} > {one.remedy}"
    counts = {level: sum(one.level == level for one in report.findings) for level in ("error", "warning")}
    errors, warnings = counted(counts["error"], "error"), counted(counts["warning"], "warning")
    yield f"{counted(report.checks, 'check')}: {errors}, {warnings}"
