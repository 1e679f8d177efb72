"""Changes in their order, cut into what one commit applies each.

Where the cuts are depends on the changes alone, not on how they come in batches, so a run after a crash
finds the chunks of the run before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

MAX_ROWS: Final = 100_000
MAX_BYTES: Final = 64 << 20
"""How many changes, and bytes of text in them, a chunk has at most; a larger change is a chunk of its own."""


class Column(msgspec.Struct, frozen=True):
    """A column of a relation, as in `pgoutput.views.CHANGES`."""

    name: str
    type_oid: int
    type_modifier: int


_COLUMNS: Final = msgspec.json.Decoder(dict[str, tuple[int, int]])


class Chunk(msgspec.Struct, frozen=True):
    """Changes of one relation that have the same columns. A truncate is always the first."""

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    """Names of the columns of the replica identity."""
    changes: pa.Table
    """Rows of `pgoutput.views.CHANGES`."""

    @property
    def truncates(self) -> bool:
        """Whether it begins with a truncate."""
        return bool(self.changes["operation"][0].as_py() == "Truncate")


class _Run(NamedTuple):
    """Rows of a batch that can be in one chunk, but for their size."""

    kind: tuple[object, ...]
    rows: pa.RecordBatch


def cut(
    batches: Iterable[pa.RecordBatch], max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[Chunk]:
    """The chunks of changes.

    A chunk ends where the relation, its columns or its replica identity are others, before a truncate, behind
    the rows of a snapshot, and where it is full.

    Args:
        batches: Rows of `pgoutput.views.CHANGES`; those of a relation together, by `sequence`.
        max_rows: How many changes a chunk has at most.
        max_bytes: How many bytes of text it has at most.
    """
    kind: tuple[object, ...] = ()
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for run in (run for batch in batches for run in _runs(batch)):
        sizes = _sizes(run.rows)
        truncates = run.rows["operation"][0].as_py() == "Truncate"
        if parts and (truncates or run.kind != kind):
            yield _chunk(parts)
            parts, rows, size = [], 0, 0
        kind = run.kind
        first = 0
        for row, bytes_ in enumerate(sizes):
            if rows and (rows == max_rows or size + bytes_ > max_bytes):
                yield _chunk([*parts, run.rows.slice(first, row - first)])
                parts, rows, size, first = [], 0, 0, row
            rows += 1
            size += bytes_
        parts.append(run.rows.slice(first))
    if parts:
        yield _chunk(parts)


def _runs(batch: pa.RecordBatch) -> Iterator[_Run]:
    """The batch, divided where chunks end for another reason than their size."""
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
        for rows in _of_one_shape(batch.slice(first, length)):
            columns, keys = rows["columns"][0].as_py(), rows["key_columns"][0].as_py()
            yield _Run((*mark[:2], columns, *keys), rows)
        first += length


def _of_one_shape(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows, divided where columns or replica identity are others. They seldom are, so it is by halves."""
    same = pa.array([0] * rows.num_rows)
    if all(rows[name].equals(rows[name].take(same)) for name in ("columns", "key_columns")):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _of_one_shape(rows.slice(0, half))
    yield from _of_one_shape(rows.slice(half))


def _sizes(rows: pa.RecordBatch) -> list[int]:
    """Bytes of text in each change."""
    sizes = [0] * rows.num_rows
    for name in ("before", "after"):
        place, items, offsets = entries(rows[name])
        lengths = pc.fill_null(pc.binary_length(items), 0)
        ends = [0, *pc.cumulative_sum(lengths.cast(pa.int64())).to_pylist()]
        for row, first, last in zip(place, offsets, offsets[1:], strict=False):
            sizes[row] += ends[last] - ends[first]
    return sizes


def entries(maps: pa.MapArray) -> tuple[list[int], pa.Array, list[int]]:
    """What is in maps: which rows have one, the values of all, and where those of each begin and end."""
    place = pc.indices_nonzero(maps.is_valid()).to_pylist()
    there = maps.drop_null()
    offsets = there.offsets.to_pylist()
    start = offsets[0] if offsets else 0
    return place, there.items.slice(start, (offsets or [0])[-1] - start), [o - start for o in offsets]


def _chunk(parts: list[pa.RecordBatch]) -> Chunk:
    changes = pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()
    relation = changes["relation"][0].as_py()
    types = _COLUMNS.decode(changes["columns"][0].as_py())
    columns = tuple(Column(name, *type_) for name, type_ in types.items())
    keys = tuple(changes["key_columns"][0].as_py())
    return Chunk(relation["oid"], relation["namespace"], relation["name"], columns, keys, changes)
