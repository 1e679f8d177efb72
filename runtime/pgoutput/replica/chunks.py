"""Split changes into chunks, and group the chunks by commit of the Delta table.

Chunks are applied several in a commit; those of a transaction that replaces a table's rows are one commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import Numbers, value_offsets

MAX_ROWS: Final = 100_000
"""Default maximum number of changes in a chunk."""
MAX_BYTES: Final = 64 << 20
"""Default maximum size of a chunk's values, in bytes of text. A larger change becomes a chunk alone."""


Transaction: TypeAlias = tuple[int, int]
"""A transaction: its commit LSN and xid. The xid of a snapshot is 0."""


class Column(msgspec.Struct, frozen=True):
    """A column of a relation, as stored in the field `columns` of the view `changes`."""

    name: str
    type_oid: int
    type_modifier: int


_COMMON: Final = ["relation", "columns", "key_columns"]
"""Columns of the view `changes` that are equal for all changes of a chunk."""

_COLUMNS: Final = msgspec.json.Decoder(dict[str, tuple[int, int]])


class Chunk(msgspec.Struct, frozen=True):
    """Successive changes of one relation with unchanged columns.

    A truncate is always the first change of its chunk. An ALTER TABLE is a chunk of its own.
    """

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    """Names of the columns of the relation's replica identity."""
    changes: pa.Table
    """The changes, as rows of the view `changes` without the columns that are equal for all of them."""
    replaced_by: Transaction | None = None
    """The transaction of the changes, if it truncates the relation in or before this chunk; None if not."""

    @property
    def is_alteration(self) -> bool:
        """Whether the chunk consists of an ALTER TABLE, and changes no single row."""
        return bool(self.changes["operation"][0].as_py() == "Schema")

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


def group_chunks(chunks: Iterable[Chunk], *, history: bool) -> Iterator[Iterator[Chunk]]:
    """Group the chunks of a relation by commit; yield each commit's chunks.

    The chunks of a transaction from a truncate on are one commit, so that no reader of the Delta table sees a
    part of the rows. Each other chunk is a commit of its own; with history this applies to all chunks that do
    not belong to a snapshot.
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
    batches: Iterable[pa.RecordBatch], max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[Chunk]:
    """Split changes into chunks, each with changes of one relation.

    A chunk ends where the next change has another relation, other columns or another replica identity, before
    a truncate, after a transaction with a truncate, before and after an ALTER TABLE, and where the chunk has
    its maximum size.

    Args:
        batches: Rows of the view `changes`, grouped by relation and sorted by `sequence`.
        max_rows: Maximum number of changes in a chunk.
        max_bytes: Maximum size of a chunk's values, in bytes of text.
    """
    last_kind: _Kind = (0, None, False)
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for kind, run in _split_runs(batches):
        begins = run["operation"][0].as_py() in ("Truncate", "Schema")
        if parts and (begins or kind != last_kind):
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
    if parts:
        yield _make_chunk(parts, last_kind)


_Kind: TypeAlias = tuple[int, Transaction | None, bool, *tuple[str, ...]]
"""What all changes of a chunk have in common: the OID of the relation, the transaction that truncates the
relation before them (or None), whether they are an ALTER TABLE, the columns and the names of the replica
identity's columns."""


def _split_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[_Kind, pa.RecordBatch]]:
    """Split Arrow batches of changes wherever a chunk has to end for another reason than its size.

    Yield each part with its kind. A truncate or ALTER TABLE begins a part even if the kind stays the same.
    """
    truncate = np.full(3, -1, np.int64)  # relation and transaction of the latest truncate
    for batch in batches:
        if not batch.num_rows:
            continue
        is_truncate, is_schema = (
            np.asarray(pc.equal(batch["operation"], operation)) for operation in ("Truncate", "Schema")
        )
        fields = batch["relation"].field("oid"), batch["commit_lsn"], batch["xid"]
        origins = np.column_stack([np.asarray(field, np.int64) for field in fields])
        # The item at index -1 is the latest truncate of earlier batches.
        truncates = np.vstack([np.where(is_schema[:, None], -1, origins), truncate])
        begins = is_truncate | is_schema
        latest = truncates[np.maximum.accumulate(np.where(begins, np.arange(len(begins)), -1))]
        truncate = latest[-1]
        is_replaced = (latest == origins).all(axis=1)
        begins[0] = True
        begins[1:] |= (origins[1:, 0] != origins[:-1, 0]) | (is_replaced[1:] != is_replaced[:-1])
        begins[1:] |= is_schema[:-1]
        for first, end in pairwise([*np.flatnonzero(begins).tolist(), batch.num_rows]):
            oid, *transaction = origins[first].tolist()
            replaced_by = (transaction[0], transaction[1]) if is_replaced[first] else None
            for rows in split_by_columns(batch.slice(first, end - first)):
                columns, keys = rows["columns"][0].as_py(), rows["key_columns"][0].as_py()
                yield (oid, replaced_by, bool(is_schema[first]), columns, *keys), rows


def split_by_columns(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split changes of one relation where the relation's columns or replica identity change.

    Schema changes are rare, so a bisection is faster than comparing each row with the next.
    """
    if is_constant(rows["columns"]) and is_constant(rows["key_columns"]):
        yield rows
        return
    half = rows.num_rows // 2
    yield from split_by_columns(rows.slice(0, half))
    yield from split_by_columns(rows.slice(half))


def is_constant(array: pa.Array) -> bool:
    """Return whether all values of an array are equal; True for an empty array."""
    return bool(array.slice(1).equals(array.slice(0, max(len(array) - 1, 0))))


def _text_sizes(rows: pa.RecordBatch) -> Numbers:
    """Return for each change the total size of its old and new values, in bytes of text."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("before", "after"):
        maps = rows[name]
        sizes += np.diff(value_offsets(maps.items)[maps.offsets.to_numpy()])
    return sizes


def _make_chunk(parts: list[pa.RecordBatch], kind: _Kind) -> Chunk:
    parts = [part for part in parts if part.num_rows]
    relation, encoded, keys = (parts[0][name][0].as_py() for name in _COMMON)
    columns = tuple(Column(name, *type_) for name, type_ in _COLUMNS.decode(encoded).items())
    changes = pa.Table.from_batches([part.drop_columns(_COMMON) for part in parts]).combine_chunks()
    return Chunk(changes=changes, **relation, columns=columns, keys=tuple(keys), replaced_by=kind[1])
