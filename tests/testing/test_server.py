"""A stand-in server in its own process responds to clients that hold the GIL of the test's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import pq

from logicalrep.errors import RecordingError
from logicalrep.standin import Faults
from logicalrep.synth import Scenario
from logicalrep.testing import Server, Stream, shop
from tests.standin.clients import create_slot, read_with_psycopg3
from tests.truth import CAPTURES
from tests.versions import OLDEST

CAPTURE = CAPTURES / "pg18_p1.jsonl.gz"


def test_a_scenario_is_served_in_its_current_state(tmp_path: Path) -> None:
    db = shop(proto_version=OLDEST)
    t = db.table("public.t", id="int8 key")
    left_open = db.transaction()
    left_open.insert(t, id=1)
    end_lsn, messages = db.end_lsn, Stream.of(db).messages
    with Server(db) as server:
        left_open.commit()  # not served: the server has a copy of the scenario
        create_slot(server.dsn)
        with psycopg.connect(server.dsn) as connection:
            tables = connection.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'p'")
            assert sorted(row[0] for row in tables) == sorted(one.name for one in db.published)
        received = read_with_psycopg3(server.dsn, end_lsn, tmp_path)
    assert received == list(messages)


def test_a_capture_file_is_served_with_a_fault(tmp_path: Path) -> None:
    with Server(CAPTURE, faults=Faults(drop_after=5)) as server:
        create_slot(server.dsn)
        assert len(read_with_psycopg3(server.dsn, 1 << 60, tmp_path)) == 5


def test_a_client_that_holds_the_gil_gets_a_response() -> None:
    with Server(Scenario()) as server:
        connection = pq.PGconn.connect(f"{server.dsn} replication=database".encode())
        assert connection.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK
        connection.finish()


def test_a_password_is_required() -> None:
    with Server(shop(), user="me", password="it's \\") as server:
        psycopg.connect(server.dsn).close()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"host=127.0.0.1 port={server.port} user=me dbname=postgres password=wrong")


def test_errors_of_the_server_are_raised_in_this_process(tmp_path: Path) -> None:
    with (
        pytest.raises(RecordingError, match=r"nothing\.jsonl: No such file"),
        Server(tmp_path / "nothing.jsonl"),
    ):
        raise AssertionError("unreachable")
    with pytest.raises(ValueError, match="user and a password, or neither"), Server(shop(), user="me"):
        raise AssertionError("unreachable")


def test_the_server_ends_with_its_parent_process() -> None:
    code = (
        "import sys; from logicalrep.testing import Server, shop\n"
        "with Server(shop()) as server: print(server.dsn, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        dsn = process.stdout.readline()
        psycopg.connect(dsn).close()
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while "refused" not in connection_error(dsn):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def connection_error(dsn: str) -> str:
    """Return the error text of a connection attempt, or an empty string if the attempt succeeds."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError as error:
        return str(error)
    return ""


def test_a_killed_server_process_is_not_an_error() -> None:
    with Server(shop()) as server:
        server._process.kill()
        server._process.wait()
