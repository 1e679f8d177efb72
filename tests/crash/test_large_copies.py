"""Copies of large tables: a copy survives many kills, and its memory does not grow with the table."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.memory import record
from logicalrep.recorder import Event, TableComplete
from logicalrep.recorder.snapshots.copy_folder import CopiedRange, CopiedTable
from tests.recorder.lab import Lab, wait_until
from tests.server import VERSION, Server

ROWS = 1_000_000
KILLS = 10

RANGE_BYTES = 1 << 19

RECORDER = f"""
import sys
from logicalrep.recorder import Recorder
from logicalrep.recorder.snapshots import copy_folder, ranges
ranges.RANGE_BYTES = {RANGE_BYTES}
copy_folder._SAVE_SECONDS = 0
Recorder(*sys.argv[1:3], ["p"], sys.argv[3], snapshot=True, create_slot=True, workers=2).run()
"""
"""Python program of a recorder that copies tables in small ranges, and saves each range at once."""


@pytest.mark.nightly
def test_a_large_copy_goes_on_after_each_of_ten_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are changed while the recorder runs and while it does not; finished ranges are kept."""
    monkeypatch.setattr("logicalrep.recorder.snapshots.ranges.RANGE_BYTES", RANGE_BYTES)
    chance = random.Random(1)
    with Server(VERSION, max_wal_size="8GB") as server, Lab(server, tmp_path) as lab:
        lab.run(
            "CREATE TABLE t (id int PRIMARY KEY, a text, n int)",
            "ALTER TABLE t SET (autovacuum_enabled = off)",
            "INSERT INTO t SELECT g, rpad(md5(g::text), 40 + g % 50, 'x'), 0"
            f" FROM generate_series(1, {ROWS}) g",
            "CREATE PUBLICATION p FOR TABLE t",
        )
        kept: list[CopiedRange] = []
        for _ in range(KILLS):
            kept = _kill_after_more_ranges(lab, kept, chance)
            _change(lab, chance)
        assert len({one.lsn for one in kept}) > KILLS / 2
        events: list[Event] = []
        lab.recorder(snapshot=True, workers=2, on_event=events.append).run(until="now")
        assert [one.table for one in events if isinstance(one, TableComplete)] == ["public.t"]
        _change(lab, chance)
        lab.record(snapshot=True)
        assert lab.segments()[-1].incomplete == ()
        lab.assert_equal()


def _kill_after_more_ranges(lab: Lab, kept: list[CopiedRange], chance: random.Random) -> list[CopiedRange]:
    """Run a recorder until it has copied more ranges, and kill it.

    Returns:
        All ranges that are copied, which begin with those in `kept`.
    """
    wanted = len(kept) + chance.randint(1, 6)
    command = [sys.executable, "-c", RECORDER, lab.dsn, lab.slot, str(lab.folder)]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: len(_copied(lab.folder)) >= wanted or process.poll() is not None)
            _change(lab, chance)
        finally:
            process.kill()
    assert process.returncode < 0
    copied = _copied(lab.folder)
    assert copied[: len(kept)] == kept
    return copied


def _copied(folder: Path) -> list[CopiedRange]:
    """Return the ranges in the folder of copied rows, in the order in which they were copied."""
    path = folder / ".tables.partial" / "_copied.json"
    content = path.read_bytes() if path.exists() else b"{}"
    tables = msgspec.json.decode(content, type=dict[int, CopiedTable])
    return [one for table in tables.values() for one in table.ranges]


def _change(lab: Lab, chance: random.Random) -> None:
    """Update, delete and insert rows all over the table, and change keys."""
    first = chance.randrange(1, ROWS)
    some = f"id % 997 = {chance.randrange(997)}"
    lab.run(
        f"UPDATE t SET n = n + 1 WHERE {some}",
        f"DELETE FROM t WHERE id % 1999 = {chance.randrange(1999)}",
        f"UPDATE t SET id = -id, a = a || 'moved' WHERE id BETWEEN {first} AND {first + 500}",
        f"INSERT INTO t SELECT g, 'new', {first} FROM generate_series({first}, {first + 700}) g"
        " ON CONFLICT DO NOTHING",
    )


@pytest.mark.nightly
def test_memory_of_a_copy_does_not_depend_on_the_number_of_rows() -> None:
    """Both tables have several ranges, which two workers copy."""
    peaks = []
    for rows in (500_000, 4_000_000):
        with Server(VERSION, max_wal_size="8GB") as server, server.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text, n int)")
            connection.execute(
                "INSERT INTO t SELECT g, repeat(md5(g::text), 10), g FROM generate_series(1, %s::int) g",
                [rows],
            )
            connection.execute("CREATE PUBLICATION p FOR TABLE t")
            peaks.append(record(server, "s", ["--create-slot", "--snapshot", "--workers=2"]).peak)
    print(*(f"{peak / (1 << 20):.0f} MiB" for peak in peaks))
    assert peaks[1] < 1.25 * peaks[0]
