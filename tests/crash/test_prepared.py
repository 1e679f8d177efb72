"""Record a transaction that is prepared while the slot is created, and that the server sends later."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import psycopg
import pytest

from logicalrep.messages import Insert, Streaming, StreamPrepare
from logicalrep.recorder import Recorder, RecorderOptions
from logicalrep.recording import RecordingReader
from tests.server import Server


@pytest.mark.parametrize(("streaming", "proto_version"), [("parallel", 4), ("off", 3)])
def test_a_transaction_older_than_the_slot_is_recorded_when_it_is_committed(
    tmp_path: Path, streaming: Streaming, proto_version: int
) -> None:
    with Server() as server, server.connect() as connection:
        connection.execute("CREATE TABLE t (id int8)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        with server.connect() as first, server.connect() as second:
            first.execute("BEGIN; INSERT INTO t VALUES (1)")
            creation = Thread(target=_create_slot, args=[server])
            creation.start()
            _await_waiting(connection, first)
            second.execute("BEGIN; INSERT INTO t VALUES (2)")
            first.execute("COMMIT")
            _await_waiting(connection, second)
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t SELECT g FROM generate_series(1001, 1400) g")
            connection.execute("PREPARE TRANSACTION 'early'")
            second.execute("COMMIT")
            creation.join()
        # After the slot has begun, memory becomes short, and this transaction is the largest.
        connection.execute("INSERT INTO t SELECT g FROM generate_series(2001, 2300) g")
        connection.execute("COMMIT PREPARED 'early'")
        Recorder(
            server.dsn,
            "s",
            ["p"],
            tmp_path / "recording",
            options=RecorderOptions(two_phase=True, streaming=streaming, proto_version=proto_version),
        ).run(until="now")
    with RecordingReader(tmp_path / "recording") as segments:
        streamed = any(isinstance(one.message, StreamPrepare) for one in segments.messages())
    with RecordingReader(tmp_path / "recording") as segments:
        found = [
            change.message.new[0]
            for transaction in segments.transactions()
            for change in transaction.changes
            if isinstance(change.message, Insert)
        ]
    assert streamed == (streaming != "off")
    assert sorted(map(str, found)) == [str(id_) for id_ in (*range(1001, 1401), *range(2001, 2301))]


def _create_slot(server: Server) -> None:
    with server.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)")


def _await_waiting(connection: psycopg.Connection, holder: psycopg.Connection) -> None:
    """Wait until the creation of the slot is blocked by the open transaction of the connection `holder`."""
    deadline = time.monotonic() + 120
    query = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    while not connection.execute(query, [holder.info.backend_pid]).fetchall():
        assert time.monotonic() < deadline
        time.sleep(0.02)
