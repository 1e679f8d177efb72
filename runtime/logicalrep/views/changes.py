"""The view `changes`: one row per committed change, values as text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import _roles
from logicalrep._index import read_texts, tag_mask
from logicalrep.views.alterations import alteration_values
from logicalrep.views.change_cells import (
    CellLists,
    Changes,
    column_names,
    column_types,
    new_cells,
    old_cells,
)
from logicalrep.views.committed_changes import CommittedBatch
from logicalrep.views.relation_schemas import RELATION, TEXTS
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS, TIMES

_TEXT: Final = pa.string()
_MAP: Final = pa.map_(_TEXT, _TEXT)

_TIME: Final = pa.timestamp("us", tz="UTC")

_SEQUENCE: Final = pa.struct(
    [
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)

COMMON_COLUMNS: Final = (
    pa.field("operation", _TEXT, nullable=False),
    pa.field("relation", RELATION, nullable=False),
    pa.field("commit_lsn", pa.int64(), nullable=False),
    pa.field("commit_time", _TIME),
    pa.field("xid", pa.int64(), nullable=False),
    pa.field("position", pa.int64(), nullable=False),
    pa.field("sequence", _SEQUENCE, nullable=False),
    pa.field("key_columns", TEXTS, nullable=False),
)
"""The columns that the views `changes` and `table` have in common.

- `operation`: Insert, Update, Delete or Truncate; Snapshot for a row of the snapshot. In the view `changes`
  also Schema for an ALTER TABLE that the server's event trigger has described.
- `relation`: OID of the relation, and its namespace and name at the time of the change. A Truncate has a row
  for each of its relations. An insert with a list of new rows, which the spec allows, has a row for each.
- `commit_lsn`, `commit_time`: LSN and time of the commit, or of the snapshot for a row of the snapshot.
  The time is NULL outside the years 1 to 9999, which Spark cannot represent.
- `xid`: Xid of the top-level transaction; 0 for the snapshot.
- `position`: Position of the message.
- `sequence`: Sort key. Sorts changes by commit LSN, and the changes of a transaction in the order in which
  they were made. `sequence.row` is the index of the row, from 0, among the rows of its message.
- `key_columns`: Column names of the replica identity; all columns for REPLICA IDENTITY FULL.
"""

CHANGES: Final = pa.schema(
    [
        *COMMON_COLUMNS,
        pa.field("columns", _TEXT, nullable=False),
        pa.field("before", _MAP),
        pa.field("after", _MAP),
        pa.field("unchanged", TEXTS, nullable=False),
        pa.field("incomplete", _TEXT),
    ]
)
"""Columns of the view `changes`, one row per committed change: `COMMON_COLUMNS`, and the following.

- `columns`: All columns of the relation at the time of the change, with pg_attribute.atttypid and atttypmod
  (those of the base type for a domain), as a JSON object: `{"id":[20,-1]}`. Structs would cost Spark a
  quarter more time than JSON.
- `before`: The old row with REPLICA IDENTITY FULL, else the old values of the key columns, by column name;
  NULL if the server sends neither: for inserts, and for updates that do not change the key.
- `after`: The new row without unchanged columns, by column name; NULL for deletes and truncates.
- `unchanged`: Names of the unchanged TOASTed columns, which the server does not send.
- `incomplete`: Why the relation is an incomplete table, that is, changes of it are missing in the recording;
  NULL if none are missing.

In a row with the operation Schema, `columns` are all columns after the alteration, also unpublished ones.
`before` has the earlier name of each column, by present name, without added columns. `after` has the values
that existing rows have in added columns, if the values are known. `unchanged` lists the generated columns.

Values are PostgreSQL's text, whether they were sent in text or in binary format.
"""


def changes_batch(
    committed: CommittedBatch, *, snapshot: bool, incomplete: Mapping[int, str] = MappingProxyType({})
) -> pa.RecordBatch:
    """Return committed changes as rows of `CHANGES`.

    Args:
        committed: The changes.
        snapshot: Whether the changes are rows of a snapshot.
        incomplete: Maps the OID of each incomplete table to the reason why the table is incomplete.
    """
    columns = change_columns(committed.changes) | commit_columns(committed, snapshot=snapshot)
    columns["incomplete"] = _incomplete(committed.changes, incomplete)
    rows = pa.record_batch([columns[name] for name in CHANGES.names], schema=CHANGES)
    if not committed.alterations:
        return rows
    both = pa.concat_batches([rows, _alteration_rows(committed, incomplete)])
    return both.take(pc.sort_indices(both["position"]))


def _alteration_rows(committed: CommittedBatch, incomplete: Mapping[int, str]) -> pa.RecordBatch:
    """Return the alterations among committed changes as rows of `CHANGES`."""
    found = committed.alterations
    positions, commit = (np.array([getattr(one, name) for one in found]) for name in ("position", "commit"))
    alone = committed._replace(positions=positions, ordinals=np.zeros_like(positions), commit=commit)
    columns = commit_columns(alone, snapshot=False)
    values = [alteration_values(one.alteration) for one in found]
    for name in values[0]:
        columns[name] = pa.array([one[name] for one in values], CHANGES.field(name).type)
    columns["incomplete"] = pa.array([incomplete.get(one.alteration.oid) for one in found], _TEXT)
    return pa.record_batch([columns[name] for name in CHANGES.names], schema=CHANGES)


def _incomplete(changes: Changes, incomplete: Mapping[int, str]) -> pa.StringArray:
    reasons = [incomplete.get(schema.relation.oid) for schema in changes.schemas]
    if not any(reasons):
        return pa.nulls(len(changes), _TEXT)
    return pa.array(reasons, _TEXT).take(pa.array(changes.schema))


def change_columns(changes: Changes) -> dict[str, pa.Array]:
    """Return those columns of `CHANGES` that do not depend on the commit, by column name."""
    new, unchanged = new_cells(changes)
    return common_columns(changes) | {
        "columns": _schema_column(changes, "columns"),
        "before": _maps(changes, old_cells(changes)),
        "after": _maps(changes, new),
        "unchanged": names_column(changes, unchanged),
    }


def common_columns(changes: Changes) -> dict[str, pa.Array]:
    """Return those columns of `COMMON_COLUMNS` that do not depend on the commit, by column name."""
    return {
        "operation": operations(changes),
        "relation": _schema_column(changes, "relation"),
        "key_columns": _schema_column(changes, "key_columns"),
    }


def commit_columns(committed: CommittedBatch, *, snapshot: bool) -> dict[str, pa.Array]:
    """Return those columns of `COMMON_COLUMNS` that depend on the commit, by column name.

    Args:
        committed: The changes.
        snapshot: Whether the changes are rows of a snapshot. If so, `operation` is returned too, with the
            value Snapshot in place of Insert.
    """
    # Compare in microseconds since 2000: as microseconds since 1970, a time may exceed 64 bits.
    commits, commit = committed.commits, committed.commit
    out_of_range = (commits.times < TIMES.start) | (commits.times >= TIMES.stop)
    times = np.where(out_of_range, 0, commits.times) + EPOCH_UNIX_MICROSECONDS
    lsns, positions = pa.array(commits.lsns[commit]), pa.array(committed.positions)
    sequence = [lsns, positions, pa.array(committed.ordinals)]
    columns = {
        "commit_lsn": lsns,
        "commit_time": pa.array(
            times[commit], _TIME, mask=out_of_range[commit] if out_of_range.any() else None
        ),
        "xid": pa.array(commits.xids[commit]),
        "position": positions,
        "sequence": pa.StructArray.from_arrays(sequence, fields=list(_SEQUENCE)),
    }
    if snapshot:
        columns["operation"] = operations(committed.changes, snapshot=True)
    return columns


def operations(changes: Changes, *, snapshot: bool = False) -> pa.StringArray:
    """Return the operation of each change, such as Insert. With `snapshot`, inserts are called Snapshot."""
    names = _COPIED_OPERATIONS if snapshot else _OPERATIONS
    return names.take(pa.array(_OPERATION_NUMBERS[changes.index.tags[changes.rows]]))


def _schema_column(changes: Changes, name: str) -> pa.Array:
    """Return a column of `CHANGES` that is equal for all changes of a schema version."""
    if not changes.schemas:
        return pa.array([], CHANGES.field(name).type)
    if len(changes.schemas) == 1:
        return changes.schemas[0].repeated(name, len(changes))
    values = pa.concat_arrays([schema.columns[name] for schema in changes.schemas])
    return values.take(pa.array(changes.schema))


def names_column(changes: Changes, cells: CellLists) -> pa.ListArray:
    """Return for each change the column names of its cells in `cells`."""
    offsets = pa.array(cells.offsets.astype(np.int32))
    names = _names(changes, cells) if len(cells.columns) else pa.array([], _TEXT)
    return pa.ListArray.from_arrays(offsets, names, type=TEXTS)


def _names(changes: Changes, cells: CellLists) -> pa.StringArray:
    if cells.schema is not None:
        rows = len(changes) - int(cells.missing.sum())
        return cells.schema.repeated("names", rows).flatten()
    return column_names(changes.schemas).take(pa.array(cells.columns))


def _maps(changes: Changes, cells: CellLists) -> pa.MapArray:
    """Return for each change a map from column name to the text of its cell in `cells`."""
    if cells.missing.all():
        return pa.nulls(len(changes), _MAP)
    offsets = pa.array(cells.offsets.astype(np.int32))
    texts = read_texts(changes.index, cells.cells, column_types(changes.schemas)[cells.columns])
    mask = pa.array(cells.missing) if cells.missing.any() else None
    return pa.MapArray.from_arrays(offsets, _names(changes, cells), texts, _MAP, mask=mask)


_OPERATIONS: Final = pa.array([role.capitalize() for role in _roles.CHANGES])
_COPIED_OPERATIONS: Final = pa.array([one.replace("Insert", "Snapshot") for one in _OPERATIONS.to_pylist()])
"""Names of operations in snapshot segments: `_OPERATIONS` with Snapshot in place of Insert."""

_OPERATION_NUMBERS: Final = np.zeros(256, np.int64)
"""Index in `_OPERATIONS` for each value of a message's first byte."""
for _number, _role in enumerate(_roles.CHANGES):
    _OPERATION_NUMBERS[tag_mask(_role)] = _number
