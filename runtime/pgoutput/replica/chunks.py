"""Split the changes of a micro-batch into chunks. Each chunk is applied to a Delta table in one commit.

The boundaries of chunks depend only on the changes, not on the Arrow batches in which the changes arrive. So
a micro-batch that is applied again after a crash is split into the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import Final

import msgspec
import numpy as np
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

    @property
    def is_alteration(self) -> bool:
        """Whether the chunk consists of an ALTER TABLE, and changes no single row."""
        return bool(self.changes["operation"][0].as_py() == "Schema")

    @property
    def truncates(self) -> bool:
        """Whether the chunk begins with a truncate."""
        return bool(self.changes["operation"][0].as_py() == "Truncate")


def split_changes(
    batches: Iterable[pa.RecordBatch], max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[Chunk]:
    """Split changes into chunks, each with changes of one relation.

    A chunk ends where the next change has another relation, other columns or another replica identity, before
    a truncate, before and after an ALTER TABLE, between rows of a snapshot and other changes, and where the
    chunk has its maximum size.

    Args:
        batches: Rows of the view `changes`, grouped by relation and sorted by `sequence`.
        max_rows: Maximum number of changes in a chunk.
        max_bytes: Maximum size of a chunk's values, in bytes of text.
    """
    last_kind: tuple[object, ...] = ()
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for kind, run in chain.from_iterable(map(_split_runs, batches)):
        begins = run["operation"][0].as_py() in ("Truncate", "Schema")
        if parts and (begins or kind != last_kind):
            yield _make_chunk(parts)
            parts, rows, size = [], 0, 0
        last_kind = kind
        first = 0
        for row, bytes_ in enumerate(_text_sizes(run)):
            if rows and (rows == max_rows or size + bytes_ > max_bytes):
                yield _make_chunk([*parts, run.slice(first, row - first)])
                parts, rows, size, first = [], 0, 0, row
            rows += 1
            size += bytes_
        parts.append(run.slice(first))
    if parts:
        yield _make_chunk(parts)


def _split_runs(batch: pa.RecordBatch) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """Split an Arrow batch of changes wherever a chunk has to end for another reason than its size.

    Yield with each part its kind: the OID of the relation, whether it is an ALTER TABLE or rows of a
    snapshot, the columns and the replica identity. A truncate or ALTER TABLE begins a part even if the kind
    stays the same.
    """
    oids = batch["relation"].field("oid").to_pylist()
    operations = batch["operation"].to_pylist()
    begins = 0
    marks = []
    for oid, operation in zip(oids, operations, strict=True):
        begins += operation in ("Truncate", "Schema")
        marks.append((oid, operation in ("Snapshot", "Schema") and operation, begins))
    first = 0
    for mark, same in groupby(marks):
        length = len(list(same))
        for rows in _split_by_columns(batch.slice(first, length)):
            columns, keys = rows["columns"][0].as_py(), rows["key_columns"][0].as_py()
            yield (*mark[:2], columns, *keys), rows
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


def _make_chunk(parts: list[pa.RecordBatch]) -> Chunk:
    changes = pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()
    relation = changes["relation"][0].as_py()
    types = _COLUMNS.decode(changes["columns"][0].as_py())
    columns = tuple(Column(name, *type_) for name, type_ in types.items())
    keys = tuple(changes["key_columns"][0].as_py())
    return Chunk(relation["oid"], relation["namespace"], relation["name"], columns, keys, changes)
