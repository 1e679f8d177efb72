"""The command `logicalrep sync`: a server is recorded and replicated by one command."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from logicalrep.cli.replicate.synchronization import slot_name
from logicalrep.recording import Recording
from logicalrep.replica import replica_tables
from tests import store
from tests.conftest import Run
from tests.server import Server

PATIENCE = 60


@contextmanager
def sync(server: Server, name: str, target: Path | str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `logicalrep sync` for the publication of a test; kill it at the end."""
    command = [sys.executable, "-m", "logicalrep.cli", "sync", f"--dsn={server.dsn}", f"--publication={name}"]
    with subprocess.Popen(
        [*command, f"--target={target}", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ids(target: Path | str, name: str) -> list[int]:
    try:
        rows = DeltaTable(f"{target}/public.{name}").to_pyarrow_table()
    except TableNotFoundError:
        return []
    return sorted(rows["id"].to_pylist())


def is_locked(folder: Path) -> bool:
    """Return whether a recorder uses the folder of a recording."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def recorder_environment(process: subprocess.Popen[str]) -> list[bytes]:
    """Return the environment of the recorder that `logicalrep sync` runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return Path(f"/proc/{children.split()[0]}/environ").read_bytes().split(b"\0")


def insert(connection: psycopg.Connection, name: str, first: int, last: int) -> None:
    connection.execute(f"INSERT INTO {name} SELECT generate_series({first}, {last})".encode())


def test_what_was_received_is_applied_before_the_end(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A signal, and then SIGKILL, end both processes; the next run continues with what was missed."""
    name, target = request.node.name, tmp_path / "lake"
    recording = target / "_recording"
    insert(connection, name, 1, 10)
    # By its age alone, the segment would end long after the test.
    with sync(server, name, target, "--segment-seconds=600") as process:
        wait_for(lambda: ids(target, name) == [*range(1, 11)])
        insert(connection, name, 11, 20)
        (lsn,) = connection.execute(b"SELECT pg_current_wal_lsn()").fetchone() or ()
        sent = b"SELECT 1 FROM pg_stat_replication WHERE sent_lsn >= %s::pg_lsn"
        wait_for(lambda: connection.execute(sent, [lsn]).fetchone() is not None)
        time.sleep(0.5)  # from the socket to the recorder
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert ids(target, name) == [*range(1, 21)]
    assert [line.split()[1:] for line in output.splitlines() if "public" in line] == [["10", "10"]]
    assert not is_locked(recording)
    insert(connection, name, 21, 30)
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 31)])
        began = time.monotonic()
        insert(connection, name, 31, 40)
        wait_for(lambda: ids(target, name) == [*range(1, 41)])
        assert time.monotonic() < began + 10  # by default about a second, with a margin for busy machines
        assert is_locked(recording)
        process.kill()
    wait_for(lambda: not is_locked(recording))


def test_an_error_of_the_recorder_ends_the_replica(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name, target = request.node.name, tmp_path / "lake"
    insert(connection, name, 1, 10)
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 11)])
        insert(connection, name, 11, 20)
        wait_for(lambda: ids(target, name) == [*range(1, 21)])
        connection.execute(f"DROP PUBLICATION {name}".encode())
        insert(connection, name, 21, 30)
        assert process.stderr is not None
        warnings = iter(process.stderr.readline, "")
        assert any(f'there is no publication "{name}"' in line for line in warnings)  # which may come back
        connection.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}".encode())
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, errors
    assert f'logicalrep: the publication "{name}" was dropped and created anew' in errors


def test_an_error_of_the_replica_ends_the_recorder(
    server: Server,
    connection: psycopg.Connection,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While both run, their services have different names in OpenTelemetry."""
    name, target = request.node.name, tmp_path / "lake"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "lake")
    insert(connection, name, 1, 10)
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 11)])
        assert b"OTEL_SERVICE_NAME=lake-recorder" in recorder_environment(process)
        (target / "_owner.json").write_text("damaged")
        insert(connection, name, 11, 20)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert f"logicalrep: {target}/_owner.json: " in errors
    assert not is_locked(target / "_recording")


@contextmanager
def damaged(server: Server, name: str, target: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `logicalrep sync`, and remove rows of its Delta table with another program."""
    with sync(server, name, target, *options) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 1001)])
        DeltaTable(f"{target}/public.{name}").delete("id > 10")
        yield process


@pytest.mark.nightly
def test_a_replica_checks_itself(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name, target = request.node.name, tmp_path / "lake"
    insert(connection, name, 1, 1000)
    with damaged(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 1001)])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "the self-check found rows that differ from the server" in errors


@pytest.mark.nightly
def test_a_copy_for_the_self_check_survives_a_kill(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The next run continues the copy, and finds no difference after it."""
    name, target = request.node.name, tmp_path / "lake"
    insert(connection, name, 1, 1000)
    with damaged(server, name, target) as process:
        wait_for(lambda: any((target / "_recording").glob("_snapshot-*")))
        process.kill()
    wait_for(lambda: not is_locked(target / "_recording"))
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 1001)])
        wait_for(lambda: "difference" not in (target / "_self_check.json").read_text())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "again after a copy" not in errors
    (table,) = replica_tables(target).values()
    assert not [one.reason for one in table.may_differ if one.reason.startswith("the self-check")]


@pytest.mark.nightly
def test_an_option_turns_the_self_check_off(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name, target = request.node.name, tmp_path / "lake"
    insert(connection, name, 1, 1000)
    with damaged(server, name, target, "--no-self-check"):
        time.sleep(30)
        assert not (target / "_self_check.json").exists()
        assert ids(target, name) == [*range(1, 11)]


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """Run an object store; return the environment variables with which clients use it."""
    with store.moto() as port:
        yield store.settings(port)


@pytest.fixture
def in_a_store(bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key, value in bucket.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_recording_in_an_object_store(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, in_a_store: None
) -> None:
    name = request.node.name
    target = f"s3://{store.BUCKET}/lake"
    insert(connection, name, 1, 10)
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 11)])
        insert(connection, name, 11, 20)
        wait_for(lambda: ids(target, name) == [*range(1, 21)])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    Recording(f"{target}/_recording").check()


@pytest.mark.nightly  # as with a recording in a folder, and as after a kill of the recorder alone
def test_a_recording_in_an_object_store_is_continued(
    server: Server,
    connection: psycopg.Connection,
    request: pytest.FixtureRequest,
    in_a_store: None,
    tmp_path: Path,
) -> None:
    """SIGKILL ends both processes; the next run continues with what was missed."""
    name = request.node.name
    target, recording = f"s3://{store.BUCKET}/{name}", f"s3://{store.BUCKET}/{name}/_recording"
    insert(connection, name, 1, 10)
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 11)])
        insert(connection, name, 11, 20)
        process.kill()
    (working_folder,) = tmp_path.glob("logicalrep/*")
    wait_for(lambda: not is_locked(working_folder))
    insert(connection, name, 21, 30)
    with sync(server, name, target) as process:
        wait_for(lambda: ids(target, name) == [*range(1, 31)])
        insert(connection, name, 31, 40)
        wait_for(lambda: ids(target, name) == [*range(1, 41)])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    Recording(recording).check()
    with sync(server, name, tmp_path / "lake", f"--recording={recording}"):
        wait_for(lambda: ids(tmp_path / "lake", name) == [*range(1, 41)])


def test_an_error_before_the_recording_begins_ends_the_command(
    server: Server, connection: psycopg.Connection, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with sync(server, request.node.name, tmp_path / "lake", f"--recording={tmp_path}/file/x") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "Not a directory" in errors


def test_a_remote_target_needs_a_folder_for_the_recording(run: Run) -> None:
    done = run("sync", "--publication=p", "--target=hdfs://host/lake")
    assert done.code == 2
    assert done.err == (
        "logicalrep: hdfs://host/lake: no recording can be written to this URI: give a local folder or the "
        "URL of an object store with --recording\n"
    )


def test_slots_have_valid_names() -> None:
    assert slot_name(["Shop-1", "other"]) == "logicalrep_shop_1_other"
    first, second = (slot_name(["x" * 100, name]) for name in "ab")
    assert len(first) == 63
    assert first != second
