"""The checks of a server for `logicalrep doctor`: queries that return a row for each problem.

The queries need no privileges, and change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from psycopg import sql

from logicalrep._extras import MissingExtraError
from logicalrep._text import REMEDY, listed, one_line
from logicalrep.cli.operate.findings import Finding, Level
from logicalrep.errors import LogicalrepError
from logicalrep.recorder import DDL_EVENTS, DDL_EVENTS_SINCE, FIXED_MINORS, MISSING_PRIVILEGES, Connection


class Check(msgspec.Struct, frozen=True):
    """A check of the server; `{0}` in a text is the first column of the query, `{1}` the second."""

    name: str
    level: Level
    query: str
    """SQL that returns a row for each problem.

    Its placeholders are `{slot}`, `{publications}` and `{sslmode}`.
    """
    found: str
    cost: str
    remedy: str
    since: int = 10
    """First major version of PostgreSQL for which the check is made."""
    before: int = 1000
    """First major version of PostgreSQL for which the check is not made any more."""


_TABLES: Final = """\
FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
JOIN pg_namespace n ON nspname = schemaname JOIN pg_class c ON relnamespace = n.oid AND relname = tablename
WHERE pubname = ANY ({publications})"""

_NAME: Final = "format('%I.%I', nspname, relname)"
_HAS_KEY: Final = "EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"
_MISSING: Final = MISSING_PRIVILEGES.format(oids=f"SELECT c.oid {_TABLES}")
_FIXED: Final = ", ".join(f"({major}, {minor})" for major, minor in FIXED_MINORS.items())
_RELOADED: Final = "SELECT pg_reload_conf();"

CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "encryption",
        "warning",
        "SELECT host(inet_server_addr()) FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND NOT ssl "
        "AND NOT inet_server_addr() <<= ANY ('{{127.0.0.0/8,::1}}'::inet[])",
        "the connection to {0} is not encrypted",
        "others in the network can read the rows, and change them",
        "set ssl = on on the server, and sslmode=verify-full in the connection string",
    ),
    Check(
        "certificate",
        "advice",
        "SELECT host(inet_server_addr()), {sslmode} FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl "
        "AND {sslmode} <> 'verify-full' "
        "AND NOT inet_server_addr() <<= ANY ('{{127.0.0.0/8,::1}}'::inet[])",
        "with sslmode={1}, the certificate of {0} is not checked against the host name",
        "whoever redirects the connection can read the rows, and change them",
        "sslmode=verify-full sslrootcert=… in the connection string",
    ),
    Check(
        "wal_level",
        "error",
        "SELECT setting FROM pg_settings WHERE name = 'wal_level' AND setting <> 'logical'",
        "wal_level is {0}",
        "no logical slot can be created",
        "ALTER SYSTEM SET wal_level = logical; -- then restart the server",
        before=19,
    ),
    Check(
        "wal_level",
        "error",
        "SELECT setting FROM pg_settings WHERE name = 'wal_level' AND setting = 'minimal'",
        "wal_level is minimal",
        "no logical slot can be created",
        "ALTER SYSTEM SET wal_level = replica; -- then restart the server",
        since=19,
    ),
    Check(
        "free slot",
        "error",
        "SELECT count(*), count(*) + 1 FROM pg_replication_slots HAVING "
        "count(*) >= current_setting('max_replication_slots')::int AND "
        "count(*) FILTER (WHERE slot_name = {slot}) = 0",
        "all {0} replication slots are in use",
        "the slot cannot be created",
        "ALTER SYSTEM SET max_replication_slots = {1}; -- then restart the server; or drop an unused slot",
    ),
    Check(
        "free sender",
        "error",
        "SELECT count(*), count(*) + 2 FROM pg_stat_replication HAVING "
        "count(*) >= current_setting('max_wal_senders')::int",
        "all {0} WAL senders are in use",
        "no client can stream",
        "ALTER SYSTEM SET max_wal_senders = {1}; -- then restart the server",
    ),
    Check(
        "sender timeout",
        "warning",
        "SELECT 1 FROM pg_settings WHERE name = 'wal_sender_timeout' AND setting = '0'",
        "wal_sender_timeout is 0",
        "a recorder whose machine has gone keeps the slot in use until the server is restarted",
        f"ALTER SYSTEM SET wal_sender_timeout = '1min'; {_RELOADED}",
    ),
    Check(
        "WAL limit",
        "warning",
        "SELECT 1 FROM pg_settings WHERE name = 'max_slot_wal_keep_size' AND setting = '-1'",
        "max_slot_wal_keep_size is -1",
        "while no recorder runs, the server retains all WAL, until its disk is full; "
        "with a limit, the slot is lost instead",
        f"ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; {_RELOADED}",
        since=13,
    ),
    Check(
        "publication",
        "error",
        "SELECT quote_ident(name) FROM unnest({publications}::text[]) name "
        "WHERE name NOT IN (SELECT pubname FROM pg_publication)",
        "the publication {0} does not exist",
        "nothing can be recorded",
        "CREATE PUBLICATION {0} FOR ALL TABLES; -- or FOR TABLE …",
    ),
    Check(
        "published tables",
        "warning",
        "SELECT quote_ident(pubname) FROM pg_publication WHERE pubname = ANY ({publications}) "
        "AND NOT EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = pg_publication.pubname)",
        "the publication {0} has no tables",
        "no changes are recorded",
        "ALTER PUBLICATION {0} ADD TABLE …;",
    ),
    Check(
        "published operations",
        "warning",
        "SELECT quote_ident(pubname) FROM pg_publication p WHERE pubname = ANY ({publications}) "
        "AND NOT (pubinsert AND pubupdate AND pubdelete "
        "AND coalesce((to_jsonb(p) ->> 'pubtruncate')::bool, true))",
        "the publication {0} leaves out operations",
        "replicas keep rows that are changed or gone on the server",
        "ALTER PUBLICATION {0} SET (publish = 'insert, update, delete, truncate');",
    ),
    Check(
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
    Check(
        "replica identity FULL",
        "advice",
        f"SELECT DISTINCT {_NAME} {_TABLES} AND relreplident = 'f' AND {_HAS_KEY} ORDER BY 1",
        "{0} has the replica identity FULL, although it has a primary key",
        "the WAL has each updated or deleted row as a whole, and a replica needs more memory for it",
        "ALTER TABLE {0} REPLICA IDENTITY DEFAULT; -- unless readers need the old values",
    ),
    Check(
        "generated columns",
        "advice",
        f"SELECT {_NAME}, string_agg(DISTINCT quote_ident(attname), ', '), "
        "CASE WHEN bool_or(attgenerated = 's') AND current_setting('server_version_num')::int >= 180000 "
        "THEN format('ALTER PUBLICATION %I SET (publish_generated_columns = stored);', max(pubname)) "
        "ELSE 'compute them where they are read' END "
        + _TABLES.replace("WHERE", "JOIN pg_attribute a ON attrelid = c.oid WHERE")
        + " AND attgenerated <> '' AND NOT attisdropped "
        "AND NOT coalesce(to_jsonb(t) -> 'attnames' ? attname::text, false) GROUP BY 1 ORDER BY 1",
        "{0} has generated columns that are not published: {1}",
        "recordings and replicas lack these columns",
        "{2}",
        since=12,
    ),
    *(
        Check(
            name,
            "error",
            f"SELECT found, statement FROM ({_MISSING}) m WHERE lacks = '{name}'",
            "{0}",
            "its rows can be neither copied (--snapshot) nor verified",
            "{1};",
        )
        for name in ("schema privilege", "table privilege", "row security")
    ),
    Check(
        "slot",
        "error",
        "SELECT slot_name, coalesce('a slot of the plugin ' || plugin, 'a physical slot') "
        "FROM pg_replication_slots WHERE slot_name = {slot} AND plugin IS DISTINCT FROM 'pgoutput'",
        "{0} is {1}",
        "it cannot be recorded",
        "choose another name for the slot",
    ),
    Check(
        "slot",
        "error",
        "SELECT slot_name, database FROM pg_replication_slots "
        "WHERE slot_name = {slot} AND database <> current_database()",
        "the slot {0} belongs to the database {1}",
        "it cannot be recorded from this database",
        "choose another name for the slot, or connect to {1}",
    ),
    Check(
        "slot",
        "error",
        "SELECT slot_name, coalesce(to_jsonb(s) ->> 'invalidation_reason', 'wal_removed') "
        "FROM pg_replication_slots s WHERE slot_name = {slot} AND (to_jsonb(s) ->> 'wal_status' = 'lost' "
        "OR to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL)",
        "the slot {0} is lost ({1})",
        "changes are missing, and the recording cannot be continued",
        "SELECT pg_drop_replication_slot('{0}'); -- then record anew in another folder",
    ),
    Check(
        "slot",
        "warning",
        "SELECT slot_name, pg_size_pretty((to_jsonb(s) ->> 'safe_wal_size')::bigint) "
        "FROM pg_replication_slots s "
        "WHERE slot_name = {slot} AND to_jsonb(s) ->> 'wal_status' IN ('extended', 'unreserved') "
        "AND to_jsonb(s) ->> 'safe_wal_size' IS NOT NULL",
        "the slot {0} holds more WAL than max_wal_size",
        "the slot is lost after {1} of further WAL",
        "start the recorder, or find out why it lags: logicalrep status",
        since=13,
    ),
    Check(
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
    Check(
        "open transaction",
        "warning",
        "SELECT pid, round(extract(epoch FROM clock_timestamp() - xact_start) / 3600), coalesce(usename, '') "
        "FROM pg_stat_activity WHERE backend_xid IS NOT NULL "
        "AND xact_start < clock_timestamp() - interval '1 hour' ORDER BY xact_start",
        "a transaction of the user {2} is open for {1} h (server process {0})",
        "no slot can be created before it ends, and slots retain WAL from its beginning on",
        "SELECT pg_terminate_backend({0});",
    ),
    Check(
        "prepared transaction",
        "warning",
        "SELECT quote_literal(gid), round(extract(epoch FROM clock_timestamp() - prepared) / 3600) "
        "FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '1 hour' ORDER BY prepared",
        "the transaction {0} is prepared for {1} h",
        "no slot can be created before it ends, and slots retain WAL from its beginning on",
        "COMMIT PREPARED {0}; -- or ROLLBACK PREPARED",
    ),
    Check(
        "DDL events",
        "advice",
        f"SELECT 1 WHERE NOT EXISTS ({DDL_EVENTS})",
        "the event trigger that describes ALTER TABLE in the stream is not installed",
        "renamed columns, and the constant defaults of added columns, are copied anew or reported",
        "logicalrep install-ddl-events --dsn … # as a superuser",
        since=DDL_EVENTS_SINCE,
    ),
    Check(
        "minor release",
        "warning",
        "SELECT current_setting('server_version') WHERE current_setting('server_version_num')::int IN ("
        f"SELECT major * 10000 + minor FROM (VALUES {_FIXED}) v(major, fixed), "
        "generate_series(0, fixed - 1) minor)",
        "PostgreSQL {0} is older than the minor releases of May 2025",
        "transactions that are open while a publication is altered are sent as if it were not",
        "install the latest minor release",
    ),
)


def examine_server(dsn: str, slot: str, publications: Sequence[str]) -> tuple[str, int, list[Finding]]:
    """Run the checks; return the server's version as text, the number of checks, and the problems found.

    If `publications` is empty, all publications of the database are checked.

    Raises:
        LogicalrepError: The server cannot be reached.
    """
    findings: list[Finding] = []
    with Connection(dsn) as connection:
        version = connection.query("SHOW server_version")[0][0].split()[0]
        if not publications:
            publications = [row[0] for row in connection.query("SELECT pubname FROM pg_publication")]
        major = connection.server_version // 10_000
        checks = [one for one in CHECKS if one.since <= major < one.before]
        for check in checks:
            findings += _run(connection, check, slot, publications)
        findings += _find_uncompared(connection, publications)
    try:
        Connection(dsn, replication=True).close()
    except LogicalrepError as error:
        text, _, remedy = one_line(str(error)).partition(REMEDY)
        findings.append(Finding("error", "replication connection", text, "nothing can be recorded", remedy))
    return f"PostgreSQL {version}", len(checks) + 2, findings


def _run(connection: Connection, check: Check, slot: str, publications: Sequence[str]) -> Iterator[Finding]:
    query = sql.SQL(check.query).format(
        slot=slot, publications=sql.Literal(list(publications)), sslmode=connection.sslmode
    )
    for row in connection.query(query):
        texts = (text.format(*row) for text in (check.found, check.cost, check.remedy))
        yield Finding(check.level, check.name, *texts)


def _find_uncompared(connection: Connection, publications: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each reason why the self-check of `logicalrep sync` does not compare tables."""
    with suppress(MissingExtraError):  # without the extra `replica` there is no self-check either
        from logicalrep.verification import Publications

        published = Publications(connection, publications)
        names: defaultdict[str, list[str]] = defaultdict(list)
        for table in published.tables(published.states()):
            names[table.refusal].append(table.full_name)
        for reason, tables in sorted(names.items()):
            if reason:
                text = f"{listed(tables)}: {reason}"
                yield Finding("advice", "self-check", text, "`logicalrep sync` does not compare them", "")
