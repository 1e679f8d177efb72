"""The database of a small shop: tables, rows, and the SQL statements that run while it is recorded."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from tests.server import Server
from tests.truth import TrueTable

TABLES: Final = """
    CREATE TYPE order_status AS ENUM ('new', 'paid', 'sent');
    CREATE TABLE customers (id int8 PRIMARY KEY, name text, email text, profile jsonb, since date);
    CREATE TABLE products
        (sku text PRIMARY KEY, price numeric(10, 2), weight float8, tags text[], photo bytea);
    CREATE TABLE orders (id int8 PRIMARY KEY, customer int8, status order_status, placed_at timestamptz);
    CREATE TABLE order_lines (order_id int8, line int2, sku text, number int4, PRIMARY KEY (order_id, line));
    CREATE TABLE baskets (id uuid PRIMARY KEY, customer int8, filled_at timestamp);
    CREATE TABLE visits (id int8 PRIMARY KEY, page text, robot bool);
    CREATE PUBLICATION shop FOR ALL TABLES;
"""

CONTENTS: Final = """
    INSERT INTO customers SELECT g, 'Customer ' || g, 'c' || g || '@example.org', NULL, date '2020-01-01' + g
        FROM generate_series(1, 500) g;
    INSERT INTO products
        SELECT 'sku-' || g, g * 1.25, g / 3.0, ARRAY['new', 'a "b", c', NULL], decode('00ff', 'hex')
        FROM generate_series(1, 300) g;
    INSERT INTO orders
        SELECT g, g % 500 + 1, 'new', timestamptz '2026-01-01 12:00+00' + g * interval '1 minute'
        FROM generate_series(1, 1000) g;
    INSERT INTO order_lines SELECT g, 1, 'sku-' || g % 300 + 1, g % 5 + 1 FROM generate_series(1, 1000) g;
    INSERT INTO baskets SELECT md5(g::text)::uuid, g, timestamp '2026-01-01' + g * interval '1 hour'
        FROM generate_series(1, 50) g;
"""

WORKLOAD: Final = {
    "500 orders are paid, 100 new ones are placed": """
        UPDATE orders SET status = 'paid' WHERE id <= 500;
        INSERT INTO orders SELECT g, 7, 'new', now() FROM generate_series(1001, 1100) g;
        DELETE FROM order_lines WHERE order_id BETWEEN 10 AND 20;
    """,
    "20 customers get large profiles, stored out of line (TOAST)": """
        UPDATE customers SET profile = jsonb_build_object('history',
            (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)) WHERE id <= 20;
    """,
    "they are renamed; their profiles are not sent again": """
        UPDATE customers SET name = 'Renamed ' || id WHERE id <= 20;
        UPDATE customers SET id = 100000 + id WHERE id <= 5;
    """,
    "a column is added, another one dropped": """
        ALTER TABLE orders ADD COLUMN note text;
        ALTER TABLE customers DROP COLUMN email;
        UPDATE orders SET note = E'fragile\\t\\\\' WHERE id <= 50;
        INSERT INTO customers VALUES (9001, 'Ada', '{"vip": true}', '2026-11-21');
    """,
    "a large transaction, streamed while it is in progress": """
        BEGIN;
        INSERT INTO visits SELECT g, '/page/' || g, g % 3 = 0 FROM generate_series(1, 2000) g;
        SAVEPOINT robots;
        INSERT INTO visits SELECT g, '/undone', true FROM generate_series(2001, 3000) g;
        UPDATE visits SET page = '/undone' WHERE id <= 500;
        ROLLBACK TO robots;
        INSERT INTO visits SELECT g, '/page/' || g, false FROM generate_series(3001, 3200) g;
        COMMIT;
    """,
    "another large transaction, which is rolled back": """
        BEGIN;
        UPDATE visits SET page = '/never';
        ROLLBACK;
    """,
    "two prepared transactions: one commits, one rolls back": """
        BEGIN;
        UPDATE products SET price = price * 1.1 WHERE sku < 'sku-2';
        PREPARE TRANSACTION 'new prices';
        BEGIN;
        DELETE FROM baskets;
        PREPARE TRANSACTION 'sell-out';
        INSERT INTO visits VALUES (4000, '/meanwhile', false);
        COMMIT PREPARED 'new prices';
        ROLLBACK PREPARED 'sell-out';
    """,
    "a table is truncated and filled again": """
        TRUNCATE baskets;
        INSERT INTO baskets VALUES ('00000000-0000-0000-0000-000000000001', 1, 'infinity');
    """,
}
"""SQL statements, by their description. Outside BEGIN … COMMIT, each statement is a transaction."""


def open_shop(server: Server) -> None:
    """Create the tables and the publication of the shop, and fill the tables."""
    with server.connect() as connection:
        connection.execute(TABLES)
        connection.execute(CONTENTS)


def run(connection: psycopg.Connection, statements: str) -> None:
    """Run SQL statements, which are separated by semicolons at line ends, one by one."""
    for statement in statements.split(";\n"):
        if statement.strip():
            connection.execute(statement.strip().encode())


def true_tables(server: Server) -> list[TrueTable]:
    """Return the server's tables in the schema `public`, with their current rows."""
    with server.connect() as connection:
        connection.execute("SET extra_float_digits = 3")
        relations = connection.execute(
            "SELECT c.oid, n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " JOIN pg_attribute a ON attrelid = c.oid"
            " WHERE relkind = 'r' AND nspname = 'public' AND attnum > 0 AND NOT attisdropped GROUP BY 1, 2, 3"
        ).fetchall()
        return [
            TrueTable(oid, f"{namespace}.{name}", tuple(columns), _rows(connection, namespace, name, columns))
            for oid, namespace, name, columns in relations
        ]


def _rows(
    connection: psycopg.Connection, namespace: str, name: str, columns: list[str]
) -> list[tuple[str | None, ...]]:
    """Return the rows of a table, with values in text format."""
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL("SELECT {} FROM {}").format(listed, sql.Identifier(namespace, name))
    result = connection.pgconn.exec_(query.as_bytes(connection))
    values = ([result.get_value(row, i) for i in range(len(columns))] for row in range(result.ntuples))
    return [tuple(None if value is None else value.decode() for value in row) for row in values]
