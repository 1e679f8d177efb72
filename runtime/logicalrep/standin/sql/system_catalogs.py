"""System catalogs of PostgreSQL 18: their columns, and the rows that are the same in every database.

The file system_catalogs.json is written by `python -m tests.standin.lookups.collect`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

import msgspec

from logicalrep.standin.values import BOOL, INT2, INT4, INT8, JSONB, OID, XID

FIRST_OID: Final = 16_384
"""Lowest OID of an object that is not a system object (FirstNormalObjectId in transam.h)."""


class SystemRelation(msgspec.Struct, frozen=True):
    """A table or view of the schema pg_catalog."""

    oid: int
    """OID of the relation."""
    kind: str
    """`r` for a table, `v` for a view."""
    columns: Mapping[str, int]
    """Type OIDs by column name. The type OID of a NOT NULL column is negative."""


class _Rows(msgspec.Struct, frozen=True):
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class _File(msgspec.Struct, frozen=True):
    relations: Mapping[str, SystemRelation]
    rows: Mapping[str, _Rows]


_FILE: Final = msgspec.json.decode(
    files("logicalrep.standin.sql").joinpath("system_catalogs.json").read_bytes(), type=_File
)

RELATIONS: Final = _FILE.relations
"""Tables and views of the schema pg_catalog, by name."""

SYSTEM_ROWS: Final[Mapping[str, Sequence[Mapping[str, object]]]] = {
    name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    for name, table in _FILE.rows.items()
}
"""Rows that every database has, by name of the catalog. A row has values by column name."""

_TYPE_ROWS: Final = SYSTEM_ROWS["pg_type"]

TYPE_OIDS: Final[Mapping[str, int]] = {str(row["typname"]): int(str(row["oid"])) for row in _TYPE_ROWS}
"""OIDs of the built-in types, by name."""

ELEMENT_OIDS: Final[Mapping[int, int]] = {
    int(str(row["oid"])): int(str(row["typelem"]))
    for row in _TYPE_ROWS
    if row["typcategory"] == "A" and row["typelem"]
}
"""OIDs of the element types of the array types, int2vector and oidvector, by OID of the array type."""

ARRAY_OIDS: Final[Mapping[int, int]] = {
    int(str(row["oid"])): int(str(row["typarray"])) for row in _TYPE_ROWS if row["typarray"]
}
"""OIDs of the array types, by OID of the element type."""

VECTORS: Final = (TYPE_OIDS["int2vector"], TYPE_OIDS["oidvector"])
"""OIDs of the array types whose first subscript is 0 and whose text has spaces between the elements."""

OBJECT_TYPES: Final[Mapping[int, tuple[str, str]]] = {
    TYPE_OIDS["regclass"]: ("pg_class", "relname"),
    TYPE_OIDS["regtype"]: ("pg_type", "typname"),
    TYPE_OIDS["regproc"]: ("pg_proc", "proname"),
    TYPE_OIDS["regprocedure"]: ("pg_proc", "proname"),
    TYPE_OIDS["regnamespace"]: ("pg_namespace", "nspname"),
    TYPE_OIDS["regrole"]: ("pg_roles", "rolname"),
}
"""Catalog and name column of the objects that a type such as regclass refers to, by OID of the type."""

_DUCKDB_TYPES: Final = {
    BOOL: "BOOLEAN",
    INT2: "SMALLINT",
    INT4: "INTEGER",
    INT8: "BIGINT",
    OID: "UINTEGER",
    XID: "UINTEGER",
    700: "REAL",
    701: "DOUBLE",
    114: "JSON",
    JSONB: "JSON",
    TYPE_OIDS["xid8"]: "UBIGINT",
    **dict.fromkeys(OBJECT_TYPES, "UINTEGER"),
}


def duckdb_type(type_oid: int) -> str:
    """Return the DuckDB type for a built-in type; VARCHAR if DuckDB has no equivalent."""
    if type_oid in ELEMENT_OIDS:
        return f"{duckdb_type(ELEMENT_OIDS[type_oid])}[]"
    return _DUCKDB_TYPES.get(type_oid, "VARCHAR")
