"""The columns of Iceberg tables, as Arrow schemas.

Iceberg finds a column in a data file by the column's field ID. Iceberg has no integers of 16 bits, and no
metadata of fields. Therefore the `doc` (comment) of a field contains the metadata and the width, as JSON.

Sections of the Iceberg specification: "Schemas and Data Types", "Column Projection", "Parquet" (appendix).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyiceberg import types
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from logicalrep import catalog
from logicalrep.errors import ReplicaError
from logicalrep.targets.parquet import FIELD_ID
from logicalrep.targets.protocol import RENAMED
from logicalrep.values import UUID_TYPE

_NARROW: Final = "logicalrep.arrow"
"""Key in the `doc` of a field whose integers have 16 bits in Arrow."""

_TYPES: Final[dict[pa.DataType, types.IcebergType]] = {
    pa.bool_(): types.BooleanType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    UUID_TYPE: types.UUIDType(),
    pa.date32(): types.DateType(),
    pa.timestamp("us"): types.TimestampType(),
    pa.timestamp("us", "UTC"): types.TimestamptzType(),
}
"""Iceberg's type for each Arrow type that is neither nested nor a decimal.

Data files have uuids as plain bytes, without Parquet's annotation UUID: pyiceberg (0.12) cannot filter rows
by a column with this annotation, and every reader knows the type from the table's schema.
"""

COLUMN_TYPES: Final = {one.oid: UUID_TYPE for one in catalog.TYPES if one.iceberg == "uuid"}
"""Arrow types by type OID, where they differ from those of Delta tables."""

_ARROW: Final = {type_: arrow for arrow, type_ in _TYPES.items()}


def to_iceberg(schema: pa.Schema, known: Schema | None = None, last_id: int = 0) -> Schema:
    """Return the Iceberg schema of a table.

    A column with the name (or old name) and type of a column in `known` keeps its field ID. Every
    other column gets new field IDs. The identifier fields stay if the table keeps all of them.

    Args:
        schema: The columns.
        known: The current schema of the table; None for a new table.
        last_id: Highest field ID that the table has had.
    """
    ids = count(last_id + 1)
    before = {} if known is None else {field.name: field for field in known.fields}
    renamed = {source: before.pop(source) for source in map(renamed_from, schema) if source in before}
    fields = []
    for field in schema:
        old = renamed.get(renamed_from(field)) or before.get(field.name)
        old = old if old is not None and _to_arrow(old).type == field.type else None
        number = next(ids) if old is None else old.field_id
        type_ = _to_type(_widened(field.type), ids) if old is None else old.field_type
        fields.append(types.NestedField(number, field.name, type_, required=False, doc=_doc(field)))
    identifiers = set() if known is None else {*known.identifier_field_ids}
    return with_key(Schema(*fields), identifiers if identifiers <= {one.field_id for one in fields} else ())


def with_key(schema: Schema, key: Collection[int | str]) -> Schema:
    """Return a schema with these identifier fields, given by field IDs or names; only they are required.

    Iceberg allows no nested or floating-point identifier fields. If `key` has one, none of `key` is used.
    """
    found = [one for one in schema.fields if one.field_id in key or one.name in key]
    if any(not one.field_type.is_primitive or str(one.field_type) in ("float", "double") for one in found):
        found = []
    fields = [one.model_copy(update={"required": one in found}) for one in schema.fields]
    return Schema(*fields, identifier_field_ids=[one.field_id for one in found])


def sort_order(schema: Schema) -> SortOrder:
    """Return the order of rows by the identifier fields; unsorted if there are none."""
    fields = (SortField(source_id=one, transform=IdentityTransform()) for one in schema.identifier_field_ids)
    return SortOrder(*fields, order_id=1) if schema.identifier_field_ids else UNSORTED_SORT_ORDER


def lacks_columns(schema: Schema, fields: PartitionSpec | SortOrder) -> bool:
    """Return whether a schema lacks a column of partition fields or of a sort order."""
    return not {field.source_id for field in fields.fields} <= schema.field_ids


def to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table.

    Raises:
        ReplicaError: Another program has added a column of an unknown type, or has changed a `doc`.
    """
    return pa.schema([_to_arrow(field) for field in schema.fields])


def file_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of the data files of a table, with field IDs."""
    return pa.schema([arrow_field(one, ids=True).with_nullable(True) for one in schema.fields])


def renamed_from(field: pa.Field) -> str:
    """Return the old name of a renamed column, from its metadata; an empty string for any other column."""
    name: bytes = (field.metadata or {}).get(RENAMED, b"")
    return name.decode()


def _doc(field: pa.Field) -> str | None:
    texts = {key.decode(): text.decode() for key, text in (field.metadata or {}).items() if key != RENAMED}
    if _widened(field.type) != field.type:
        texts[_NARROW] = "int16"
    return msgspec.json.encode(texts).decode() if texts else None


def _to_arrow(field: types.NestedField) -> pa.Field:
    try:
        texts = msgspec.json.decode(field.doc or "{}", type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ReplicaError(
            f"another program has changed the `doc` of the column {field.name} ({error}). Restore the `doc`"
        ) from error
    type_ = _to_arrow_type(field.field_type)
    if texts.pop(_NARROW, None):
        type_ = _narrowed(type_)
    return pa.field(field.name, type_, metadata=texts or None)


def _retyped(type_: pa.DataType, before: pa.DataType, after: pa.DataType) -> pa.DataType:
    """Return `type_` with `after` in place of `before`, also as the type of list elements."""
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_retyped(type_.value_type, before, after)))
    return after if type_ == before else type_


_widened = partial(_retyped, before=pa.int16(), after=pa.int32())
_narrowed = partial(_retyped, before=pa.int32(), after=pa.int16())


def _to_type(type_: pa.DataType, ids: Iterator[int]) -> types.IcebergType:
    """Return Iceberg's type for an Arrow type; the parts of a nested type get the next field IDs."""
    if (simple := _TYPES.get(type_)) is not None:
        return simple
    if pa.types.is_decimal(type_):
        return types.DecimalType(type_.precision, type_.scale)
    if pa.types.is_list(type_):
        return types.ListType(next(ids), _to_type(type_.value_type, ids), element_required=False)
    if pa.types.is_map(type_):
        key, value = next(ids), next(ids)
        return types.MapType(key, _to_type(type_.key_type, ids), value, _to_type(type_.item_type, ids), False)
    if pa.types.is_struct(type_):
        parts = ((next(ids), field.name, _to_type(field.type, ids)) for field in type_)
        return types.StructType(*(types.NestedField(*part, required=False) for part in parts))
    raise ReplicaError(f"Iceberg has no type for the Arrow type {type_}: cast the column to string")


def _to_arrow_type(type_: types.IcebergType, *, ids: bool = False) -> pa.DataType:
    """Return the Arrow type of an Iceberg type. If `ids`, the parts of a nested type get their field IDs."""
    part = partial(arrow_field, ids=ids)
    match type_:
        case types.ListType():
            return pa.list_(part(type_.element_field))
        case types.MapType():
            return pa.map_(part(type_.key_field), part(type_.value_field))
        case types.StructType():
            return pa.struct(map(part, type_.fields))
        case types.DecimalType():
            return pa.decimal128(type_.precision, type_.scale)
    if (simple := _ARROW.get(type_)) is None:
        raise ReplicaError(f"another program has added a column of the unknown type {type_}: drop the column")
    return simple


def arrow_field(field: types.NestedField, *, ids: bool) -> pa.Field:
    """Return the Arrow field of a column or of a part of a nested type. If `ids`, it gets its field ID."""
    metadata: dict[Any, Any] | None = {FIELD_ID: str(field.field_id).encode()} if ids else None
    return pa.field(field.name, _to_arrow_type(field.field_type, ids=ids), not field.required, metadata)
