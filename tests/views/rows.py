"""Read the rows of views, compute the expected rows of `changes`, and replay changes.

The expected rows come from whole transactions, which `logicalrep.stream` assembles from all segments in
order.
`replay` uses only what the documentation of `CHANGES` says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from logicalrep.messages import ColumnFlag, Relation, TupleData
from logicalrep.recording import (
    PathOrUri,
    Recording,
    RecordingReader,
    SegmentReader,
    list_segments,
    read_metadata,
)
from logicalrep.stream import Change, Transaction, encode_for
from logicalrep.values import base_types, to_text
from logicalrep.views import (
    CHANGES,
    MESSAGES,
    ChangesView,
    LsnRange,
    MessagesView,
    RelationSchema,
    TableView,
    View,
    plan_changes,
    plan_messages,
    read,
    row_type,
    schema_batch,
    schema_versions,
    table_schema,
)
from logicalrep.wire import UNCHANGED, stored_name, to_datetime

Row = dict[str, Any]
Pairs = list[tuple[str, str | None]] | None


class Expected(msgspec.Struct):
    """An expected row of the view `changes`, and the message at the row's position."""

    row: Row
    data: bytes


def expected_changes(folder: Path) -> list[Expected]:
    """Return the expected rows of the view `changes` in commit order, without `position` and `sequence`."""
    said = [read_metadata(path) for path in list_segments(folder)]
    version = said[0].source.proto_version
    snapshot_end = max((one.end_lsn for one in said if one.kind == "snapshot"), default=-1)
    found = []
    with RecordingReader(folder) as segments:
        for transaction in segments.transactions():
            snapshot = transaction.xid == 0 and transaction.commit_lsn <= snapshot_end
            for change in transaction.changes:
                data = encode_for(change.message, version)
                for relation in change.relations:
                    row = _row(transaction, change, base_types(relation, segments.decoder.types))
                    if snapshot and row["operation"] == "Insert":
                        row["operation"] = "Snapshot"
                    found.append(Expected(row, data))
    return found


def _row(transaction: Transaction, change: Change, relation: Relation) -> Row:
    names = [stored_name(column.name) for column in relation.columns]
    keys = [bool(column.flags & ColumnFlag.KEY) for column in relation.columns]
    message = change.message
    key: TupleData | None = getattr(message, "key", None)
    old: TupleData | None = getattr(message, "old", None)
    new: TupleData | None = getattr(message, "new", None)
    before = _pairs(relation, old)
    if key is not None:
        before = [pair for pair, is_key in zip(_pairs(relation, key) or (), keys, strict=True) if is_key]
    return {
        "operation": type(message).__name__,
        "relation": {
            "oid": relation.oid,
            "namespace": stored_name(relation.namespace) or "pg_catalog",
            "name": stored_name(relation.name),
        },
        "commit_lsn": transaction.commit_lsn,
        "commit_time": to_datetime(transaction.commit_time),
        "xid": transaction.xid,
        "key_columns": [name for name, is_key in zip(names, keys, strict=True) if is_key],
        "columns": json.dumps(
            {
                name: [column.type_oid, column.type_modifier]
                for name, column in zip(names, relation.columns, strict=True)
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ),
        "before": before,
        "after": _pairs(relation, new),
        "unchanged": [
            name for name, cell in zip(names, new or (), strict=new is not None) if _is_not_sent(cell)
        ],
        "incomplete": None,
    }


def _pairs(relation: Relation, cells: TupleData | None) -> Pairs:
    if cells is None:
        return None
    return [
        (stored_name(column.name), to_text([cell], column.type_oid)[0])
        for column, cell in zip(relation.columns, cells, strict=True)
        if not _is_not_sent(cell)
    ]


def _is_not_sent(cell: object) -> bool:
    return cell is UNCHANGED


def rows_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[Row]:
    """Return the rows of Arrow batches as dicts, after validating the batches."""
    rows: list[Row] = []
    for batch in batches:
        assert batch.schema.equals(schema)
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def changes(
    place: PathOrUri,
    numbers: Sequence[int] | None = None,
    lsns: LsnRange | None = None,
    wanted: Callable[[RelationSchema], bool] = lambda schema: True,
) -> list[Row]:
    """Return the rows of the view `changes` for some or all segments, in the order of the tasks."""
    recording = Recording(place)
    found = []
    for task in plan_changes(
        recording, recording.numbers if numbers is None else numbers, lsns or LsnRange()
    ):
        with SegmentReader(task.place) as segment:
            found += rows_of(read(segment, ChangesView(segment, task, wanted)), CHANGES)
    return found


def in_order(rows: list[Row]) -> list[Row]:
    """Return rows of a view sorted by their column `sequence`."""
    return sorted(rows, key=lambda row: (row["sequence"]["commit_lsn"], row["sequence"]["position"]))


def without(row: Row, *columns: str) -> Row:
    """Return a row of a view without the named columns."""
    return {name: value for name, value in row.items() if name not in columns}


def messages(place: PathOrUri, numbers: Sequence[int] | None = None) -> list[Row]:
    """Return the rows of the view `messages`, for some or all segments."""
    recording = Recording(place)
    found = []
    for task in plan_messages(recording, recording.numbers if numbers is None else numbers):
        with SegmentReader(task.place) as segment:
            found += rows_of(read(segment, MessagesView(segment)), MESSAGES)
    return found


def schema_rows(place: PathOrUri) -> list[Row]:
    """Return the rows of the view `schema`."""
    recording = Recording(place)
    rows: list[Row] = schema_batch(schema_versions(recording.metadata(recording.numbers))).to_pylist()
    return rows


def schemas(place: PathOrUri) -> dict[int, list[RelationSchema]]:
    """Return the schemas of each relation's schema versions, by relation OID."""
    recording = Recording(place)
    found: dict[int, list[RelationSchema]] = {}
    for version in schema_versions(recording.metadata(recording.numbers)):
        found.setdefault(version.relation.oid, []).append(version.schema)
    return found


def table(
    place: PathOrUri, name: str, schema: pa.Schema | None = None, numbers: Sequence[int] | None = None
) -> pa.Table:
    """Return the rows of the view `table`, sorted by `sequence`.

    Args:
        place: Path or URI of the recording.
        name: Name of the table, without its namespace.
        schema: Columns of the view; None for all columns that the table ever had.
        numbers: Numbers of the segments; None for all segments.
    """
    recording = Recording(place)
    if schema is None:
        schema = table_schema(
            row_type(s for of_oid in schemas(place).values() for s in of_oid if s.name == name)
        )
    batches = []
    for task in plan_changes(recording, recording.numbers if numbers is None else numbers):
        with SegmentReader(task.place) as segment:
            view: View = TableView(segment, task, lambda relation: relation.name == name, schema)
            batches += list(read(segment, view))
    return sorted_table(batches, schema)


def sorted_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return batches of the view `table` as one Arrow table, sorted by `sequence`."""
    whole = pa.Table.from_batches(batches, schema)
    whole.validate(full=True)
    whole = whole.append_column("of_commit", pa.array(whole["sequence"].combine_chunks().field("commit_lsn")))
    return whole.sort_by([("of_commit", "ascending"), ("position", "ascending")]).drop(["of_commit"])


def replay(rows: Iterable[Row]) -> Iterator[Row]:
    """Apply the changes of one table in order; yield the rows that the table then holds, as dicts.

    Args:
        rows: Rows of the view `changes` or `table`, sorted by `sequence`, with dicts in `before` and `after`.
    """
    there: list[Row] = []
    for row in rows:
        after, before = row["after"], row["before"]
        if row["operation"] == "Truncate":
            there.clear()
        if row["operation"] in ("Update", "Delete"):
            key = {name: (after if before is None else before).get(name) for name in row["key_columns"]}
            at = next((n for n, one in enumerate(there) if _same({k: one.get(k) for k in key}, key)), None)
            gone = {} if at is None or (not key and before is None) else there.pop(at)
            if after is not None:
                known = gone if before is None else gone | key
                after = after | {name: known.get(name) for name in row["unchanged"]}
                if rescued := _rescued(gone, row):
                    after["_rescued_data"] = (after.get("_rescued_data") or []) + rescued
        if row["operation"] in ("Insert", "Snapshot", "Update"):
            there.append(after)
    yield from there


def _same(one: Row, other: Row) -> bool:
    return repr(one) == repr(other)  # NaN is not equal to itself


def _rescued(gone: Row, row: Row) -> list[tuple[str, str | None]]:
    """Return the rescued values of the old row in the columns that the change lists as unchanged."""
    return [pair for pair in gone.get("_rescued_data") or () if pair[0] in row["unchanged"]]
