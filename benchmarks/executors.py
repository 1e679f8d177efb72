"""Benchmark of one large table whose changes are divided over several Spark tasks.

The recording is that of `benchmarks.one_table`, applied in two micro-batches. The second
one is applied by one task, and in parts that are folded one after the other. CPU time of each is measured
without Spark, so that the ratio does not depend on the number of cores and on other load. A first argument
sets the number of parts, a second one the number of changes in a micro-batch.

With the argument `cluster`, a standalone cluster on this machine, with one executor and then with two,
applies the recording instead; times of micro-batch and tasks are printed. They need a core for each process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from time import process_time
from typing import Any, TypeVar
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.one_table import PER_SEGMENT, check_equal, write
from logicalrep.apply.parts import commit_parts, find_version, fold_part, plan_rewrites, rewrite_files
from logicalrep.recording import Recording, locate
from logicalrep.replica import replica_tables, replication
from logicalrep.spark import local_session, replicate
from logicalrep.views import plan_changes
from tests.replica.changes import changes_of_tasks
from tests.replica.changes_from_rows import from_rows
from tests.replica.tables import apply
from tests.spark.cluster import Cluster

CHANGES = 1_000_000
"""Number of changes in a micro-batch."""
MEMORY = 1024
"""Memory of each executor, in MiB."""
DEFAULTS = ("2", str(CHANGES))
MIN_SHARE = 0.85
"""Smallest allowed ratio of the time of one task to the time of several, divided by their number."""

T = TypeVar("T")


def main() -> int:
    if sys.argv[1:2] == ["run"]:
        print(json.dumps(run(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5])))
        return 0
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as name:
        folder = Path(name)
        if sys.argv[1:2] == ["cluster"]:
            rows = write(folder / "recording", 2 * CHANGES)
            for executors in (1, 2):
                show_cluster(executors, folder, rows)
            return 0
        given = sys.argv[1:]
        parts, count = (int(float(text)) for text in [*given, *DEFAULTS[len(given) :]])
        ratio = compare(folder, parts, count)
    target = parts * MIN_SHARE
    met = ratio >= target
    print(f"One task / {parts} tasks: {ratio:.2f}.")
    print(f"Target: at least {target:.1f}: {'met' if met else 'MISSED'}.")
    return 0 if met else 1


def compare(folder: Path, count: int, size: int) -> float:
    """Return the CPU time of one task, divided by the longest CPU time of tasks that share the work."""
    rows = write(folder / "recording", 2 * size)
    recording = Recording(folder / "recording")
    first, second = (
        list(changes_of_tasks(plan_changes(recording, numbers)))
        for numbers in (recording.numbers[: size // PER_SEGMENT], recording.numbers[size // PER_SEGMENT :])
    )
    whole, divided = folder / "whole", folder / "divided"
    apply(first, whole)
    shutil.copytree(whole, divided)
    one, _ = measure(lambda: apply(second, whole))
    (oid,) = replica_tables(divided)
    version = find_version(locate(divided), oid, "")
    assert version is not None
    divided_changes = [[*chain.from_iterable(map(from_rows, part))] for part in divide(second, count)]
    folded = [measure(partial(fold_part, part, version)) for part in divided_changes]
    parts = [part for _, part in folded if part is not None]
    planning, rewrites = measure(lambda: plan_rewrites(oid, version, parts))
    rewritten = [measure(partial(rewrite_files, rewrite)) for rewrite in rewrites]
    new = [files for _, files in rewritten]
    commit, _ = measure(lambda: commit_parts(version, parts, rewrites, new))
    for target in (whole, divided):
        check_equal(target, rows)
    fold, rewrite = ([seconds for seconds, _ in tasks] for tasks in (folded, rewritten))
    print(f"{size:,} changes of one table; CPU time in seconds.")
    print(f"one task           {one:.2f}")
    print(f"fold a part        {', '.join(f'{seconds:.2f}' for seconds in fold)}")
    print(f"rewrite data files {', '.join(f'{seconds:.2f}' for seconds in rewrite)}")
    print(f"driver             {planning + commit:.2f}")
    return one / (max(fold) + max(rewrite, default=0) + planning + commit)


def measure(function: Callable[[], T]) -> tuple[float, T]:
    """Call a function; return its CPU time in seconds, and its result."""
    start = process_time()
    result = function()
    return process_time() - start, result


def divide(changes: list[pa.RecordBatch], count: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield the changes in parts by key."""
    table = pa.Table.from_batches(changes).combine_chunks()
    maps = pc.coalesce(table["before"], table["after"]).combine_chunks()
    keys = pc.map_lookup(maps, "c0", "first").cast(pa.int64()).to_numpy()
    for number in range(count):
        yield table.filter(pa.array(keys % count == number)).combine_chunks().to_batches(PER_SEGMENT)


def show_cluster(executors: int, folder: Path, rows: dict[int, int]) -> None:
    """Replicate on a new cluster; print the times of the second micro-batch."""
    target = folder / f"target{executors}"
    logs = folder / f"cluster{executors}"
    logs.mkdir()
    with Cluster(logs, workers=executors, memory=MEMORY) as cluster:
        command = [sys.executable, "-m", "benchmarks.executors", "run", str(executors), cluster.url]
        done = subprocess.run(
            [*command, folder / "recording", target], check=True, stdout=subprocess.PIPE, text=True
        )
    check_equal(target, rows)
    measured = json.loads(done.stdout)
    stages = ", ".join(f"{longest:.1f} of {total:.1f} s" for longest, total in measured["stages"])
    print(
        f"{executors} executors: micro-batch {measured['seconds']:.1f} s; "
        f"longest task, and all tasks, of each stage: {stages}"
    )


def run(executors: int, master: str, recording: str, target: str) -> dict[str, Any]:
    """Replicate a recording on a cluster; return the times of the second micro-batch."""
    session = local_session(
        "benchmark",
        config={
            "spark.master": master,
            "spark.executor.memory": f"{MEMORY}m",
            "spark.sql.shuffle.partitions": str(executors),
            "spark.ui.enabled": "true",
        },
    )
    url = f"{session.sparkContext.uiWebUrl}/api/v1/applications/{session.sparkContext.applicationId}"
    ends: list[tuple[float, int]] = []
    with mock.patch.object(replication, "SEGMENTS_PER_BATCH", CHANGES // PER_SEGMENT):
        replicate(
            session,
            recording,
            target,
            on_batch=lambda *_: ends.append((time.monotonic(), len(stages_of(url)))),
        )
    stages = stages_of(url)[ends[0][1] :]
    session.stop()
    return {"seconds": ends[1][0] - ends[0][0], "stages": stages}


def stages_of(url: str) -> list[tuple[float, float]]:
    """Return the time of the longest task, and of all tasks, of each completed stage, in seconds."""
    with urllib.request.urlopen(f"{url}/stages?details=true") as answer:
        stages = json.load(answer)
    return [
        (max(times), sum(times))
        for stage in sorted(stages, key=lambda one: one["stageId"])
        if stage["status"] == "COMPLETE"
        for times in [[task["taskMetrics"]["executorRunTime"] / 1000 for task in stage["tasks"].values()]]
    ]


if __name__ == "__main__":
    sys.exit(main())
