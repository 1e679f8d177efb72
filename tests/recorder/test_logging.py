"""Recorder and replica log their events; the option --log says what the commands print."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from logicalrep.errors import ReplicationError
from logicalrep.recorder import Event, Notice, Progress, PublicationAltered, event_level, event_text
from logicalrep.recorder.catalogs import watch
from logicalrep.recording import list_segments
from logicalrep.replica import replicate
from logicalrep.wire import parse_lsn
from tests.conftest import Run
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab, wait_until
from tests.server import Server


@pytest.fixture
def published(lab: Lab) -> Lab:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    return lab


def test_each_event_is_logged_with_its_fields(published: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "logicalrep")
    published.record()
    published.run("INSERT INTO t VALUES (1)")
    events = published.record()
    logged = [one for one in caplog.records if one.name == "logicalrep.recorder"]
    last = logged[-len(events) :]
    assert [(one.levelno, one.getMessage()) for one in last] == [
        (event_level(event), event_text(event)) for event in events
    ]
    fields = [vars(one)["event"] for one in last]
    assert [one["event"] for one in fields] == [type(event).__name__.lower() for event in events]
    stored = next(one for one in fields if one["event"] == "stored")
    assert (stored["transactions"], stored["path"]) == (1, str(list_segments(published.folder)[-1]))


def test_nothing_is_logged_below_the_level_of_the_program(
    published: Lab, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    published.record()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("severity", "level"), [("WARNING", logging.WARNING), ("NOTICE", logging.INFO)])
def test_the_level_of_a_notice_is_that_of_the_server(severity: str, level: int) -> None:
    assert event_level(Notice(severity=severity, sqlstate="00000", message="m")) == level


def test_every_event_has_a_text_and_a_level() -> None:
    from logicalrep.recorder import events

    classes = {one for one in vars(events).values() if isinstance(one, type) and issubclass(one, Event)}
    assert events._LINES.keys() == classes - {Event}


def test_a_program_without_a_log_prints_nothing(published: Lab) -> None:
    program = (
        "import sys; from logicalrep.recorder import Recorder\n"
        "recorder = Recorder(sys.argv[1], sys.argv[2], ['p'], sys.argv[3], snapshot=True)\n"
        "recorder.run(until='now')"
    )
    arguments = [published.dsn, published.slot, str(published.folder)]
    published.run("ALTER TABLE t DISABLE TRIGGER ALL", "CREATE UNLOGGED TABLE u (id int)")
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("log", ["text", "json"])
def test_no_password_is_printed_or_logged(
    published: Lab, guarded: Server, record_cli: Command, caplog: pytest.LogCaptureFixture, log: str
) -> None:
    caplog.set_level(logging.DEBUG)
    options = "--create-slot", "--until=now", f"--log={log}", "--log-seconds=0"
    for dsn, code in (
        (f"{published.dsn} password=S3CRET", 0),
        (f"{guarded.dsn} user=scram password=S3CRET", 3),
        ("host=127.0.0.1 port=1 password=S3CRET", 3),
        ("postgresql://u:S3CRET%zz@h/db", 2),
    ):
        found, out, err = record_cli(*options, "--retry-for=0", dsn=dsn)
        assert found == code, err
        assert (out + err) != ""
        assert "S3CRET" not in out + err
    with pytest.raises(ReplicationError):
        published.recorder(dsn=f"{guarded.dsn} user=scram password=S3CRET").run()
    assert any(one.name == "logicalrep.recorder" for one in caplog.records)
    for one in caplog.records:
        assert "S3CRET" not in f"{one.getMessage()} {vars(one)}"


def test_a_line_about_progress_is_printed_at_the_interval(published: Lab, record_cli: Command) -> None:
    _, _, err = record_cli("--create-slot", "--for=4", "--log-seconds=1")
    assert 1 <= err.count("a second; lag ") <= 4
    _, _, err = record_cli("--for=2")
    assert "a second; lag " not in err
    _, out, _ = record_cli("--for=3.5", "--log=json", "--log-seconds=2")
    assert [json.loads(line)["event"] for line in out.splitlines()].count("progress") == 1


def test_a_line_about_progress_is_printed_if_something_has_changed(
    published: Lab, record_cli: Command
) -> None:
    published.record()
    states = []
    for options in ((), ("--log-seconds=1",), ("--log-seconds=1", "--detail")):
        printed = map(json.loads, record_cli("--for=4.5", "--log=json", *options)[1].splitlines())
        states.append(
            [
                (one["messages"], one["stored_lsn"] == one["received_lsn"])
                for one in printed
                if one["event"] == "progress"
            ]
        )
    assert not states[0]
    assert states[1]
    assert all(one != other for one, other in pairwise(states[1]))  # the stored LSN may be late
    assert len(states[2]) >= 2


def test_the_lag_does_not_wait_for_the_catalogs(published: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings of the catalogs of many tables, the end of the WAL is read."""
    monkeypatch.setattr(watch, "_PAUSE_FACTOR", 1e6)
    published.run("CREATE TABLE unpublished (id int)")
    with published.recording(segment_seconds=60) as recording:
        recording.wait(Progress, 2)
        published.run("INSERT INTO t VALUES (1)", "INSERT INTO unpublished SELECT generate_series(1, 1000)")
        end = published.lsn()
        wait_until(lambda: parse_lsn(recording.wait(Progress).wal_lsn or "0/0") >= end)


def test_lines_are_bounded(
    published: Lab, run: Run, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A line has at most 4,096 characters, and the whole lists on demand."""
    tables = [f"a_table_with_a_name_of_about_sixty_characters_and_a_number_{n:03}" for n in range(50)]
    published.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables))
    published.run(f"ALTER PUBLICATION p ADD TABLE {', '.join(tables)}")
    published.record()
    published.run("BEGIN", *(f"INSERT INTO {name} VALUES (1)" for name in tables), "COMMIT")
    published.record()
    altered = PublicationAltered(publication="p", changes=tuple(f"publishes {name}" for name in tables))
    assert event_text(altered).endswith(f"publishes {tables[4]}; and 45 more")
    command = "replicate", "--recording", published.folder, "--log=json"
    for option, left_out in ((), {"tables": 45}), (("--detail",), None):
        done = run(*command, "--target", tmp_path / f"lake{len(option)}", *option)
        (applied,) = [line for line in done.out.splitlines() if '"applied"' in line]
        event = json.loads(applied)
        assert event.get("left_out") == left_out
        assert len(event["tables"]) == (5 if left_out else 50)
        assert (len(applied) <= 4096) == bool(left_out)
    for level, count in (logging.INFO, 5), (logging.DEBUG, 50):
        caplog.clear()
        caplog.set_level(level, "logicalrep.replica")
        replicate(published.folder, tmp_path / logging.getLevelName(level))
        (batch,) = [one for one in caplog.records if one.name == "logicalrep.replica"]
        assert len(vars(batch)["event"]["tables"]) == count


def test_a_replica_logs_its_micro_batches(
    published: Lab, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    published.record()
    published.run("INSERT INTO t VALUES (1), (2)")
    published.record()
    caplog.set_level(logging.INFO, "logicalrep.replica")
    replicate(published.folder, tmp_path / "lake")
    (batch,) = [one for one in caplog.records if one.name == "logicalrep.replica"]
    assert batch.getMessage() == "up to segment 1: 2 changes of 1 table"
    event = vars(batch)["event"]
    assert (event["event"], event["segment"]) == ("applied", 1)
    assert [(one["name"], one["changes"]) for one in event["tables"]] == [("t", {"Insert": 2})]


def test_replicate_prints_json(published: Lab, run: Run, tmp_path: Path) -> None:
    published.record()
    published.run("INSERT INTO t VALUES (1), (2)")
    published.record()
    done = run(
        "replicate",
        "--recording",
        published.folder,
        "--target",
        tmp_path / "lake",
        "--log=json",
        "--log-seconds=0",
    )
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, done.err) == (0, "")
    assert {one["event"] for one in events} == {"applied", "replicating"}
    (applied,) = [one for one in events if one["event"] == "applied"]
    assert applied["tables"][0]["changes"] == {"Insert": 2}
    segments = len(list_segments(published.folder))
    assert (events[-1]["segment"], events[-1]["last_segment"]) == (segments, segments)


def test_sync_prints_the_events_of_both_as_json(published: Lab, tmp_path: Path) -> None:
    arguments = (
        f"--dsn={published.dsn}",
        "--publication=p",
        f"--slot={published.slot}",
        f"--target={tmp_path / 'lake'}",
    )
    command = [sys.executable, "-m", "logicalrep.cli", "sync", *arguments, "--log=json", "--log-seconds=1"]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: b'"event":"connected"' in log.read_bytes())
            published.run("INSERT INTO t VALUES (1)")
            wait_until(lambda: b'"changes":{"Insert":1}' in log.read_bytes())
            time.sleep(1)
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate()
    assert err == b""
    events = {json.loads(line)["event"] for line in log.read_text().splitlines()}
    assert {"connected", "stored", "applied", "stopped"} <= events
    assert "progress" not in events
