"""The command `logicalrep replicate`: a recording is applied to Delta tables."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest
from deltalake import DeltaTable

from logicalrep import messages as m
from logicalrep.cli.replicate import spark
from logicalrep.recording import locate, prune, read_readers, record_capture_file
from logicalrep.replica import replica_tables
from logicalrep.spark.session import launcher_environment
from tests.cli.one_process import CommandProcess
from tests.conftest import Run
from tests.messages import make_column, make_relation
from tests.recording.recordings import PARALLEL, record, wrapped, write
from tests.recording.test_damage import rewrite
from tests.replica.tables import different_tables
from tests.spark.cluster import Cluster
from tests.store import BUCKET, moto, settings
from tests.targets.formats import iceberg_table
from tests.truth import CAPTURES, equals_typed, true_tables

PATIENCE = 300


Replicate: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def replicate_alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `logicalrep replicate` in a new process, whose output includes what Java prints at its end."""
    return subprocess.run(
        [sys.executable, "-m", "logicalrep.cli", "replicate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture(
    scope="module",
    params=["direct", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.nightly])],
)
def engine(request: pytest.FixtureRequest) -> list[str]:
    """The options of `logicalrep replicate` that start Spark, or no option."""
    # Spark may take longer than the 60 seconds after which a line about progress is due.
    return ["--spark", f"--log-seconds={PATIENCE}"] if request.param == "spark" else []


@pytest.fixture(scope="module")
def replicate(tmp_path_factory: pytest.TempPathFactory, engine: list[str]) -> Iterator[Replicate]:
    """A function that runs `logicalrep replicate` in a process (with Java) that this module's tests share."""
    with CommandProcess(tmp_path_factory.mktemp("output"), PATIENCE) as process:
        yield lambda *arguments: process.run("replicate", *engine, *map(str, arguments))
    assert process.unread == ("", ""), "what Java prints at its end"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "pg18"
    record_capture_file(CAPTURES / "pg18_p4_par_2pc.jsonl.gz", folder, segment_bytes=20_000)
    return folder


def test_replicate_writes_the_tables_and_prints_totals(
    replicate: Replicate, engine: list[str], recording: Path, tmp_path: Path
) -> None:
    done = replicate_alone(*engine, "--recording", recording, "--target", tmp_path / "lake")
    assert done.returncode == 0
    altered = [line.partition(" since LSN ")[0] for line in done.stderr.splitlines()]
    assert altered == [
        "app.strm may differ from its source",
        "app.evo may differ from its source",
        "public.evo2 is now in the folder public.evo2",  # the later name of app.evo
    ]
    head, row = (
        line.split() for line in done.stdout.splitlines() if "relation" in line or "app.tr_a" in line
    )
    assert head == ["relation", "Snapshot", "Insert", "Update", "Delete", "Truncate"]
    assert row == ["app.tr_a", "2", "3"]
    places = replica_tables(tmp_path / "lake")
    for table in true_tables("pg18"):
        if table.oid in places:
            assert equals_typed(table, DeltaTable(places[table.oid].place).to_pyarrow_table()), table.name
    assert len(places) > 30
    again = replicate("--recording", recording, "--target", tmp_path / "lake")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "Nothing new was recorded since the last run.\n"
    other = replicate("--recording", recording, "--target", tmp_path / "lake", "--history")
    assert (other.returncode, other.stdout) == (2, "")
    said = f"logicalrep: {tmp_path}/lake: the target contains tables. Write history to another target\n"
    assert other.stderr == said


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["spark"], indirect=True, scope="module")
def test_spark_writes_tables_and_prints_totals(replicate: Replicate, recording: Path, tmp_path: Path) -> None:
    """All runs share one Java process. `make nightly` also writes all tables with Spark, in a new process."""
    places = ["--recording", recording, "--target", tmp_path / "lake"]
    names = "app.tr_a", "app.t_full", "app.strm"
    done = replicate(*places, *(f"--table={name}" for name in names))
    assert done.returncode == 0, done.stderr
    (altered,) = done.stderr.splitlines()
    assert altered.startswith("app.strm may differ from its source since LSN ")
    head, row = (
        line.split() for line in done.stdout.splitlines() if "relation" in line or "app.tr_a" in line
    )
    assert head[:4] == ["relation", "Snapshot", "Insert", "Update"]
    assert row == ["app.tr_a", "2", "3"]
    truth = [table for table in true_tables("pg18") if table.name in names]
    assert different_tables(tmp_path / "lake", truth) == []
    again = replicate(*places)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "Nothing new was recorded since the last run.\n"
    other = replicate(*places, "--history")
    assert (other.returncode, other.stdout) == (2, "")
    said = f"logicalrep: {tmp_path}/lake: the target contains tables. Write history to another target\n"
    assert other.stderr == said
    damaged = shutil.copytree(recording, tmp_path / "damaged")
    whole = (segment := sorted(damaged.iterdir())[2]).read_bytes()
    segment.write_bytes(whole[:200] + bytes(100) + whole[300:])
    failed = replicate("--recording", damaged, "--target", tmp_path / "other")
    assert failed.returncode == 2
    # A worker of Spark whose job was ended by another task may print its own error.
    (error,) = (line for line in failed.stderr.splitlines() if line.startswith("logicalrep: "))
    assert error.startswith(f"logicalrep: {segment}: the file is damaged")


def test_iceberg_tables_are_written_and_kept_apart(
    replicate: Replicate, recording: Path, tmp_path: Path
) -> None:
    """The option is needed once; a target of Delta tables, or of another catalogue, is refused."""
    lake, delta = (["--recording", recording, "--target", tmp_path / name] for name in ("lake", "delta"))
    first = ["--table", "app.tr_a", "--partition", "bucket(2, id)"]
    refused = replicate(*lake, *first)
    assert refused.returncode == 2
    assert "--partition needs --iceberg" in refused.stderr
    assert replicate(*lake, *first, "--iceberg", "local").returncode == 0
    done = replicate(*lake, "--table", "app.t_full", "--table", "app.bulk")
    assert done.returncode == 0, done.stderr
    truth = [table for table in true_tables("pg18") if table.name in ("app.tr_a", "app.t_full", "app.bulk")]
    tables = replica_tables(tmp_path / "lake")
    assert different_tables(tmp_path / "lake", truth) == []
    found = [iceberg_table(Path(one.place)) for one in tables.values()]
    assert all(table.name() == ("app", one.name) for table, one in zip(found, tables.values(), strict=True))
    assert {str(field.transform) for table in found for field in table.spec().fields} == {"bucket[2]"}
    assert replicate(*delta, "--table", "app.tr_a").returncode == 0
    for place, holds in ((lake, "tables of another catalogue"), (delta, "Delta tables")):
        refused = replicate(*place, "--iceberg", "prod.shop")
        assert refused.returncode == 2
        assert f"the target contains {holds}. Give a new target" in refused.stderr
    missing = replicate("--recording", recording, "--target", tmp_path / "new", "--iceberg", "prod")
    assert missing.returncode == 2
    assert "the Iceberg catalogue prod cannot be opened: URI missing" in missing.stderr
    assert not (tmp_path / "new" / "_iceberg.json").exists()


def test_tables_are_selected_and_added(replicate: Replicate, recording: Path, tmp_path: Path) -> None:
    names = {table.oid: table.name for table in true_tables("pg18")}
    places = ["--recording", recording, "--target", tmp_path / "lake"]

    def followed() -> set[str]:
        return {names[oid] for oid in replica_tables(tmp_path / "lake")}

    first = replicate(*places, "--table", "app.strm", "--table", "app.missing")
    assert first.returncode == 0
    assert "no table app.missing has been recorded so far\n" in first.stderr
    assert followed() == {"app.strm"}
    added = replicate(*places, "--table", "app.tr_a")
    assert added.returncode == 0
    assert "app.tr_a" in added.stdout
    assert followed() == {"app.strm", "app.tr_a"}
    truth = [table for table in true_tables("pg18") if table.name in followed()]
    assert different_tables(tmp_path / "lake", truth) == []
    assert replicate(*places).returncode == 0
    assert followed() == {"app.strm", "app.tr_a"}
    (tmp_path / "recording").mkdir()
    send(tmp_path / "recording", m.Insert(relation_oid=1, new=("1", "one")))
    all_tables = "--recording", tmp_path / "recording", "--target", tmp_path / "all"
    assert replicate(*all_tables).returncode == 0
    refused = replicate(*all_tables, "--table", "public.a")
    assert refused.returncode == 2
    assert "the target follows all tables" in refused.stderr


def test_follow_waits_for_the_folder_of_a_new_recording(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    arguments = ["--recording", folder, "--target", target, "--follow"]
    command = [sys.executable, "-m", "logicalrep.cli", "replicate", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting for a recorder to begin the recording {folder}\n"
        record_capture_file(CAPTURES / "pg18_p1.jsonl.gz", folder)
        deadline = time.monotonic() + PATIENCE
        while not (target / "_reached.json").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_errors_are_one_line(replicate: Replicate, recording: Path, tmp_path: Path) -> None:
    none = replicate("--recording", tmp_path / "none", "--target", tmp_path / "lake")
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.splitlines() == [
        f"logicalrep: {tmp_path}/none: no segments found: give the folder that `logicalrep record` writes"
    ]
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("")
    other = replicate("--recording", recording, "--target", taken)
    assert other.returncode == 2
    assert other.stderr.splitlines() == [
        f"logicalrep: {taken}: expected a target or an empty folder, found the file or folder mine"
    ]


COLUMNS = (
    make_column("k", 23, key=True),
    make_column("v"),
)
RELATIONS = [make_relation(*COLUMNS, oid=oid, name=name) for oid, name in ((1, "a"), (2, "b"))]


def send(folder: Path, *changes: m.Message) -> None:
    """Add a segment with one transaction of the given changes to a recording."""
    lsn = 100 * (1 + sum(1 for _ in folder.iterdir()))
    messages = [
        *RELATIONS,
        m.Begin(final_lsn=lsn, commit_time=1, xid=7),
        *changes,
        m.Commit(commit_lsn=lsn, end_lsn=lsn + 10, commit_time=0),
    ]
    record(folder, *messages, lsn=lsn)


def rows(target: Path, oid: int) -> list[tuple[int, str]]:
    found = DeltaTable(replica_tables(target)[oid].place).to_pyarrow_table().to_pylist()
    return sorted((row["k"], row["v"]) for row in found)


def test_a_table_that_fails_is_retried_by_the_next_run(replicate: Replicate, tmp_path: Path) -> None:
    """The failing run writes the other table; the next run applies all missed changes to the failed table."""
    folder, target = tmp_path / "recording", tmp_path / "lake"
    folder.mkdir()
    place = "--recording", folder, "--target", target
    send(folder, *(m.Insert(relation_oid=oid, new=("1", "one")) for oid in (1, 2)))
    assert replicate(*place).returncode == 0
    table = target / "public.b"
    kept = table.rename(tmp_path / "kept")
    table.write_text("not a folder")
    send(folder, *(m.Update(relation_oid=oid, new=("1", "two")) for oid in (1, 2)))
    done = replicate(*place)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("public.b failed, and its changes will be applied again: ")
    assert f"{table}: the Delta table cannot be read: " in line
    assert rows(target, 1) == [(1, "two")]
    assert replica_tables(target)[2].error in line
    table.unlink()
    kept.rename(table)
    send(folder, m.Update(relation_oid=2, new=("1", "three")), m.Insert(relation_oid=2, new=("2", "two")))
    done = replicate(*place)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines() if "public" in line] == [["public.b", "1", "2"]]
    assert (rows(target, 1), rows(target, 2)) == ([(1, "two")], [(1, "three"), (2, "two")])
    assert [one.error for one in replica_tables(target).values()] == ["", ""]
    for file in table.glob("*.parquet"):
        file.unlink()
    send(folder, m.Update(relation_oid=2, new=("1", "four")))
    assert replicate(*place).returncode == 1
    done = replicate(*place, "--reset-table", "public.b")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(target, 2) == [(1, "four"), (2, "two")]


def test_a_recording_that_was_begun_anew_is_refused(replicate: Replicate, tmp_path: Path) -> None:
    """A new recording in the old folder has another UUID; the target of the old recording is not changed."""
    folder, target = tmp_path / "recording", tmp_path / "lake"
    folder.mkdir()
    send(folder, m.Insert(relation_oid=1, new=("1", "old")))
    assert replicate("--recording", folder, "--target", target).returncode == 0
    folder.rename(tmp_path / "old")
    folder.mkdir()
    other = msgspec.structs.replace(PARALLEL, recording="another")
    messages = [
        RELATIONS[0],
        m.Begin(final_lsn=100, commit_time=1, xid=7),
        m.Insert(relation_oid=1, new=("1", "new")),
        m.Commit(commit_lsn=100, end_lsn=110, commit_time=0),
    ]
    write(folder, other, wrapped(*messages, lsn=100), cut=1)
    refused = replicate("--recording", folder, "--target", target)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"logicalrep: {target}: the target belongs to recording {PARALLEL.recording}, and this is recording "
        "another. Give the target's own recording, or begin anew with a new target\n"
    )
    assert rows(target, 1) == [(1, "old")]


def test_incomplete_tables_are_reported_on_every_run(replicate: Replicate, tmp_path: Path) -> None:
    """With --strict, an incomplete table makes the command fail before it writes to the target."""
    folder, target = tmp_path / "recording", tmp_path / "lake"
    folder.mkdir()
    send(folder, m.Insert(relation_oid=1, new=("1", "v")), m.Insert(relation_oid=2, new=("1", "v")))
    lacks = {"oid": 2, "namespace": "public", "name": "b", "lsn": 5, "lost": "added to p at 0/5"}
    (segment,) = folder.iterdir()
    rewrite(segment, incomplete=[lacks])
    said = "public.b is incomplete: added to p at 0/5"
    strict = replicate("--recording", folder, "--target", target, "--strict")
    assert (strict.returncode, strict.stdout, target.exists()) == (2, "", False)
    assert strict.stderr.splitlines() == [
        said,
        f"logicalrep: {folder}: the recording lacks rows of public.b. "
        "Leave out --strict to replicate the other rows, or record anew with --snapshot",
    ]
    first = replicate("--recording", folder, "--target", target)
    assert (first.returncode, first.stderr.splitlines()[0]) == (0, said)
    assert first.stderr.splitlines()[1:] == [
        "public.b may differ from its source since LSN 0/64: added to p at 0/5"
    ]
    again = replicate("--recording", folder, "--target", target)
    assert again.stderr.splitlines() == [said, "Nothing new was recorded since the last run."]
    (difference,) = replica_tables(target)[2].may_differ
    assert (difference.lsn, difference.reason) == (100, lacks["lost"])


@pytest.mark.spark
@pytest.mark.nightly
def test_a_spark_master(recording: Path, tmp_path: Path) -> None:
    done = replicate_alone("--master", "local[1]", "--recording", recording, "--target", tmp_path / "lake")
    assert done.returncode == 0, done.stderr
    assert different_tables(tmp_path / "lake", list(true_tables("pg18"))) == []


@pytest.mark.spark
@pytest.mark.nightly
def test_a_spark_cluster(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    target = tmp_path / "lake"
    with Cluster(tmp_path, workers=2) as cluster:
        done = replicate_alone("--master", cluster.url, "--recording", recording, "--target", target)
    assert done.returncode == 0, done.stderr
    assert different_tables(target, list(true_tables("pg18"))) == []


@pytest.mark.spark
@pytest.mark.nightly
def test_a_spark_cluster_and_an_object_store(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording and Delta tables are in the store, of which Spark knows nothing."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    options = "--target", f"s3://{BUCKET}/lake"
    with moto() as port:
        for name, value in settings(port).items():
            monkeypatch.setenv(name, value)
        place = locate(f"s3://{BUCKET}/recording")
        with Cluster(tmp_path, workers=2) as cluster:
            for paths in (sorted(recording.iterdir())[:3], sorted(recording.iterdir())):
                for path in paths:
                    with place.filesystem.open_output_stream((place / path.name).path) as file:
                        file.write(path.read_bytes())
                done = replicate_alone("--master", cluster.url, "--recording", str(place), *options)
                assert done.returncode == 0, done.stderr
        assert different_tables(f"s3://{BUCKET}/lake", list(true_tables("pg18"))) == []


@pytest.mark.spark
@pytest.mark.nightly
def test_a_spark_server(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the URL `local`, pyspark starts a Spark Connect server."""
    target = tmp_path / "lake"
    for name, value in launcher_environment().items():
        monkeypatch.setenv(name, value)
    done = replicate_alone("--remote", "local[2]", "--recording", recording, "--target", target)
    assert done.returncode == 0, done.stderr
    assert "app.tr_a" in done.stdout
    assert different_tables(target, list(true_tables("pg18"))) == []


def test_a_master_and_a_server(run: Run, recording: Path, tmp_path: Path) -> None:
    options = "--master", "local", "--remote", "sc://127.0.0.1"
    done = run("replicate", *options, "--recording", recording, "--target", tmp_path / "lake")
    assert done.code == 2
    assert "--master and --remote cannot be combined" in done.err


def test_a_filesystem_that_arrow_lacks(replicate: Replicate, recording: Path) -> None:
    unknown = replicate("--recording", recording, "--target", "nosuch://bucket/lake")
    assert unknown.returncode == 2
    (line,) = unknown.stderr.splitlines()
    assert line.startswith("logicalrep: nosuch://bucket/lake: ")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "An error occurred while calling o55.start.\n"
            ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"\n'
            "\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3585)\n",
            'No FileSystem for scheme "s3"',
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Lost task 0.0 in stage 1.0: "
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "replica.py", line 1, in work\n'
            "PermissionError: [Errno 13] Permission denied: '/lake/public.t'\n"
            "\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)\n",
            "[Errno 13] Permission denied: '/lake/public.t'",
        ),
        (
            "An error occurred while calling o7.load.\n: java.lang.RuntimeException: outer\n\tat a.B\n"
            "Caused by: java.net.UnknownHostException: bucket.example\n\t... 40 more\n",
            "bucket.example",
        ),
        (
            "failed\nlogicalrep.errors.RecordingError: /lake: the file is damaged\n\nCaused by: a.BError: b",
            "/lake: the file is damaged",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: /x.\nJVM stacktrace:",
            "[PATH_NOT_FOUND] Path does not exist: /x.",
        ),
    ],
)
def test_the_cause_of_a_spark_error_is_found(text: str, cause: str) -> None:
    assert spark._cause(Exception(text)) == cause


def test_follow_runs_until_a_signal(engine: list[str], recording: Path, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    growing.mkdir()
    first, *rest = sorted(recording.iterdir())
    (growing / first.name).write_bytes(first.read_bytes())
    command = [sys.executable, "-m", "logicalrep.cli", "replicate", "--follow"]
    arguments = ["--recording", str(growing), "--target", str(tmp_path / "lake")]
    with subprocess.Popen([*command, *engine, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            reached = tmp_path / "lake" / "_reached.json"
            wait_for(reached)
            before = reached.read_text()
            for path in rest:
                part = growing / f".{path.name}"
                part.write_bytes(path.read_bytes())
                part.rename(growing / path.name)
            wait_until(lambda: reached.read_text() != before)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "app.t_def" in said
    assert not [entry for entry in os.listdir(tmp_path / "lake") if entry.endswith(".part")]


def test_a_recording_is_pruned_between_runs(replicate: Replicate, tmp_path: Path) -> None:
    """The replica registers, and the recording keeps what the next run needs; a new replica is refused."""
    folder = tmp_path / "growing"
    folder.mkdir()
    relation = make_relation(make_column("id", 23, key=True))
    arguments = ["--recording", folder, "--target", tmp_path / "lake"]
    beginnings = []
    for numbers in (range(1, 4), range(4, 8)):
        for n in numbers:
            change = (
                m.Begin(final_lsn=n * 100, commit_time=n, xid=n),
                m.Insert(relation_oid=1, new=(str(n),)),
                m.Commit(commit_lsn=n * 100, end_lsn=n * 100 + 10, commit_time=n),
            )
            record(folder, relation, *change)
        (folder / "_recording.json").write_text(f'{{"last_segment": {n}}}')
        assert replicate(*arguments).returncode == 0
        beginnings.append(prune(folder, keep=0).first_segment)
    (reader,) = read_readers(locate(folder))
    assert (reader.kind, reader.target) == ("tables", str(tmp_path / "lake"))
    assert beginnings == [3, 7]
    (table,) = replica_tables(tmp_path / "lake").values()
    assert sorted(DeltaTable(table.place).to_pyarrow_table()["id"].to_pylist()) == list(range(1, 8))
    new = replicate("--recording", folder, "--target", tmp_path / "new")
    assert (new.returncode, "segment 1 was pruned" in new.stderr) == (2, True)


def test_tables_are_maintained(run: Run, engine: list[str], recording: Path, tmp_path: Path) -> None:
    places = ["--recording", recording, "--target", tmp_path / "lake"]
    assert run("replicate", *places, "--table", "app.tr_a").code == 0
    unused = Path(next(iter(replica_tables(tmp_path / "lake").values())).place) / "part-old.parquet"
    unused.write_bytes(b"not committed")
    os.utime(unused, (0, 0))
    command = [sys.executable, "-m", "logicalrep.cli", "replicate", "--follow", *engine]
    with subprocess.Popen([*command, *map(str, places)]) as process:
        try:
            wait_until(lambda: not unused.exists())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert run("replicate", *places, "--latency=1").code == 2


def wait_for(path: Path) -> None:
    wait_until(path.exists)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
