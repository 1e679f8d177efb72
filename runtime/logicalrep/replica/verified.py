"""The LSN up to which a Delta table was found equal to its source, stored in a property of the table."""

from __future__ import annotations

from typing import Final

import msgspec

from logicalrep.apply import Difference, decode_differences
from logicalrep.recording import Location, Verified
from logicalrep.targets import MAY_DIFFER, Table, change_table

VERIFIED: Final = "logicalrep.verified_through"
"""Key of a Delta table property; the value is `Verified` as JSON, or empty."""


def decode_verified(text: str | None) -> Verified | None:
    """Return the value of the table property `logicalrep.verified_through`; None if there is none.

    Raises:
        ValueError: The text is not JSON written by `store_verified`.
    """
    return msgspec.json.decode(text, type=Verified) if text else None


def store_verified(target: Location, oid: int, verified: Verified | None, may_differ: str = "") -> None:
    """Store the result of a comparison in a property of a relation's Delta table, or remove the last result.

    Nothing is committed if the table does not exist or already has these values. The commit of the property
    can make a concurrent commit of a query fail once; the query then repeats its commit.

    Args:
        target: The folder that holds the replica.
        oid: OID of the relation.
        verified: The result; None removes an earlier result, because the table was not found equal.
        may_differ: Value of the property `logicalrep.may_differ` when the rows were read: a list of reasons,
            as JSON. They are removed if the table was found equal and the property still has this value.

    Raises:
        ReplicaError: The target cannot be read.
        ConflictError: Several attempts failed because of concurrent commits.
    """
    text = "" if verified is None else msgspec.json.encode(verified).decode()

    def store(table: Table) -> None:
        properties, stored = {VERIFIED: text}, table.properties
        if verified is not None and may_differ and stored.get(MAY_DIFFER) == may_differ:
            properties[MAY_DIFFER] = "[]"
        if any(stored.get(key, "") != value for key, value in properties.items()):
            table.set_properties(properties)

    change_table(target, oid, store)


def mark_difference(target: Location, oid: int, beginning: str, mark: Difference | None) -> bool:
    """Replace the reasons in `logicalrep.may_differ` that begin with a text; return whether they change.

    Nothing is committed if the table does not exist, or has this reason already.

    Args:
        target: The folder that holds the replica.
        oid: OID of the relation.
        beginning: Beginning of the reasons to replace.
        mark: The new reason; None to remove the reasons.

    Raises:
        ReplicaError: The target cannot be read.
        ConflictError: Several attempts failed because of concurrent commits.
    """

    def store(table: Table) -> bool:
        known = decode_differences(table.properties.get(MAY_DIFFER))
        new = [one for one in known if not one.reason.startswith(beginning)] + [*filter(None, [mark])]
        if {one.reason for one in known} == {one.reason for one in new}:
            return False
        table.set_properties({MAY_DIFFER: msgspec.json.encode(new).decode()})
        return True

    return bool(change_table(target, oid, store))
