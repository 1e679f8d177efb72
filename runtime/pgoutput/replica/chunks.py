"""Split the changes of a micro-batch into chunks, and group the chunks by commit of the Delta table.

Each chunk is applied in a commit of its own, except the chunks of a transaction that replaces a table's rows:
these are applied in one commit.

The boundaries of chunks depend only on the changes, not on the Arrow batches in which the changes arrive. So
a micro-batch that is applied again after a crash is split into the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    """The changes, as rows of the view `changes`."""
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


def group_chunks(chunks: Iterable[Chunk], *, history: bool) -> Iterator[tuple[int, Iterator[Chunk]]]:
    """Group the chunks of a relation by commit; yield each commit's number, from 0, and its chunks.

    The chunks of a transaction from a truncate on are one commit, so that no reader of the Delta table sees a
    part of the rows. Each other chunk is a commit of its own; with history this applies to all chunks that do
    not belong to a snapshot.
    """
    number = -1
    replaced_by: Transaction | None = None

    def number_commit(chunk: Chunk) -> int:
        nonlocal number, replaced_by
        if chunk.replaced_by is None or chunk.replaced_by != replaced_by:
            number += 1
        replaced_by = chunk.replaced_by if chunk.is_snapshot or not history else None
        return number

    return groupby(chunks, number_commit)


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
        first = 0
        for row, bytes_ in enumerate(_text_sizes(run)):
            if rows and (rows == max_rows or size + bytes_ > max_bytes):
                yield _make_chunk([*parts, run.slice(first, row - first)], kind)
                parts, rows, size, first = [], 0, 0, row
            rows += 1
            size += bytes_
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
    begins = 0
    truncated: tuple[int, Transaction] | None = None
    for batch in batches:
        oids = batch["relation"].field("oid").to_pylist()
        operations = batch["operation"].to_pylist()
        transactions = zip(batch["commit_lsn"].to_pylist(), batch["xid"].to_pylist(), strict=True)
        marks = []
        for oid, operation, transaction in zip(oids, operations, transactions, strict=True):
            if operation in ("Truncate", "Schema"):
                begins += 1
                truncated = (oid, transaction) if operation == "Truncate" else None
            replaced_by = transaction if truncated == (oid, transaction) else None
            marks.append((oid, replaced_by, operation == "Schema", begins))
        first = 0
        for (*kind, _), same in groupby(marks):
            length = len(list(same))
            for rows in _split_by_columns(batch.slice(first, length)):
                columns, keys = rows["columns"][0].as_py(), rows["key_columns"][0].as_py()
                yield (*kind, columns, *keys), rows
            first += length


def _split_by_columns(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split changes of one relation where the relation's columns or replica identity change.

    Schema changes are rare, so a bisection is faster than comparing each row with the next.
    """
    same = pa.array([0] * rows.num_rows)
    if all(rows[name].equals(rows[name].take(same)) for name in ("columns", "key_columns")):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _split_by_columns(rows.slice(0, half))
    yield from _split_by_columns(rows.slice(half))


def _text_sizes(rows: pa.RecordBatch) -> list[int]:
    """Return for each change the total size of its old and new values, in bytes of text."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("before", "after"):
        maps = rows[name]
        present = maps.drop_null()
        offsets = present.offsets.to_numpy()
        items = present.items.slice(offsets[0], offsets[-1] - offsets[0])
        lengths = pc.fill_null(pc.binary_length(items), 0).to_numpy()
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        sizes[np.asarray(maps.is_valid())] += np.diff(ends[offsets - offsets[0]])
    return list(map(int, sizes))


def _make_chunk(parts: list[pa.RecordBatch], kind: _Kind) -> Chunk:
    changes = pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()
    relation = changes["relation"][0].as_py()
    types = _COLUMNS.decode(changes["columns"][0].as_py())
    columns = tuple(Column(name, *type_) for name, type_ in types.items())
    keys = tuple(changes["key_columns"][0].as_py())
    return Chunk(relation["oid"], relation["namespace"], relation["name"], columns, keys, changes, kind[1])
