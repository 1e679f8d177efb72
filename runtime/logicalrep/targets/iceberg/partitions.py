"""Partition specs: how the rows of a table are divided.

Section of the Iceberg specification: "Partitioning".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, Transform, parse_transform

from logicalrep.errors import ReplicaError
from logicalrep.targets import partitions


def partition_spec(schema: Schema, wanted: Iterable[partitions.PartitionField]) -> PartitionSpec:
    """Return the partition spec of a new table, without fields whose column is missing or unsuitable."""
    fields: list[PartitionField] = []
    columns = {one.name: one for one in schema.fields}
    for column, transform in ((one.column, parse_transform(one.transform)) for one in wanted):
        if column in columns and _suits(transform, columns[column].field_type):
            number = PARTITION_FIELD_ID_START + len(fields)
            name = column if transform == IdentityTransform() else f"{column}_{transform}".partition("[")[0]
            fields.append(PartitionField(columns[column].field_id, number, transform, name))
    return PartitionSpec(*fields)


def unpartitioned(specs: Mapping[int, PartitionSpec]) -> PartitionSpec:
    """Return the table's partition spec that has no fields, or a new spec with a new ID if there is none."""
    new = PartitionSpec(spec_id=max(specs) + 1)
    return next((one for one in specs.values() if one.is_unpartitioned()), new)


def transforms(schema: Schema, spec: PartitionSpec) -> list[tuple[str, Callable[[pa.Array], pa.Array]]]:
    """Return the column of each partition field, and the function that computes the field's values.

    Raises:
        ReplicaError: Another program has added a partition field that logicalrep cannot write.
    """
    found = []
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        if not _suits(field.transform, source.field_type):
            raise ReplicaError(f"cannot write the partition field {field.name} ({field.transform}): drop it")
        found.append((source.name, field.transform.pyarrow_transform(source.field_type)))
    return found


def _suits(transform: Transform[Any, Any], type_: Any) -> bool:
    # NaN of the floating-point types equals no other NaN, so rows could not be grouped by it.
    return type_.is_primitive and str(type_) not in ("float", "double") and transform.can_transform(type_)
