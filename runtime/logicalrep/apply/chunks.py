"""Split changes into chunks, and group the chunks by commit of the Delta table.

A commit may apply several chunks. The chunks of a transaction that replaces a table's rows are one commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import Numbers, value_offsets
from logicalrep.targets import ChangeRange, Position
from logicalrep.views import ChangedRelation, Column, RelationChanges

MAX_ROWS: Final = 100_000
"""Default maximum number of changes in a chunk."""
MAX_BYTES: Final = 64 << 20
"""Default maximum size of a chunk's values, in bytes of text. A larger change is a chunk of its own."""


Transaction: TypeAlias = tuple[int, int]
"""A transaction: its commit LSN and xid. The xid of a snapshot is 0."""


class Chunk(msgspec.Struct, frozen=True):
    """Successive changes of one relation, during which its columns and its replica identity stay the same.

    A truncate is always the first change of its chunk. An ALTER TABLE is a chunk of its own.
    """

    relation: ChangedRelation
    changes: pa.Table
    """The changes, as rows of `RelationChanges`."""
    replaced_by: Transaction | None = None
    """The transaction of the changes if it truncates the relation, in this chunk or before; else None."""

    @property
    def oid(self) -> int:
        """OID of the relation."""
        return self.relation.oid

    @property
    def namespace(self) -> str:
        """Namespace of the relation."""
        return self.relation.namespace

    @property
    def name(self) -> str:
        """Name of the relation."""
        return self.relation.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the relation."""
        return self.relation.columns

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the columns of the relation's replica identity."""
        return self.relation.keys

    @property
    def range(self) -> ChangeRange:
        """First commit LSN, last position and last known commit time of the changes."""
        last = Position(**self.changes["sequence"][-1].as_py())
        times = self.changes["commit_time"].drop_null()
        first_lsn = self.changes["commit_lsn"][0].as_py()
        return ChangeRange(first_lsn, last, times[-1].value if len(times) else None)

    @property
    def counts(self) -> Counter[str]:
        """Number of changes by operation; an ALTER TABLE does not count."""
        operations = [] if self.is_alteration else pc.value_counts(self.changes["operation"]).to_pylist()
        return Counter({one["values"]: one["counts"] for one in operations})

    @property
    def is_alteration(self) -> bool:
        """Whether the chunk is an ALTER TABLE; all other chunks are changes of rows or truncates."""
        return self.relation.alteration is not None

    @property
    def truncates(self) -> bool:
        """Whether the chunk begins with a truncate."""
        return bool(self.changes["operation"][0].as_py() == "Truncate")

    @property
    def is_snapshot(self) -> bool:
        """Whether the first change belongs to a snapshot."""
        return bool(self.changes["xid"][0].as_py() == 0)

    @property
    def is_copied(self) -> bool:
        """Whether all changes are rows of a snapshot; a truncate may come first."""
        operations = self.changes["operation"].slice(1 if self.truncates else 0)
        return bool(pc.all(pc.equal(operations, "Snapshot"), min_count=0).as_py())


def is_after(changes: pa.RecordBatch, position: Position) -> pa.BooleanArray:
    """Return for each of `changes` (rows of `RelationChanges`) whether the change is after a position."""
    is_later, is_equal = pa.scalar(False), pa.scalar(True)
    for numbers, number in zip(changes["sequence"].flatten(), position, strict=True):
        is_later = pc.or_(is_later, pc.and_(is_equal, pc.greater(numbers, number)))
        is_equal = pc.and_(is_equal, pc.equal(numbers, number))
    return is_later


def group_chunks(chunks: Iterable[Chunk], *, history: bool) -> Iterator[Iterator[Chunk]]:
    """Group the chunks of a relation that must be one commit; yield each group's chunks.

    A truncate and the later chunks of its transaction are one commit, so that no reader of the Delta table
    sees only a part of the rows. With history, this applies only to a snapshot: its truncate and its rows
    are one commit. Every other chunk is a group of its own. The caller has to read a group to its end before
    it takes the next group.
    """
    number = 0
    replaced_by: Transaction | None = None

    def number_commit(chunk: Chunk) -> int:
        nonlocal number, replaced_by
        if chunk.replaced_by is None or chunk.replaced_by != replaced_by:
            number += 1
        replaced_by = chunk.replaced_by if chunk.is_snapshot or not history else None
        return number

    return (group for _, group in groupby(chunks, number_commit))


def split_changes(
    changes: Iterable[RelationChanges], max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[Chunk]:
    """Split changes of one relation into chunks.

    A chunk ends

    - before a change with other columns or another replica identity,
    - before a truncate, and at the end of the truncate's transaction,
    - before and after an ALTER TABLE,
    - where it has its maximum size.

    Args:
        changes: The changes, sorted by `sequence`.
        max_rows: Maximum number of changes in a chunk.
        max_bytes: Maximum size of a chunk's values, in bytes of text.
    """
    last_kind: _Kind | None = None
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for kind, begins, run in _split_runs(changes):
        if last_kind is not None and parts and (begins or kind != last_kind):
            yield _make_chunk(parts, last_kind)
            parts, rows, size = [], 0, 0
        last_kind = kind
        ends = np.cumsum(_text_sizes(run))
        first = 0
        while True:
            before = ends[first - 1] if first else 0
            fitting = np.searchsorted(ends, before + max_bytes - size, side="right")
            end = min(first + max_rows - rows, max(int(fitting), first if rows else first + 1))
            if end >= len(ends):
                break
            yield _make_chunk([*parts, run.slice(first, end - first)], kind)
            parts, rows, size, first = [], 0, 0, end
        rows += len(ends) - first
        size += int(ends[-1] - before)
        parts.append(run.slice(first))
    if last_kind is not None and parts:
        yield _make_chunk(parts, last_kind)


class _Kind(NamedTuple):
    """Properties that all changes of a chunk share."""

    relation: ChangedRelation
    replaced_by: Transaction | None
    """As in `Chunk`."""


def _split_runs(changes: Iterable[RelationChanges]) -> Iterator[tuple[_Kind, bool, pa.RecordBatch]]:
    """Split changes into runs: a run ends wherever a chunk has to end for another reason than its size.

    Yields:
        The kind of the run; whether the run begins with a truncate or is an ALTER TABLE; and its changes.
    """
    truncated_by = np.full(2, -1, np.int64)  # commit LSN and xid of the latest TRUNCATE
    for relation, rows in changes:
        if not rows.num_rows:
            continue
        if relation.alteration is not None:
            truncated_by = np.full(2, -1, np.int64)
            yield _Kind(relation, None), True, rows
            continue
        is_truncate = np.asarray(pc.equal(rows["operation"], "Truncate"))
        if truncated_by[0] < 0 and not is_truncate.any():
            yield _Kind(relation, None), False, rows
            continue
        origins = np.column_stack([np.asarray(rows[name], np.int64) for name in ("commit_lsn", "xid")])
        # Index -1 gives the last item of `vstack`: the latest truncate of earlier batches.
        latest = np.maximum.accumulate(np.where(is_truncate, np.arange(len(is_truncate)), -1))
        truncates = np.vstack([origins, truncated_by])[latest]
        truncated_by = truncates[-1]
        is_replaced = (truncates == origins).all(axis=1)
        begins = is_truncate.copy()
        begins[0] = True
        begins[1:] |= is_replaced[1:] != is_replaced[:-1]
        for first, end in pairwise([*np.flatnonzero(begins).tolist(), rows.num_rows]):
            commit_lsn, xid = origins[first].tolist()
            kind = _Kind(relation, (commit_lsn, xid) if is_replaced[first] else None)
            yield kind, bool(is_truncate[first]), rows.slice(first, end - first)


def _text_sizes(rows: pa.RecordBatch) -> Numbers:
    """Return for each change the total size of its old and new values, in bytes of text."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("old", "new"):
        tuples = rows[name]  # the texts of a NULL tuple have no bytes
        for column in range(tuples.type.num_fields):
            sizes += np.diff(value_offsets(tuples.field(column)))
    return sizes


def _make_chunk(parts: list[pa.RecordBatch], kind: _Kind) -> Chunk:
    changes = pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()
    return Chunk(kind.relation, changes, kind.replaced_by)
