"""The table formats that pass the same tests, and how another program changes their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable

from logicalrep.recording import Location, locate
from logicalrep.targets import Table, TableFormat
from logicalrep.targets.delta import DeltaFormat
from logicalrep.targets.delta.table import _Table
from logicalrep.targets.iceberg import IcebergFormat
from logicalrep.targets.iceberg.table import _Table as _IcebergTable
from tests.replica.tables import read_table
from tests.targets.plain import PlainFormat, PlainTable


class Format(NamedTuple):
    """A table format, and what tests need to know about it."""

    format: TableFormat
    table: Any
    """The class of the format's tables."""
    append: Callable[[Path, pa.Table], None]
    """Append rows to the table in a folder, as another program does."""
    operation: str
    """Name that the format's log gives to the operation of `append`."""
    read: Callable[[str, int | None], pa.Table]
    """Read the rows of the table at a path: of a version (Iceberg: snapshot ID), or the newest if None."""


def _append_to_delta(folder: Path, rows: pa.Table) -> None:
    write_deltalake(folder, rows, mode="append")


def _append_to_plain(folder: Path, rows: pa.Table) -> None:
    table = PlainFormat().open(locate(folder))
    assert table is not None
    writer = table.writer(rows.schema)
    writer.write(rows.to_batches())
    table._commit(files=(*table.files(), *writer.close()), foreign="WRITE")


class _VectorsFormat(DeltaFormat):
    """Delta tables whose commits write deletion vectors, from the first on."""

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        return super().create(place, schema, {**properties, "delta.enableDeletionVectors": "true"})


class _RewriteFormat(IcebergFormat, frozen=True):
    """Iceberg tables whose commits write data files again, from the first on."""

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        return super().create(place, schema, {**properties, "logicalrep.updates": "rewrite"})


def _append_to_iceberg(folder: Path, rows: pa.Table) -> None:
    table = iceberg_table(folder)
    keys = {field.name for field in table.schema().fields if field.required}
    known = [field.with_nullable(field.name not in keys) for field in rows.schema]
    table.append(rows.cast(pa.schema(known)))


def iceberg_table(folder: Path) -> IcebergTable:
    """Return the Iceberg table at a folder, loaded from the catalogue in the target as readers do."""
    namespace, _, name = folder.name.rpartition(".")
    uri = f"sqlite:///{folder.parent}/_iceberg_catalog.db"
    return SqlCatalog("logicalrep", uri=uri, warehouse=f"file://{folder.parent}").load_table(
        (namespace or "_", name)
    )


def _read_iceberg(place: str, version: int | None) -> pa.Table:
    """Read rows with pyiceberg, and cast them to the column types that logicalrep has written."""
    columns = read_table(place).schema
    rows = iceberg_table(Path(place)).scan(snapshot_id=version).to_arrow()
    known = pa.schema([field for field in columns if field.name in rows.column_names])
    return rows.select(known.names).cast(known)


FORMATS = {
    "iceberg": Format(IcebergFormat(), _IcebergTable, _append_to_iceberg, "append", _read_iceberg),
    "iceberg, rewritten": Format(
        _RewriteFormat(), _IcebergTable, _append_to_iceberg, "append", _read_iceberg
    ),
    "delta": Format(DeltaFormat(), _Table, _append_to_delta, "WRITE", read_table),
    "vectors": Format(_VectorsFormat(), _Table, _append_to_delta, "WRITE", read_table),
    "plain": Format(PlainFormat(), PlainTable, _append_to_plain, "WRITE", read_table),
}
