"""The view `schema`: the history of every relation, from the stream alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from pgoutput import catalog
from pgoutput.jsonlines import from_json
from pgoutput.messages import ColumnFlag, Relation, Type
from pgoutput.recording import Metadata
from pgoutput.views.changes import HEAD
from pgoutput.views.shapes import Shape, make_shape
from pgoutput.wire import shown_text

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
        pa.schema(HEAD).field("relation"),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("replica_identity", _TEXT, nullable=False),
        pa.field("columns", pa.list_(pa.field("element", _COLUMN, nullable=False)), nullable=False),
    ]
)
"""One row per epoch of a relation: from a Relation message to the next that says something else.

- `relation`: OID, and what it is called from then on.
- `epoch`: Running number of the relation's epochs, from 1.
- `lsn`: The last LSN that the stream gave before the message; Relation messages have none.
- `position`: Place of the message in the recording.
- `replica_identity`: pg_class.relreplident.
- `columns`: Names; types as SQL writes them, of domains their own; whether the column belongs to the replica
  identity; pg_attribute.atttypid and atttypmod.
"""


class Epoch(msgspec.Struct, frozen=True):
    """A relation, from one Relation message to the next that says something else."""

    number: int
    lsn: int
    position: int
    relation: Relation
    types: dict[int, Type]
    """The Type messages of its columns' types, by OID."""

    @property
    def shape(self) -> Shape:
        """The relation as changes refer to it."""
        return make_shape(self.relation, self.types)


def epochs(segments: Iterable[Metadata]) -> Iterator[Epoch]:
    """The epochs of all relations, in the order of the stream.

    Args:
        segments: All of a recording up to some place, in their order.
    """
    last: dict[int, Epoch] = {}
    for segment in segments:
        for one in segment.relations:
            relation: Any = from_json(one.relation)
            types: Any = [from_json(type_) for type_ in one.types]
            by_oid = {type_.oid: type_ for type_ in types}
            before = last.get(relation.oid)
            if before is None or (before.relation, before.types) != (relation, by_oid):
                number = 1 if before is None else before.number + 1
                last[relation.oid] = Epoch(number, one.lsn, one.position, relation, by_oid)
                yield last[relation.oid]


def epochs_batch(found: Iterable[Epoch]) -> pa.RecordBatch:
    """The rows of `SCHEMA`."""
    return pa.RecordBatch.from_pylist(list(map(_row, found)), SCHEMA)


def _row(epoch: Epoch) -> dict[str, Any]:
    relation, shape = epoch.relation, epoch.shape
    columns = [
        {
            "name": name,
            "type": type_name(column.type_oid, column.type_modifier, epoch.types),
            "key": bool(column.flags & ColumnFlag.KEY),
            "type_oid": column.type_oid,
            "type_modifier": column.type_modifier,
        }
        for name, column in zip(shape.names, relation.columns, strict=True)
    ]
    return {
        "relation": {"oid": relation.oid, "namespace": shape.namespace, "name": shape.name},
        "epoch": epoch.number,
        "lsn": epoch.lsn,
        "position": epoch.position,
        "replica_identity": shown_text(str(relation.replica_identity)),
        "columns": columns,
    }


def type_name(oid: int, modifier: int, types: Mapping[int, Type]) -> str:
    """A type as SQL writes it (format_type), by its name in pg_type: `numeric(12,2)`, `int4[]`.

    Args:
        oid: pg_attribute.atttypid.
        modifier: pg_attribute.atttypmod.
        types: The Type messages, by OID.
    """
    if (element := catalog.BY_ARRAY_OID.get(oid)) is not None:
        return f"{type_name(element.oid, modifier, types)}[]"
    if (builtin := catalog.BY_OID.get(oid)) is not None:
        suffix = "" if modifier < 0 else _MODIFIERS[builtin.modifier](modifier)
        return builtin.name + suffix
    named = types.get(oid)
    if named is None:
        return str(oid)
    name = shown_text(named.name)
    return name if named.namespace in ("", "pg_catalog") else f"{shown_text(named.namespace)}.{name}"


_MODIFIERS: Final[Mapping[str, Callable[[int], str]]] = {
    "none": lambda modifier: "",
    "length": lambda modifier: f"({modifier - 4})",
    "bits": lambda modifier: f"({modifier})",
    "precision": lambda modifier: f"({modifier})",
    # numeric.c, numeric_typmod_precision and numeric_typmod_scale
    "numeric": lambda modifier: f"({modifier - 4 >> 16 & 0xFFFF},{((modifier - 4 & 0x7FF) ^ 1024) - 1024})",
    # timestamp.c, intervaltypmodout: the lower half is the precision, if there is one
    "interval": lambda modifier: "" if modifier & 0xFFFF == 0xFFFF else f"({modifier & 0xFFFF})",
}
"""What a modifier adds to a type's name, by what it means."""
