"""Split the changes of a micro-batch into chunks. Each chunk is applied to a Delta table in one commit.

The boundaries of chunks depend only on the changes, not on the Arrow batches in which the changes arrive. So
a micro-batch that is applied again after a crash is split into the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

MAX_ROWS: Final = 100_000
"""Default maximum number of changes in a chunk, which becomes one commit."""
MAX_BYTES: Final = 64 << 20
"""Default maximum size of a chunk's values, in bytes of text. A larger change becomes a chunk alone."""


class Column(msgspec.Struct, frozen=True):
    """A column of a relation, as stored in the field `columns` of the view `changes`."""

    name: str
    type_oid: int
    type_modifier: int


_COLUMNS: Final = msgspec.json.Decoder(dict[str, tuple[int, int]])


class Chunk(msgspec.Struct, frozen=True):
    """Successive changes of one relation with unchanged columns, which are applied in one commit.

    A truncate is always the first change of its chunk.
    """

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    """Names of the columns of the relation's replica identity."""
    changes: pa.Table
    """The changes, as rows of the view `changes`."""

    @property
    def truncates(self) -> bool:
        """Whether the chunk begins with a truncate."""
        return bool(self.changes["operation"][0].as_py() == "Truncate")


class _Run(NamedTuple):
    """Successive changes that form one chunk, or several if they exceed the maximum size of a chunk."""

    kind: tuple[object, ...]
    """OID of the relation, whether the rows come from a snapshot, columns and replica identity."""
    rows: pa.RecordBatch


def split_changes(
    batches: Iterable[pa.RecordBatch], max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[Chunk]:
    """Split changes into chunks, each with changes of one relation.

    A chunk ends where the next change has another relation, other columns or another replica identity, before
    a truncate, between rows of a snapshot and other changes, and where the chunk has its maximum size.

    Args:
        batches: Rows of the view `changes`, grouped by relation and sorted by `sequence`.
        max_rows: Maximum number of changes in a chunk.
        max_bytes: Maximum size of a chunk's values, in bytes of text.
    """
    kind: tuple[object, ...] = ()
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for run in (run for batch in batches for run in _split_runs(batch)):
        sizes = _text_sizes(run.rows)
        truncates = run.rows["operation"][0].as_py() == "Truncate"
        if parts and (truncates or run.kind != kind):
            yield _make_chunk(parts)
            parts, rows, size = [], 0, 0
        kind = run.kind
        first = 0
        for row, bytes_ in enumerate(sizes):
            if rows and (rows == max_rows or size + bytes_ > max_bytes):
                yield _make_chunk([*parts, run.rows.slice(first, row - first)])
                parts, rows, size, first = [], 0, 0, row
            rows += 1
            size += bytes_
        parts.append(run.rows.slice(first))
    if parts:
        yield _make_chunk(parts)


def _split_runs(batch: pa.RecordBatch) -> Iterator[_Run]:
    """Split an Arrow batch of changes wherever a chunk has to end for another reason than its size."""
    oids = batch["relation"].field("oid").to_pylist()
    operations = batch["operation"].to_pylist()
    truncates = 0
    marks = []
    for oid, operation in zip(oids, operations, strict=True):
        truncates += operation == "Truncate"
        marks.append((oid, operation == "Snapshot", truncates))
    first = 0
    for mark, same in groupby(marks):
        length = len(list(same))
        for rows in _split_by_columns(batch.slice(first, length)):
            columns, keys = rows["columns"][0].as_py(), rows["key_columns"][0].as_py()
            yield _Run((*mark[:2], columns, *keys), rows)
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
    sizes = [0] * rows.num_rows
    for name in ("before", "after"):
        valid, items, offsets = _map_items(rows[name])
        lengths = pc.fill_null(pc.binary_length(items), 0)
        ends = [0, *pc.cumulative_sum(lengths.cast(pa.int64())).to_pylist()]
        for row, first, last in zip(valid, offsets, offsets[1:], strict=False):
            sizes[row] += ends[last] - ends[first]
    return sizes


def _map_items(maps: pa.MapArray) -> tuple[list[int], pa.Array, list[int]]:
    """Return the indices of the non-NULL maps, all their values, and where each map's values begin."""
    valid = pc.indices_nonzero(maps.is_valid()).to_pylist()
    present = maps.drop_null()
    offsets = present.offsets.to_pylist()
    start = offsets[0] if offsets else 0
    items = present.items.slice(start, (offsets or [0])[-1] - start)
    return valid, items, [offset - start for offset in offsets]


def _make_chunk(parts: list[pa.RecordBatch]) -> Chunk:
    changes = pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()
    relation = changes["relation"][0].as_py()
    types = _COLUMNS.decode(changes["columns"][0].as_py())
    columns = tuple(Column(name, *type_) for name, type_ in types.items())
    keys = tuple(changes["key_columns"][0].as_py())
    return Chunk(relation["oid"], relation["namespace"], relation["name"], columns, keys, changes)
