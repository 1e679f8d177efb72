"""Apply micro-batches to Delta tables in Spark's executors; no row passes through the driver.

Changes move between Spark's stages packed: few large rows take less time than many small ones. Each
relation's changes are in one Spark partition, whose task sorts them, and applies them, in order, to the Delta
table. If a relation has many changes, they are divided by key instead. The tasks of several partitions then
write new data files, and the driver makes one commit of these files for each table
(`logicalrep.apply.parts`).

The number of changes is only known after a micro-batch. Therefore the number in the previous micro-batch
decides whether a relation's changes are divided. Changes that cannot be divided are applied by one task.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession, functions as sf, is_remote

from logicalrep.apply import (
    MAX_ROWS,
    Part,
    PartsError,
    Rewrite,
    Rewritten,
    SortedChanges,
    TableResult,
    TableVersion,
    commit_parts,
    discard_files,
    find_version,
    fold_part,
    plan_rewrites,
    rewrite_files,
)
from logicalrep.errors import ReplicaError
from logicalrep.recording import SegmentReader, locate
from logicalrep.replica import MicroBatch, Watch
from logicalrep.targets import NOTHING
from logicalrep.views import (
    RelationChanges,
    group_tasks,
    pack_changes,
    read_changes,
    split_by_key,
    unpack_changes,
)

_ROWS: Final = pa.schema([("value", pa.binary())])
"""Arrow schema of rows that each contain one pickled object."""
_ROWS_DDL: Final = "value binary"

_PARTS: Final = pa.schema([("oid", pa.int64()), ("part", pa.int64()), ("data", pa.binary())])
"""Arrow schema of packed changes: OID of the relation, number of the part (0 if undivided), and changes of
one schema version."""
_PARTS_DDL: Final = "oid bigint, part bigint, data binary"

_MAX_PAUSE: Final = 64
"""Maximum number of micro-batches before a failed attempt to divide a relation's changes is repeated."""

_CONCURRENT: Final = 8
"""Maximum number of Delta tables that the driver opens, or commits to, at the same time."""

_WATCH_SECONDS: Final = 1.0
"""Seconds between two calls of `watch`, which reports progress or stops the engine, while a job runs."""

R = TypeVar("R")


class SparkEngine:
    """An engine of `logicalrep.replica.Query` that applies micro-batches in the executors of Spark."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._tag = f"logicalrep-{uuid4()}"
        self._batches = 0
        """Number of micro-batches so far."""
        self._parts: dict[int, int] = {}
        """Number of parts in the next micro-batch, by OID of each relation that has several."""
        self._pauses: dict[int, tuple[int, int]] = {}
        """Maps a relation's OID to the length of its last pause in micro-batches, and the last one's number.

        In a pause, the relation's changes are not divided.
        """

    def __call__(self, batch: MicroBatch, watch: Watch) -> list[TableResult]:
        """Apply a micro-batch. Call `watch` each second; an exception that it raises stops Spark's jobs."""
        pool = ThreadPoolExecutor(1)
        run = inheritable_thread_target(self._session)(self._apply_tagged)
        applied: Future[list[TableResult]] = pool.submit(run, batch)
        try:
            while not wait([applied], _WATCH_SECONDS).done:
                watch(0, 0)
        except BaseException:
            while not applied.done():  # repeatedly: the thread may start another job after a canceled one
                with suppress(Exception):  # if Java or the server has ended, the job fails too
                    self._cancel_jobs()
                wait([applied], _WATCH_SECONDS)
            raise
        finally:
            pool.shutdown(wait=False)
        return applied.result()

    def _apply_tagged(self, batch: MicroBatch) -> list[TableResult]:
        """Apply a micro-batch; the jobs of this thread get the tag by which `_cancel_jobs` finds them."""
        if is_remote():
            self._session.addTag(self._tag)
        else:
            self._session.sparkContext.addJobTag(self._tag)
        return self._apply(batch)

    def _cancel_jobs(self) -> None:
        if is_remote():
            self._session.interruptTag(self._tag)
        else:  # without Spark Connect, interruptTag cancels only jobs of the calling thread
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _apply(self, batch: MicroBatch) -> list[TableResult]:
        self._batches += 1
        divided = self._find_divided(batch)
        outcomes = self._run(batch, divided)
        parts = [one.part for one in outcomes if one.part is not None]
        committed = self._commit(divided, parts)
        if left := {part.oid for part in parts} - {one.oid for one in committed}:
            rest = msgspec.structs.replace(batch, wanted=frozenset(left), wants_others=False)
            outcomes += self._run(rest, {})
        results = committed + [one.result for one in outcomes if one.result is not None]
        self._learn(results, committed, left)
        return sorted(results, key=_oid)

    def _find_divided(self, batch: MicroBatch) -> dict[int, TableVersion]:
        """Return the tables whose changes of this micro-batch are divided into parts, by relation OID."""
        oids = [
            oid
            for oid in self._parts
            if oid not in batch.from_snapshot and self._batches > self._pauses.get(oid, (0, -1))[1]
        ]

        def find(oid: int) -> TableVersion | None:
            try:
                position = batch.known.get(oid, NOTHING)
                return find_version(locate(batch.target), oid, batch.recording, position, batch.updates)
            except ReplicaError:
                return None  # not raised here: applying the changes undivided raises the error again

        found = zip(oids, _map_concurrently(find, oids), strict=True)
        return {oid: version for oid, version in found if version is not None}

    def _run(self, batch: MicroBatch, divided: Mapping[int, TableVersion]) -> list[_Outcome]:
        """Apply changes in the executors, or write the data files of parts; return the outcomes of all tasks.

        Args:
            batch: The micro-batch.
            divided: The tables whose changes are divided into parts, by relation OID.
        """
        # An explicit number of partitions keeps adaptive query execution from merging partitions.
        count = int(self._session.conf.get("spark.sql.shuffle.partitions") or 1)
        parts = {oid: min(self._parts[oid], count) for oid in divided}
        groups = group_tasks(batch.tasks, count)
        settings = msgspec.structs.replace(batch, tasks=())
        segments = self._session.range(0, len(groups), 1, len(groups))
        changes = segments.mapInArrow(partial(_read_partition, settings, groups, parts), _PARTS_DDL)
        number = sf.pmod(sf.hash("oid"), sf.lit(count)) + sf.col("part")
        changes = changes.repartitionById(count, number.cast("int"))
        return _collect(
            changes.select("data").mapInArrow(partial(_apply_partition, settings, divided), _ROWS_DDL)
        )

    def _commit(self, divided: Mapping[int, TableVersion], parts: Iterable[Part]) -> list[TableResult]:
        """Make one commit for each divided table, of all its parts; return the results of these commits.

        If the parts of a table cannot be committed, their new data files are removed, and the table has no
        result.

        Args:
            divided: The tables whose changes are divided into parts, by relation OID.
            parts: The parts of the tables, written by the executors.
        """
        by_table = {oid: list(found) for oid, found in groupby(sorted(parts, key=_oid), _oid)}

        def plan(oid: int) -> list[Rewrite] | None:
            try:
                return plan_rewrites(oid, divided[oid], by_table[oid])
            except (PartsError, ReplicaError):
                return None

        plans = dict(zip(by_table, _map_concurrently(plan, by_table), strict=True))
        rewritten = self._rewrite([one for rewrites in plans.values() for one in rewrites or ()])

        def commit(oid: int) -> TableResult | None:
            new = [one for one in rewritten if one.oid == oid]
            rewrites = plans[oid]
            if rewrites is not None:
                try:
                    return commit_parts(divided[oid], by_table[oid], rewrites, new)
                except (PartsError, ReplicaError):
                    pass  # another program has changed the table
            unused = chain(*(part.added for part in by_table[oid]), *(one.added for one in new))
            discard_files(divided[oid], unused)
            return None

        return [one for one in _map_concurrently(commit, by_table) if one is not None]

    def _rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        """Write the remaining rows of data files to new data files, in the executors.

        Args:
            rewrites: The data files to replace, and the rows to leave out. Each element is one task.

        Returns:
            The new data files, for each element of `rewrites`.
        """
        if not rewrites:
            return []
        tasks = self._session.range(0, len(rewrites), 1, len(rewrites))
        return _collect(tasks.mapInArrow(partial(_rewrite_partition, rewrites), _ROWS_DDL))

    def _learn(
        self, results: Iterable[TableResult], committed: Iterable[TableResult], left: Iterable[int]
    ) -> None:
        """Decide which relations' changes are divided into parts in the next micro-batch.

        Args:
            results: The results of all tables that this micro-batch has changed, also those of `committed`.
            committed: The results of the tables whose parts were committed.
            left: OIDs of the relations whose changes were divided, but could not be committed in parts.
        """
        counts = {one.oid: sum(one.changes.values()) for one in results}
        self._parts = {oid: -(-count // MAX_ROWS) for oid, count in counts.items() if count > MAX_ROWS}
        for one in committed:
            self._pauses.pop(one.oid, None)
        for oid in left:  # pause twice as long as the last time
            length = min(2 * self._pauses.get(oid, (0, 0))[0] or 1, _MAX_PAUSE)
            self._pauses[oid] = length, self._batches + length


class _Outcome(msgspec.Struct, frozen=True):
    """The result of a task for a relation: of all its changes (`result`), or of one part of them (`part`)."""

    result: TableResult | None = None
    part: Part | None = None


def _read_partition(
    batch: MicroBatch, groups: Sequence[Any], parts: Mapping[int, int], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read segments in an executor; yield their changes as rows of `_PARTS`.

    Args:
        batch: The micro-batch.
        groups: By number of a Spark partition, the tasks that it has to execute. Each task names a segment.
        parts: For relations that are divided, the number of parts, by OID.
        rows: Rows whose column `id` has the number of a Spark partition, which is read here.
    """
    for task in chain.from_iterable(groups[number.as_py()] for row in rows for number in row["id"]):
        with SegmentReader(task.place) as segment:
            for changes in read_changes(segment, task, batch.is_wanted):
                yield _packed(changes, parts)


def _packed(changes: RelationChanges, parts: Mapping[int, int]) -> pa.RecordBatch:
    """Return changes as rows of `_PARTS`: one row, or one for each part if the relation is divided."""
    oid = changes.relation.oid
    divided = split_by_key(changes, parts[oid]) if oid in parts else [(0, changes)]
    rows = [{"oid": oid, "part": number, "data": pack_changes(one)} for number, one in divided]
    return pa.RecordBatch.from_pylist(rows, _PARTS)


def _apply_partition(
    batch: MicroBatch, divided: Mapping[int, TableVersion], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply the changes of a Spark partition in an executor; yield a pickled `_Outcome` per relation."""
    with SortedChanges() as changes:
        for packed in rows:
            for data in packed["data"]:
                changes.append(unpack_changes(data.as_py()))
        for oid in sorted(changes.counts):
            read = partial(changes.sorted, oid)
            if oid in divided:
                if (part := fold_part(read(), divided[oid])) is not None:
                    yield _pickled(_Outcome(part=part))
            elif (result := batch.apply(oid, read)) is not None:
                yield _pickled(_Outcome(result=result))


def _rewrite_partition(
    rewrites: Sequence[Rewrite], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for row in rows:
        for number in row["id"]:
            yield _pickled(rewrite_files(rewrites[number.as_py()]))


def _map_concurrently(function: Callable[[int], R], oids: Collection[int]) -> list[R]:
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        return list(pool.map(function, oids))


def _oid(one: TableResult | Part) -> int:
    return one.oid


def _pickled(value: msgspec.Struct) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], schema=_ROWS)


def _collect(rows: DataFrame) -> list[Any]:
    """Run a query whose rows each have a pickled object; return the objects."""
    return [pickle.loads(bytes(row["value"])) for row in rows.collect()]
