"""Fixtures: a server for the tests of a module, and a connection to it with a published table."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(max_slot_wal_keep_size="1GB") as server:
        yield server


@pytest.fixture
def connection(server: Server, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A connection to a server with a table and a publication, both with the name of the test."""
    name = request.node.name
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
        connection.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}".encode())
        yield connection
        slots = b"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        connection.execute(slots)
