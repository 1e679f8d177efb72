"""Apply changes to a target, and compare the target's tables with the expected rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pgoutput.errors import ReplicaError
from pgoutput.recording import PathOrUri, locate
from pgoutput.replica import TableResult, apply_changes, replica_tables
from pgoutput.replica.batch import apply_repeatedly
from pgoutput.replica.chunks import MAX_BYTES, MAX_ROWS, Chunk, split_changes
from pgoutput.values import default_type, from_arrow, quote_array_element
from tests.truth import TrueTable, equals_typed


def apply(
    batches: Iterable[pa.RecordBatch], target: Path, query: str, batch: int, **options: Any
) -> list[TableResult]:
    """Apply a micro-batch to a target; return each table's result. Raise ReplicaError if a table fails.

    Micro-batches with an odd number have several chunks in one commit.
    """
    if batch % 2:
        results = list(apply_combined(batches, target, query, batch, **options))
    else:
        results = list(apply_changes(batches, target, query, batch, **options))
    for result in results:
        if result.error:
            raise ReplicaError(result.error)
    return results


def apply_combined(
    batches: Iterable[pa.RecordBatch],
    target: Path,
    query: str,
    batch: int,
    *,
    recording: str = "",
    history: bool = False,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[TableResult]:
    """Apply a micro-batch to a target with several chunks in one commit; yield each table's result."""
    relations: dict[int, list[Chunk]] = {}
    for chunk in split_changes(batches, max_rows, max_bytes):
        relations.setdefault(chunk.oid, []).append(chunk)
    for chunks in relations.values():
        read = partial(iter, chunks)
        result = apply_repeatedly(read, locate(target), query, batch, recording, history=history)
        if not result.is_empty:
            yield result


def rescued_last(table: pa.Table) -> pa.Table:
    """Return a table with the column of rescued values moved to the end and named `_rescued_data`."""
    (rescued,) = (field.name for field in table.schema if pa.types.is_map(field.type))
    names = [name for name in table.column_names if name != rescued]
    return table.select([*names, rescued]).rename_columns([*names, "_rescued_data"])


def different_tables(target: PathOrUri, truth: list[TrueTable]) -> list[str]:
    """Return the names of the tables of a target that differ from the server's tables."""
    paths = {oid: table.place for oid, table in replica_tables(target).items()}
    return [
        true.name
        for true in truth
        if not (
            equals_typed(true, rescued_last(DeltaTable(paths[true.oid]).to_pyarrow_table()))
            if true.oid in paths
            else not true.rows
        )
    ]


def row_texts(row: dict[str, Any]) -> dict[str, str | None]:
    """Return the values of a row in text format, by column name; rescued values are included."""
    rescued = dict(row["_rescued_data"] or ())
    return {name: rescued.get(name, _text(value)) for name, value in row.items()}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict):  # __START_AT or __END_AT
        return ""
    if isinstance(value, list | tuple):
        items = ("NULL" if text is None else quote_array_element(text) for text in map(_text, value))
        return "{" + ",".join(items) + "}"
    array = pa.array([value])
    return str(from_arrow(array, *default_type(array.type))[0])
