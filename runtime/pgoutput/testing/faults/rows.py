"""Faults of relations, and of the rows of changes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pgoutput import messages as m
from pgoutput.messages import UNCHANGED, ColumnFlag, Relation, ReplicaIdentity, TupleData
from pgoutput.testing.faults.model import Fault, Messages, Stream
from pgoutput.testing.faults.structure import is_needed

_NO_OID: Final = 2**32 - 1
"""An OID that no relation has that soon."""


def _with(stream: Stream, position: int, **fields: Any) -> Messages:
    changed = msgspec.structs.replace(stream.places[position].message, **fields)
    return stream.with_message(position, changed)


def _unknown_relation(stream: Stream, position: int) -> Messages | None:
    match stream.places[position].message:
        case m.Insert() | m.Update() | m.Delete():
            return _with(stream, position, relation_oid=_NO_OID)
        case m.Truncate(relation_oids=oids):
            return _with(stream, position, relation_oids=(*oids[:-1], _NO_OID))
    return None


def _tuple(stream: Stream, position: int) -> tuple[str, TupleData] | None:
    """The name and cells of a tuple of a change."""
    message = stream.places[position].message
    for field in ("key", "old", "new"):
        cells: TupleData | None = getattr(message, field, None)
        if cells is not None:
            return field, cells
    return None


def _one_more(stream: Stream, position: int) -> Messages | None:
    if (found := _tuple(stream, position)) is None:
        return None
    field, cells = found
    return _with(stream, position, **{field: (*cells, None)})


def _one_less(stream: Stream, position: int) -> Messages | None:
    if (found := _tuple(stream, position)) is None or not found[1]:
        return None
    field, cells = found
    return _with(stream, position, **{field: cells[:-1]})


def _old(stream: Stream, position: int) -> tuple[str, TupleData] | None:
    found = _tuple(stream, position)
    return None if found is None or found[0] == "new" else found


def _old_of_itself(stream: Stream, position: int) -> tuple[str, TupleData] | None:
    """As `_old`, where the relation's own replica identity decides: not for rows of partitions."""
    oid = getattr(stream.places[position].message, "relation_oid", None)
    for before in range(position, -1, -1):
        message = stream.places[before].message
        if isinstance(message, Relation) and message.oid == oid:
            following = (place.message for place in stream.places[before + 1 :])
            behind = next(one for one in following if not isinstance(one, m.Type))
            return None if isinstance(behind, Relation) else _old(stream, position)
    return None


def _unchanged_old(stream: Stream, position: int) -> Messages | None:
    if (found := _old(stream, position)) is None or not found[1]:
        return None
    field, cells = found
    return _with(stream, position, **{field: (UNCHANGED, *cells[1:])})


def _replaced(cells: TupleData, place: int, cell: str | None) -> TupleData:
    return (*cells[:place], cell, *cells[place + 1 :])


def _beside_key(stream: Stream, position: int) -> Messages | None:
    found = _old_of_itself(stream, position)
    if found is None or found[0] != "key" or None not in found[1]:
        return None
    return _with(stream, position, key=_replaced(found[1], found[1].index(None), "0"))


def _key_null(stream: Stream, position: int) -> Messages | None:
    found = _old_of_itself(stream, position)
    if found is None or found[0] != "key":
        return None
    place = next(i for i, cell in enumerate(found[1]) if cell is not None)
    return _with(stream, position, key=_replaced(found[1], place, None))


def _other_old(stream: Stream, position: int) -> Messages | None:
    if (found := _old(stream, position)) is None:
        return None
    field, cells = found
    return _with(stream, position, **{field: None, "old" if field == "key" else "key": cells})


def _no_old(stream: Stream, position: int) -> Messages | None:
    found = _old_of_itself(stream, position)
    update = isinstance(stream.places[position].message, m.Update)
    return _with(stream, position, old=None) if update and found is not None and found[0] == "old" else None


def _binary(stream: Stream, position: int) -> Messages | None:
    if stream.options.binary is not False or (found := _tuple(stream, position)) is None:
        return None
    field, cells = found
    place = next((i for i, cell in enumerate(cells) if isinstance(cell, str)), None)
    if place is None:
        return None
    return _with(stream, position, **{field: (*cells[:place], b"\0", *cells[place + 1 :])})


def _truncate_nothing(stream: Stream, position: int) -> Messages | None:
    truncates = isinstance(stream.places[position].message, m.Truncate)
    return _with(stream, position, relation_oids=()) if truncates else None


def _truncate_twice(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not isinstance(message, m.Truncate):
        return None
    return _with(stream, position, relation_oids=(*message.relation_oids, message.relation_oids[0]))


# Relations and types


def _relation(stream: Stream, position: int) -> Relation | None:
    message = stream.places[position].message
    return message if isinstance(message, Relation) and message.columns else None


def _identity(stream: Stream, position: int) -> Messages | None:
    if (relation := _relation(stream, position)) is None:
        return None
    keys = [bool(column.flags & ColumnFlag.KEY) for column in relation.columns]
    wrong = ReplicaIdentity.NOTHING if any(keys) else ReplicaIdentity.FULL
    return _with(stream, position, replica_identity=wrong)


def _columns(stream: Stream, position: int) -> Messages | None:
    """A column less than the rows that follow have."""
    if (relation := _relation(stream, position)) is None or not is_needed(stream, position, rows=True):
        return None
    return _with(stream, position, columns=relation.columns[:-1])


def _change_column(stream: Stream, position: int, **fields: Any) -> Messages | None:
    if (relation := _relation(stream, position)) is None:
        return None
    column = msgspec.structs.replace(relation.columns[-1], **fields)
    return _with(stream, position, columns=(*relation.columns[:-1], column))


def _name_twice(stream: Stream, position: int) -> Messages | None:
    relation = _relation(stream, position)
    if relation is None or len(relation.columns) < 2:
        return None
    return _change_column(stream, position, name=relation.columns[0].name)


def _nameless(stream: Stream, position: int) -> Messages | None:
    return _change_column(stream, position, name="")


def _type_unknown(stream: Stream, position: int) -> Messages | None:
    return _change_column(stream, position, type_oid=_NO_OID)


def _type_zero(stream: Stream, position: int) -> Messages | None:
    return _change_column(stream, position, type_oid=0)


def _other_type(stream: Stream, position: int) -> Messages | None:
    if not isinstance(stream.places[position].message, m.Type) or position + 1 == len(stream.messages):
        return None
    return _with(stream, position, oid=_NO_OID)


FAULTS: Final = (
    Fault(name="relation-oid", doc="A change is of a relation that has not come.", make=_unknown_relation),
    Fault(name="cell-more", doc="A row has one column too many.", make=_one_more),
    Fault(name="cell-less", doc="A row has one column too few.", make=_one_less),
    Fault(name="old-unchanged", doc="An old value is left out as unchanged.", make=_unchanged_old),
    Fault(name="key-beside", doc="A key has a value beside the key's columns.", make=_beside_key),
    Fault(name="key-null", doc="A key has NULL in a column of the key.", make=_key_null),
    Fault(name="key-for-old", doc="A key is sent as an old row, or the other way round.", make=_other_old),
    Fault(name="old-missing", doc="An update under REPLICA IDENTITY FULL has no old row.", make=_no_old),
    Fault(name="binary", doc="A value is binary, which was not asked for.", make=_binary),
    Fault(name="truncate-nothing", doc="A Truncate lists no relation.", make=_truncate_nothing),
    Fault(name="truncate-twice", doc="A Truncate lists a relation twice.", make=_truncate_twice),
    Fault(name="identity", doc="The replica identity does not fit the flags of the columns.", make=_identity),
    Fault(name="column-missing", doc="A relation has one column less than its rows.", make=_columns),
    Fault(name="column-twice", doc="Two columns of a relation have the same name.", make=_name_twice),
    Fault(name="column-nameless", doc="A column has no name.", make=_nameless),
    Fault(
        name="type-unknown", doc="A column has a type of which no Type message is there.", make=_type_unknown
    ),
    Fault(name="type-zero", doc="A column has a type with the OID 0.", make=_type_zero),
    Fault(
        name="type-oid", doc="A Type message is of a type that the Relation does not use.", make=_other_type
    ),
)
