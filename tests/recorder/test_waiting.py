"""The recorder waits for open transactions and retries lost connections; some errors are not retried."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.recorder import Connected, Progress, Reconnecting, Stored, Waiting
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.client.errors import CredentialsRefused
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab
from tests.server import Server

# The creation of the slot waits for transactions


def test_a_slot_waits_for_a_prepared_transaction_and_for_a_session(table: Lab) -> None:
    prepared = prepare(table, "forgotten")
    with table.connect() as other, table.recording() as recording:
        other.execute("SET application_name = 'psql'")
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (2)")
        for count in (1, 2):  # the server chooses the order
            waiting = recording.wait(Waiting, count)
            if waiting.xid == prepared:
                assert (waiting.gid, waiting.pid, waiting.state) == ("forgotten", None, None)
                table.run("ROLLBACK PREPARED 'forgotten'")
            else:
                assert (waiting.xid, waiting.gid) == (prepared + 1, None)
                assert waiting.pid == other.info.backend_pid
                assert (waiting.application, waiting.state) == ("psql", "idle in transaction")
                other.execute("COMMIT")
            assert (waiting.database, waiting.user) == (table.name, "postgres")
            assert str(waiting.since).startswith("20")
        recording.wait(Connected)
    assert len(recording.events_of(Waiting)) == 2


def test_waiting_for_a_transaction_is_printed(table: Lab, record_cli: Command) -> None:
    """A role without privileges sees the process and ID of the awaited transaction, but not the state."""
    xid = prepare(table, "g")
    code, _, err = record_cli("--create-slot", "--for=2.5")
    assert code == 0
    [waiting, stopped] = err.splitlines()
    assert waiting.startswith(
        f'logicalrep: waiting for the prepared transaction "g" (xid {xid}, database {table.name}, '
        "user postgres, since 20"
    )
    assert waiting.endswith("): COMMIT PREPARED or ROLLBACK PREPARED it")
    assert stopped == "logicalrep: stopped before the recording began: nothing is stored"
    table.run("ROLLBACK PREPARED 'g'", "CREATE ROLE weak LOGIN REPLICATION")
    try:
        with table.connect() as other:
            pid = other.info.backend_pid
            other.execute("BEGIN")
            own = other.execute("SELECT txid_current()").fetchone()
            assert own is not None
            _, _, err = record_cli("--create-slot", "--for=2.5", dsn=f"{table.dsn} user=weak")
        assert err.startswith(
            f"logicalrep: waiting for the transaction of the server process {pid} (xid {own[0]}, "
            f"database {table.name}, user postgres): commit it, or roll it back\n"
        )
    finally:
        table.run("DROP ROLE weak")


def prepare(lab: Lab, gid: str) -> int:
    """Prepare a transaction; return its xid."""
    lab.run("BEGIN", "INSERT INTO t VALUES (1)", f"PREPARE TRANSACTION $${gid}$$")
    return int(lab.value("SELECT transaction FROM pg_prepared_xacts"))


# Giving up


def test_the_first_start_retries_until_the_server_runs(table: Lab) -> None:
    table.server.stop()
    with table.recording() as recording:
        recording.wait(Reconnecting)
        table.server.start()
        table.reconnect()
        recording.wait(Connected)
        table.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
    table.assert_equal()


def test_retries_at_the_start_end_after_the_given_time(record_cli: Command, tmp_path: Path) -> None:
    began = time.monotonic()
    code, out, err = record_cli("--retry-for=1", dsn=f"host={tmp_path}")
    assert (code, out) == (3, "")
    assert time.monotonic() - began >= 1
    *retries, last = err.splitlines()
    assert [line.split("; ")[1].startswith("the next attempt is in 0.") for line in retries] == [True, True]
    assert last == retries[0].split("; ")[0]


def test_retries_end_after_the_time_since_the_last_stream(table: Lab) -> None:
    """`retry_for` counts from the first error after the last stream, not from the start of the recorder."""
    with pytest.raises(ConnectionLost), table.recording(retry_for=1) as recording:  # noqa: PT012
        recording.wait(Progress)  # comes after a second
        began = time.monotonic()
        table.server.stop()
        recording.join()
    assert time.monotonic() - began >= 1
    assert len(recording.events_of(Reconnecting)) >= 2
    table.server.start()
    table.reconnect()


def test_nothing_is_retried_within_0_seconds(table: Lab) -> None:
    with pytest.raises(ConnectionLost), table.recording(retry_for=0) as recording:  # noqa: PT012
        recording.wait(Connected)
        pid = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{table.slot}'"
        table.run(f"SELECT pg_terminate_backend(({pid}))")
        recording.join()
    assert recording.events_of(Reconnecting) == []


def test_retries_end_if_no_stream_begins(table: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts each connection but no stream; an outage ends only when a stream begins."""

    def start_replication(self: Connection, command: str) -> None:
        raise ConnectionLost("the server closed the connection")

    monkeypatch.setattr(Connection, "start_replication", start_replication)
    with pytest.raises(ConnectionLost, match="the server closed the connection"):
        table.recorder(retry_for=1).run(seconds=20)


# Refused connections


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("user=scram password=wrong", CredentialsRefused),
        ("user=plain password=wrong", CredentialsRefused),
        ("user=scram", CredentialsRefused),
        ("user=stranger", ReplicationError),
        ("user=nobody", ReplicationError),
        ("user=nologin", ReplicationError),
        ("user=reader", ReplicationError),
        ("dbname=nowhere", ReplicationError),
        ("sslmode=require host=127.0.0.1", ConnectionLost),
        ("sslmode=bogus", ReplicationError),
        ("service=nowhere", ReplicationError),
        ("host=/nowhere", ConnectionLost),
        ("host=/nowhere,/nowhere user=nobody", ConnectionLost),
        ("host=/nowhere,{folder} port=5432,5432 user=nobody", ConnectionLost),
        ("host={folder},{folder} port=5432,5432 user=nobody", ReplicationError),
        ("host={folder},{folder} port=5432,5432 user=scram password=wrong", CredentialsRefused),
        ("host={folder},{folder} port=5432,1 user=nobody", ConnectionLost),
        ("target_session_attrs=standby", ConnectionLost),
    ],
)
def test_which_refusals_are_retried(guarded: Server, change: str, expected: type[Exception]) -> None:
    with pytest.raises(ReplicationError) as caught:
        Connection(f"{guarded.dsn} {change.format(folder=guarded.folder)}", replication=True)
    assert type(caught.value) is expected, caught.value
