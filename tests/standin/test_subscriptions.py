"""PostgreSQL subscribes to a stand-in server, copies its tables, and applies its stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from logicalrep.recorder import Recorder
from logicalrep.standin import RecordedSource, StandIn
from logicalrep.synth import Scenario
from tests.server import VERSION, Server

TABLES = {
    "public.orders": "id int8 PRIMARY KEY, note text, price numeric(10,2), at timestamptz, tags text[]",
    'shop."Order lines"': "a int4, b uuid, amount float8, PRIMARY KEY (a, b)",
}
"""Columns of the subscriber's tables."""

OPTIONS = {
    "copy_data = true": 10,
    "copy_data = false": 10,
    "binary = true": 14,
    "streaming = on": 14,
    "two_phase = true": 15,
    "streaming = parallel, origin = none, binary = true": 16,
    "failover = true, streaming = parallel": 17,
}
"""Options of subscriptions, with the first major server version that knows them."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def shop() -> Scenario:
    db = Scenario(logical_decoding_work_mem=2_000)
    db.table(
        "public.orders",
        id="int8 key",
        note="text",
        price="numeric(10,2)",
        at="timestamptz",
        tags="text[]",
    )
    db.table('shop."Order lines"', a="int4 key", b="uuid key", amount="float8")
    change(db, 0)
    return db


def change(db: Scenario, first: int) -> None:
    """Change the tables in every way, in transactions that are short, streamed, rolled back and prepared."""
    orders, lines = db.tables.values()
    uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    with db.transaction() as transaction:
        for id in range(first, first + 5):
            transaction.insert(orders, id=id, note="x" * 3_000, price="1.50", at="2024-01-01 00:00:00+00")
        transaction.insert(lines, a=first, b=uuid, amount=1.5)
    with db.transaction() as transaction:
        transaction.update(orders, {"id": first}, price="2.00", tags=["a", 'b"c', None])  # TOAST: unchanged
        transaction.update(orders, {"id": first + 1}, id=first + 9, note=None)
        transaction.delete(orders, {"id": first + 2})
        transaction.update(lines, {"a": first}, a=first + 1)
    with db.transaction(origin="elsewhere", origin_lsn=0x100) as transaction:
        transaction.insert(orders, id=first + 10, note="not for origin = none")
    with db.transaction() as transaction:  # streamed, if the subscriber asks for it
        for id in range(first + 20, first + 60):
            transaction.insert(orders, id=id, note="z" * 100)
        with transaction.savepoint() as savepoint:
            for id in range(first + 60, first + 90):
                savepoint.insert(orders, id=id, note="gone" * 20)
            savepoint.rollback()
    transaction = db.transaction()
    transaction.insert(orders, id=first + 91, note="prepared")
    transaction.prepare(f"gid {first}")
    db.wait()
    db.commit_prepared(f"gid {first}")


def applied(connection: psycopg.Connection, name: str) -> list[tuple[str, ...]]:
    return sorted(connection.execute(f"SELECT t::text FROM {name} t").fetchall())


def expected(
    connection: psycopg.Connection, db: Scenario, name: str, leave_out: str
) -> list[tuple[str, ...]]:
    """Return the rows that the scenario says, as the server writes them."""
    rows = [row for row in db.rows(db.tables[name.replace('"', "")]) if row.get("note") != leave_out]
    with connection.transaction(force_rollback=True):
        connection.execute(f"CREATE TEMP TABLE expected (LIKE {name})")
        for row in rows:
            values = ", ".join(["%s"] * len(row))
            connection.execute(f"INSERT INTO expected VALUES ({values})", list(row.values()))
        return sorted(connection.execute("SELECT t::text FROM expected t").fetchall())


@contextmanager
def subscribed(server: Server, standin: StandIn, options: str) -> Iterator[psycopg.Connection]:
    """Create the tables and a subscription; remove both in the end."""
    with server.connect() as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
        for name, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        where = f"CONNECTION '{standin.dsn}' PUBLICATION p"
        connection.execute(f"CREATE SUBSCRIPTION s {where} WITH ({options})")
        try:
            assert connection.execute("SELECT count(*) FROM pg_subscription_rel").fetchone() == (2,)
            yield connection
        finally:
            connection.execute("DROP SUBSCRIPTION s")
            for name in TABLES:
                connection.execute(f"DROP TABLE {name}")


def wait_until_equal(
    server: Server, connection: psycopg.Connection, db: Scenario, leave_out: str = ""
) -> None:
    deadline = time.monotonic() + 60
    while any(applied(connection, name) != expected(connection, db, name, leave_out) for name in TABLES):
        assert time.monotonic() < deadline, server.log[-3_000:]
        time.sleep(0.05)


@pytest.mark.parametrize("options", [one for one, since in OPTIONS.items() if since <= VERSION])
def test_a_subscriber_has_the_rows_of_a_scenario(server: Server, shop: Scenario, options: str) -> None:
    leave_out = "not for origin = none" if "origin" in options else ""
    with StandIn(shop) as standin, subscribed(server, standin, options) as connection:
        wait_until_equal(server, connection, shop, leave_out)
        change(shop, 1_000)
        wait_until_equal(server, connection, shop, leave_out)


def test_a_subscriber_has_the_rows_of_a_recording(server: Server, shop: Scenario, tmp_path: Path) -> None:
    with StandIn(shop) as standin:
        recorder = Recorder(standin.dsn, "s", ["p"], tmp_path / "recording", create_slot=True)
        recorder.run(until=shop.end_lsn)
    source = RecordedSource(tmp_path / "recording")
    with StandIn(source) as standin, subscribed(server, standin, "connect = true") as connection:
        wait_until_equal(server, connection, shop)


def test_a_table_that_is_not_published_is_not_copied(shop: Scenario) -> None:
    with StandIn(shop) as standin, psycopg.connect(standin.dsn, autocommit=True) as connection:
        for statement in (
            "COPY other TO STDOUT",
            "COPY shop.orders (id) TO STDOUT",
            "SELECT 1 FROM shop.orders",
        ):
            with pytest.raises(
                psycopg.errors.UndefinedTable, match=r'relation "(other|shop\.orders)" does not'
            ):
                connection.execute(statement)
        for format_, copied in (("text", b""), ("binary", b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff")):
            for name in ('public.orders (id, "note")', 'shop."Order lines"'):
                with connection.cursor().copy(f"COPY {name} TO STDOUT WITH (FORMAT {format_})") as copy:
                    assert b"".join(copy) == copied
