"""Partitions of a table: in all rows of a data file, the partition fields have the same values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep._arrays import dates_as_integers
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets.parquet import ParquetWriter
from logicalrep.targets.protocol import DataFile

_MAX_OPEN: Final = 64
"""Maximum number of partitions whose files are open; together, they buffer up to `FILE_BYTES` in memory."""

_FIELD: Final = re.compile(
    r"((?P<sized>bucket|truncate)\((?P<size>[1-9]\d*), *|(?P<plain>year|month|day|hour)\()?"
    r"(?P<column>[^()]+)(?P<end>\)?)"
)


class PartitionField(msgspec.Struct, frozen=True):
    """A partition field: a transform of a column, as in Iceberg's specification."""

    column: str
    """Name of the column."""
    transform: str
    """`identity`, `year`, `month`, `day`, `hour`, `bucket[N]` or `truncate[N]`."""


def parse_partition(texts: Iterable[str]) -> tuple[PartitionField, ...]:
    """Return the partition fields that texts such as `region`, `day(created_at)` and `bucket(16, id)` name.

    Raises:
        ReplicaError: A text names neither a column nor a transform of a column, or a column is named twice.
    """
    fields: dict[str, PartitionField] = {}
    for text in texts:
        found = _FIELD.fullmatch(text)
        if found is None or found["column"] in fields or ("(" in text) != bool(found["end"]):
            raise ReplicaError(
                f"--partition {text}: expected COLUMN, year(COLUMN), month(COLUMN), day(COLUMN), "
                "hour(COLUMN), bucket(NUMBER, COLUMN) or truncate(NUMBER, COLUMN), with each column once"
            )
        transform = f"{found['sized']}[{found['size']}]" if found["sized"] else found["plain"] or "identity"
        fields[found["column"]] = PartitionField(found["column"], transform)
    return tuple(fields.values())


class PartitionWriter:
    """Writes rows to data files, each with the rows of one partition.

    Args:
        folder: The folder of the files.
        schema: The columns of the files.
        transforms: The column of each partition field, and the function that computes the field's values.
        identity: Values with which `DataFile.partition` of each file begins (in Iceberg, the ID of the
            partition spec). The values of the partition fields follow.
    """

    def __init__(
        self,
        folder: Location,
        schema: pa.Schema,
        transforms: Sequence[tuple[str, Callable[[pa.Array], pa.Array]]],
        identity: tuple[Any, ...],
    ) -> None:
        self._folder, self._schema, self._transforms = folder, schema, transforms
        self._identity = identity
        self._writers: dict[tuple[Any, ...], ParquetWriter] = {}
        self._files: list[DataFile] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows to the open file of their partition, or to a new file if the partition has none."""
        for batch in (one.cast(self._schema) for one in batches):
            fields = {
                str(at): dates_as_integers(transform(batch[name]))
                for at, (name, transform) in enumerate(self._transforms)
            }
            rows = pa.table({**fields, "rows": np.arange(batch.num_rows)})
            groups = rows.group_by([*fields], use_threads=False).aggregate([("rows", "list")])
            for group in groups.to_pylist():
                key = (*self._identity, *(group[name] for name in fields))
                self._writer(key).write([batch.take(pa.array(group["rows_list"], pa.int64()))])

    def _writer(self, key: tuple[Any, ...]) -> ParquetWriter:
        if key not in self._writers:
            if len(self._writers) == _MAX_OPEN:
                self._complete()
            self._writers[key] = ParquetWriter(self._folder, self._schema, _MAX_OPEN)
        return self._writers[key]

    def _complete(self) -> None:
        for key, writer in self._writers.items():
            self._files += (msgspec.structs.replace(file, partition=key) for file in writer.close())
        self._writers = {}

    def close(self) -> list[DataFile]:
        """Complete the last files; return the files that were written since the last call."""
        self._complete()
        files, self._files = self._files, []
        return files
