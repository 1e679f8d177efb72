"""Facts about built-in types, for the conversions to text, binary format, Arrow and Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from logicalrep import catalog
from logicalrep.messages import Relation, RelationColumn, Type

VECTOR_ELEMENTS: Final = {"int2vector": "int2", "oidvector": "oid"}
"""Name of the element type, by name of the vector type."""

RANGE_SUBTYPES: Final = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}
"""Name of the subtype, by name of the range type."""

MULTIRANGE_RANGES: Final = {name.replace("range", "multirange"): name for name in RANGE_SUBTYPES}
"""Name of the range type, by name of the multirange type."""


def element_delimiter(element_oid: int) -> str:
    """Return the delimiter of array elements of a type (pg_type.typdelim): `;` for box, otherwise `,`."""
    return ";" if catalog.FORMS.get(element_oid) is catalog.BY_NAME["box"] else ","


def array_delimiter(array_oid: int) -> str:
    """Return the delimiter between the elements of an array type: `;` for box[], otherwise `,`."""
    element = catalog.BY_ARRAY_OID.get(array_oid)
    return "," if element is None else element_delimiter(element.oid)


def describe_type(type_oid: int) -> str:
    """Return a type's name for error messages: `the type int4[]`, `the type with OID 16400`."""
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return f"the type {element.name}[]"
    builtin = catalog.BY_OID.get(type_oid)
    return f"the type with OID {type_oid}" if builtin is None else f"the type {builtin.name}"


def base_types(relation: Relation, types: Mapping[int, Type]) -> Relation:
    """Return the relation with the types of domain columns replaced by their built-in base types.

    A domain over a type that is not built in is kept.

    Args:
        relation: A Relation message.
        types: Type messages of the stream, by OID. The Type message of a domain has the domain's OID and the
            name of its base type.
    """
    columns = tuple(_base_type(column, types.get(column.type_oid)) for column in relation.columns)
    return msgspec.structs.replace(relation, columns=columns)


def _base_type(column: RelationColumn, named: Type | None) -> RelationColumn:
    if named is None or named.namespace not in ("", "pg_catalog"):
        return column
    oid = column.type_oid
    if named.name in catalog.BY_NAME:
        oid = catalog.BY_NAME[named.name].oid
    elif named.name.startswith("_") and named.name[1:] in catalog.BY_NAME:
        oid = catalog.BY_NAME[named.name[1:]].array_oid
    return msgspec.structs.replace(column, type_oid=oid)
