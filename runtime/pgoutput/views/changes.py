"""The view `changes`: one row per change of committed work, values as text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from pgoutput.columns.read import read_texts
from pgoutput.views.committed import ROW_CHANGES, Committed
from pgoutput.views.rows import Cells, Changes, column_names, column_types, new_cells, old_cells
from pgoutput.views.shapes import RELATION, TEXTS
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000

_TEXT: Final = pa.string()
_MAP: Final = pa.map_(_TEXT, _TEXT)

_TIME: Final = pa.timestamp("us", tz="UTC")

_SEQUENCE: Final = pa.struct(
    [
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
)

HEAD: Final = (
    pa.field("operation", _TEXT, nullable=False),
    pa.field("relation", RELATION, nullable=False),
    pa.field("commit_lsn", pa.int64(), nullable=False),
    pa.field("commit_time", _TIME),
    pa.field("xid", pa.int64(), nullable=False),
    pa.field("position", pa.int64(), nullable=False),
    pa.field("sequence", _SEQUENCE, nullable=False),
    pa.field("key_columns", TEXTS, nullable=False),
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

CHANGES: Final = pa.schema(
    [
        *HEAD,
        pa.field("columns", _TEXT, nullable=False),
        pa.field("before", _MAP),
        pa.field("after", _MAP),
        pa.field("unchanged", TEXTS, nullable=False),
        pa.field("incomplete", _TEXT),
    ]
)
"""One row per change of committed work.

- `columns`: All columns that the relation had then, with pg_attribute.atttypid and atttypmod (of a domain,
  its base type's), as a JSON object: `{"id":[20,-1]}`. Structs in each row cost Spark a quarter of its time.
- `before`: The old row with REPLICA IDENTITY FULL, else the old values of its key columns, by column; NULL
  where the server sends none: for inserts, and for updates that leave the key as it is.
- `after`: The new row, by column, but for what is unchanged; NULL for deletes and truncates.
- `unchanged`: Names of the columns that were not sent, since an update left them as they were (TOAST).
- `incomplete`: Why the recording lacks rows of the relation; NULL where it lacks none.

Values are as the server writes them as text, of either format.
"""


def changes_batch(
    committed: Committed, *, snapshot: bool, incomplete: Mapping[int, str] = MappingProxyType({})
) -> pa.RecordBatch:
    """Return rows of `CHANGES`.

    Args:
        committed: The changes.
        snapshot: Whether they are rows of a snapshot.
        incomplete: The column `incomplete`, by OID of the relation.
    """
    columns = change_columns(committed.changes) | commit_columns(committed, snapshot=snapshot)
    columns["incomplete"] = _incomplete(committed.changes, incomplete)
    return pa.record_batch([columns[name] for name in CHANGES.names], schema=CHANGES)


def _incomplete(changes: Changes, incomplete: Mapping[int, str]) -> pa.StringArray:
    reasons = [incomplete.get(shape.relation.oid) for shape in changes.shapes]
    if not any(reasons):
        return pa.nulls(len(changes), _TEXT)
    return pa.array(reasons, _TEXT).take(pa.array(changes.shape))


def change_columns(changes: Changes) -> dict[str, pa.Array]:
    """Return the columns of `CHANGES` that follow from the messages alone, by name."""
    new, unchanged = new_cells(changes)
    return head_columns(changes) | {
        "columns": of_shapes(changes, "columns"),
        "before": _maps(changes, old_cells(changes)),
        "after": _maps(changes, new),
        "unchanged": names_column(changes, unchanged),
    }


def head_columns(changes: Changes) -> dict[str, pa.Array]:
    """The columns of `HEAD` but for those of the commit, by name."""
    return {
        "operation": _OPERATIONS.take(pa.array(_OPERATION[changes.index.tags[changes.rows]])),
        "relation": of_shapes(changes, "relation"),
        "key_columns": of_shapes(changes, "key_columns"),
    }


def commit_columns(committed: Committed, *, snapshot: bool) -> dict[str, pa.Array]:
    """The columns of `HEAD` that depend on the commit, by name.

    Args:
        committed: The changes.
        snapshot: Whether they are rows of a snapshot; their operation is another then, too.
    """
    # Compared as on the wire: other times, moved to another epoch, may need more than 64 bits.
    first, end = (year - EPOCH_UNIX_MICROSECONDS for year in (UNIX_YEAR_1, UNIX_YEAR_10000))
    commits, of = committed.commits, committed.commit
    out = (commits.times < first) | (commits.times >= end)
    times = np.where(out, 0, commits.times) + EPOCH_UNIX_MICROSECONDS
    lsns, positions = pa.array(commits.lsns[of]), pa.array(committed.positions)
    columns = {
        "commit_lsn": lsns,
        "commit_time": pa.array(times[of], _TIME, mask=out[of] if out.any() else None),
        "xid": pa.array(commits.xids[of]),
        "position": positions,
        "sequence": pa.StructArray.from_arrays([lsns, positions], fields=list(_SEQUENCE)),
    }
    if snapshot:
        columns["operation"] = pa.repeat(pa.scalar("Snapshot"), len(positions))
    return columns


def of_shapes(changes: Changes, name: str) -> pa.Array:
    """A column that the relations describe."""
    if not changes.shapes:
        return pa.array([], CHANGES.field(name).type)
    if len(changes.shapes) == 1:
        return changes.shapes[0].repeated(name, len(changes))
    described = pa.concat_arrays([shape.described[name] for shape in changes.shapes])
    return described.take(pa.array(changes.shape))


def names_column(changes: Changes, cells: Cells) -> pa.ListArray:
    """The names of columns."""
    offsets = pa.array(cells.offsets.astype(np.int32))
    names = _names(changes, cells) if len(cells.columns) else pa.array([], _TEXT)
    return pa.ListArray.from_arrays(offsets, names, type=TEXTS)


def _names(changes: Changes, cells: Cells) -> pa.StringArray:
    if cells.shape is not None:
        rows = len(changes) - int(cells.missing.sum())
        return cells.shape.repeated("names", rows).flatten()
    return column_names(changes.shapes).take(pa.array(cells.columns))


def _maps(changes: Changes, cells: Cells) -> pa.MapArray:
    """Names and texts of cells."""
    if cells.missing.all():
        return pa.nulls(len(changes), _MAP)
    offsets = pa.array(cells.offsets.astype(np.int32))
    texts = read_texts(changes.index, cells.cells, column_types(changes.shapes)[cells.columns])
    mask = pa.array(cells.missing) if cells.missing.any() else None
    return pa.MapArray.from_arrays(offsets, _names(changes, cells), texts, _MAP, mask=mask)


_OPERATIONS: Final = pa.array([kind.__name__ for kind in ROW_CHANGES])

_OPERATION: Final = np.zeros(256, np.int64)
"""Places in `_OPERATIONS`, by the first byte of a message."""
_OPERATION[[ord(kind.wire_tag) for kind in ROW_CHANGES]] = range(len(ROW_CHANGES))
