"""The stand-in server answers the look-ups of clients as PostgreSQL 18 does.

The file lookups.jsonl.gz has the queries that Debezium, pgjdbc, asyncpg, psycopg and the recorder have sent
to a real server, with its answers. `python -m tests.standin.fetched.collect` writes the file.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from logicalrep.messages import Relation, ReplicaIdentity
from logicalrep.standin import StandIn
from logicalrep.standin.source import GeneratedSource
from tests.messages import make_column, make_relation
from tests.standin.clients import SLOT, create_slot
from tests.standin.streams import Repeated

FILE: Final = Path(__file__).with_name("lookups.jsonl.gz")
LINES: Final = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
LOOKUPS: Final = [line for line in LINES if "sql" in line]

VOLATILE: Final = {
    *(
        "catalog_xmin",
        "confirmed_flush_lsn",
        "datoid",
        "inactive_since",
        "restart_lsn",
        "to_jsonb",
    ),  # of slots
    *("max", "pg_current_txid", "pg_current_wal_lsn", "pg_postmaster_start_time", "version", "xmin"),
}
"""Columns whose values are not compared, because they differ from one server to the next."""

FIRST_USER_OID: Final = 16_384
"""OID of the first object that a user creates. Higher OIDs are compared as if they were all equal."""

NAME: Final = 19
TABLE_COLUMNS: Final = {"TABLE_NAME", "relname", "tablename"}
"""Columns with the name of a table."""


def tables() -> tuple[Relation, ...]:
    """Return the tables of the server that gave the answers."""
    return tuple(
        make_relation(
            *(
                make_column(name, oid, modifier, key=is_key)
                for is_key, name, oid, modifier in line["columns"]
            ),
            oid=line["oid"],
            namespace=line["namespace"],
            name=line["name"],
            identity=ReplicaIdentity(line["identity"]),
        )
        for line in LINES
        if "namespace" in line
    )


class Published(Repeated):
    published = tables()


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection]:
    source = GeneratedSource(Published(1))
    source.database, source.publications = "shop", ("p",)
    with StandIn(source) as server:
        create_slot(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            yield connection


def masked(value: str | None) -> str | None:
    """Return a value for comparison: the OIDs of a user's objects are equal."""
    if value is not None and value.isdigit() and int(value) >= FIRST_USER_OID:
        return "an OID"
    return None if value is None else re.sub(r"^[0-9A-F]+/[0-9A-F]+$", "an LSN", value)


def ask(
    connection: psycopg.Connection, sql: str, parameters: list[str | None]
) -> tuple[list[list[Any]], list[list[str | None]]]:
    """Return the names and type OIDs of the columns, and the rows as text."""
    values = [None if one is None else one.encode() for one in parameters]
    result = connection.pgconn.exec_params(sql.encode(), values)
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message.decode()
    numbers = range(result.nfields)
    columns = [[(result.fname(number) or b"").decode(), result.ftype(number)] for number in numbers]
    rows = [[result.get_value(row, number) for number in numbers] for row in range(result.ntuples)]
    return columns, [[None if one is None else one.decode() for one in row] for row in rows]


@pytest.mark.parametrize(
    "lookup", LOOKUPS, ids=[f"{one['client']}-{number}" for number, one in enumerate(LOOKUPS)]
)
def test_a_look_up_has_the_answer_of_a_real_server(
    connection: psycopg.Connection, lookup: dict[str, Any]
) -> None:
    columns, rows = ask(connection, lookup["sql"], lookup["parameters"])
    assert columns == lookup["columns"]
    compared = [number for number, (name, _) in enumerate(columns) if name not in VOLATILE]

    def counted(answer: list[list[str | None]]) -> Counter[tuple[str | None, ...]]:
        return Counter(tuple(masked(row[number]) for number in compared) for row in answer)

    found, expected = counted(rows), counted(lookup["rows"])
    assert not found - expected
    names = {table.name for table in tables()}
    if {name for name, _ in columns} & TABLE_COLUMNS:
        missing = (expected - found).elements()
        assert not [row for row in missing if names.intersection(row)]
    elif len(expected) < 100 and columns != [["TABLE_CAT", NAME]]:  # the server has more types and databases
        assert found == expected


def test_the_look_ups_of_every_client_are_collected() -> None:
    assert {one["client"] for one in LOOKUPS} == {"asyncpg", "Debezium", "pgjdbc", "psycopg", "recorder"}
    assert SLOT in json.dumps(LOOKUPS)
