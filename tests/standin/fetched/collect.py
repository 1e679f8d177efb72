"""Collect the look-ups of clients with the answers of PostgreSQL 18, and PostgreSQL's system catalogs.

`PYTHONPATH=.venv/clients .venv/bin/python -m tests.standin.fetched.collect` has clients look up catalogs of
a real server, which logs the queries. It writes tests/standin/lookups.jsonl.gz, with which the tests compare
the answers of the stand-in server, and system_catalogs.json, which the stand-in server serves.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.types import TypeInfo
from psycopg.types.enum import EnumInfo
from psycopg.types.range import RangeInfo

from logicalrep.recorder import Recorder
from logicalrep.standin.sql import system_catalogs
from tests.server import Server
from tests.standin.clients import SLOT, create_slot
from tests.standin.fetched.__main__ import run

LOOKUPS: Final = Path(__file__).parents[1] / "lookups.jsonl.gz"
CATALOGS: Final = Path(system_catalogs.__file__).with_name("system_catalogs.json")
FIRST_UNKNOWN_OID: Final = 10_000
"""First OID of objects that are not the same in every database. Look-ups of such an OID are left out."""

MAX_ROWS: Final = 1_000
"""Number of rows above which an answer, such as that with all columns of the catalogs, is left out."""

PYTHON: Final = (sys.executable, "-m")

OF_ROWS: Final = r"pg_get_publication_tables|format\(|pg_locks|FROM (public|audit)\."
"""Pattern of look-ups with which clients prepare to copy rows; a stand-in server has no rows to copy."""

SCHEMA: Final = """
CREATE TABLE customers (id int PRIMARY KEY, name text, email varchar(80), born date, vip bool);
CREATE TABLE order_items (order_id bigint, line smallint, amount numeric(12,2), tags text[], doc jsonb,
    added timestamptz, ref uuid, PRIMARY KEY (order_id, line));
CREATE SCHEMA audit;
CREATE TABLE audit.log (at timestamp, entry text, raw bytea);
ALTER TABLE audit.log REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES"""

ROWS: Final = {
    "pg_am": "true",
    "pg_collation": "oid < 10000",
    "pg_language": "true",
    "pg_namespace": "oid < 16384",
    "pg_proc": "oid IN (SELECT unnest(ARRAY[typinput, typoutput, typreceive, typsend, typmodin, typmodout,"
    " typanalyze, typsubscript]::oid[]) FROM pg_type WHERE oid < 16384 AND typrelid = 0)",
    "pg_range": "true",
    "pg_roles": "oid < 16384 AND oid <> 10",
    "pg_tablespace": "true",
    "pg_type": "oid < 16384 AND typnamespace = 11 AND typrelid = 0"
    " AND NOT EXISTS (SELECT 1 FROM pg_type e WHERE e.oid = t.typelem AND e.typrelid <> 0)",
}
"""Conditions for the rows that are the same in every database, by catalog."""

PROCEDURE_COLUMNS: Final = ("oid", "proname", "pronamespace", "proargtypes")


def main() -> None:
    port = "54987"
    with Server(
        listen_addresses="127.0.0.1",
        port=port,
        log_statement="all",
        log_destination="jsonlog",
        logging_collector="on",
        log_filename="log",
    ) as server:
        with server.connect() as connection:
            connection.execute("CREATE DATABASE shop")
        dsn = server.dsn.replace("dbname=postgres", "dbname=shop")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
            CATALOGS.write_text("".join(_system_catalogs(connection)))
        create_slot(dsn)
        (log,) = (server.data / "log").glob("*.json")
        seen: dict[tuple[str, tuple[str | None, ...]], str] = {}
        for client in ("asyncpg", "pgjdbc", "Debezium", "psycopg", "recorder"):
            position = log.stat().st_size
            _look_up(client, dsn, port)
            for query in _queries(log, position):
                seen.setdefault(query, client)
        with psycopg.connect(dsn, autocommit=True) as connection, gzip.open(LOOKUPS, "wt") as file:
            for relation in _tables(connection):
                file.write(json.dumps(relation) + "\n")
            for (text, parameters), client in seen.items():
                answer = _answer(connection, client, text, parameters)
                if answer is not None:
                    file.write(json.dumps(answer) + "\n")


def _look_up(client: str, dsn: str, port: str) -> None:
    """Have a client look up catalogs."""
    address = ("127.0.0.1", port, "shop")
    match client:
        case "asyncpg" | "pgjdbc":
            run(f"{client}_client", "look_up", *address)
        case "Debezium":
            with tempfile.TemporaryDirectory() as folder:
                reading = subprocess.Popen(
                    [*PYTHON, "tests.standin.fetched.debezium_client", "read", *address, SLOT, "1", folder],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ,
                )
                with psycopg.connect(dsn, autocommit=True) as connection:
                    for number in range(10_000):
                        connection.execute("INSERT INTO customers VALUES (%s)", [number])
                        connection.execute("INSERT INTO audit.log VALUES (now())")
                        try:
                            reading.wait(0.2)
                            break
                        except subprocess.TimeoutExpired:
                            continue
        case "psycopg":
            with psycopg.connect(dsn) as connection:
                assert TypeInfo.fetch(connection, "int4")
                assert RangeInfo.fetch(connection, "int4range")
                assert EnumInfo.fetch(connection, "mood") is None
        case "recorder":
            with tempfile.TemporaryDirectory() as folder:
                Recorder(dsn, SLOT, ["p"], Path(folder, "recording")).run(seconds=3)


def _queries(log: Path, position: int) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """Yield the queries in a log in JSON after a position, with their parameters."""
    with log.open() as file:
        file.seek(position)
        for line in file:
            entry = json.loads(line)
            found = re.match(r"(?:statement|execute [^:]*): (.*)", entry.get("message", ""), re.DOTALL)
            text = found[1].strip().rstrip(";").strip() if found else ""
            if re.match(r"(SELECT|WITH|SHOW)\b", text, re.IGNORECASE):
                given = re.findall(r"\$\d+ = (NULL|'(?:[^']|'')*')", entry.get("detail", ""))
                values = (None if one == "NULL" else one[1:-1].replace("''", "'") for one in given)
                yield text, tuple(values)


def _answer(
    connection: psycopg.Connection, client: str, text: str, parameters: tuple[str | None, ...]
) -> dict[str, Any] | None:
    """Return a query with its answer, or None for a query that is left out."""
    if any(one is not None and one.isdigit() and int(one) >= FIRST_UNKNOWN_OID for one in parameters):
        return None
    if re.search(OF_ROWS, text):
        return None
    result = connection.pgconn.exec_params(
        text.encode(), [None if one is None else one.encode() for one in parameters]
    )
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK or result.ntuples > MAX_ROWS:
        return None
    numbers = range(result.nfields)
    values = [[result.get_value(row, number) for number in numbers] for row in range(result.ntuples)]
    return {
        "client": client,
        "sql": text,
        "parameters": parameters,
        "columns": [((result.fname(n) or b"").decode(), result.ftype(n)) for n in numbers],
        "rows": [[None if one is None else one.decode() for one in row] for row in values],
    }


def _tables(connection: psycopg.Connection) -> Iterator[dict[str, Any]]:
    """Yield the tables of the database, as the fields of their Relation messages."""
    query = """SELECT c.oid::int8 AS oid, nspname AS namespace, relname AS name,
        relreplident::text AS identity, json_agg(json_build_array(
            relreplident = 'f' OR coalesce(attnum = ANY (indkey), false), attname,
            atttypid::int8, atttypmod) ORDER BY attnum) AS columns
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
        JOIN pg_attribute ON attrelid = c.oid AND attnum > 0
        LEFT JOIN pg_index ON indrelid = c.oid AND indisprimary
        WHERE relkind = 'r' AND c.oid >= 16384 GROUP BY 1, 2, 3, 4 ORDER BY 1"""
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        yield from cursor.execute(query)


def _system_catalogs(connection: psycopg.Connection) -> Iterator[str]:
    """Yield the text of system_catalogs.json."""
    query = """SELECT relname, c.oid::int8, relkind::text,
        json_object_agg(attname, CASE WHEN attnotnull THEN -1 ELSE 1 END * atttypid::int8 ORDER BY attnum)
        FROM pg_class c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0
        WHERE relnamespace = 11 AND relkind IN ('r', 'v') GROUP BY 1, 2, 3 ORDER BY 1"""
    relations = {
        name: {"oid": oid, "kind": kind, "columns": columns}
        for name, oid, kind, columns in connection.execute(query)
    }
    yield '{\n"relations": {\n'
    yield ",\n".join(f'"{name}": {_compact(relation)}' for name, relation in relations.items())
    yield '\n},\n"rows": {\n'
    yield ",\n".join(_system_rows(connection, name, relations[name]["columns"]) for name in ROWS)
    yield "\n}}\n"


def _system_rows(connection: psycopg.Connection, name: str, columns: dict[str, int]) -> str:
    names = [one for one in columns if name != "pg_proc" or one in PROCEDURE_COLUMNS]
    values = sql.SQL(", ").join(
        # The name of a function would be ambiguous.
        sql.SQL("{}::oid::text" if abs(columns[one]) in system_catalogs.OBJECT_TYPES else "{}::text").format(
            sql.Identifier(one)
        )
        for one in names
    )
    query = sql.SQL("SELECT {} FROM {} t WHERE {} ORDER BY 1").format(
        values, sql.Identifier(name), sql.SQL(ROWS[name])
    )
    rows = (
        _compact([_json_value(value, columns[one]) for value, one in zip(row, names, strict=True)])
        for row in connection.execute(query)
    )
    return f'"{name}": {{"columns":{_compact(names)},"rows":[\n' + ",\n".join(rows) + "\n]}"


def _json_value(text: str | None, type_oid: int) -> object:
    """Return a value of a catalog as JSON: numbers and Booleans are not strings."""
    kind = system_catalogs.duckdb_type(abs(type_oid))
    if text is not None and abs(type_oid) in system_catalogs.VECTORS:
        return list(map(int, text.split()))
    if text is None or kind in ("VARCHAR", "JSON") or kind.endswith("[]"):
        return text
    return text == "true" if kind == "BOOLEAN" else float(text) if kind == "REAL" else int(text)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    main()
