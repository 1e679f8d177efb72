"""Workloads: expected rows, valid streams, determinism, failures, and the command `logicalrep synth`."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from logicalrep import _protocols, messages as m
from logicalrep._servers import MAJOR_VERSIONS, newest_version
from logicalrep._stored_stream import StoredStream
from logicalrep.capturefile import CaptureFile
from logicalrep.errors import RecordingError
from logicalrep.recording import (
    RecordingReader,
    SegmentReader,
    SegmentWriter,
    find_inconsistencies,
    list_segments,
    read_metadata,
)
from logicalrep.stream import StreamDecoder, Tables
from logicalrep.stream.check import check
from logicalrep.synth.workload import (
    PROFILES,
    Mix,
    Range,
    Workload,
    all_messages,
    write_capture_file,
    write_copy_data,
    write_recording,
    writer,
)
from logicalrep.synth.workload.messages import WindowMessages
from logicalrep.synth.workload.row_choice import UPDATE, choose_rows
from logicalrep.synth.workload.writer import EXPECTED_ROWS
from tests.conftest import Run
from tests.effort import mostly_nightly
from tests.recording import recordings
from tests.server import Server
from tests.synth.text_reader import TextReader
from tests.synth.workload_sql import create_tables, statements, stream
from tests.synth.workloads import WINDOW, check_options, frames, no_progress, sent
from tests.versions import OLDEST, UNKNOWN, WRITTEN

SMALL: Final = {"tables": 5, "transactions": 150, "large": 0.2, "large_changes": 120}
WORKLOADS: Final = {
    "whole": Workload(**SMALL),  # type: ignore[arg-type]
    "on": Workload(**SMALL, streaming="on", proto_version=2),  # type: ignore[arg-type]
    "parallel": Workload(**SMALL, streaming="parallel"),  # type: ignore[arg-type]
    "one table": Workload(tables=1, transactions=100, mix=Mix(1, 0, 1)),
    "updates": Workload(transactions=200, changes=Range(1, 20), mix=Mix(1, 5, 1), value_sizes=Range(0, 3)),
    "one transaction": Workload(transactions=1, tables=3, changes=Range(1, 1)),
    "varied": Workload(**SMALL, varied=0.5, streaming="parallel", two_phase=True, messages=True),  # type: ignore[arg-type]
    "old server": Workload(**SMALL, varied=0.5, server=MAJOR_VERSIONS[0]),  # type: ignore[arg-type]
    "full": Workload(**SMALL, replica_identity="full"),  # type: ignore[arg-type]
    "inserts": Workload(tables=2, mix=Mix(1, 0, 0), replica_identity="nothing"),
}
each = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))


def assert_expected_rows(recorded: StoredStream, folder: Path) -> None:
    tables = Tables()
    for transaction in recorded.transactions():
        tables.apply(transaction)
    replayed = {
        f"{one.relation.namespace}.{one.relation.name}": [str(dict(row)) for row in one]
        for one in tables.values()
    }
    files = {path.name.removesuffix(".parquet"): path for path in folder.iterdir()}
    assert replayed.keys() <= files.keys()
    for name, path in files.items():
        rows = pq.read_table(path).to_pylist()
        if name.startswith("public.table_"):
            keys = [int(row["id"]) for row in rows]
            assert keys == sorted(set(keys))
        assert sorted(replayed.get(name, [])) == sorted(map(str, rows))
    assert sum(map(len, tables.values())) > 0


@each
def test_segments_lead_to_the_expected_rows(workload: Workload, tmp_path: Path) -> None:
    write_recording(workload, tmp_path / "out", no_progress, WINDOW)
    metadata = [read_metadata(path) for path in list_segments(tmp_path / "out")]
    assert list(find_inconsistencies(metadata)) == []
    assert os.listdir(tmp_path) == ["out"]
    with RecordingReader(tmp_path / "out") as segments:
        assert_expected_rows(segments, tmp_path / "out" / EXPECTED_ROWS)


@each
def test_streams_violate_no_rule(workload: Workload) -> None:
    messages = sent(workload)
    assert list(check(messages, check_options(workload))) == []
    ends = [message.wal_start for message in messages if message.data[:1] in b"CcPpKr"]
    assert ends == sorted(set(ends))
    times = [message.send_time for message in messages]
    assert times == sorted(times)


@each
def test_segments_equal_those_of_segment_writer(workload: Workload, tmp_path: Path) -> None:
    write_recording(workload, tmp_path / "out", no_progress, WINDOW)
    paths = list_segments(tmp_path / "out")
    expected = tmp_path / "expected"
    expected.mkdir()
    messages = sent(workload)
    start = msgspec.structs.replace(recordings.FIRST, lsn=read_metadata(paths[0]).start_lsn)
    writer = SegmentWriter(expected, workload.source, start)
    for path in paths:
        metadata = read_metadata(path)
        writer.write(messages[metadata.first_position : metadata.next_position], 0)
        writer.rotate()
    for path, other in zip(paths, list_segments(expected), strict=True):
        with SegmentReader(path) as one, SegmentReader(other) as another:
            assert one.metadata == another.metadata
            for batch, other_batch in zip(one.batches(), another.batches(), strict=True):
                for name in ("position", "lsn", "data"):
                    assert batch[name].equals(other_batch[name])


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_capture_file_has_the_same_messages_and_leads_to_the_expected_rows(
    name: str, tmp_path: Path
) -> None:
    workload = WORKLOADS["parallel"]
    write_capture_file(workload, tmp_path / name, no_progress, WINDOW)
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"out.{EXPECTED_ROWS}"])
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    with CaptureFile(tmp_path / name) as capture:
        assert [line.envelope for line in capture.messages()] == sent(workload)
    with CaptureFile(tmp_path / name) as capture:
        assert_expected_rows(capture, tmp_path / f"out.{EXPECTED_ROWS}")


def use_worker_processes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Generate even small workloads in worker processes."""
    monkeypatch.setattr(writer, "_SINGLE_PROCESS_MESSAGES", 0)
    monkeypatch.setattr(writer, "_PROCESSES", count)


def test_output_does_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS["parallel"]
    first = frames(workload)
    assert frames(workload) == first
    use_worker_processes(monkeypatch, 2)
    assert frames(workload) == first
    assert frames(msgspec.structs.replace(workload, seed=1)) != first


def test_all_kinds_of_messages_occur(tmp_path: Path) -> None:
    workload = msgspec.structs.replace(WORKLOADS["parallel"], proto_version=WRITTEN)
    decoder = StreamDecoder(WRITTEN, streaming="parallel")
    decoded = [decoder.decode(message.data) for message in sent(workload)]
    counts = Counter(type(one).__name__ for one in decoded)
    assert counts.keys() == {
        *("Begin", "Commit", "Relation", "Insert", "Update", "Delete"),
        *("StreamStart", "StreamStop", "StreamCommit"),
    }
    streams = [one.xid for one in decoded if isinstance(one, m.StreamStart)]
    assert len(set(streams)) < len(streams)
    assert counts["Begin"] + len(set(streams)) == workload.transactions


def kinds(workload: Workload) -> Counter[str]:
    """Return the number of messages of each kind in a workload's stream, of 19 kinds."""
    options = workload.options
    decoder = StreamDecoder(options.proto_version, streaming=options.streaming, two_phase=options.two_phase)
    return Counter(type(decoder.decode(message.data)).__name__ for message in sent(workload))


EVERYTHING: Final = Workload(
    **msgspec.structs.asdict(PROFILES["everything"]), **all_messages(18, 4), transactions=200
)


def test_the_profile_everything_sends_all_kinds_and_forms_of_messages() -> None:
    assert kinds(EVERYTHING).keys() == _protocols.VERSIONS[EVERYTHING.options.proto_version].by_name.keys()


@pytest.mark.parametrize("server", mostly_nightly(MAJOR_VERSIONS, {10, 11, 13, 14, 15, MAJOR_VERSIONS[-1]}))
def test_each_server_sends_what_its_version_sends(server: int) -> None:
    version = newest_version(server)
    options = all_messages(server, version) | {"binary": server >= 14}
    fields = msgspec.structs.asdict(PROFILES["everything"])
    workload = Workload(**fields, **options, server=server, transactions=120)
    assert workload.options.proto_version == version
    found = kinds(workload)
    assert list(check(sent(workload), check_options(workload))) == []
    assert ("Truncate" in found) == (server >= 11)
    assert ("StreamStart" in found) == ("LogicalMessage" in found) == (server >= 14)
    assert ("Prepare" in found) == (server >= 15)


def test_two_phase_is_a_flag_of_the_slot_in_the_oldest_protocol_version() -> None:
    workload = Workload(transactions=100, tables=2, varied=0.5, proto_version=OLDEST, two_phase=True)
    assert {"BeginPrepare", "Prepare", "CommitPrepared", "RollbackPrepared"} <= kinds(workload).keys()
    assert list(check(sent(workload), check_options(workload))) == []


def test_binary_format_has_the_same_values() -> None:
    written = msgspec.structs.replace(EVERYTHING, proto_version=WRITTEN)
    text, binary = (msgspec.structs.replace(written, binary=binary) for binary in (False, True))
    options = [msgspec.structs.asdict(one.options) for one in (text, binary)]
    readers = [TextReader(one) for one in options]
    different = 0
    for one, other in zip(sent(text), sent(binary), strict=True):
        assert readers[0].read(one.data) == readers[1].read(other.data)
        different += one.data != other.data
    assert different > 500


def test_options_set_the_number_of_messages() -> None:
    sizes = Range(20, 30)
    workload = Workload(
        transactions=2_000, tables=3, value_sizes=sizes, large=0, mix=Mix(6, 3, 1), proto_version=WRITTEN
    )
    decoder = StreamDecoder(WRITTEN)
    decoded = [decoder.decode(data) for data in stream(workload)]
    counts = Counter(type(one).__name__ for one in decoded)
    assert (counts["Begin"], counts["Relation"]) == (2_000, 3)
    changes = {name: counts[name] / 20_000 for name in ("Insert", "Update", "Delete")}
    assert changes == pytest.approx({"Insert": 0.6, "Update": 0.3, "Delete": 0.1}, abs=0.02)
    notes = [one.new[1] for one in decoded if isinstance(one, m.Insert)]
    assert {len(note) for note in notes if isinstance(note, str)} == set(range(20, 31))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tables": 0}, "tables must be between 1 and 500, not 0"),
        ({"transactions": 0}, "transactions must be at least 1, not 0"),
        ({"mix": Mix(0, 1, 0)}, "mix needs inserts"),
        ({"mix": Mix(1, 0, 2)}, "must not have more deletes than inserts"),
        ({"mix": Mix(1, -1, 0)}, "each frequency in mix must be a finite number of at least 0"),
        ({"large": 1.5}, "large must be between 0 and 1, not 1.5"),
        ({"large_changes": 3}, "large_changes must be at least 100, not 3"),
        ({"large_changes": 10**9}, "a transaction of 1000000000 changes .* takes about .* MiB"),
        ({"proto_version": UNKNOWN}, f"there is no protocol version {UNKNOWN}"),
        ({"proto_version": 2, "streaming": "parallel"}, "needs protocol version 4"),
        ({"server": 9}, "server must be a major version of PostgreSQL from .* to .*, not 9"),
        ({"seed": -1}, "seed must be 0 or greater"),
        ({"server": 14, "streaming": "parallel"}, "needs protocol version 4"),
        ({"server": 15, "origin": "none"}, "PostgreSQL 15 has no origin = none, which needs PostgreSQL 16"),
        ({"replica_identity": "nothing"}, "set both to 0 in mix"),
        ({"replica_identity": "none"}, "must be one of default, full, index, nothing, not 'none'"),
    ],
)
def test_invalid_workloads_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Workload(**given)


def test_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    workload = WORKLOADS["one transaction"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "beside.expected_rows").mkdir()
    with pytest.raises(RecordingError, match=r"full is not an empty folder"):
        write_recording(workload, tmp_path / "full", no_progress)
    for name in ("there", "beside"):
        with pytest.raises(RecordingError, match=r"exists already"):
            write_capture_file(workload, tmp_path / f"{name}.jsonl", no_progress)
    (tmp_path / "empty").mkdir()
    write_recording(workload, tmp_path / "empty", no_progress)
    assert list_segments(tmp_path / "empty")


def test_leftovers_of_a_killed_process_are_replaced_but_not_those_of_a_running_one(tmp_path: Path) -> None:
    stage = tmp_path / ".out.partial"
    (stage / "out").mkdir(parents=True)
    (stage / "out" / "0000000009.parquet").touch()
    lock = os.open(stage, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    workload = WORKLOADS["one transaction"]
    with pytest.raises(RecordingError, match="another process is writing it"):
        write_recording(workload, tmp_path / "out", no_progress)
    os.close(lock)
    write_recording(workload, tmp_path / "out", no_progress)
    assert os.listdir(tmp_path) == ["out"]
    assert len(list_segments(tmp_path / "out")) == 2


def interrupt(transactions: int, messages: int) -> None:
    raise KeyboardInterrupt


def disk_full(transactions: int, messages: int) -> None:
    raise OSError(errno.ENOSPC, "x")


@pytest.mark.parametrize(
    ("write", "alone"),
    [
        (write_recording, True),
        (write_capture_file, True),
        (write_recording, False),
        pytest.param(write_capture_file, False, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    ("progress", "error", "text"),
    [
        (interrupt, KeyboardInterrupt, None),
        (disk_full, OSError, "partial output was deleted; free disk space"),
    ],
)
def test_a_failed_write_leaves_no_output(
    write: Callable[..., None],
    progress: Any,
    error: type[BaseException],
    text: str | None,
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not alone:
        use_worker_processes(monkeypatch, 2)
    with pytest.raises(error, match=text):
        write(WORKLOADS["parallel"], tmp_path / "out.jsonl", progress, WINDOW)
    assert os.listdir(tmp_path) == []


def fail(built: WindowMessages) -> bytes:
    raise OSError(errno.ENOSPC, "x")


def end(built: WindowMessages) -> bytes:
    os._exit(1)


def test_errors_in_worker_processes_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    use_worker_processes(monkeypatch, 1)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    for prepare, error in (
        (fail, r"\[Errno 28\] x"),
        (end, "a worker process of the workload was killed or failed"),
    ):
        monkeypatch.setattr(writer, "copy_data", prepare)
        with pytest.raises(OSError, match=error):
            frames(WORKLOADS["parallel"])


COMMAND: Final = [sys.executable, "-m", "logicalrep.cli", "synth"]


def test_a_full_disk_is_reported_in_one_line(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *COMMAND]
    done = subprocess.run([*limited, "-o", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"logicalrep: \[Errno \d+\] .*partial output was deleted.*'out'\n", done.stderr)
    assert os.listdir(tmp_path) == []


def test_the_command_writes_the_same_as_the_function(tmp_path: Path) -> None:
    options = ["--profile", "oltp", "--tables", "2", "--transactions", "1e2", "--mix", "insert=1,delete=1"]
    more = ["--value-sizes", "5", "--varied", "0.1", "--streaming", "parallel", "--large", "0", "--seed", "7"]
    raw = subprocess.run([*COMMAND, *options, *more, "-o", "-"], capture_output=True, timeout=60, check=True)
    given = {"tables": 2, "mix": Mix(1, 0, 1), "value_sizes": Range(5, 5), "varied": 0.1, "large": 0}
    profile = msgspec.structs.asdict(PROFILES["oltp"]) | given
    workload = Workload(**profile, transactions=100, streaming="parallel", seed=7)
    file = io.BytesIO()
    write_copy_data(workload, file, no_progress)
    assert (raw.stdout == file.getvalue(), raw.stderr) == (True, b"")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--mix", "insert=1,foo=2"], "unknown kind 'foo'; the kinds are insert, update, delete"),
        (["--mix", "insert=1,update=x"], "found 'update=x'"),
        (["--mix", "insert=1,foo"], "found 'foo'"),
        (["--transactions", "1.5"], "expected a whole number like 1000 or 1e6, not '1.5'"),
        (["--value-sizes", "20-3"], "expected a range with the smaller number first"),
        (["--changes", "x"], "a range like 1-20, not 'x'"),
        (["--proto", "2", "--streaming", "parallel"], "needs protocol version 4"),
        (["--profile", "olap"], "there is no profile 'olap'; the profiles are everything, oltp, bulk, iot"),
        (["--server", "15", "--origin", "none"], "needs PostgreSQL 16"),
    ],
)
def test_an_invalid_option_is_named(
    run: Run, options: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    done = run("synth", *options, "-o", "out")
    assert done.code == 2
    assert text in done.err
    assert os.listdir(tmp_path) == []


def test_a_server_sends_the_same_messages_for_the_same_statements() -> None:
    workload = Workload(transactions=60, tables=16, large=0, seed=3, proto_version=WRITTEN)
    with Server(autovacuum="off", logical_decoding_work_mem="64MB") as server, server.connect() as connection:
        for statement in create_tables(workload):
            connection.execute(statement.encode())
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for statement in statements(workload, stream(workload)):
            connection.execute(statement.encode())
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL,"
            " 'proto_version', '4', 'publication_names', 'p')"
        ).fetchall()
    assert normalized([bytes(data) for (data,) in rows]) == normalized(list(stream(workload)))


def normalized(messages: list[bytes]) -> list[m.Message]:
    """Return the messages without LSNs, times and xids, and with OIDs numbered in table order."""
    decoder = StreamDecoder(WRITTEN)
    decoded = [decoder.decode(data) for data in messages]
    oids = {oid: number for number, oid in enumerate(decoder.relations)}
    found: list[m.Message] = []
    for one in decoded:
        match one:
            case m.Begin():
                one = m.Begin(final_lsn=0, commit_time=0, xid=0)
            case m.Commit():
                one = m.Commit(commit_lsn=0, end_lsn=0, commit_time=0)
            case m.Relation():
                one = msgspec.structs.replace(one, oid=oids[one.oid])
            case m.Insert() | m.Update() | m.Delete():
                one = msgspec.structs.replace(one, relation_oid=oids[one.relation_oid])
        found.append(one)
    return found


def test_updates_are_spread_over_the_rows_of_a_table() -> None:
    changes, mix = np.zeros(2_000, np.int64), Mix(insert=1, update=1, delete=0)
    chosen = choose_rows(np.random.default_rng(1), changes, mix, 1, np.zeros(0, np.int64))
    updated = chosen.rows[chosen.kinds == UPDATE].tolist()
    assert len({*updated}) > len(updated) / 3
