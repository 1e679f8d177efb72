"""DSNs of several servers, failover slots, and standbys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from logicalrep.recorder import Connected, Stored, Waiting, event_text
from logicalrep.recorder.client.connection import Connection
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab
from tests.server import VERSION, Server, Standby


@pytest.fixture(scope="module")
def other_server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def both(lab: Lab, other_server: Server) -> Iterator[str]:
    """Return a DSN of two servers. Each table has the row `server` on the first, `other` on the second."""
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


def test_a_pinned_dsn_names_the_connected_server(both: str, other_server: Server) -> None:
    for dsn in (both, f"{other_server.dsn} options='-c work_mem=64kB'"):
        with Connection(dsn) as first:
            assert "," not in str(conninfo_to_dict(first.pinned_dsn)["host"])
            with Connection(first.pinned_dsn) as second:
                identity = "SELECT system_identifier FROM pg_control_system()"
                assert first.query(identity) == second.query(identity)


def test_all_connections_of_a_session_go_to_one_server(lab: Lab, both: str) -> None:
    """The DSN has load_balance_hosts=random: each connection could choose a server at random."""
    lab.recorder(dsn=f"{both} load_balance_hosts=random", snapshot=True).run(until="now")
    names = [row["name"] for table in lab.replay().values() for row in table]
    assert names in (["server"] * 6, ["other"] * 6)


# Failover slots


def test_the_option_failover_creates_a_failover_slot(lab: Lab, record_cli: Command) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    if lab.version < 17:
        code, _, err = record_cli("--create-slot", "--failover", "--until=now")
        assert (code, lab.slots()) == (3, [])
        assert err == (
            "logicalrep: a slot with the flag failover needs PostgreSQL 17 or later, but the server is "
            f"PostgreSQL {lab.version}: leave out the option failover\n"
        )
        return
    lab.run("INSERT INTO t VALUES (1)")
    assert record_cli("--snapshot", "--failover", "--until=now")[0] == 0
    assert lab.rows(f"SELECT failover FROM pg_replication_slots WHERE slot_name = '{lab.slot}'") == [(True,)]
    lab.run("INSERT INTO t VALUES (2)")
    assert record_cli("--snapshot", "--until=now")[0] == 0  # the flag stays
    lab.assert_equal()


def test_a_slot_without_the_flag_failover_is_refused(lab: Lab, record_cli: Command) -> None:
    if lab.version < 17:
        return
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record()
    code, _, err = record_cli("--create-slot", "--failover", "--until=now")
    assert code == 3
    command = err.rpartition(": ")[2].strip()
    assert command == f"ALTER_REPLICATION_SLOT {lab.slot} (FAILOVER true)"
    with Connection(lab.dsn, replication=True) as connection:
        connection.query(command)
    assert record_cli("--create-slot", "--failover", "--until=now")[0] == 0


# Standbys


def test_a_slot_on_a_standby_waits_for_the_primary(tmp_path: Path) -> None:
    with Server() as primary, Lab(primary, tmp_path) as lab, Standby(primary) as standby:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        standby.catch_up()
        with standby.connect() as connection:
            connection.execute(
                "SELECT pg_wal_replay_pause()"
            )  # otherwise the primary might log them by itself
            dsn = f"{lab.dsn} host={standby.folder} target_session_attrs=standby"
            with lab.recording(dsn=dsn, snapshot=True) as recording:
                waiting = recording.wait(Waiting)
                assert (waiting.xid, waiting.gid, waiting.pid) == (None, None, None)
                assert "run SELECT pg_log_standby_snapshot() there" in event_text(waiting)
                assert recording.events_of(Connected) == []
                connection.execute("SELECT pg_wal_replay_resume()")
                lab.run("SELECT pg_log_standby_snapshot()")
                recording.wait(Connected)
                lab.run("INSERT INTO t VALUES (1)")
                recording.wait(Stored)
            connection.execute("SELECT pg_drop_replication_slot(%s)", [lab.slot])
        lab.assert_equal()
