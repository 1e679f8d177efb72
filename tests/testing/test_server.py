"""A stand-in in a process of its own: who waits for it in this one cannot keep it from answering."""

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

from pgoutput.errors import RecordingError
from pgoutput.standin import Faults
from pgoutput.synth import Scenario
from pgoutput.testing import Server, Stream, shop
from tests.standin.clients import create_slot, with_psycopg3

CAPTURE = Path(__file__).parents[1] / "captures/pg18_p1.jsonl.gz"


def test_a_scenario_as_it_stands(tmp_path: Path) -> None:
    db = shop(proto_version=1)
    t = db.table("public.t", id="int8 key")
    left_open = db.transaction()
    left_open.insert(t, id=1)
    end_lsn, messages = db.end_lsn, Stream.of(db).messages
    with Server(db) as server:
        left_open.commit()  # it comes too late
        create_slot(server.dsn)
        received = with_psycopg3(server.dsn, end_lsn, tmp_path)
    assert received == list(messages)


def test_a_recording_with_a_fault(tmp_path: Path) -> None:
    with Server(CAPTURE, faults=Faults(drop_after=5)) as server:
        create_slot(server.dsn)
        assert len(with_psycopg3(server.dsn, 1 << 60, tmp_path)) == 5


def test_a_client_that_holds_the_gil_is_answered() -> None:
    with Server(Scenario()) as server:
        connection = pq.PGconn.connect(f"{server.dsn} replication=database".encode())
        assert connection.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK
        connection.finish()


def test_a_password() -> None:
    with Server(shop(), user="me", password="it's \\") as server:
        psycopg.connect(server.dsn).close()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"host=127.0.0.1 port={server.port} user=me dbname=postgres password=wrong")


def test_what_cannot_be_served_is_said_here(tmp_path: Path) -> None:
    with (
        pytest.raises(RecordingError, match=r"nothing\.jsonl: No such file"),
        Server(tmp_path / "nothing.jsonl"),
    ):
        raise AssertionError("unreachable")
    with pytest.raises(ValueError, match="a user and a password go together"), Server(shop(), user="me"):
        raise AssertionError("unreachable")


def test_a_server_goes_with_the_process_that_began_it() -> None:
    begun = (
        "import sys; from pgoutput.testing import Server, shop\n"
        "with Server(shop()) as server: print(server.dsn, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", begun], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        dsn = process.stdout.readline()
        psycopg.connect(dsn).close()
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while "refused" not in failure(dsn):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def failure(dsn: str) -> str:
    """Why nobody can connect; nothing if one can."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError as error:
        return str(error)
    return ""


def test_a_server_that_is_killed_is_missed_by_nobody() -> None:
    with Server(shop()) as server:
        server._process.kill()
        server._process.wait()
