"""Apply changes to a target, and compare the target's tables with the expected rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from logicalrep.apply import DataFiles, TableResult, apply_changes
from logicalrep.errors import ReplicaError
from logicalrep.recording import PathOrUri, locate
from logicalrep.replica import replica_tables
from logicalrep.targets import Table, registry
from logicalrep.values import default_type, from_arrow, quote_array_element
from logicalrep.views import RelationChanges
from tests.replica.changes_from_rows import from_rows
from tests.truth import TrueTable, equals_typed


def open_table(place: PathOrUri) -> Table:
    """Return the table at a path or URI, in its newest version."""
    table = registry.format_of(locate(place).parent).open(locate(place))
    assert table is not None
    return table


def read_table(place: PathOrUri, version: int | None = None) -> pa.Table:
    """Return the rows of the table at a path or URI."""
    table = open_table(place)
    return rows_in(table if version is None else table.at(version))


def rows_in(table: Table) -> pa.Table:
    """Return the rows of a table."""
    files = DataFiles(table)
    return pa.Table.from_batches((batch for file in files for batch in files.read(file)), files.schema)


def table_of(target: PathOrUri, oid: int = 1) -> Table:
    """Return the table of a relation, in its newest version."""
    return open_table(replica_tables(target)[oid].place)


def rows_of(target: PathOrUri, oid: int = 1) -> pa.Table:
    """Return the rows of the table of a relation."""
    return read_table(replica_tables(target)[oid].place)


def files_of(target: PathOrUri, oid: int = 1) -> list[str]:
    """Return the paths of the data files of the table of a relation, relative to their folder."""
    return [file.path for file in table_of(target, oid).files()]


def delta_table_of(target: PathOrUri, oid: int = 1) -> DeltaTable:
    """Return the Delta table of a relation."""
    return DeltaTable(replica_tables(target)[oid].place)


def delta_rows(place: PathOrUri) -> pa.Table:
    """Return the rows of a Delta table as deltalake reads them, without those that deletion vectors mark."""
    table = DeltaTable(place)
    rows = pa.table(table.scan())
    return rows.cast(pa.schema(table.schema().to_arrow()))


def apply(batches: Iterable[pa.RecordBatch], target: PathOrUri, **options: Any) -> list[TableResult]:
    """Apply changes to a target; return each table's result. Raise ReplicaError if a table fails."""
    results = list(apply_tables(batches, target, **options))
    for result in results:
        if result.error:
            raise ReplicaError(result.error)
    return results


def apply_tables(
    batches: Iterable[pa.RecordBatch],
    target: PathOrUri,
    *,
    recording: str = "",
    history: bool = False,
    **limits: Any,
) -> Iterator[TableResult]:
    """Apply changes to a target; yield each table's result."""
    relations: dict[int, list[RelationChanges]] = {}
    for batch in batches:
        for one in from_rows(batch):
            relations.setdefault(one.relation.oid, []).append(one)
    for oid, changes in relations.items():
        read = partial(iter, changes)
        result = apply_changes(read, locate(target), oid, recording, history=history, **limits)
        if result is not None and not result.is_empty:
            yield result


def rescued_last(table: pa.Table) -> pa.Table:
    """Return a table with the column of rescued values moved to the end and named `_rescued_data`."""
    (rescued,) = (field.name for field in table.schema if pa.types.is_map(field.type))
    names = [name for name in table.column_names if name != rescued]
    return table.select([*names, rescued]).rename_columns([*names, "_rescued_data"])


def different_tables(
    target: PathOrUri, truth: list[TrueTable], read: Callable[[str, None], pa.Table] = read_table
) -> list[str]:
    """Return the names of the tables of a target that differ from the server's tables."""
    paths = {oid: table.place for oid, table in replica_tables(target).items()}
    return [
        true.name
        for true in truth
        if not (
            equals_typed(true, rescued_last(read(paths[true.oid], None)))
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
