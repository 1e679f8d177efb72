"""A stand-in server answers SQL queries of clients: catalogs, settings, slots and transactions."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg2
import pytest

from logicalrep.standin import RecordedSource, StandIn
from logicalrep.synth import Scenario
from tests.standin.raw_client import RawClient
from tests.standin.streams import Repeated
from tests.truth import CAPTURES

CAPTURE = CAPTURES / "pg18_p1.jsonl.gz"


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn(RecordedSource(CAPTURE)) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('a', 'pgoutput', false, true)")
        yield server


@pytest.mark.parametrize(
    ("query", "names", "rows"),
    [
        ("SELECT 1", ["?column?"], [(1,)]),
        ("SELECT pg_catalog.pg_is_in_recovery()", ["pg_is_in_recovery"], [(False,)]),
        ("SHOW wal_level", ["wal_level"], [("logical",)]),
        ("SHOW wal_sender_timeout", ["wal_sender_timeout"], [("60s",)]),
        ("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'", ["setting"], [("60000",)]),
        ("SELECT current_setting('server_version_num')::int", ["current_setting"], [(180004,)]),
        ("SELECT pubname FROM pg_publication", ["pubname"], [("p",)]),
        (
            "SELECT s.slot_name, plugin, active, two_phase, active_pid FROM pg_replication_slots s",
            ["slot_name", "plugin", "active", "two_phase", "active_pid"],
            [("a", "pgoutput", False, True, None)],
        ),
        ("SELECT slot_name FROM pg_replication_slots WHERE NOT active", ["slot_name"], [("a",)]),
        ("SELECT restart_lsn < confirmed_flush_lsn FROM pg_replication_slots", ["?column?"], [(True,)]),
        ("SELECT count(*) FROM pg_catalog.pg_replication_slots /* ; */ -- ;", ["count"], [(1,)]),
        ("SELECT typname FROM pg_type WHERE oid = 1700", ["typname"], [("numeric",)]),
        (
            "SELECT attname, atttypid FROM pg_attribute JOIN pg_class c ON attrelid = c.oid"
            " WHERE relname = E't_def' ORDER BY attnum",
            ["attname", "atttypid"],
            [("id", 23), ("a", 25), ("b", 23)],
        ),
        (
            "SELECT schemaname FROM pg_publication_tables WHERE pubname = 'p' AND tablename = 't_def'",
            ["schemaname"],
            [("app",)],
        ),
        ("SELECT pg_wal_lsn_diff('0/10', '0/1') AS diff", ["diff"], [(15,)]),
        ("SELECT EXISTS (SELECT 1 FROM pg_roles)", ["exists"], [(True,)]),
        (
            "SELECT proargtypes[0]::int4 AS first FROM pg_proc WHERE proname = 'array_in'",
            ["first"],
            [(2275,)],
        ),
        (
            "SELECT relname, pg_table_is_visible(oid), oid::regclass::text FROM pg_class t"
            " WHERE relname = 'pg_am'",
            ["relname", "pg_table_is_visible", "oid"],
            [("pg_am", True, "pg_am")],
        ),
    ],
)
def test_catalog_queries(server: StandIn, query: str, names: list[str], rows: list[tuple[Any, ...]]) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        assert [column.name for column in cursor.description or ()] == names
        assert cursor.fetchall() == rows
        in_binary = connection.cursor(binary=True).execute(query.encode()).fetchall()
        assert in_binary == rows


def test_parameters_and_transactions(server: StandIn) -> None:
    with psycopg.connect(server.dsn) as connection:  # psycopg begins a transaction before the first statement
        query = "SELECT setting FROM pg_settings WHERE name = %s AND 1 = %s"
        for _ in range(7):  # psycopg prepares a statement after five executions
            assert connection.execute(query, ["wal_level", 1]).fetchall() == [("logical",)]
        with pytest.raises(psycopg.errors.UndefinedTable, match='relation "orders" does not exist'):
            connection.execute("SELECT * FROM orders")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match='type integer: "abc"'):
            connection.execute("SELECT setting FROM pg_settings WHERE 1 = %s", ["abc"])
        connection.rollback()
        connection.execute("SET application_name = 'it''s me'")
        assert connection.info.parameter_status("application_name") == "it's me"
        connection.commit()
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="supports only UTF8"):
            connection.execute("SET client_encoding TO 'LATIN1'")


def test_slots_are_managed_by_sql_functions(server: StandIn) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        create = "SELECT * FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
        created = connection.execute(create, ["b"]).fetchone()
        assert created is not None
        assert created[0] == "b"
        with pytest.raises(psycopg.errors.DuplicateObject, match='slot "b" already exists'):
            connection.execute(create, ["b"])
        advanced = connection.execute("SELECT pg_replication_slot_advance('b', 'FF/0')").fetchone()
        assert advanced is not None
        end = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert end is not None
        assert advanced[0] == ("b", end[0])
        query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'b'"
        assert len(connection.execute(query).fetchall()) == 1
        with pytest.raises(psycopg.errors.UndefinedObject, match='slot "b" does not exist'):
            connection.execute("SELECT pg_drop_replication_slot('b')")


def test_describing_a_query_has_no_side_effects(server: StandIn) -> None:
    with RawClient(server) as raw:  # psycopg would hold the GIL while it waits for the server's thread
        raw.startup()
        raw.read_to(b"Z")
        raw.send(b"P", b"\0SELECT pg_drop_replication_slot('a')\0\0\0")
        raw.send(b"D", b"S\0")
        raw.send(b"S")
        described = dict(raw.read_to(b"Z"))[b"T"]
        assert described.startswith(b"\0\1pg_drop_replication_slot\0")
        assert raw.ask("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'a'")[1][0] == b"D"


def test_jsonb_is_not_escaped(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        assert '{"a": "ü"}'.encode() in raw.ask('SELECT \'{"a":"ü"}\'::jsonb')[1][1]
        assert b"22P05" in raw.ask("SELECT '\"\\u0000\"'::jsonb")[0][1]


def test_rolling_back_to_a_savepoint_needs_a_transaction(server: StandIn) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.NoActiveSqlTransaction, match="only be used in transaction blocks"):
            connection.execute("ROLLBACK TO SAVEPOINT x")
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("table", ["sqlite_master", "'/etc/passwd'", "read_csv", "public.pg_class"])
def test_only_catalogs_and_published_tables_are_read(server: StandIn, table: str) -> None:
    refused = pytest.raises(psycopg.errors.UndefinedTable, match="does not exist")
    with psycopg.connect(server.dsn, autocommit=True) as connection, refused:
        connection.execute(f"SELECT * FROM {table}")


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH DATABASE '/tmp/x' AS x",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM duckdb_settings()",
        "SELECT repeat('x', 1000000000)",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r",
        "WITH RECURSIVE r AS (SELECT 'x' AS x UNION ALL SELECT x || x FROM r) SELECT max(x) FROM r",
        "SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c, pg_attribute d"
        " WHERE a.attname || b.attname || c.attname || d.attname LIKE '%x%'",
        "SELECT max(n) FROM generate_series(1, 100000000000) AS r(n)",
        "SELECT array_agg(a.attname || b.attname) FROM pg_attribute a, pg_attribute b",
        "SELECT * " + "FROM pg_create_logical_replication_slot((SELECT 1 " * 40 + "))" * 40,
        "WITH x AS (SELECT 1) DELETE FROM pg_publication",
        "SELECT FROM WHERE",
        "SELECT 'abc",
        "VACUUM",
        "COPY (SELECT 1) TO STDOUT",
    ],
)
def test_unsupported_and_expensive_statements_are_rejected(server: StandIn, query: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        began = time.monotonic()
        refused = (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction)
        with pytest.raises(refused, match="a stand-in server"):
            connection.execute(query.encode())
        assert time.monotonic() - began < 60, "the limits of a query do not work"
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_psycopg_2_queries_catalogs(server: StandIn) -> None:
    connection = psycopg2.connect(server.dsn)
    with connection.cursor() as cursor:
        cursor.execute("SELECT slot_name, active FROM pg_replication_slots WHERE slot_name = %s", ("a",))
        assert cursor.fetchall() == [("a", False)]
    connection.close()


def test_a_source_without_publications_accepts_no_name() -> None:
    source = Repeated(1)
    source.publications = ()  # type: ignore[attr-defined]
    with StandIn(source) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        query = "SELECT count(1) FROM pg_publication WHERE pubname = 'shop'"
        assert connection.execute(query).fetchone() == (0,)


def test_a_scenario_has_the_publications_that_clients_mention_or_create() -> None:
    with StandIn(Repeated(1)) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == []
        for name in ("shop", "it's"):
            count = "SELECT count(1) FROM pg_publication WHERE pubname = "
            assert connection.execute(f"{count} %s", [name]).fetchone() == (1,)
            assert psycopg.ClientCursor(connection).execute(f"{count} %s", [name]).fetchone() == (1,)
        with StandIn(RecordedSource(CAPTURE)) as other, psycopg.connect(other.dsn) as to_other:
            assert to_other.execute(f"{count} %s", ["shop"]).fetchone() == (0,)
        connection.execute('CREATE PUBLICATION "My One" FOR ALL TABLES')
        assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == [("My One",)]
        with pytest.raises(psycopg.errors.DuplicateObject):
            connection.execute('CREATE PUBLICATION "My One"')


def test_functions_that_format_names(server: StandIn) -> None:
    formats = "format('%I.%I', 'a', 'B c'), format('ONLY %I', 'x\"y'), format('%s', 'B c'), quote_ident('a1')"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert connection.execute(f"SELECT {formats}").fetchone() == ('a."B c"', 'ONLY "x""y"', "B c", "a1")


def test_replication_commands_need_a_replication_connection(server: StandIn) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for command in ("IDENTIFY_SYSTEM", "START_REPLICATION SLOT a LOGICAL 0/0"):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="needs a replication connection"):
                connection.execute(command.encode())


def test_slot_functions_have_the_types_of_their_arguments() -> None:
    """A client that asks for the types of parameters sends values in binary format, as asyncpg does."""
    queries = {
        "SELECT pg_create_logical_replication_slot($1, $2, $3, $4)": (19, 19, 16, 16),
        "SELECT * FROM pg_create_logical_replication_slot($1, $2, $3)": (19, 19, 16),
        "SELECT pg_drop_replication_slot($1)": (19,),
        "SELECT pg_replication_slot_advance($1, $2)": (19, 3220),
        "SELECT * FROM pg_logical_slot_peek_binary_changes($1, $2, $3, 'proto_version', $4)": (
            19,
            3220,
            23,
            25,
        ),
        "SELECT * FROM pg_logical_slot_get_binary_changes('a', NULL, $1::int, VARIADIC $2)": (23, 1009),
    }
    with StandIn(RecordedSource(CAPTURE)) as server, RawClient(server) as raw:
        raw.startup(user="postgres", database="postgres")
        raw.read_to(b"Z")
        for query, types in queries.items():
            raw.send(b"P", b"\0" + query.encode() + b"\0\0\0")
            raw.send(b"D", b"S\0")
            raw.send(b"S")
            (found,) = (body for tag, body in raw.read_to(b"Z") if tag == b"t")
            assert struct.unpack(f">h{len(types)}i", found) == (len(types), *types), query


def test_slots_are_made_read_and_dropped_in_binary_format() -> None:
    options = ["proto_version", "1", "publication_names", "p"]
    with (
        StandIn(RecordedSource(CAPTURE)) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        cursor = connection.cursor(binary=True)
        cursor.execute("SELECT pg_create_logical_replication_slot('a', 'pgoutput')")
        ((created,),) = cursor.fetchall()
        assert created[0] == "a"
        query = "SELECT xid FROM pg_logical_slot_get_binary_changes(%s, NULL, %s, VARIADIC %s)"
        cursor.execute(query, ["a", 1, options])
        assert cursor.fetchall()
        cursor.execute("SELECT pg_drop_replication_slot('a')")
        assert cursor.fetchall() == [(b"",)]


@pytest.mark.parametrize(
    ("lsn", "error"),
    [("0/0", "invalid target WAL LSN"), ("0/1", "cannot advance replication slot to 0/1, minimum is ")],
)
def test_a_slot_does_not_go_back(server: StandIn, lsn: str, error: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_replication_slot_advance('a', pg_current_wal_lsn())")
        with pytest.raises(psycopg.DatabaseError, match=error):
            connection.execute("SELECT pg_replication_slot_advance('a', %s)", [lsn])


@pytest.mark.parametrize(
    ("version", "flags", "allowed"),
    [(13, 2, False), (13, 1, True), (14, 2, True), (16, 3, False), (17, 3, True)],
)
def test_flags_of_a_new_slot_by_version(version: int, flags: int, allowed: bool) -> None:
    db = Scenario(server=version, proto_version=1)
    table = db.table("public.t", id="int4 key")
    with db.transaction() as tx:
        tx.insert(table, id=1)
    with StandIn(db) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        query = "SELECT pg_create_logical_replication_slot('a', 'pgoutput'" + ", false" * flags + ")"
        if allowed:
            connection.execute(query.replace("false)", "true)").encode())
            changes = "SELECT * FROM pg_logical_slot_get_binary_changes('a', NULL, NULL, "
            options = "'proto_version', '1', 'publication_names', 'p')"
            assert connection.execute((changes + options).encode()).fetchall()
        else:
            with pytest.raises(psycopg.errors.UndefinedFunction, match="does not exist"):
                connection.execute(query.encode())
