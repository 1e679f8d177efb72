"""Errors about changes that do not fit the Relation message of their relation."""

from __future__ import annotations

from logicalrep._roles import tuples
from logicalrep._text import qualified_name
from logicalrep.errors import StreamError
from logicalrep.messages import Message, Relation


def missing_relation(oid: int) -> str:
    """Return the error text about a change of a relation that no Relation message has described."""
    return f"no Relation message has come for the OID {oid}"


def wrong_width(message: Message, relation: Relation) -> tuple[str, str] | None:
    """Return field path and error text for the first tuple with a wrong number of cells, or None."""
    width, name = len(relation.columns), qualified_name(relation.namespace, relation.name)
    for path, cells in tuples(message):
        if len(cells) != width:
            return path, f"{path} has {len(cells)} columns, but {name} has {width}"
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
