"""Workloads are legal streams, the same for the same seed, and end in the truth beside them."""

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
import pyarrow.parquet as pq
import pytest

from pgoutput import envelope
from pgoutput import messages as m
from pgoutput._stored_stream import StoredStream
from pgoutput.capturefile import CaptureFile
from pgoutput.errors import RecordingError
from pgoutput.messages import XLogData
from pgoutput.recording import (
    RecordingReader,
    SegmentReader,
    SegmentWriter,
    find_inconsistencies,
    list_segments,
    read_metadata,
)
from pgoutput.stream import StreamDecoder, Tables
from pgoutput.stream.check import CheckOptions, check
from pgoutput.synth import workload_run
from pgoutput.synth.workload import Mix, Range, Workload
from pgoutput.synth.workload_batches import Made
from pgoutput.synth.workload_outputs import ToFrames
from pgoutput.synth.workload_run import TRUTH, write_capture_file, write_frames, write_recording
from tests.recording import recordings
from tests.server import Server
from tests.synth.workloads import create_tables, statements, stream

SMALL: Final = {"tables": 5, "transactions": 150, "large": 0.2, "large_changes": 120, "rolled_back": 0.4}
WINDOW: Final = 700
"""Messages, so that there are several windows."""

WORKLOADS: Final = {
    "whole": Workload(**SMALL),  # type: ignore[arg-type]
    "on": Workload(**SMALL, streaming="on", proto_version=2),  # type: ignore[arg-type]
    "parallel": Workload(**SMALL, streaming="parallel"),  # type: ignore[arg-type]
    "one table": Workload(tables=1, transactions=100, mix=Mix(1, 0, 1)),
    "updates": Workload(transactions=200, changes=Range(1, 20), mix=Mix(1, 5, 1), value_sizes=Range(0, 3)),
    "one transaction": Workload(transactions=1, tables=3, changes=Range(1, 1)),
}
each = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))


def silent(transactions: int, messages: int) -> None:
    pass


def frames(workload: Workload) -> bytes:
    file = io.BytesIO()
    write_frames(workload, file, silent, WINDOW)
    return file.getvalue()


def sent(workload: Workload) -> list[XLogData]:
    """What the frames hold."""
    raw, found, at = frames(workload), [], 0
    while at < len(raw):
        assert raw[at : at + 1] == b"d"
        length = int.from_bytes(raw[at + 1 : at + 5], "big")
        message = envelope.decode(raw[at + 5 : at + 1 + length])
        assert isinstance(message, XLogData)
        found.append(message)
        at += 1 + length
    assert at == len(raw)
    return found


def is_the_truth(recorded: StoredStream, truth: Path) -> None:
    tables = Tables()
    for transaction in recorded.transactions():
        tables.apply(transaction)
    replayed = {f"public.{one.relation.name}": list(map(dict, one)) for one in tables.values()}
    files = {path.name.removesuffix(".parquet"): path for path in truth.iterdir()}
    assert replayed.keys() <= files.keys()
    for name, path in files.items():
        rows = pq.read_table(path).to_pylist()
        keys = [int(row["id"]) for row in rows]
        assert keys == sorted(set(keys))
        assert sorted(replayed.get(name, []), key=lambda row: int(str(row["id"]))) == rows
    assert sum(map(len, tables.values())) > 0


@each
def test_segments_end_in_the_truth(workload: Workload, tmp_path: Path) -> None:
    write_recording(workload, tmp_path / "out", silent, WINDOW)
    metadata = [read_metadata(path) for path in list_segments(tmp_path / "out")]
    assert list(find_inconsistencies(metadata)) == []
    assert os.listdir(tmp_path) == ["out"]
    with RecordingReader(tmp_path / "out") as segments:
        is_the_truth(segments, tmp_path / "out" / TRUTH)


@each
def test_no_rule_is_broken(workload: Workload) -> None:
    messages = sent(workload)
    options = CheckOptions(proto_version=workload.proto_version, streaming=workload.streaming)
    assert list(check(messages, options)) == []
    ends = [message.wal_start for message in messages if message.data[:1] in b"Cc"]
    assert ends == sorted(set(ends))


@each
def test_segments_are_those_of_a_segment_writer(workload: Workload, tmp_path: Path) -> None:
    write_recording(workload, tmp_path / "out", silent, WINDOW)
    paths = list_segments(tmp_path / "out")
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    messages = sent(workload)
    start = msgspec.structs.replace(recordings.FIRST, lsn=read_metadata(paths[0]).start_lsn)
    writer = SegmentWriter(wanted, workload.source, start)
    for path in paths:
        metadata = read_metadata(path)
        writer.write(messages[metadata.first_position : metadata.next_position], 0)
        writer.rotate()
    for path, other in zip(paths, list_segments(wanted), strict=True):
        with SegmentReader(path) as one, SegmentReader(other) as another:
            assert one.metadata == another.metadata
            for batch, other_batch in zip(one.batches(), another.batches(), strict=True):
                for name in ("position", "lsn", "data"):
                    assert batch[name].equals(other_batch[name])


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_capture_file_holds_the_same_and_ends_in_the_truth(name: str, tmp_path: Path) -> None:
    workload = WORKLOADS["parallel"]
    write_capture_file(workload, tmp_path / name, silent, WINDOW)
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"out.{TRUTH}"])
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    with CaptureFile(tmp_path / name) as capture:
        assert [line.envelope for line in capture.messages()] == sent(workload)
    with CaptureFile(tmp_path / name) as capture:
        is_the_truth(capture, tmp_path / f"out.{TRUTH}")


def by_workers(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Have processes make what is otherwise made here, since it is small."""
    monkeypatch.setattr(workload_run, "_SMALL", 0)
    monkeypatch.setattr(workload_run, "_WORKERS", count)


def test_a_seed_makes_the_same_however_many_processes_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS["parallel"]
    first = frames(workload)
    assert frames(workload) == first
    for count in (1, 3):
        by_workers(monkeypatch, count)
        assert frames(workload) == first
    assert frames(msgspec.structs.replace(workload, seed=1)) != first


def test_everything_comes(tmp_path: Path) -> None:
    workload = WORKLOADS["parallel"]
    decoder = StreamDecoder(4, streaming="parallel")
    decoded = [decoder.decode(message.data) for message in sent(workload)]
    counts = Counter(type(one).__name__ for one in decoded)
    assert counts.keys() == {
        *("Begin", "Commit", "Relation", "Insert", "Update", "Delete"),
        *("StreamStart", "StreamStop", "StreamCommit", "StreamAbort"),
    }
    aborts = [one for one in decoded if isinstance(one, m.StreamAbort)]
    assert {one.xid == one.subxid for one in aborts} == {True, False}
    streams = [one.xid for one in decoded if isinstance(one, m.StreamStart)]
    assert len(set(streams)) < len(streams)
    assert any(streams.index(xid) + streams.count(xid) - 1 < streams[::-1].index(xid) for xid in streams)
    assert counts["Begin"] + len(set(streams)) == workload.transactions


def test_options_say_how_much() -> None:
    workload = Workload(transactions=2_000, tables=3, value_sizes=Range(20, 30), large=0, mix=Mix(6, 3, 1))
    decoder = StreamDecoder(4)
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
        ({"tables": 0}, "from 1 to 500 tables, not 0"),
        ({"transactions": 0}, "at least 1 transaction"),
        ({"mix": Mix(0, 1, 0)}, "a mix has inserts"),
        ({"mix": Mix(1, 0, 2)}, "no more deletes than inserts"),
        ({"mix": Mix(1, -1, 0)}, "the parts of a mix are numbers from 0 on"),
        ({"large": 1.5}, "a share is from 0 to 1, not 1.5"),
        ({"large_changes": 3}, "at least 100 changes"),
        ({"large_changes": 10**9}, "a transaction of 1000000000 changes .* has about .* MB"),
        ({"proto_version": 1, "streaming": "on"}, "needs protocol version 2"),
        ({"seed": -1}, "a seed from 0 on"),
    ],
)
def test_what_is_no_workload(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Workload(**given)


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    workload = WORKLOADS["one transaction"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "beside.truth").mkdir()
    with pytest.raises(RecordingError, match=r"full: a new folder is wanted, or an empty one"):
        write_recording(workload, tmp_path / "full", silent)
    for name in ("there", "beside"):
        with pytest.raises(RecordingError, match=r"it is there already"):
            write_capture_file(workload, tmp_path / f"{name}.jsonl", silent)
    (tmp_path / "empty").mkdir()
    write_recording(workload, tmp_path / "empty", silent)
    assert list_segments(tmp_path / "empty")


def test_what_was_killed_is_made_anew_and_what_is_being_made_is_not(tmp_path: Path) -> None:
    stage = tmp_path / ".out.partial"
    (stage / "out").mkdir(parents=True)
    (stage / "out" / "0000000009.parquet").touch()
    lock = os.open(stage, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    workload = WORKLOADS["one transaction"]
    with pytest.raises(RecordingError, match="another is making it"):
        write_recording(workload, tmp_path / "out", silent)
    os.close(lock)
    write_recording(workload, tmp_path / "out", silent)
    assert os.listdir(tmp_path) == ["out"]
    assert len(list_segments(tmp_path / "out")) == 2


def interrupt(transactions: int, messages: int) -> None:
    raise KeyboardInterrupt


def disk_full(transactions: int, messages: int) -> None:
    raise OSError(errno.ENOSPC, "x")


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("write", [write_recording, write_capture_file])
@pytest.mark.parametrize(
    ("told", "error", "text"),
    [
        (interrupt, KeyboardInterrupt, None),
        (disk_full, OSError, "nothing is left of what was made: make room"),
    ],
)
def test_what_fails_leaves_nothing(
    write: Callable[..., None],
    told: Any,
    error: type[BaseException],
    text: str | None,
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not alone:
        by_workers(monkeypatch, 2)
    with pytest.raises(error, match=text):
        write(WORKLOADS["parallel"], tmp_path / "out.jsonl", told, WINDOW)
    assert os.listdir(tmp_path) == []


def fail(made: Made) -> bytes:
    raise OSError(errno.ENOSPC, "x")


def end(made: Made) -> bytes:
    os._exit(1)


def test_what_fails_in_a_process_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    by_workers(monkeypatch, 2)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    for prepare, error in ((fail, r"\[Errno 28\] x"), (end, "a process that made a part .* was ended")):
        monkeypatch.setattr(ToFrames, "prepare", staticmethod(prepare))
        with pytest.raises(OSError, match=error):
            frames(WORKLOADS["parallel"])


COMMAND: Final = [sys.executable, "-m", "pgoutput.cli", "synth"]


def test_a_full_disk_is_told_in_a_line(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *COMMAND]
    done = subprocess.run([*limited, "-o", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"pgoutput: \[Errno \d+\] .*nothing is left of what was made.*'out'\n", done.stderr)
    assert os.listdir(tmp_path) == []


def test_the_command(tmp_path: Path) -> None:
    options = ["--tables", "2", "--transactions", "1e2", "--mix", "insert=1,delete=1", "--value-sizes", "5"]
    more = ["--streaming", "parallel", "--large", "0.1", "--large-changes", "100", "--seed", "7", "-o"]
    raw = subprocess.run([*COMMAND, *options, *more, "-"], capture_output=True, timeout=60, check=True)
    workload = Workload(
        tables=2,
        transactions=100,
        mix=Mix(1, 0, 1),
        value_sizes=Range(5, 5),
        streaming="parallel",
        large=0.1,
        large_changes=100,
        seed=7,
    )
    file = io.BytesIO()
    write_frames(workload, file, silent)
    assert (raw.stdout == file.getvalue(), raw.stderr) == (True, b"")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--mix", "insert=1,foo=2"], "'foo=2' is not of it"),
        (["--transactions", "1.5"], "a whole number as 1000 or 1e6, not '1.5'"),
        (["--value-sizes", "20-3"], "ends before it begins"),
        (["--changes", "x"], "a range as 10-200, not 'x'"),
        (["--proto", "1", "--streaming", "on"], "needs protocol version 2"),
    ],
)
def test_bad_options_are_named(options: list[str], text: str, tmp_path: Path) -> None:
    environment = os.environ | {"COLUMNS": "200"}
    command = [*COMMAND, *options, "-o", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_server_that_does_the_same_sends_the_same() -> None:
    workload = Workload(transactions=60, tables=16, large=0, seed=3)
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
    assert alike([bytes(data) for (data,) in rows]) == alike(list(stream(workload)))


def alike(messages: list[bytes]) -> list[m.Message]:
    """The messages, but for LSNs, times and xids, and with OIDs in the order of the tables."""
    decoder = StreamDecoder(4)
    decoded = [decoder.decode(data) for data in messages]
    oids = {oid: number for number, oid in enumerate(decoder.relations)}
    found: list[m.Message] = []
    for one in decoded:
        match one:
            case m.Begin():
                one = m.Begin(0, 0, 0)
            case m.Commit():
                one = m.Commit(0, 0, 0)
            case m.Relation():
                one = msgspec.structs.replace(one, oid=oids[one.oid])
            case m.Insert() | m.Update() | m.Delete():
                one = msgspec.structs.replace(one, relation_oid=oids[one.relation_oid])
        found.append(one)
    return found
