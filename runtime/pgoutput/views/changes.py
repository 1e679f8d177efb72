"""The view `changes`: one row per change of committed work, values as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.messages import Cell, Delete, TupleData, Update
from pgoutput.values import to_text
from pgoutput.views.committed import Changes, Shape
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, UNCHANGED, UNIX_YEAR_1, UNIX_YEAR_10000

_TEXT: Final = pa.string()
_LIST: Final = pa.list_(pa.field("element", _TEXT, nullable=False))
_MAP: Final = pa.map_(_TEXT, _TEXT)

HEAD: Final = (
    pa.field("operation", _TEXT, nullable=False),
    pa.field(
        "relation",
        pa.struct(
            [
                pa.field("oid", pa.int64(), nullable=False),
                pa.field("namespace", _TEXT, nullable=False),
                pa.field("name", _TEXT, nullable=False),
            ]
        ),
        nullable=False,
    ),
    pa.field("commit_lsn", pa.int64(), nullable=False),
    pa.field("commit_time", pa.timestamp("us", tz="UTC")),
    pa.field("xid", pa.int64(), nullable=False),
    pa.field("position", pa.int64(), nullable=False),
    pa.field(
        "sequence",
        pa.struct(
            [
                pa.field("commit_lsn", pa.int64(), nullable=False),
                pa.field("position", pa.int64(), nullable=False),
            ]
        ),
        nullable=False,
    ),
    pa.field("key_columns", _LIST, nullable=False),
)
"""The columns that say what was changed, where and when.

- `operation`: Insert, Update, Delete, Truncate; Snapshot for a row that was there when the slot began.
- `relation`: The relation, as it was called then. A truncate has a row for each of its relations.
- `commit_lsn`, `commit_time`: LSN and time of the commit; of a row of the snapshot, the snapshot's. The time
  is NULL where Spark cannot hold it, outside the years 1 to 9999.
- `xid`: Xid of the top-level transaction; 0 for the snapshot.
- `position`: Place of the message in the recording.
- `sequence`: Sorts the changes of a relation in the order of commits, and as they were made.
- `key_columns`: Names of the columns of the replica identity; all columns for REPLICA IDENTITY FULL.
"""

COLUMN: Final = pa.struct(
    [
        pa.field("name", _TEXT, nullable=False),
        pa.field("type_oid", pa.int64(), nullable=False),
        pa.field("type_modifier", pa.int32(), nullable=False),
    ]
)

CHANGES: Final = pa.schema(
    [
        *HEAD,
        pa.field("columns", pa.list_(pa.field("element", COLUMN, nullable=False)), nullable=False),
        pa.field("before", _MAP),
        pa.field("after", _MAP),
        pa.field("unchanged", _LIST, nullable=False),
    ]
)
"""One row per change of committed work.

- `columns`: All columns that the relation had then, with their types (pg_attribute.atttypid and atttypmod;
  of a domain, its base type's).
- `before`: The old row with REPLICA IDENTITY FULL, else the old values of its key columns, by column; NULL
  where the server sends none: for inserts, and for updates that leave the key as it is.
- `after`: The new row, by column, but for what is unchanged; NULL for deletes and truncates.
- `unchanged`: Names of the columns that were not sent, since an update left them as they were (TOAST).

Values are as the server writes them as text, of either format.
"""


def changes_batch(changes: Changes, *, snapshot: bool) -> pa.RecordBatch:
    """The rows of `CHANGES`.

    Args:
        changes: The changes.
        snapshot: Whether they are rows of a snapshot.
    """
    index, shapes = distinct_shapes(changes)
    columns = [
        [
            {"name": name, "type_oid": column.type_oid, "type_modifier": column.type_modifier}
            for name, column in zip(shape.names, shape.relation.columns, strict=True)
        ]
        for shape in shapes
    ]
    arrays = [
        *head_columns(changes, index, shapes, snapshot=snapshot),
        pa.array(columns, CHANGES.field("columns").type).take(index),
        _maps(old_rows(changes)),
        _maps(new_rows(changes)),
        unchanged_column(changes),
    ]
    return pa.record_batch(arrays, schema=CHANGES)


def head_columns(
    changes: Changes, index: pa.Array, shapes: Sequence[Shape], *, snapshot: bool
) -> list[pa.Array]:
    """The columns of `HEAD`.

    Args:
        changes: The changes.
        index: What `distinct_shapes` says of them.
        shapes: Likewise.
        snapshot: Whether they are rows of a snapshot.
    """
    relations = [
        {"oid": shape.relation.oid, "namespace": shape.namespace, "name": shape.name} for shape in shapes
    ]
    keys = [[shape.names[place] for place in shape.keys] for shape in shapes]
    kinds = ["Snapshot"] * len(changes) if snapshot else [type(one).__name__ for one in changes.messages]
    lsns = pa.array([commit.lsn for commit in changes.commits], pa.int64())
    positions = pa.array(changes.positions, pa.int64())
    times = [_unix(commit.time) for commit in changes.commits]
    head = pa.schema(HEAD)
    return [
        pa.array(kinds, _TEXT),
        pa.array(relations, head.field("relation").type).take(index),
        lsns,
        pa.array(times, head.field("commit_time").type),
        pa.array([commit.xid for commit in changes.commits], pa.int64()),
        positions,
        pa.StructArray.from_arrays([lsns, positions], fields=list(head.field("sequence").type)),
        pa.array(keys, _LIST).take(index),
    ]


class Row(NamedTuple):
    """Some cells of a row."""

    shape: Shape
    places: Sequence[int]
    """Which columns they are of."""
    cells: TupleData
    """The cells of all columns."""


def new_rows(changes: Changes) -> list[Row | None]:
    """What each change sent of the new row; None if there is none."""
    rows: list[Row | None] = []
    for message, shape in zip(changes.messages, changes.shapes, strict=True):
        cells: TupleData | None = getattr(message, "new", None)
        if cells is None:
            rows.append(None)
        elif UNCHANGED in cells:
            sent = [place for place, cell in enumerate(cells) if cell is not UNCHANGED]
            rows.append(Row(shape, sent, cells))
        else:
            rows.append(Row(shape, shape.places, cells))
    return rows


def old_rows(changes: Changes) -> list[Row | None]:
    """What each change sent of the old row; None if there is nothing."""
    rows: list[Row | None] = []
    for message, shape in zip(changes.messages, changes.shapes, strict=True):
        if isinstance(message, Update | Delete) and message.key is not None:
            rows.append(Row(shape, shape.keys, message.key))
        elif isinstance(message, Update | Delete) and message.old is not None:
            rows.append(Row(shape, shape.places, message.old))
        else:
            rows.append(None)
    return rows


def unchanged_column(changes: Changes) -> pa.Array:
    """For each change, the names of the columns that it did not send."""
    names = []
    for message, shape in zip(changes.messages, changes.shapes, strict=True):
        cells: TupleData = getattr(message, "new", ())
        there = UNCHANGED in cells
        names.append([shape.names[i] for i, cell in enumerate(cells) if cell is UNCHANGED] if there else ())
    return pa.array(names, _LIST)


def distinct_shapes(changes: Changes) -> tuple[pa.Array, list[Shape]]:
    """For each change the place of its shape, and the shapes."""
    places: dict[Shape, int] = {}
    index = [places.setdefault(shape, len(places)) for shape in changes.shapes]
    return pa.array(index, pa.int32()), list(places)


def _maps(rows: Sequence[Row | None]) -> pa.MapArray:
    there = [row for row in rows if row is not None]
    names = [row.shape.names[place] for row in there for place in row.places]
    cells = [row.cells[place] for row in there for place in row.places]
    sizes = (0 if row is None else len(row.places) for row in rows)
    offsets = pa.array(accumulate(sizes, initial=0), pa.int32())
    if len(there) < len(rows):
        missing = pa.array([row is None for row in rows] + [False])
        offsets = pc.if_else(missing, None, offsets)
    return pa.MapArray.from_arrays(offsets, pa.array(names, _TEXT), _texts(there, cells), _MAP)


def _texts(rows: Sequence[Row], cells: list[Cell]) -> pa.Array:
    """Cells as text."""
    if bytes not in set(map(type, cells)):
        try:
            return pa.array(cells, _TEXT)
        except (UnicodeEncodeError, pa.ArrowTypeError):  # rare: no UTF-8; old rows that say "unchanged"
            pass
    oids = [row.shape.types[place] for row in rows for place in row.places]
    of_type: dict[int, list[int]] = {}
    for index, oid in enumerate(oids):
        of_type.setdefault(oid, []).append(index)
    texts: list[str | None] = [None] * len(cells)
    for oid, indices in of_type.items():
        converted = to_text([cells[index] for index in indices], oid)
        for index, text in zip(indices, converted, strict=True):
            texts[index] = text
    return pa.array(texts, _TEXT)


def _unix(time: int) -> int | None:
    unix = time + EPOCH_UNIX_MICROSECONDS
    return unix if UNIX_YEAR_1 <= unix < UNIX_YEAR_10000 else None
