"""Apply micro-batches to Delta tables in Spark's executors; no row passes through the driver.

Changes move between Spark's stages as rows of the view `batches`, because few large rows take less time than
many small ones. Each relation's changes are in one Spark partition, whose task sorts them, and applies them,
in order, to the Delta table. If a relation has many changes, they are divided by key instead. The tasks of
several partitions then fold them into new data files, and the driver makes one commit of these files for each
table (`pgoutput.replica.parts`).

The number of changes is only known at the end, so it is that of the previous micro-batch which decides
whether a relation's changes are divided. Changes that turn out not to be divisible are applied by one task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession, functions as sf

from pgoutput.errors import ReplicaError
from pgoutput.recording import Recording, locate
from pgoutput.replica import (
    MAX_ROWS,
    Chunk,
    Dropped,
    FailedTable,
    Part,
    PartsError,
    Report,
    Rewrite,
    Rewritten,
    SortedChanges,
    TableResult,
    TableVersion,
    apply_remarks,
    apply_repeatedly,
    commit_parts,
    discard_files,
    find_version,
    fold_part,
    log_batch,
    pack_changes,
    plan_rewrites,
    read_failed_tables,
    record_failure,
    rewrite_files,
    split_by_key,
    split_by_relation,
    split_changes,
    unpack_changes,
)
from pgoutput.spark.checkpoint import Batch
from pgoutput.views import BATCHES, CHANGES

_ROWS: Final = pa.schema([("value", pa.binary())])
"""Arrow schema of rows that each contain one value as MessagePack."""
_ROWS_DDL: Final = "value binary"

_MAX_PAUSE: Final = 64
"""Maximum number of micro-batches in which a relation is not divided after it could not be."""

_CONCURRENT: Final = 8
"""Maximum number of Delta tables that the driver opens, or commits to, at the same time."""

_PARTS: Final = pa.schema([*BATCHES, pa.field("part", pa.int64())])
"""Rows of the view `batches`, with the number of the part of the relation's changes."""
_PARTS_DDL: Final = "oid bigint, data binary, part bigint"

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")


class TablesWriter:
    """A function that applies micro-batches to the Delta tables of a target.

    Args:
        target: The folder that holds the replica.
        history: Whether to keep all versions of rows (SCD type 2).
        report: Called after each micro-batch with its number, and one result for each changed table.
        dropped: What happens to the tables of relations that were dropped on the server.
    """

    def __init__(
        self,
        target: str,
        *,
        history: bool,
        report: Report | None,
        dropped: Dropped,
    ) -> None:
        self._target = target
        self._history = history
        self._report = report
        self._dropped: Dropped = dropped
        self._parts: dict[int, int] = {}
        """Number of parts in the next micro-batch, by OID of each relation that has several."""
        self._pauses: dict[int, tuple[int, int]] = {}
        """Number of micro-batches, and number of the last one, in which a relation is not divided, by OID."""

    def __call__(self, rows: DataFrame, batch: Batch, recording: Recording | None) -> None:
        """Apply a micro-batch, and what its recording says about tables, unless the recording is None."""
        session = rows.sparkSession
        errors = {oid: table.error for oid, table in read_failed_tables(locate(self._target)).items()}
        plan = _Plan(self._target, self._history, batch, errors, self._find_divided(batch, errors))
        outcomes = _run(rows, plan, {oid: self._parts[oid] for oid in plan.divided})
        parts = [one.part for one in outcomes if one.part is not None]
        committed = _commit(session, plan.divided, parts, batch)
        if left := {part.oid for part in parts} - {one.oid for one in committed}:
            outcomes += _run(rows, msgspec.structs.replace(plan, divided={}), {}, left)
        results = committed + [one.result for one in outcomes if one.result is not None]
        self._learn(results, committed, left, batch)
        failed = [result for result in results if result.error]
        if failed and not batch.owner.recording:  # the changes cannot be read again for a retry
            raise ReplicaError(failed[0].error)
        missed = batch.as_missed(session) if failed or recording is not None else None
        for one in failed:
            table = FailedTable(one.oid, one.namespace, one.name, one.error)
            record_failure(locate(self._target), table, missed)
        results = sorted(results, key=_oid)
        if recording is not None and missed is not None:
            numbers = range(missed.first_segment, missed.last_segment + 1)
            if numbers:
                results += apply_remarks(recording, locate(self._target), numbers, self._dropped)
        log_batch(batch.number, results)
        if self._report is not None:
            self._report(batch.number, results)

    def _find_divided(self, batch: Batch, errors: Container[int]) -> dict[int, TableVersion]:
        """Return the tables whose changes are to be divided, by relation OID."""
        oids = [
            oid
            for oid in self._parts
            if oid not in errors and batch.number > self._pauses.get(oid, (0, -1))[1]
        ]
        owner = batch.owner

        def find(oid: int) -> TableVersion | None:
            try:
                return find_version(locate(self._target), oid, owner.query, batch.number, owner.recording)
            except (ReplicaError, DeltaError, OSError):
                return None  # the error occurs again when the changes are applied

        found = zip(oids, _map_concurrently(find, oids), strict=True)
        return {oid: version for oid, version in found if version is not None}

    def _learn(
        self,
        results: Iterable[TableResult],
        committed: Iterable[TableResult],
        left: Iterable[int],
        batch: Batch,
    ) -> None:
        """Derive from the results of a micro-batch how the next one is divided."""
        counts = {one.oid: sum(one.changes.values()) for one in results}
        self._parts = {oid: -(-count // MAX_ROWS) for oid, count in counts.items() if count > MAX_ROWS}
        for one in committed:
            self._pauses.pop(one.oid, None)
        for oid in left:  # pause twice as long as the last time
            length = min(2 * self._pauses.get(oid, (0, 0))[0] or 1, _MAX_PAUSE)
            self._pauses[oid] = length, batch.number + length


class _Plan(msgspec.Struct, frozen=True):
    """How the executors apply the changes of a micro-batch."""

    target: str
    history: bool
    batch: Batch
    errors: Mapping[int, str]
    """Errors of the failed tables, by relation OID."""
    divided: Mapping[int, TableVersion]
    """The tables whose changes are divided, by relation OID."""


class _Outcome(msgspec.Struct, frozen=True):
    """What a task has done with the changes of a relation: applied all of them, or folded one part."""

    result: TableResult | None = None
    part: Part | None = None


def _run(
    rows: DataFrame, plan: _Plan, parts: Mapping[int, int], oids: Collection[int] = ()
) -> list[_Outcome]:
    """Apply or fold changes in the executors.

    Args:
        rows: Rows of the view `changes` or `batches`.
        plan: How the changes are applied.
        parts: For relations that are divided, the number of parts, by OID.
        oids: OIDs of the relations; all relations if empty.
    """
    # An explicit number of partitions keeps adaptive query execution from coalescing them.
    count = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    limited = {oid: min(number, count) for oid, number in parts.items()}
    if "data" not in rows.columns:
        batches = rows.select(*CHANGES.names).mapInArrow(partial(_pack_partition, limited), _PARTS_DDL)
    elif limited:
        batches = rows.select(*BATCHES.names).mapInArrow(partial(_divide_partition, limited), _PARTS_DDL)
    else:
        batches = rows.select(*BATCHES.names, sf.lit(0).alias("part"))
    if oids:
        batches = batches.filter(sf.col("oid").isin(*oids))
    number = sf.pmod(sf.hash("oid"), sf.lit(count)) + sf.col("part")
    batches = batches.repartitionById(count, number.cast("int"))
    return _decode(batches.select("data").mapInArrow(partial(_apply_partition, plan), _ROWS_DDL), _Outcome)


def _pack_partition(parts: Mapping[int, int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of the view `changes` as rows of the view `batches`, divided into parts."""
    for batch in batches:
        columns = [batch[field.name].cast(field.type) for field in CHANGES]
        for oid, rows in split_by_relation(pa.RecordBatch.from_arrays(columns, schema=CHANGES)):
            yield _parts(oid, rows, parts)


def _divide_partition(
    parts: Mapping[int, int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Divide rows of the view `batches` into parts."""
    for batch in batches:
        for oid, data in zip(batch["oid"].to_pylist(), batch["data"], strict=True):
            if oid in parts:
                yield _parts(oid, unpack_changes(data.as_py()), parts)
            else:
                yield _packed(oid, [data], [0])


def _parts(oid: int, changes: pa.RecordBatch, parts: Mapping[int, int]) -> pa.RecordBatch:
    """Return changes of one relation as rows of `_PARTS`."""
    if oid not in parts:
        return _packed(oid, [pack_changes(changes)], [0])
    numbers, divided = zip(*split_by_key(changes, parts[oid]), strict=True)
    return _packed(oid, list(map(pack_changes, divided)), list(numbers))


def _packed(oid: int, data: list[Any], numbers: list[int]) -> pa.RecordBatch:
    columns = [oid] * len(numbers), data, numbers
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _PARTS, strict=True)]
    return pa.record_batch(arrays, schema=_PARTS)


def _apply_partition(plan: _Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply or fold the changes of a Spark partition in an executor; yield one outcome for each relation."""
    target, owner = locate(plan.target), plan.batch.owner
    with SortedChanges() as changes:
        for batch in batches:
            for data in batch["data"]:
                changes.append(unpack_changes(data.as_py()))
        for oid in sorted(changes.counts):
            read = partial(_chunks, changes, oid)
            if oid in plan.divided:
                yield _encode(_Outcome(part=fold_part(read(), plan.divided[oid])))
                continue
            result = apply_repeatedly(
                read,
                target,
                owner.query,
                plan.batch.number,
                owner.recording,
                history=plan.history,
                error=plan.errors.get(oid, ""),
            )
            if not result.is_empty:
                yield _encode(_Outcome(result=result))


def _chunks(changes: SortedChanges, oid: int) -> Iterator[Chunk]:
    return split_changes(changes.sorted(oid))


def _commit(
    session: SparkSession, divided: Mapping[int, TableVersion], parts: Iterable[Part], batch: Batch
) -> list[TableResult]:
    """Commit the parts of each table at once; return the results, without tables that have to be applied."""
    by_table = {oid: list(found) for oid, found in groupby(sorted(parts, key=_oid), _oid)}

    def plan(oid: int) -> list[Rewrite] | None:
        try:
            return plan_rewrites(oid, divided[oid], by_table[oid])
        except (PartsError, ReplicaError, DeltaError, OSError):
            return None

    plans = dict(zip(by_table, _map_concurrently(plan, by_table), strict=True))
    rewritten = _rewrite(session, [one for rewrites in plans.values() for one in rewrites or ()])

    def commit(oid: int) -> TableResult | None:
        new = [one for one in rewritten if one.oid == oid]
        rewrites = plans[oid]
        if rewrites is not None:
            try:
                query, number = batch.owner.query, batch.number
                return commit_parts(divided[oid], by_table[oid], rewrites, new, query, number)
            except (PartsError, DeltaError, OSError):
                pass  # another program has changed the table
        unused = chain(*(part.added for part in by_table[oid]), *(one.added for one in new))
        discard_files(divided[oid], unused)
        return None

    return [one for one in _map_concurrently(commit, by_table) if one is not None]


def _rewrite(session: SparkSession, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
    """Write the remaining rows of data files in the executors, each rewrite in a task of its own."""
    if not rewrites:
        return []
    rows = [(number, msgspec.msgpack.encode(one)) for number, one in enumerate(rewrites)]
    tasks = session.createDataFrame(rows, "number int, value binary").repartitionById(len(rows), "number")
    return _decode(tasks.select("value").mapInArrow(_rewrite_partition, _ROWS_DDL), Rewritten)


def _rewrite_partition(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for value in batch["value"]:
            yield _encode(rewrite_files(msgspec.msgpack.decode(value.as_py(), type=Rewrite)))


def _map_concurrently(function: Callable[[int], R], oids: Iterable[int]) -> list[R]:
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        return list(pool.map(function, oids))


def _oid(one: TableResult | Part) -> int:
    return one.oid


def _encode(value: msgspec.Struct) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(value)], pa.binary())], schema=_ROWS)


def _decode(rows: DataFrame, type_: type[T]) -> list[T]:
    """Run a query; return the value in each row."""
    return [msgspec.msgpack.decode(bytes(row["value"]), type=type_) for row in rows.collect()]
