"""The table formats that pass the same tests, and how another program changes their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import write_deltalake

from pgoutput.recording import Location, locate
from pgoutput.targets import Table, TableFormat
from pgoutput.targets.delta import DeltaFormat
from pgoutput.targets.delta.table import _Table
from tests.targets.plain import PlainFormat, PlainTable


class Format(NamedTuple):
    """A table format, as tests need it."""

    format: TableFormat
    table: type
    """The class of its tables."""
    append: Callable[[Path, pa.Table], None]
    """Append rows to the table in a folder, as another program does."""


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


FORMATS = {
    "delta": Format(DeltaFormat(), _Table, _append_to_delta),
    "vectors": Format(_VectorsFormat(), _Table, _append_to_delta),
    "plain": Format(PlainFormat(), PlainTable, _append_to_plain),
}
