"""Reasons why a change does not fit the Relation message of its relation."""

from __future__ import annotations

from pgoutput._roles import tuples
from pgoutput.errors import StreamError
from pgoutput.messages import Message, Relation
from pgoutput.wire import shown_text


def qualified_name(relation: Relation) -> str:
    """Return the name of a relation as `public.orders`."""
    return f"{shown_text(relation.namespace) or 'pg_catalog'}.{shown_text(relation.name)}"


def missing_relation(oid: int) -> str:
    """Return the reason for a change whose relation has not been described."""
    return f"no Relation message has come for the OID {oid}"


def wrong_width(message: Message, relation: Relation) -> tuple[str, str] | None:
    """Return (path, reason) for the first tuple that has not one cell for each column; None if all have."""
    width = len(relation.columns)
    for path, cells in tuples(message):
        if len(cells) != width:
            return path, f"{path} has {len(cells)} columns, but {qualified_name(relation)} has {width}"
    return None


def change_error(message: Message, oid: int, relation: Relation | None) -> StreamError:
    """Return the error for a change that does not fit its relation.

    Args:
        message: The change.
        oid: OID of the relation.
        relation: The relation, whose number of columns differs from the number of cells in the change; None
            if no Relation message for the OID has come.
    """
    wrong = None if relation is None else wrong_width(message, relation)
    return StreamError.at(message, missing_relation(oid) if wrong is None else wrong[1])
