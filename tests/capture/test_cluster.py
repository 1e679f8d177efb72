"""DSNs that list several servers, and slots that standbys keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgoutput.capture.connection import Connection
from tests.capture.conftest import VERSION
from tests.capture.lab import Lab
from tests.server import Server


@pytest.fixture(scope="module")
def other_server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def both(lab: Lab, other_server: Server) -> Iterator[str]:
    """Give a DSN of two servers: databases of one name, whose tables hold `server` and `other`."""
    lab.run("CREATE PUBLICATION p FOR ALL TABLES")
    with other_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {lab.name}")
    with other_server.connect(lab.name) as connection:
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        for n in range(6):
            create = f"CREATE TABLE t{n} (name text)"
            connection.execute(f"{create}; INSERT INTO t{n} VALUES ('other')".encode())
            lab.run(create, f"INSERT INTO t{n} VALUES ('server')")
    yield f"{lab.dsn} host={lab.server.folder},{other_server.folder} port=5432,5432"
    with other_server.connect() as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            [lab.name],
        )
        connection.execute(f"DROP DATABASE {lab.name}")


def test_a_pinned_dsn_names_the_server_that_was_reached(both: str, other_server: Server) -> None:
    for dsn in (both, f"{other_server.dsn} options='-c work_mem=64kB'"):
        with Connection(dsn) as first:
            assert "," not in str(conninfo_to_dict(first.pinned_dsn)["host"])
            with Connection(first.pinned_dsn) as second:
                identity = "SELECT system_identifier FROM pg_control_system()"
                assert first.query(identity) == second.query(identity)


def test_all_connections_of_a_session_go_to_one_server(lab: Lab, both: str) -> None:
    """Six tables are copied on five connections, each of which would choose a server at random."""
    lab.recorder(dsn=f"{both} load_balance_hosts=random", snapshot=True).run(until="now")
    names = [row["name"] for table in lab.replay().values() for row in table]
    assert names in (["server"] * 6, ["other"] * 6)
