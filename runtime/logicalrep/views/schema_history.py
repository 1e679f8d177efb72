"""The view `schema`: all schema versions of all relations, from the metadata of segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from logicalrep import catalog
from logicalrep._type_modifiers import modifier_suffix
from logicalrep.jsonlines import from_json
from logicalrep.messages import ColumnFlag, Relation, Type
from logicalrep.recording import Metadata, SchemaVersion
from logicalrep.views.changes import COMMON_COLUMNS
from logicalrep.views.relation_schemas import RelationSchema, relation_schema
from logicalrep.wire import stored_name

_TEXT: Final = pa.string()

_COLUMN: Final = pa.struct(
    [
        pa.field("name", _TEXT, nullable=False),
        pa.field("type", _TEXT, nullable=False),
        pa.field("key", pa.bool_(), nullable=False),
        pa.field("type_oid", pa.int64(), nullable=False),
        pa.field("type_modifier", pa.int32(), nullable=False),
    ]
)

SCHEMA: Final = pa.schema(
    [
        pa.schema(COMMON_COLUMNS).field("relation"),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("replica_identity", _TEXT, nullable=False),
        pa.field("columns", pa.list_(pa.field("element", _COLUMN, nullable=False)), nullable=False),
    ]
)
"""Columns of the view `schema`, one row per schema version of a relation.

- `relation`: OID, namespace and name of the relation in this schema version.
- `version`: Number of the schema version among the relation's schema versions, from 1.
- `lsn`: The last LSN that the server sent before the Relation message. A Relation message has no LSN itself.
- `position`: Position of the Relation message.
- `replica_identity`: pg_class.relreplident.
- `columns`: For each column its name, its type as in SQL (of a domain, the domain's name), whether the column
  belongs to the replica identity, pg_attribute.atttypid and atttypmod.
"""


class NumberedSchemaVersion(msgspec.Struct, frozen=True):
    """A schema version of a relation, with its number among the relation's schema versions."""

    number: int
    """Number of the schema version among the relation's schema versions, from 1."""
    lsn: int
    """Last LSN that the server sent before the Relation message."""
    position: int
    """Position of the Relation message."""
    relation: Relation
    types: dict[int, Type]
    """Type messages of those column types that are not built in, by OID of the type."""

    @property
    def schema(self) -> RelationSchema:
        """The relation's schema in this version."""
        return relation_schema(self.relation, self.types)


def schema_versions(
    segments: Iterable[Metadata], earlier: Iterable[SchemaVersion] = ()
) -> Iterator[NumberedSchemaVersion]:
    """Yield the schema versions of all relations, in the order of the stream.

    If a new session or segment repeats a relation's last schema version, the repetition is left out.

    Args:
        segments: Metadata of all segments of a recording, or of its first segments, in order.
        earlier: The last schema version of each relation in pruned segments (`Beginning.relations`).
    """
    last: dict[int, NumberedSchemaVersion] = {}
    for stored in chain(earlier, (version for segment in segments for version in segment.relations)):
        relation: Any = from_json(stored.relation)
        types: Any = [from_json(type_) for type_ in stored.types]
        by_oid = {type_.oid: type_ for type_ in types}
        before = last.get(relation.oid)
        if before is None or (before.relation, before.types) != (relation, by_oid):
            number = 1 if before is None else before.number + 1
            last[relation.oid] = NumberedSchemaVersion(number, stored.lsn, stored.position, relation, by_oid)
            yield last[relation.oid]


def schema_batch(versions: Iterable[NumberedSchemaVersion]) -> pa.RecordBatch:
    """Return schema versions as rows of `SCHEMA`."""
    return pa.RecordBatch.from_pylist(list(map(_row, versions)), SCHEMA)


def _row(version: NumberedSchemaVersion) -> dict[str, Any]:
    relation, schema = version.relation, version.schema
    columns = [
        {
            "name": name,
            "type": type_name(column.type_oid, column.type_modifier, version.types),
            "key": bool(column.flags & ColumnFlag.KEY),
            "type_oid": column.type_oid,
            "type_modifier": column.type_modifier,
        }
        for name, column in zip(schema.names, relation.columns, strict=True)
    ]
    return {
        "relation": {"oid": relation.oid, "namespace": schema.namespace, "name": schema.name},
        "version": version.number,
        "lsn": version.lsn,
        "position": version.position,
        "replica_identity": stored_name(str(relation.replica_identity)),
        "columns": columns,
    }


def type_name(oid: int, modifier: int, types: Mapping[int, Type]) -> str:
    """Return the name of a type as in SQL, such as `numeric(12,2)` or `int4[]`.

    Built-in types have their name in pg_type, such as `int4` for integer.

    Args:
        oid: pg_attribute.atttypid.
        modifier: pg_attribute.atttypmod.
        types: The Type messages of types that are not built in, by OID.
    """
    if (element := catalog.BY_ARRAY_OID.get(oid)) is not None:
        return f"{type_name(element.oid, modifier, types)}[]"
    if (builtin := catalog.BY_OID.get(oid)) is not None:
        suffix = "" if modifier < 0 else modifier_suffix(builtin.modifier, modifier)
        return builtin.name + suffix
    named = types.get(oid)
    if named is None:
        return str(oid)
    name = stored_name(named.name)
    return name if named.namespace in ("", "pg_catalog") else f"{stored_name(named.namespace)}.{name}"
