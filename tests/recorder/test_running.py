"""A running recorder loses and duplicates nothing if it is killed, or if the disk or the server fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logicalrep.errors import ConnectionLost
from logicalrep.recorder import Connected, Progress, Reconnecting, RecorderOptions, Stopped, Stored
from logicalrep.recorder.client.errors import PublicationMissing
from logicalrep.recorder.recorder import _RetryPolicy
from logicalrep.recorder.storage.folder import State
from logicalrep.recording import list_segments, read_metadata
from logicalrep.wire import format_lsn, parse_lsn
from tests.recorder import workload
from tests.recorder.conftest import Command
from tests.recorder.lab import PATIENCE, Lab, wait_until

PROTOCOLS = {10: 1, 14: 2, 15: 3, 16: 4}


@pytest.fixture
def table(lab: Lab) -> Lab:
    """Make a table without a key, so that a row that is recorded twice is visible."""
    lab.run(
        "CREATE TABLE t (id int, a text)",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "CREATE TABLE elsewhere (id int)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    return lab


@contextmanager
def sender_timeout(lab: Lab, value: str) -> Iterator[None]:
    """Set wal_sender_timeout, after which the server disconnects a silent client."""
    set_timeout(lab, f"ALTER SYSTEM SET wal_sender_timeout = '{value}'", value)
    try:
        yield
    finally:
        set_timeout(lab, "ALTER SYSTEM RESET wal_sender_timeout", "1min")


def set_timeout(lab: Lab, statement: str, value: str) -> None:
    lab.run(statement, "SELECT pg_reload_conf()")
    wait_until(lambda: bool(lab.value("SHOW wal_sender_timeout") == value))


def is_confirmed(lab: Lab, lsn: int) -> bool:
    return lab.confirmed_lsn() >= lsn


def saved_lsn(folder: Path) -> int:
    """Return the LSN up to which everything is stored, according to the files of a recording."""
    state = msgspec.json.decode((folder / "_recording.json").read_bytes(), type=State)
    segments = list(folder.glob("[0-9]*"))
    last = [read_metadata(max(segments)).end_lsn] if segments else []
    return max(state.acknowledged_lsn or 0, *last, 0)


def test_the_newest_protocol_version_is_the_default(table: Lab) -> None:
    connected = table.record()[0]
    assert isinstance(connected, Connected)
    newest = PROTOCOLS[max(version for version in PROTOCOLS if version <= table.version)]
    assert connected.proto_version == newest
    assert connected.server_version.startswith(f"{table.version}")
    assert connected.options.get("streaming") == {1: None, 2: "on", 3: "on", 4: "parallel"}[newest]


# A slow disk


def test_a_slow_disk_does_not_lose_the_connection(table: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = 0
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        nonlocal slept
        slept += 1
        time.sleep(2.2 if slept <= 2 else 0)
        fsync(descriptor)

    with sender_timeout(table, "1s"), table.recording(segment_bytes=1 << 20) as recording:
        recording.wait(Connected)
        monkeypatch.setattr(os, "fsync", slow)
        table.run(
            *(f"INSERT INTO t SELECT {n}, md5(g::text) FROM generate_series(1, 20000) g" for n in range(4))
        )
        recording.wait(Stored)
        recording.stop()
        assert slept > 3
    assert recording.events_of(Reconnecting) == []
    monkeypatch.undo()
    acknowledged = parse_lsn(str(recording.events_of(Stopped)[0].acknowledged_lsn))
    wait_until(lambda: table.confirmed_lsn() == acknowledged)
    assert acknowledged <= saved_lsn(table.folder)
    table.record()
    table.assert_equal()


# Idle


def test_an_idle_slot_is_advanced(table: Lab) -> None:
    with table.recording() as recording, table.server.connect() as elsewhere:
        recording.wait(Connected)
        table.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
        elsewhere.execute("DROP TABLE IF EXISTS noise; CREATE TABLE noise (id int)")
        begin = table.lsn()
        for n in range(6):  # an hour, compressed: a segment of WAL every ten minutes, and a checkpoint
            elsewhere.execute("INSERT INTO noise SELECT generate_series(1, 1000)")
            table.run(f"INSERT INTO elsewhere VALUES ({n})", "SELECT pg_switch_wal()", "CHECKPOINT")
            wait_until(partial(is_confirmed, table, table.lsn()), 3)
            assert table.confirmed_lsn() <= saved_lsn(table.folder)
        query = "SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = '{}'"
        wait_until(lambda: parse_lsn(table.value(query.format(table.slot))) > begin)  # WAL can be removed
        elsewhere.execute("DROP TABLE noise")
    assert recording.events_of(Reconnecting) == []
    confirmed = table.confirmed_lsn()
    table.recorder().run(until=1)  # the acknowledged LSN lies after the last segment
    assert table.confirmed_lsn() >= confirmed
    table.run("INSERT INTO t VALUES (2)")
    table.record()
    table.assert_equal()


def test_a_transaction_in_progress_is_not_acknowledged(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with lab.recording() as recording, lab.connect() as other:
        recording.wait(Connected)
        other.execute("BEGIN; INSERT INTO t SELECT generate_series(1, 20000)")
        if lab.version >= 14:
            wait_until(lambda: any(event.open_transactions for event in recording.events_of(Progress)))
        lab.run("INSERT INTO t VALUES (-1)")
        recording.wait(Stored)
        other.execute("COMMIT")
        stored = len(recording.events_of(Stored))
        recording.wait(Stored, stored + 1)
        assert lab.confirmed_lsn() <= saved_lsn(lab.folder)
    lab.assert_equal()


# Ends


def test_a_transaction_that_commits_right_after_an_acknowledged_message_is_recorded(table: Lab) -> None:
    """The commit's WAL record begins at the message's LSN, which is the end of the message's record."""
    table.require(14, "logical messages")
    options = RecorderOptions(messages=True)
    table.record(options=options)
    with table.connect() as writer, writer.transaction():
        writer.execute("INSERT INTO t VALUES (1)")
        lsn = parse_lsn(table.value("SELECT pg_logical_emit_message(false, '', '')"))
        with table.recording(options=options) as recording:
            recording.wait(Stored)
        assert lsn <= table.confirmed_lsn()
    table.record(options=options)
    table.assert_equal()


def test_the_recorder_reconnects_after_outages(lab: Lab) -> None:
    workload.create(lab)
    with lab.recording(segment_seconds=0.3) as recording:
        recording.wait(Connected)
        workload.work(lab)
        lab.server.stop()
        recording.wait(Reconnecting)
        lab.server.start()
        lab.reconnect()
        workload.finish(lab)
        recording.wait(Connected, 2)
        workload.work(lab, 21)
        lab.server.crash()
        recording.wait(Reconnecting, 2)
        lab.server.start()
        lab.reconnect()
        workload.finish(lab, 21)
        recording.wait(Connected, 3)
    lab.record()
    assert all(event.reason for event in recording.events_of(Reconnecting))
    lab.assert_equal()
    assert {one.session for one in lab.segments()} >= {1, 2}


def test_pauses_between_attempts_grow(table: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.recorder.recorder._MIN_PAUSE", 0.05)
    with table.recording() as recording:
        recording.wait(Connected)
        table.server.stop()
        recording.wait(Reconnecting, 4)
        recording.stop()  # does not wait for the server
    table.server.start()
    table.reconnect()
    pauses = [event.seconds for event in recording.events_of(Reconnecting)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[3]


def test_pauses_begin_anew_after_a_short_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("logicalrep.recorder.recorder.time.monotonic", lambda: now)
    policy, error = _RetryPolicy(300), ConnectionLost("lost")
    with pytest.raises(PublicationMissing):
        policy.next_pause(PublicationMissing("missing"))
    pauses = []
    for streamed in (0, 0, 0, 0.1, 1, 0):
        if streamed:
            policy.stream_begins()
            now += streamed
        pauses.append(policy.next_pause(PublicationMissing("missing") if streamed else error))
    first = pauses[0]
    assert first < pauses[1] < pauses[2] < pauses[3]
    assert pauses[4] == first < pauses[5]


def test_a_lost_connection_is_made_again(table: Lab) -> None:
    with table.recording() as recording:
        for n in range(3):
            recording.wait(Connected, n + 1)
            table.run(f"INSERT INTO t VALUES ({n})")
            pid = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{table.slot}'"
            table.run(f"SELECT pg_terminate_backend(({pid}))")
            recording.wait(Reconnecting, n + 1)
    table.record()
    table.assert_equal()


KILLED_RECORDER = (
    "import os, signal, sys; from logicalrep.recorder import RecorderOptions, Recorder, Stored\n"
    "def kill(event):\n"
    "    if isinstance(event, Stored): os.kill(os.getpid(), signal.SIGKILL)\n"
    "Recorder(*sys.argv[1:3], ['p'], sys.argv[3], segment_bytes=20_000, segment_seconds=0.2,\n"
    "    options=RecorderOptions(messages=len(sys.argv) > 4, two_phase=len(sys.argv) > 4),\n"
    "    on_event=kill).run()"
)
"""Program of a recorder that is killed after it stores a segment and before it acknowledges the segment."""


def test_a_lost_acknowledgement_duplicates_nothing(lab: Lab) -> None:
    workload.create(lab)
    newest = lab.version >= 15
    options = RecorderOptions(two_phase=newest, messages=newest)
    lab.record(options=options)
    command = [sys.executable, "-c", KILLED_RECORDER, lab.dsn, lab.slot, str(lab.folder)] + ["x"] * newest
    for first in (1, 21, 41):
        workload.work(lab, first)
        before = lab.confirmed_lsn()
        killed = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert before <= lab.confirmed_lsn() < lab.segments()[-1].end_lsn
        workload.finish(lab, first)
    lab.record(options=options)
    lab.assert_equal()


def test_transactions_recorded_with_other_publications_are_not_compared(table: Lab) -> None:
    """After a server crash, the slot's LSN may precede segments recorded with other publications."""
    table.run("CREATE PUBLICATION q FOR TABLE elsewhere")
    table.record()
    statements = ("INSERT INTO t VALUES (1)", "INSERT INTO elsewhere VALUES (1)")
    table.run(*statements)
    if table.version < 12:
        return
    table.run(f"SELECT pg_copy_logical_replication_slot('{table.slot}', '{table.slot}_copy')")
    table.record()
    table.record("p", "q")
    table.run(*statements)
    table.record("p", "q")
    table.run(
        f"SELECT pg_drop_replication_slot('{table.slot}')",
        f"SELECT pg_copy_logical_replication_slot('{table.slot}_copy', '{table.slot}')",
    )
    table.run(*statements)
    table.record("p", "q")
    tables = table.replay()
    assert {one.relation.name: len(list(one)) for one in tables.values()} == {"t": 3, "elsewhere": 2}


RECORDING = (
    "import sys; from logicalrep.recorder import Recorder\n"
    "Recorder(*sys.argv[1:3], ['p'], sys.argv[3]).run(until='now')\n"
    "print(*sys.modules)"
)


def test_pandas_is_not_imported(lab: Lab) -> None:
    """Parts of Arrow import pandas if pandas is installed; the import takes 0.3 seconds and 45 MB."""
    workload.create(lab)
    lab.record()
    workload.work(lab, 1)
    arguments = [lab.dsn, lab.slot, str(lab.folder)]
    subprocess.run([sys.executable, "-c", KILLED_RECORDER, *arguments], check=False, timeout=PATIENCE)
    workload.finish(lab, 1)
    told = subprocess.run(  # some transactions are stored: they are skipped or rolled back
        [sys.executable, "-c", RECORDING, *arguments], check=True, capture_output=True, timeout=PATIENCE
    )
    assert {b"pyarrow", b"pandas"} & set(told.stdout.split()) == {b"pyarrow"}
    lab.assert_equal()


def test_everything_acknowledged_is_stored(table: Lab) -> None:
    over = threading.Event()

    def write() -> None:
        with table.connect() as connection:
            n = 0
            while not over.is_set():
                n += 1
                connection.execute(f"INSERT INTO t SELECT {n}, 'x' FROM generate_series(1, {n % 50})")
                connection.execute("INSERT INTO elsewhere VALUES (1)")

    writer = threading.Thread(target=write)
    seen = set()
    with table.recording(segment_bytes=20_000) as recording:
        recording.wait(Connected)
        writer.start()
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            confirmed = table.confirmed_lsn()
            assert confirmed <= saved_lsn(table.folder)
            seen.add(confirmed)
        over.set()
        writer.join()
    assert len(seen) > 2
    table.record()
    table.assert_equal()


# The command line


@contextmanager
def start(lab: Lab, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a recorder in a new process, which is killed if the test fails."""
    command = lab.command("--create-slot", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def events_until(process: subprocess.Popen[str], name: str, messages: int) -> list[dict[str, Any]]:
    """Read the JSON events of a recorder up to an event of this name with at least `messages` messages."""
    events: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == name and events[-1].get("messages", messages) >= messages:
            return events
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_all_stored(table: Lab, number: signal.Signals) -> None:
    with start(table, "--log=json", "--detail") as process:
        events = events_until(process, "connected", 0)
        table.run("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
        commit = table.lsn()
        events += events_until(process, "progress", 100)
        assert not [event for event in events if event["event"] == "stored"]  # the segment is not due yet
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    stored, stopped = map(json.loads, out.splitlines()[-2:])
    assert (stored["event"], stopped["event"]) == ("stored", "stopped")
    assert stored["transactions"] == 1
    assert stored["path"] == str(list_segments(table.folder)[-1])
    acknowledged = parse_lsn(stopped["acknowledged_lsn"])
    assert acknowledged >= parse_lsn(stored["end_lsn"])
    assert acknowledged == table.confirmed_lsn() >= commit - 100
    table.assert_equal()
    # The fields of the events
    connected, progress = events[0], [event for event in events if event["event"] == "progress"][-1]
    assert (connected["session"], connected["slot"]) == (1, table.slot)
    assert connected["start_lsn"]
    assert progress["messages_per_second"] >= 0
    assert isinstance(progress["lag_bytes"], int)
    assert progress["open_transactions"] == 0
    assert progress["last_commit_time"].startswith("20")
    assert parse_lsn(progress["acknowledged_lsn"]) > 0


def test_the_options_until_and_for_end_the_recorder(table: Lab, record_cli: Command) -> None:
    began = time.monotonic()
    code, out, err = record_cli("--create-slot", "--for=0.5", "--log=json")
    assert (code, err) == (0, "")
    assert time.monotonic() - began >= 0.5
    table.run("INSERT INTO t VALUES (1)")
    lsn = table.lsn()
    assert record_cli(f"--until={format_lsn(lsn)}", "--log=json")[0] == 0
    assert table.confirmed_lsn() >= lsn
    table.assert_equal()
    table.run("INSERT INTO t VALUES (2)")
    lsn = table.lsn()
    code, out, err = record_cli("--until=now")
    assert (code, out) == (0, "")
    assert table.confirmed_lsn() >= lsn
    table.assert_equal()
    first, *_, last = err.splitlines()
    assert first.startswith(f"logicalrep: recording {table.slot} of PostgreSQL {table.version}")
    where = format_lsn(table.confirmed_lsn())
    assert re.fullmatch(
        f"logicalrep: stopped: \\d+ messages, all stored and acknowledged up to {where}", last
    )
    # It ends even if no transaction ends at the LSN.
    code, _, err = record_cli(f"--until={format_lsn(table.lsn())}")
    assert code == 0
    assert "logicalrep: stopped: all stored and acknowledged up to " in err, (
        "nothing came, or only copied rows"
    )
