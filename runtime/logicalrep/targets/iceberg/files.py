"""Data files and delete files, as manifests describe them.

Sections of the Iceberg specification: "Manifests", "Single-value Serialization" of the appendix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile as ManifestedFile, DataFileContent, FileFormat
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField

from logicalrep.targets.protocol import DataFile

_EPOCH: Final = date(1970, 1, 1)
_BOUNDED: Final = {"int", "long", "date"}
"""Types of the columns whose least and greatest values are read."""


def _from_bound(type_: Any, value: bytes) -> Any:
    """Decode a least or greatest value. A `long` of 4 bytes was written when the column's type was `int`."""
    if str(type_) == "long" and len(value) == len(to_bytes(IntegerType(), 0)):
        type_ = IntegerType()
    number: Any = from_bytes(type_, value)
    return _EPOCH + timedelta(days=number) if str(type_) == "date" else number


def _to_bound(type_: Any, value: Any) -> bytes:
    return to_bytes(type_, (value - _EPOCH).days if str(type_) == "date" else value)


def manifested_file(
    folder: str,
    file: DataFile,
    fields: Mapping[str, NestedField],
    partition: Sequence[Any],
    content: DataFileContent = DataFileContent.DATA,
) -> ManifestedFile:
    """Return the description of a new file in a manifest.

    Args:
        folder: URI of the folder with the data files.
        file: The file.
        fields: The fields of the file, by name.
        partition: ID of the file's partition spec, and the values of the partition fields.
        content: Whether the file contains data or deletes.
    """
    nulls = {fields[name].field_id: count for name, count in file.null_counts.items()}
    least, greatest = (
        {fields[name].field_id: _to_bound(fields[name].field_type, value) for name, value in values.items()}
        for values in (file.min_values, file.max_values)
    )
    spec, *values = partition
    found = ManifestedFile.from_args(
        content=content,
        file_path=folder + file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        value_counts=dict.fromkeys(nulls, file.rows) or None,
        null_value_counts=nulls or None,
        lower_bounds=least or None,
        upper_bounds=greatest or None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    found.spec_id = spec
    return found


def partition_of(file: ManifestedFile) -> tuple[Any, ...]:
    """Return the ID of a file's partition spec, and the values of the partition fields."""
    return (file.spec_id, *(file.partition[at] for at in range(len(file.partition))))


def only_data_file(deletes: ManifestedFile) -> str | None:
    """Return the URI of the data file that a position delete file is for; None if there may be several."""
    least, greatest = ((one or {}).get(PATH_FIELD_ID) for one in (deletes.lower_bounds, deletes.upper_bounds))
    return least.decode() if least is not None and least == greatest else None


def data_file(folder: str, file: ManifestedFile, fields: Mapping[int, NestedField], deleted: int) -> DataFile:
    """Return the `DataFile` for a description of a data file in a manifest.

    Args:
        folder: URI of the folder with the data files.
        file: The description.
        fields: The fields of the table, by field ID.
        deleted: Number of rows in the file that the version has deleted.
    """

    def typed(bounds: Mapping[int, bytes] | None) -> dict[str, Any]:
        known = ((fields[number], value) for number, value in (bounds or {}).items() if number in fields)
        return {
            field.name: _from_bound(field.field_type, value)
            for field, value in known
            if str(field.field_type) in _BOUNDED
        }

    counts = (file.null_value_counts or {}).items()
    return DataFile(
        file.file_path.removeprefix(folder),
        file.file_size_in_bytes,
        file.record_count,
        typed(file.lower_bounds),
        typed(file.upper_bounds),
        {fields[number].name: count for number, count in counts if number in fields},
        deleted,
        partition_of(file) if len(file.partition) else (),
    )
