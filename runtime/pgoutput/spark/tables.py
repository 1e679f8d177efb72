"""Apply micro-batches to Delta tables in Spark's executors; no row passes through the driver.

Changes move between Spark's stages as rows of the view `batches`, because few large rows take less time than
many small ones. Each relation's changes are in one Spark partition, whose task sorts them, and applies them,
in order, to the Delta table. If a relation has many changes, they are divided by key instead. The tasks of
several partitions then write new data files, and the driver makes one commit of these files for each table
(`pgoutput.apply.parts`).

The number of changes is only known after a micro-batch. Therefore the number in the previous micro-batch
decides whether a relation's changes are divided. Changes that cannot be divided are applied by one task.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sf

from pgoutput._pauses import Pauses
from pgoutput.apply import (
    MAX_ROWS,
    Part,
    PartsError,
    Rewrite,
    Rewritten,
    SortedChanges,
    TableResult,
    TableVersion,
    apply_changes,
    commit_parts,
    discard_files,
    find_version,
    fold_part,
    plan_rewrites,
    rewrite_files,
)
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, Recording, locate
from pgoutput.replica import (
    Dropped,
    Owner,
    Positions,
    Registration,
    Report,
    Selection,
    Updates,
    apply_remarks,
    catch_up,
    log_batch,
    mark_foreign_changes,
    removed_relations,
    retry_pauses,
)
from pgoutput.spark.checkpoint import Batch
from pgoutput.targets import NOTHING, Position
from pgoutput.views import (
    BATCHES,
    CHANGES,
    RelationChanges,
    from_rows,
    pack_changes,
    split_by_key,
    unpack_changes,
)

_ROWS: Final = pa.schema([("value", pa.binary())])
"""Arrow schema of rows that each contain one value as MessagePack."""
_ROWS_DDL: Final = "value binary"

_MAX_PAUSE: Final = 64
"""Maximum number of micro-batches before a failed attempt to divide a relation's changes is repeated."""

_CONCURRENT: Final = 8
"""Maximum number of Delta tables that the driver opens, or commits to, at the same time."""

_PARTS: Final = pa.schema([*BATCHES, pa.field("part", pa.int64())])
"""Columns of the view `batches`, and the number of the part to which the changes belong (0 if undivided)."""
_PARTS_DDL: Final = "oid bigint, data binary, part bigint"

R = TypeVar("R")


class TablesWriter:
    """A callable that applies micro-batches to the Delta tables of a target.

    Args:
        target: The folder that holds the replica.
        history: Whether to keep all versions of rows (SCD type 2).
        updates: How commits remove rows from now on, as in `pgoutput.replica.replicate`.
        report: Called after each micro-batch with the number of its last segment, or its own number without a
            recording, and one result for each changed table.
        dropped: What happens to the tables of relations that were dropped on the server.
        is_filtered: Whether the rows are of the view `changes`, which may be filtered.
    """

    def __init__(
        self,
        target: str,
        *,
        history: bool,
        updates: Updates | None,
        report: Report | None,
        dropped: Dropped,
        is_filtered: bool,
    ) -> None:
        self._target = target
        self._history = history
        self._updates = updates
        self._report = report
        self._dropped: Dropped = dropped
        self._is_filtered = is_filtered
        self._retry_pauses = retry_pauses()
        self._recorded: _Recorded | None = None
        self._parts: dict[int, int] = {}
        """Number of parts in the next micro-batch, by OID of each relation that has several."""
        self._pauses: dict[int, tuple[int, int]] = {}
        """By relation OID, for how many micro-batches changes are not divided, and the last one's number."""

    def __call__(self, rows: DataFrame, batch: Batch, owner: Owner) -> None:
        """Apply a micro-batch, and what the recorder has noticed about tables in its segments."""
        if not batch.recording:
            results = self._apply(rows, batch, {}, frozenset())
            if errors := [one.error for one in results if one.error]:  # the changes cannot be read again
                raise ReplicaError(errors[0])
            self._finish(batch, results)
            return
        if not batch.segments:
            return
        recorded = self._prepare(batch, owner)
        positions, oids = recorded.positions, recorded.oids
        if oids is not None:
            rows = rows.filter(sf.col("oid" if "data" in rows.columns else "relation.oid").isin(sorted(oids)))
        left_out = positions.errors.keys() | positions.gaps
        results = self._apply(rows, batch, positions.positions, left_out)
        recording, segments = recorded.recording, batch.segments
        if removed := removed_relations(recording, segments, self._dropped):
            positions.forget(removed, segments[-1])
        remarks = list(apply_remarks(recording, locate(self._target), segments, self._dropped))
        positions.advance(segments[-1], [one for one in results if one.oid not in removed])
        results += remarks
        self._finish(batch, results)

    def _prepare(self, batch: Batch, owner: Owner) -> _Recorded:
        """Return the positions of the tables, after changes before the micro-batch were applied to them."""
        if self._recorded is None:
            self._recorded = _Recorded(batch.path, locate(self._target), owner, self._retry_pauses)
            foreign = sorted(self._recorded.positions.foreign)
            if marked := list(mark_foreign_changes(locate(self._target), foreign)):
                self._finish(batch, marked)
        before = batch.segments[0] - 1
        if self._recorded.next_segment(batch) > before:
            return self._recorded
        if self._is_filtered:
            raise ReplicaError(
                f"{self._target}: some tables lack changes before segment {before + 1}, which cannot be "
                "applied from the view changes, because a query can filter it: replicate the view batches, "
                "or begin anew with a new target and checkpoint"
            )
        results = catch_up(batch.path, self._target, before, updates=self._updates, dropped=self._dropped)
        self._finish(batch, results)
        self._recorded = _Recorded(batch.path, locate(self._target), owner, self._retry_pauses)
        self._recorded.positions.set_errors(before)
        self._recorded.next_segment(batch)
        self._finish(batch, self._recorded.positions.new_errors())
        return self._recorded

    def _apply(
        self,
        rows: DataFrame,
        batch: Batch,
        known: Mapping[int, Position],
        from_snapshot: Collection[int],
    ) -> list[TableResult]:
        """Apply the changes of a micro-batch; return the results of the changed tables."""
        session = rows.sparkSession
        divided = self._find_divided(batch, known, from_snapshot)
        plan = _Plan(
            self._target,
            self._history,
            self._updates,
            batch.recording,
            known,
            frozenset(from_snapshot),
            divided,
        )
        outcomes = _run(rows, plan, {oid: self._parts[oid] for oid in plan.divided})
        parts = [one.part for one in outcomes if one.part is not None]
        committed = _commit(session, plan.divided, parts)
        if left := {part.oid for part in parts} - {one.oid for one in committed}:
            outcomes += _run(rows, msgspec.structs.replace(plan, divided={}), {}, left)
        results = committed + [one.result for one in outcomes if one.result is not None]
        self._learn(results, committed, left, batch)
        return sorted(results, key=_oid)

    def _finish(self, batch: Batch, results: Sequence[TableResult]) -> None:
        number = batch.segments[-1] if batch.segments else batch.number
        log_batch(number, results)
        if self._report is not None:
            self._report(number, results)

    def _find_divided(
        self, batch: Batch, known: Mapping[int, Position], left_out: Container[int]
    ) -> dict[int, TableVersion]:
        """Return the tables whose changes of this micro-batch are divided into parts, by relation OID."""
        oids = [
            oid
            for oid in self._parts
            if oid not in left_out and batch.number > self._pauses.get(oid, (0, -1))[1]
        ]

        def find(oid: int) -> TableVersion | None:
            try:
                position = known.get(oid, NOTHING)
                return find_version(locate(self._target), oid, batch.recording, position, self._updates)
            except ReplicaError:
                return None  # not raised here: applying the changes undivided raises the error again

        found = zip(oids, _map_concurrently(find, oids), strict=True)
        return {oid: version for oid, version in found if version is not None}

    def _learn(
        self,
        results: Iterable[TableResult],
        committed: Iterable[TableResult],
        left: Iterable[int],
        batch: Batch,
    ) -> None:
        """Decide from the results of a micro-batch whose changes are divided in the next one.

        Args:
            results: The results of all changed tables.
            committed: The results of the tables whose parts were committed.
            left: OIDs of the relations whose changes were divided, but could not be committed in parts.
            batch: The micro-batch.
        """
        counts = {one.oid: sum(one.changes.values()) for one in results}
        self._parts = {oid: -(-count // MAX_ROWS) for oid, count in counts.items() if count > MAX_ROWS}
        for one in committed:
            self._pauses.pop(one.oid, None)
        for oid in left:  # pause twice as long as the last time
            length = min(2 * self._pauses.get(oid, (0, 0))[0] or 1, _MAX_PAUSE)
            self._pauses[oid] = length, batch.number + length


class _Recorded:
    """The recording of a query, and the positions of the tables that follow it.

    Attributes:
        recording: The recording.
        positions: The positions of the tables.
    """

    def __init__(self, place: str, target: Location, owner: Owner, pauses: Pauses) -> None:
        self.recording: Recording = Recording(place)
        self.positions: Positions = Positions(self.recording, target, pauses)
        self._selection = Selection(self.recording, target)
        self._registration = Registration(self.recording, target, owner)

    @property
    def oids(self) -> Collection[int] | None:
        """OIDs of the relations that the target follows; None for all relations."""
        return self._selection.oids()

    def next_segment(self, batch: Batch) -> int:
        """Return the first segment with changes that a table without an error may lack.

        Until Spark has committed the micro-batch, its segments are needed too: `pgoutput prune` keeps them.
        """
        self.recording.refresh()  # Spark has found the segments by another listing
        selected = self._selection.first_segments(batch.segments[-1])
        if selected is not None:
            self.positions.add(selected)
        self.positions.retry()
        first = self.positions.next_segment()
        self._registration.update(min(self.positions.least_segment, batch.segments[0] - 1))
        return first


class _Plan(msgspec.Struct, frozen=True):
    """Settings with which executors apply the changes of a micro-batch."""

    target: str
    history: bool
    updates: Updates | None
    recording: str
    """UUID of the recording; empty if the changes do not come from a recording."""
    known: Mapping[int, Position]
    """Positions that the tables have reached, by relation OID."""
    from_snapshot: frozenset[int]
    """OIDs of the relations whose changes are skipped before the first snapshot that replaces all rows."""
    divided: Mapping[int, TableVersion]
    """The tables whose changes are divided into parts, by relation OID."""


class _Outcome(msgspec.Struct, frozen=True):
    """What a task has done for a relation: applied all changes (`result`), or one part of them (`part`)."""

    result: TableResult | None = None
    part: Part | None = None


def _run(
    rows: DataFrame, plan: _Plan, parts: Mapping[int, int], oids: Collection[int] = ()
) -> list[_Outcome]:
    """Apply changes in the executors, or write the data files of parts; return what each task has done.

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
    return _collect(batches.select("data").mapInArrow(partial(_apply_partition, plan), _ROWS_DDL))


def _pack_partition(parts: Mapping[int, int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of the view `changes` as rows of the view `batches`, divided into parts."""
    for batch in batches:
        columns = [batch[field.name].cast(field.type) for field in CHANGES]
        for changes in from_rows(pa.RecordBatch.from_arrays(columns, schema=CHANGES)):
            yield _parts(changes, parts)


def _divide_partition(
    parts: Mapping[int, int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Divide rows of the view `batches` into parts."""
    for batch in batches:
        for oid, data in zip(batch["oid"].to_pylist(), batch["data"], strict=True):
            if oid in parts:
                yield _parts(unpack_changes(data.as_py()), parts)
            else:
                yield _packed(oid, [data], [0])


def _parts(changes: RelationChanges, parts: Mapping[int, int]) -> pa.RecordBatch:
    """Return changes as rows of `_PARTS`, divided if `parts` contains their relation."""
    oid = changes.relation.oid
    if oid not in parts:
        return _packed(oid, [pack_changes(changes)], [0])
    numbers, divided = zip(*split_by_key(changes, parts[oid]), strict=True)
    return _packed(oid, list(map(pack_changes, divided)), list(numbers))


def _packed(oid: int, data: list[Any], numbers: list[int]) -> pa.RecordBatch:
    columns = [oid] * len(numbers), data, numbers
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _PARTS, strict=True)]
    return pa.record_batch(arrays, schema=_PARTS)


def _apply_partition(plan: _Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply the changes of a Spark partition in an executor; yield an encoded `_Outcome` per relation."""
    target = locate(plan.target)
    with SortedChanges() as changes:
        for batch in batches:
            for data in batch["data"]:
                changes.append(unpack_changes(data.as_py()))
        for oid in sorted(changes.counts):
            read = partial(changes.sorted, oid)
            if oid in plan.divided:
                if (part := fold_part(read(), plan.divided[oid])) is not None:
                    yield _encode(_Outcome(part=part))
                continue
            result = apply_changes(
                read,
                target,
                oid,
                plan.recording,
                history=plan.history,
                updates=plan.updates,
                known=plan.known.get(oid, NOTHING),
                from_snapshot=oid in plan.from_snapshot,
            )
            if result is not None and not result.is_empty:
                yield _encode(_Outcome(result=result))


def _commit(
    session: SparkSession, divided: Mapping[int, TableVersion], parts: Iterable[Part]
) -> list[TableResult]:
    """Commit all parts of each table at once; return the results of the tables for which that succeeded."""
    by_table = {oid: list(found) for oid, found in groupby(sorted(parts, key=_oid), _oid)}

    def plan(oid: int) -> list[Rewrite] | None:
        try:
            return plan_rewrites(oid, divided[oid], by_table[oid])
        except (PartsError, ReplicaError):
            return None

    plans = dict(zip(by_table, _map_concurrently(plan, by_table), strict=True))
    rewritten = _rewrite(session, [one for rewrites in plans.values() for one in rewrites or ()])

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


def _rewrite(session: SparkSession, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
    """Write the remaining rows of data files in the executors, each rewrite in a task of its own."""
    if not rewrites:
        return []
    rows = [(number, pickle.dumps(one)) for number, one in enumerate(rewrites)]
    tasks = session.createDataFrame(rows, "number int, value binary").repartitionById(len(rows), "number")
    return _collect(tasks.select("value").mapInArrow(_rewrite_partition, _ROWS_DDL))


def _rewrite_partition(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for value in batch["value"]:
            yield _encode(rewrite_files(pickle.loads(value.as_py())))


def _map_concurrently(function: Callable[[int], R], oids: Iterable[int]) -> list[R]:
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        return list(pool.map(function, oids))


def _oid(one: TableResult | Part) -> int:
    return one.oid


def _encode(value: msgspec.Struct) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], schema=_ROWS)


def _collect(rows: DataFrame) -> list[Any]:
    """Run a query; return the object in each row, which a task has pickled as Spark pickles its closures."""
    return [pickle.loads(bytes(row["value"])) for row in rows.collect()]
