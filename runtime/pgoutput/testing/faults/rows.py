"""Faults in Relation and Type messages, and in the tuples of Insert, Update and Delete."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pgoutput._roles import CHANGES, field_name, has_role, meaning_of, tuples
from pgoutput.messages import UNCHANGED, ColumnFlag, Relation, ReplicaIdentity, TupleData
from pgoutput.testing.faults.model import Fault, Messages, Stream
from pgoutput.testing.faults.sequence import is_needed

_UNUSED_OID: Final = 2**32 - 1
"""An OID that no relation or type of a test stream has."""


def _unknown_relation(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if has_role(message, "truncate"):
        oids = (*meaning_of(message, "relations")[:-1], _UNUSED_OID)
        return stream.with_fields(position, relations=oids)
    return stream.with_fields(position, relation=_UNUSED_OID) if has_role(message, *CHANGES) else None


def _tuple(stream: Stream, position: int) -> tuple[str, TupleData] | None:
    """Return (field name, cells) of a message's key, old or else new tuple; None for none or a list."""
    message = stream.places[position].message
    found = next(iter(tuples(message)), None)
    return found if found is not None and found[0] in type(message).__struct_fields__ else None


def _extra_cell(stream: Stream, position: int) -> Messages | None:
    if (found := _tuple(stream, position)) is None:
        return None
    field, cells = found
    return stream.with_fields(position, **{field: (*cells, None)})


def _missing_cell(stream: Stream, position: int) -> Messages | None:
    if (found := _tuple(stream, position)) is None or not found[1]:
        return None
    field, cells = found
    return stream.with_fields(position, **{field: cells[:-1]})


def _old(stream: Stream, position: int) -> tuple[str, TupleData] | None:
    found = _tuple(stream, position)
    new = field_name(type(stream.places[position].message), "new")
    return None if found is None or found[0] == new else found


def _old_of_unpartitioned(stream: Stream, position: int) -> tuple[str, TupleData] | None:
    """Return (field name, cells) of a change's old or key tuple; None without this tuple, or for a partition.

    The old tuple of a partition's row depends on the partition's replica identity, not the published table's.
    """
    oid = meaning_of(stream.places[position].message, "relation")
    for before in range(position, -1, -1):
        message = stream.places[before].message
        if isinstance(message, Relation) and message.oid == oid:
            following = (place.message for place in stream.places[before + 1 :])
            behind = next(one for one in following if not has_role(one, "type"))
            return None if isinstance(behind, Relation) else _old(stream, position)
    return None


def _unchanged_old(stream: Stream, position: int) -> Messages | None:
    if (found := _old(stream, position)) is None or not found[1]:
        return None
    field, cells = found
    return stream.with_fields(position, **{field: (UNCHANGED, *cells[1:])})


def _replaced(cells: TupleData, place: int, cell: str | None) -> TupleData:
    return (*cells[:place], cell, *cells[place + 1 :])


def _value_beside_key(stream: Stream, position: int) -> Messages | None:
    found = _old_of_unpartitioned(stream, position)
    if found is None or found[0] != "key" or None not in found[1]:
        return None
    return stream.with_fields(position, key=_replaced(found[1], found[1].index(None), "0"))


def _key_null(stream: Stream, position: int) -> Messages | None:
    found = _old_of_unpartitioned(stream, position)
    if found is None or found[0] != "key":
        return None
    place = next(i for i, cell in enumerate(found[1]) if cell is not None)
    return stream.with_fields(position, key=_replaced(found[1], place, None))


def _swap_old_and_key(stream: Stream, position: int) -> Messages | None:
    if (found := _old(stream, position)) is None:
        return None
    field, cells = found
    return stream.with_fields(position, **{field: None, "old" if field == "key" else "key": cells})


def _missing_old(stream: Stream, position: int) -> Messages | None:
    found = _old_of_unpartitioned(stream, position)
    update = has_role(stream.places[position].message, "update")
    return (
        stream.with_fields(position, old=None) if update and found is not None and found[0] == "old" else None
    )


def _binary(stream: Stream, position: int) -> Messages | None:
    if stream.options.binary is not False or (found := _tuple(stream, position)) is None:
        return None
    field, cells = found
    place = next((i for i, cell in enumerate(cells) if isinstance(cell, str)), None)
    if place is None:
        return None
    return stream.with_fields(position, **{field: (*cells[:place], b"\0", *cells[place + 1 :])})


def _truncate_nothing(stream: Stream, position: int) -> Messages | None:
    truncates = has_role(stream.places[position].message, "truncate")
    return stream.with_fields(position, relations=()) if truncates else None


def _truncate_twice(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not has_role(message, "truncate"):
        return None
    oids = meaning_of(message, "relations")
    return stream.with_fields(position, relations=(*oids, oids[0]))


# Relations and types


def _relation(stream: Stream, position: int) -> Relation | None:
    message = stream.places[position].message
    return message if isinstance(message, Relation) and message.columns else None


def _identity(stream: Stream, position: int) -> Messages | None:
    if (relation := _relation(stream, position)) is None:
        return None
    keys = [bool(column.flags & ColumnFlag.KEY) for column in relation.columns]
    wrong = ReplicaIdentity.NOTHING if any(keys) else ReplicaIdentity.FULL
    return stream.with_fields(position, replica_identity=wrong)


def _columns(stream: Stream, position: int) -> Messages | None:
    """Remove the last column of a Relation message if row changes of the relation follow."""
    if (relation := _relation(stream, position)) is None or not is_needed(stream, position, rows=True):
        return None
    return stream.with_fields(position, columns=relation.columns[:-1])


def _change_column(stream: Stream, position: int, **fields: Any) -> Messages | None:
    if (relation := _relation(stream, position)) is None:
        return None
    column = msgspec.structs.replace(relation.columns[-1], **fields)
    return stream.with_fields(position, columns=(*relation.columns[:-1], column))


def _name_twice(stream: Stream, position: int) -> Messages | None:
    relation = _relation(stream, position)
    if relation is None or len(relation.columns) < 2:
        return None
    return _change_column(stream, position, name=relation.columns[0].name)


def _nameless(stream: Stream, position: int) -> Messages | None:
    return _change_column(stream, position, name="")


def _type_unknown(stream: Stream, position: int) -> Messages | None:
    return _change_column(stream, position, type_oid=_UNUSED_OID)


def _type_zero(stream: Stream, position: int) -> Messages | None:
    return _change_column(stream, position, type_oid=0)


def _other_type(stream: Stream, position: int) -> Messages | None:
    if not has_role(stream.places[position].message, "type") or position + 1 == len(stream.messages):
        return None
    return stream.with_fields(position, oid=_UNUSED_OID)


FAULTS: Final = (
    Fault(name="relation-oid", doc="A change refers to an unknown relation.", apply=_unknown_relation),
    Fault(name="cell-more", doc="A tuple has an extra cell.", apply=_extra_cell),
    Fault(name="cell-less", doc="A tuple lacks its last cell.", apply=_missing_cell),
    Fault(name="old-unchanged", doc="A cell of an old or key tuple is unchanged.", apply=_unchanged_old),
    Fault(
        name="key-beside", doc="A key tuple has a value outside of the key columns.", apply=_value_beside_key
    ),
    Fault(name="key-null", doc="A key tuple has NULL in a key column.", apply=_key_null),
    Fault(
        name="key-for-old",
        doc="A key tuple is sent as an old tuple, or an old tuple as a key tuple.",
        apply=_swap_old_and_key,
    ),
    Fault(
        name="old-missing",
        doc="An update of a table with REPLICA IDENTITY FULL has no old tuple.",
        apply=_missing_old,
    ),
    Fault(name="binary", doc="A cell is binary without the option binary.", apply=_binary),
    Fault(name="truncate-nothing", doc="A Truncate has no relation.", apply=_truncate_nothing),
    Fault(name="truncate-twice", doc="A Truncate has a relation twice.", apply=_truncate_twice),
    Fault(
        name="identity", doc="The replica identity contradicts the key flags of the columns.", apply=_identity
    ),
    Fault(name="column-missing", doc="A relation has one column less than its tuples.", apply=_columns),
    Fault(name="column-twice", doc="Two columns of a relation have the same name.", apply=_name_twice),
    Fault(name="column-nameless", doc="A column has no name.", apply=_nameless),
    Fault(name="type-unknown", doc="A column has a type without a Type message.", apply=_type_unknown),
    Fault(name="type-zero", doc="A column has the type OID 0.", apply=_type_zero),
    Fault(
        name="type-oid",
        doc="A Type message describes a type that the Relation does not use.",
        apply=_other_type,
    ),
)
