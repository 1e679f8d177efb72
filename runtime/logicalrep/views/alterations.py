"""Alterations of tables that logical messages describe, and their rows in the view `changes`.

An event trigger of the server sends the messages (`logicalrep install-ddl-events`). In the stream, each
message comes before the next change of the altered table.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec

from logicalrep._arrays import Numbers
from logicalrep._index import MessageIndex, tag_mask
from logicalrep.messages import ColumnFlag, LogicalMessage, Message, Relation, RelationColumn, ReplicaIdentity
from logicalrep.recording import DDL_PREFIX
from logicalrep.views.relation_schemas import RelationSchema, schema_of
from logicalrep.wire import stored_name, stored_text

OPERATION: Final = "Schema"
"""Value of `operation` in the rows of the view `changes` that describe alterations."""


class AlteredColumn(msgspec.Struct, frozen=True):
    """A column of a table after an ALTER TABLE."""

    name: str
    type: int
    """OID of the type; of the base type for a domain over a built-in type."""
    modifier: int
    """Type modifier (atttypmod)."""
    was: str | None
    """Name of the column before the alteration; None if the alteration has added the column."""
    origin: Literal["", "missing", "default", "generated"]
    """What gives values to existing rows when the column is added. Empty: nothing, the values are NULL.
    `missing`: a constant. `default`: a default, which may be volatile. `generated`: an expression."""
    missing: str | None
    """The constant of the origin `missing`, as text."""


class Alteration(msgspec.Struct, frozen=True):
    """The content of a logical message: a table after ALTER TABLE, and the earlier names of its columns."""

    oid: int
    schema: str
    name: str
    xid: int | None
    """Xid of the transaction or subtransaction that has altered the columns."""
    rewritten: bool
    """Whether the table was rewritten."""
    columns: tuple[AlteredColumn, ...]

    @property
    def relation(self) -> RelationSchema:
        """Schema of the table after the alteration, with all its columns and without a replica identity."""
        columns = tuple(
            RelationColumn(flags=ColumnFlag(0), name=one.name, type_oid=one.type, type_modifier=one.modifier)
            for one in self.columns
        )
        return schema_of(
            Relation(
                oid=self.oid,
                namespace=self.schema,
                name=self.name,
                replica_identity=ReplicaIdentity.NOTHING,
                columns=columns,
            )
        )

    @property
    def added_values(self) -> dict[str, str | None]:
        """Values that existing rows have in added columns, by column name, if the values are known."""
        added = (one for one in self.columns if one.was is None and one.origin in ("", "missing"))
        return {one.name: one.missing for one in added}


def read_alterations(index: MessageIndex, rows: Numbers) -> list[tuple[int, Alteration]]:
    """Return the alterations that logical messages describe, each with the row of its message in the batch.

    Args:
        index: The messages of a batch.
        rows: Rows of the logical messages.
    """
    numbers = rows.tolist()
    read = zip(numbers, map(_parse, index.messages(numbers)), strict=True)
    return [(row, one) for row, one in read if one is not None]


def _parse(message: Message) -> Alteration | None:
    """Return the alteration that a logical message describes; None for any other message."""
    if not isinstance(message, LogicalMessage) or message.prefix != DDL_PREFIX:
        return None
    try:
        text = message.content.decode("utf-8", "surrogateescape")  # names in SQL_ASCII need not be UTF-8
        return msgspec.convert(json.loads(text), Alteration)
    except (ValueError, msgspec.ValidationError):
        return None


def alteration_values(alteration: Alteration) -> dict[str, Any]:
    """Return the values of those columns of the view `changes` that describe an alteration."""
    schema, columns = alteration.relation, alteration.columns
    before = [(stored_name(one.name), stored_name(one.was)) for one in columns if one.was is not None]
    after = [
        (stored_name(name), None if value is None else stored_text(value))
        for name, value in alteration.added_values.items()
    ]
    return {
        "operation": OPERATION,
        **{name: schema.columns[name][0].as_py() for name in ("relation", "columns", "key_columns")},
        "before": before,
        "after": after,
        "unchanged": [stored_name(one.name) for one in columns if one.origin == "generated"],
    }


IS_LOGICAL: Final = tag_mask("payload")
"""For each of the 256 possible first bytes, whether it is the tag of a logical message."""
