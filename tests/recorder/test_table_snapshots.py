"""Rows of single tables are added to a recording while the recorder runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from logicalrep.errors import ConnectionLost, RecordingError
from logicalrep.recorder import (
    Connected,
    Event,
    Progress,
    TableComplete,
    TableIncomplete,
    TableNotCopied,
    is_requested,
    request_snapshot,
)
from logicalrep.recorder.catalogs import Catalog
from logicalrep.recorder.session import loop
from logicalrep.recorder.snapshots import SnapshotRequests
from logicalrep.recorder.snapshots.copied_rows import transactions_of
from logicalrep.recorder.snapshots.table_copy import TableCopy
from logicalrep.recording import Directory, find_inconsistencies, locate
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until


def complete(events: list[Event]) -> list[str]:
    """Return the names of the tables whose rows were added to the recording."""
    return [one.table for one in events if isinstance(one, TableComplete)]


def assert_readable(table: Lab, run: Run) -> None:
    """Check that the recording has all rows, no gap, no illegal message, and no incomplete table."""
    for command in ("check", "segments"):
        assert run(command, table.folder).code == 0
    segments = table.segments()
    assert segments[-1].incomplete == ()
    assert list(find_inconsistencies(segments)) == []
    table.assert_equal()


def test_a_table_added_while_recording_has_all_its_rows(table: Lab, run: Run) -> None:
    table.run("CREATE TABLE late (id int)", "INSERT INTO late SELECT generate_series(1, 9)")
    with table.recording(snapshot=True) as recording:
        recording.wait(Connected)
        table.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (10), (11)")
        assert recording.wait(TableIncomplete).table == "public.late"
        assert recording.wait(TableComplete).table == "public.late"
    table.run("INSERT INTO late VALUES (12)", "INSERT INTO t VALUES (1)")
    table.record(snapshot=True)
    assert_readable(table, run)


def test_the_next_run_copies_a_table_added_between_two_runs(table: Lab, run: Run) -> None:
    table.record(snapshot=True)
    table.run("CREATE TABLE late (id int)", "INSERT INTO late SELECT generate_series(1, 9)")
    table.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (10), (11)")
    assert complete(table.record(snapshot=True, strict=True)) == ["public.late"]
    assert complete(table.record(snapshot=True, strict=True)) == []
    assert_readable(table, run)


def test_progress_is_reported_while_copied_rows_are_stored(table: Lab, monkeypatch: Any) -> None:
    """Otherwise /healthz would call a recorder stuck that stores the rows of a large table."""
    read = transactions_of
    stored_between: list[datetime] = []

    def read_slowly(*arguments: Any) -> Iterator[Any]:
        stored_between.append(datetime.now(UTC))
        for data in read(*arguments):
            time.sleep(1.2)
            yield data
        stored_between.append(datetime.now(UTC))

    monkeypatch.setattr(loop, "transactions_of", read_slowly)
    table.run("CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
    with table.recording(snapshot=True) as recording:
        recording.wait(Connected)
        table.run("ALTER PUBLICATION p ADD TABLE late")
        recording.wait(TableComplete)
    begin, end = stored_between
    times = [datetime.fromisoformat(event.time) for event in recording.events_of(Progress)]
    assert any(begin < one < end for one in times)


def test_changes_recorded_while_rows_are_copied_are_applied_once(
    table: Lab, run: Run, monkeypatch: Any
) -> None:
    """All kinds of transactions change the table between the exported snapshot and the end of the copy."""
    table.run(
        "CREATE TABLE late (id int PRIMARY KEY, v text)",
        "ALTER TABLE late REPLICA IDENTITY FULL",
        "INSERT INTO late SELECT i, repeat('x', 100) FROM generate_series(1, 100) i",
    )
    copying, changed = threading.Event(), threading.Event()
    copy_rows = TableCopy.run

    def run_while_changed(*arguments: Any) -> Any:
        copying.set()
        changed.wait()
        return copy_rows(*arguments)

    with table.recording(snapshot=True) as recording:
        recording.wait(Connected)
        monkeypatch.setattr(TableCopy, "run", run_while_changed)
        writer = table.connect()
        table.run("ALTER PUBLICATION p ADD TABLE late")
        assert copying.wait(60)
        writer.execute("BEGIN; UPDATE late SET v = v || 'open' WHERE id = 100")
        table.run(
            "INSERT INTO late SELECT i, repeat('y', 3000) FROM generate_series(101, 1130) i",  # is streamed
            "UPDATE late SET v = 'z' WHERE id < 10",
            "DELETE FROM late WHERE id < 100 AND id % 7 = 0",
            "INSERT INTO t SELECT generate_series(1, 20)",
            "BEGIN; INSERT INTO late VALUES (2000, 'no'); ROLLBACK",
            "BEGIN; SAVEPOINT s; DELETE FROM late WHERE id = 5; ROLLBACK TO s; "
            "UPDATE late SET id = -3 WHERE id = 3; COMMIT",
        )
        changed.set()
        recording.wait(TableComplete)
        writer.execute("COMMIT")
        writer.close()
    table.record(snapshot=True)
    assert_readable(table, run)


def test_a_request_takes_tables_anew(table: Lab, run: Run) -> None:
    table.run("INSERT INTO t SELECT generate_series(1, 5)")
    with table.recording() as recording:
        assert recording.wait(TableIncomplete).table == "public.t"
        for count in (1, 2):
            request_snapshot(table.folder, ["public.t"])
            recording.wait(TableComplete, count)
    table.record()
    assert [one.kind for one in table.segments()].count("snapshot") == 2
    assert_readable(table, run)
    assert not list(table.folder.glob("_snapshot-*"))


def test_a_request_waits_for_the_next_recorder(table: Lab, run: Run) -> None:
    table.run("INSERT INTO t SELECT generate_series(1, 5)")
    table.record()
    request = request_snapshot(table.folder, ["public.t"])
    assert is_requested(request)
    table.record()
    assert not is_requested(request)
    assert_readable(table, run)


def test_the_command_says_that_it_waits_for_a_recorder(table: Lab, run: Run) -> None:
    table.run("INSERT INTO t SELECT generate_series(1, 5)")
    table.record()
    words = "snapshot", "--recording", str(table.folder), "--table", "public.t"
    command = [sys.executable, "-m", "logicalrep.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "no recorder writes" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait() == 130
    table.record()  # which the request has waited for
    assert_readable(table, run)


def test_a_request_for_an_unknown_table_is_refused(table: Lab) -> None:
    table.record()
    request = request_snapshot(table.folder, ["public.t", "public.u"])
    table.record()
    with pytest.raises(
        RecordingError, match=r"^no recorded publication has the table public\.u: add it to one$"
    ):
        is_requested(request)
    assert not is_requested(request)


def test_a_table_can_be_requested_as_soon_as_it_is_published(table: Lab, run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._MIN_PAUSE", 60.0)
    table.run("CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
    with table.recording() as recording:
        recording.wait(Connected)
        table.run("ALTER PUBLICATION p ADD TABLE late")
        request = request_snapshot(table.folder, ["public.late"])
        assert recording.wait(TableComplete).table == "public.late"
        wait_until(lambda: not is_requested(request))
    table.record()
    assert_readable(table, run)


def test_a_request_survives_a_lost_connection_of_the_copy(table: Lab, run: Run, monkeypatch: Any) -> None:
    table.run("INSERT INTO t SELECT generate_series(1, 5)")
    copy_rows = TableCopy.run
    attempts = []

    def run_without_connection(*arguments: Any) -> Any:
        attempts.append(arguments)
        if len(attempts) == 1:
            raise ConnectionLost("terminating connection due to administrator command")
        return copy_rows(*arguments)

    monkeypatch.setattr(TableCopy, "run", run_without_connection)
    with table.recording() as recording:
        recording.wait(Connected)
        request = request_snapshot(table.folder, ["public.t"])
        recording.wait(TableComplete)
        wait_until(lambda: not is_requested(request))
    table.record()
    assert_readable(table, run)


def test_a_table_that_cannot_be_read_is_tried_again_on_request(table: Lab, run: Run) -> None:
    table.run(
        "CREATE TABLE late (id int)",
        "INSERT INTO late VALUES (1)",
        "INSERT INTO t VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE late",
        "CREATE ROLE late_reader REPLICATION LOGIN",
        "GRANT SELECT ON t TO late_reader",
    )
    with table.recording(dsn=f"{table.dsn} user=late_reader") as recording:
        recording.wait(Connected)
        request = request_snapshot(table.folder, ["public.t", "public.late"])
        assert recording.wait(TableNotCopied).table == "public.late"
        assert recording.wait(TableComplete).table == "public.t"
        with pytest.raises(RecordingError, match=r"has to run: GRANT SELECT ON public\.late TO late_reader$"):
            wait_until(lambda: not is_requested(request))
        table.run("GRANT SELECT ON late TO late_reader")
        request_snapshot(table.folder, ["public.late"])
        assert recording.wait(TableComplete, 2).table == "public.late"
    table.record()
    assert_readable(table, run)


@pytest.mark.parametrize("begins_with", ["late", "t"])
def test_a_table_is_copied_after_the_missing_grant(table: Lab, monkeypatch: Any, begins_with: str) -> None:
    """No restart and no request is needed, whether the grant is missing at the start or later."""
    monkeypatch.setattr("logicalrep.recorder.snapshots.copy_thread.MIN_PAUSE", 0.2)
    table.run(
        "CREATE TABLE late (id int)",
        "INSERT INTO late VALUES (1)",
        "INSERT INTO t VALUES (1)",
        "CREATE ROLE granted REPLICATION LOGIN",
        "GRANT SELECT ON t TO granted",
        *["ALTER PUBLICATION p ADD TABLE late"] * (begins_with == "late"),
    )
    try:
        with table.recording(dsn=f"{table.dsn} user=granted", snapshot=True) as recording:
            recording.wait(Connected)
            if begins_with == "t":
                table.run("ALTER PUBLICATION p ADD TABLE late")
            assert recording.wait(TableNotCopied, 2).table == "public.late"
            table.run("INSERT INTO late VALUES (2)", "GRANT SELECT ON late TO granted")
            wait_until(lambda: "public.late" in complete(recording.events))
        table.record()
        table.assert_equal()
    finally:
        table.run("DROP OWNED BY granted", "DROP ROLE granted")


def test_a_table_that_cannot_be_read_is_reported(table: Lab) -> None:
    table.run("CREATE ROLE reader REPLICATION LOGIN")
    table.record()
    request = request_snapshot(table.folder, ["public.t"])
    events = table.record(dsn=f"{table.dsn} user=reader")
    assert [one.table for one in events if isinstance(one, TableNotCopied)] == ["public.t"]
    with pytest.raises(RecordingError, match=r"has to run: GRANT SELECT ON public\.t TO reader$"):
        is_requested(request)


def test_an_unexpected_error_of_a_copy_is_reported(table: Lab, monkeypatch: Any) -> None:
    def fail(*arguments: Any) -> None:
        raise KeyError(7)

    monkeypatch.setattr(TableCopy, "run", fail)
    table.record()
    request = request_snapshot(table.folder, ["public.t"])
    events = table.record()  # ends, although the table is not copied
    assert [one.reason for one in events if isinstance(one, TableNotCopied)] == ["KeyError: 7"]
    with pytest.raises(RecordingError, match=r"^KeyError: 7$"):
        is_requested(request)


def test_a_request_that_cannot_be_read_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "_snapshot-1.json").write_text('{"tables": 1}')
    with Directory(tmp_path) as directory:
        requests = SnapshotRequests(directory, 0.0)
        requests.read(requests.find(), Catalog(1, 1, (), {}, {}))
    with pytest.raises(RecordingError, match=r"^_snapshot-1\.json: the request cannot be read \(.*: request"):
        is_requested(locate(tmp_path / "_snapshot-1.json"))


def test_keys_of_a_table_that_is_not_requested_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^`keys` has public\.u, but `tables` does not: add"):
        request_snapshot(tmp_path, ["public.t"], {"public.u": [("1",)]})


def test_a_folder_that_is_no_recording_is_refused(table: Lab) -> None:
    table.folder.mkdir()
    with pytest.raises(RecordingError, match=r"_recording\.json is missing: give the folder"):
        request_snapshot(table.folder, ["public.t"])


@pytest.mark.parametrize("tables", [["public.t", "public.late"], ["public.late"]])
def test_a_table_that_is_dropped_before_it_is_copied_does_not_stop_the_recorder(
    tables: list[str], table: Lab, run: Run, monkeypatch: Any
) -> None:
    table.run("INSERT INTO t SELECT generate_series(1, 5)", "CREATE TABLE late (id int)")
    table.run("ALTER PUBLICATION p ADD TABLE late")
    table.record(snapshot=True)
    request = request_snapshot(table.folder, tables)
    copy_rows = TableCopy.run

    def run_after_drop(*arguments: Any) -> Any:
        table.run("DROP TABLE IF EXISTS late")
        return copy_rows(*arguments)

    monkeypatch.setattr(TableCopy, "run", run_after_drop)
    assert complete(table.record(snapshot=True)) == tables[:-1]
    assert not is_requested(request)
    assert_readable(table, run)
