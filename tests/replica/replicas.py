"""Tables of a target, as tests compare them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pgoutput.errors import RecordingError
from pgoutput.replica import Applied, apply_changes, replica_tables
from pgoutput.replica.convert import shown_by
from tests.truth import TrueTable, equals_typed


def apply(
    batches: Iterable[pa.RecordBatch], target: Path, query: str, batch: int, **options: Any
) -> list[Applied]:
    """Apply changes to tables, of which none may fail."""
    applied = list(apply_changes(batches, target, query, batch, **options))
    for one in applied:
        if one.error:
            raise RecordingError(one.error)
    return applied


def replica(table: pa.Table) -> pa.Table:
    """A table with `_rescued_data` last, as `equals_typed` wants it."""
    (rescued,) = (field.name for field in table.schema if pa.types.is_map(field.type))
    names = [name for name in table.column_names if name != rescued]
    return table.select([*names, rescued]).rename_columns([*names, "_rescued_data"])


def different(target: Path, truth: list[TrueTable]) -> list[str]:
    """The tables that are not equal to the server's."""
    paths = {oid: table.place for oid, table in replica_tables(target).items()}
    return [
        true.name
        for true in truth
        if not (
            equals_typed(true, replica(DeltaTable(paths[true.oid]).to_pyarrow_table()))
            if true.oid in paths
            else not true.rows
        )
    ]


def texts(row: dict[str, Any]) -> dict[str, str | None]:
    """A row as the server's text."""
    rescued = dict(row["_rescued_data"] or ())
    return {name: rescued.get(name, _text(value)) for name, value in row.items()}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict):  # a moment
        return ""
    return shown_by(pa.array([value]).type)(value)
