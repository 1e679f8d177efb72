"""Columns of binary recordings whose values cannot be compared as text."""

from __future__ import annotations

from pgoutput import catalog
from pgoutput.errors import ReplicaError
from pgoutput.messages import Relation
from pgoutput.wire import shown_text


def check_binary_columns(relation: Relation) -> None:
    """Check that the text of all values in binary format is that of the server.

    Raises:
        ReplicaError: A column has a type whose binary format is not converted to the server's text.
    """
    names = [shown_text(one.name) for one in relation.columns if not _has_text(one.type_oid)]
    if names:
        raise ReplicaError(
            f"the recording has values in binary format, and those of {', '.join(names)} cannot be compared "
            "with the server's text"
        )


def _has_text(type_oid: int) -> bool:
    builtin = catalog.BY_ARRAY_OID.get(type_oid) or catalog.BY_OID.get(type_oid)
    return builtin is not None and not builtin.name.startswith("reg") and builtin.name != "money"
