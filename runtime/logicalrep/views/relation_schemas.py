"""Schemas of relations, as the views `changes`, `table` and `schema` use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep import messages
from logicalrep.messages import Relation
from logicalrep.values import base_types
from logicalrep.wire import stored_name

_TEXT: Final = pa.string()

TEXTS: Final = pa.list_(pa.field("element", _TEXT, nullable=False))

RELATION: Final = pa.struct(
    [
        pa.field("oid", pa.int64(), nullable=False),
        pa.field("namespace", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
    ]
)


class RelationSchema(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A relation's schema in one schema version: name, columns and replica identity."""

    relation: Relation
    """The Relation message, with base types in place of domains and without xid."""
    names: tuple[str, ...]
    """Column names; bytes that are not valid UTF-8 are escaped."""
    types: tuple[int, ...]
    """Type OIDs of the columns."""
    keys: tuple[int, ...]
    """Indices of the columns of the replica identity."""

    @property
    def namespace(self) -> str:
        """Namespace of the relation, with `pg_catalog` in place of the empty string."""
        return stored_name(self.relation.namespace) or "pg_catalog"

    @property
    def name(self) -> str:
        """Name of the relation; bytes that are not valid UTF-8 are escaped."""
        return stored_name(self.relation.name)

    @property
    def qualified_name(self) -> str:
        """Namespace and name of the relation, such as `public.orders`."""
        return f"{self.namespace}.{self.name}"

    @cached_property
    def columns(self) -> Mapping[str, pa.Array]:
        """Arrays with one row, by name.

        `relation`, `key_columns` and `columns` are columns of the view `changes`. `names` is the list of the
        relation's column names.
        """
        relation = {"oid": self.relation.oid, "namespace": self.namespace, "name": self.name}
        columns = {
            name: (column.type_oid, column.type_modifier)
            for name, column in zip(self.names, self.relation.columns, strict=True)
        }
        return {
            "relation": pa.array([relation], RELATION),
            "key_columns": pa.array([[self.names[key] for key in self.keys]], TEXTS),
            "columns": pa.array([msgspec.json.encode(columns).decode()], _TEXT),
            "names": pa.array([self.names], TEXTS),
        }

    def repeated(self, name: str, rows: int) -> pa.Array:
        """Return the array `columns[name]` repeated to `rows` rows; cached for the next batches."""
        array = self._repeated.get(name)
        if array is None or len(array) < rows:
            array = self._repeated[name] = self.columns[name].take(pa.array(np.zeros(rows, np.int64)))
        return array.slice(0, rows)

    @cached_property
    def _repeated(self) -> dict[str, pa.Array]:
        return {}


_CACHED_SCHEMAS: Final = 4
"""Maximum number of schemas that a process caches, with their arrays, for all segments together."""

RelationFilter: TypeAlias = Callable[[RelationSchema], bool]
"""A function of a relation's schema that returns whether to read the relation's changes."""


def relation_schema(relation: Relation, types: Mapping[int, messages.Type]) -> RelationSchema:
    """Return the schema of a relation.

    Args:
        relation: The Relation message.
        types: The Type messages that were sent before the Relation message, by OID of the type.
    """
    return schema_of(msgspec.structs.replace(base_types(relation, types), xid=None))


@lru_cache(_CACHED_SCHEMAS)
def schema_of(relation: Relation) -> RelationSchema:
    """Return the schema for a Relation message that has base types in place of domains and no xid."""
    columns = relation.columns
    keys = [number for number, column in enumerate(columns) if column.flags & messages.ColumnFlag.KEY]
    names = tuple(stored_name(column.name) for column in columns)
    return RelationSchema(relation, names, tuple(column.type_oid for column in columns), tuple(keys))
