"""Readers of segments need memory for a batch of messages, not for a whole segment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from logicalrep import messages as m
from logicalrep.recording import SegmentFile, read_metadata
from logicalrep.recording.segment_file import message_batch
from tests.messages import make_column, make_relation
from tests.recording import recordings

MIB = 1 << 20
RELATION = make_relation(make_column("v"))
PROGRAM = """
import re, sys
from pathlib import Path
from logicalrep.cli import main
import logicalrep.recording

def peak():  # not getrusage: its peak includes the parent process
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
try:
    main()
finally:
    print(peak() - before >> 10, file=sys.stderr)
"""
"""Script that runs a logicalrep command and prints by how many MiB the process's peak memory grew."""


def grown(*arguments: object) -> int:
    """Run a logicalrep command in a new process; return by how many MiB the process's peak memory grew."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    *_, last = done.stderr.splitlines()
    assert (done.returncode, done.stderr) == (0, f"{last}\n")
    return int(last)


def write(folder: Path, sizes: list[int]) -> Path:
    """Write a segment as the recorder does; its one transaction inserts values of these sizes in bytes."""
    inserts = [m.Insert(relation_oid=1, new=("x" * size,)) for size in sizes]
    recordings.record(
        folder,
        m.Begin(final_lsn=16, commit_time=0, xid=5),
        RELATION,
        *inserts,
        m.Commit(commit_lsn=16, end_lsn=32, commit_time=0),
    )
    return folder


def write_one_row_group(folder: Path, rows: int, size: int) -> Path:
    """Write a segment with a single row group, larger than the row groups of the recorder."""
    write(folder, [size])
    (path,) = folder.iterdir()
    metadata = read_metadata(path)
    begin, relation, insert, commit = recordings.stored(path)
    path.unlink()
    file = SegmentFile(path)
    data = [begin, relation, *[insert] * rows, commit]
    file.add(0, [message_batch([0] * len(data), [0] * len(data), data)])
    file.finish(msgspec.structs.replace(metadata, messages=len(data)))
    return folder


@pytest.mark.parametrize("command", ["decode", pytest.param("check", marks=pytest.mark.nightly)])
def test_memory_stays_bounded_with_many_large_messages(tmp_path: Path, command: str) -> None:
    """One segment has 240 MiB in row groups of 4 MiB, the other has 300 MiB in one row group."""
    groups, one = tmp_path / "groups", tmp_path / "one"
    groups.mkdir()
    one.mkdir()
    assert grown(command, write(groups, [4 * MIB] * 60)) < 100
    assert grown(command, write_one_row_group(one, 4800, MIB // 16)) < 250


def test_memory_stays_bounded_with_one_huge_message(tmp_path: Path) -> None:
    """A reader has at most two copies of the message in memory: its bytes and the decoded message."""
    assert grown("check", write(tmp_path, [200 * MIB])) < 2.3 * 200
