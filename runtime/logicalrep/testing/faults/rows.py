"""Faults in Relation and Type messages, and in the tuples of Insert, Update and Delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from logicalrep._roles import CHANGES, field_name, has_role, meaning_of, tuples
from logicalrep.messages import UNCHANGED, Cell, ColumnFlag, Relation, ReplicaIdentity, TupleData
from logicalrep.testing.faults.model import Fields, Messages, Place, Stream, fault, field_fault
from logicalrep.testing.faults.sequence import is_needed

_UNUSED_OID: Final = 2**32 - 1
"""An OID that no relation or type of a test stream has."""


@field_fault("relation-oid", "A change refers to an unknown relation.")
def _unknown_relation(place: Place) -> Fields | None:
    if has_role(place.message, "truncate"):
        return {"relations": (*meaning_of(place.message, "relations")[:-1], _UNUSED_OID)}
    return {"relation": _UNUSED_OID} if has_role(place.message, *CHANGES) else None


# Faults in tuples and Truncate messages


def _tuple(place: Place) -> tuple[str, TupleData] | None:
    """Return (field, cells) of a message's key or old tuple, else of its first new tuple, else None."""
    return next(iter(tuples(place.message)), None)


def _old(place: Place) -> tuple[str, TupleData] | None:
    found = _tuple(place)
    new = field_name(type(place.message), "new")
    return None if found is None or found[0].partition("[")[0] == new else found


def _changed(
    place: Place, found: tuple[str, TupleData] | None, change: Callable[[TupleData], TupleData | None]
) -> Fields | None:
    """Return {field: new value} for the field of the tuple `found`, with the cells that `change` returns.

    Return None if `found` is None or `change` returns None.
    """
    cells = None if found is None else change(found[1])
    if found is None or cells is None:
        return None
    field, is_listed, _ = found[0].partition("[")
    return {field: (cells, *getattr(place.message, field)[1:]) if is_listed else cells}


def _replaced(cells: TupleData, index: int, cell: Cell) -> TupleData:
    return (*cells[:index], cell, *cells[index + 1 :])


@field_fault("cell-more", "A tuple has an extra cell.")
def _extra_cell(place: Place) -> Fields | None:
    return _changed(place, _tuple(place), lambda cells: (*cells, None))


@field_fault("cell-less", "A tuple lacks its last cell.")
def _missing_cell(place: Place) -> Fields | None:
    return _changed(place, _tuple(place), lambda cells: cells[:-1] if cells else None)


@field_fault("old-unchanged", "A cell of an old or key tuple is unchanged.")
def _unchanged_old(place: Place) -> Fields | None:
    return _changed(place, _old(place), lambda cells: _replaced(cells, 0, UNCHANGED) if cells else None)


def _old_of_unpartitioned(stream: Stream, position: int, name: str) -> TupleData | None:
    """Return the tuple `name` (`old` or `key`) of a change; None without this tuple or for a partition's row.

    The old tuple of a partition's row depends on the partition's replica identity, not the published table's.
    """
    found = _old(stream.places[position])
    oid = meaning_of(stream.places[position].message, "relation")
    for before in range(position, -1, -1):
        message = stream.places[before].message
        if isinstance(message, Relation) and message.oid == oid:
            following = (place.message for place in stream.places[before + 1 :])
            behind = next(one for one in following if not has_role(one, "type"))
            is_partition = isinstance(behind, Relation)
            return None if is_partition or found is None or found[0] != name else found[1]
    return None


@fault("key-beside", "A key tuple has a value outside of the key columns.")
def _value_beside_key(stream: Stream, position: int) -> Messages | None:
    cells = _old_of_unpartitioned(stream, position, "key")
    if cells is None or None not in cells:
        return None
    return stream.with_fields(position, key=_replaced(cells, cells.index(None), "0"))


@fault("key-null", "A key tuple has NULL in a key column.")
def _key_null(stream: Stream, position: int) -> Messages | None:
    if (cells := _old_of_unpartitioned(stream, position, "key")) is None:
        return None
    index = next(i for i, cell in enumerate(cells) if cell is not None)
    return stream.with_fields(position, key=_replaced(cells, index, None))


@field_fault("key-for-old", "A key tuple is sent as an old tuple, or an old tuple as a key tuple.")
def _swap_old_and_key(place: Place) -> Fields | None:
    if (found := _old(place)) is None:
        return None
    field, cells = found
    return {field: None, "old" if field == "key" else "key": cells}


@fault("old-missing", "An update of a table with REPLICA IDENTITY FULL has no old tuple.")
def _missing_old(stream: Stream, position: int) -> Messages | None:
    cells = _old_of_unpartitioned(stream, position, "old")
    is_update = has_role(stream.places[position].message, "update")
    return stream.with_fields(position, old=None) if is_update and cells is not None else None


@fault("binary", "A cell is binary without the option binary.")
def _binary(stream: Stream, position: int) -> Messages | None:
    def with_binary(cells: TupleData) -> TupleData | None:
        index = next((i for i, cell in enumerate(cells) if isinstance(cell, str)), None)
        return None if index is None else _replaced(cells, index, b"\0")

    place = stream.places[position]
    fields = None if stream.options.binary is not False else _changed(place, _tuple(place), with_binary)
    return None if fields is None else stream.with_fields(position, **fields)


@field_fault("truncate-nothing", "A Truncate has no relation.")
def _truncate_nothing(place: Place) -> Fields | None:
    return {"relations": ()} if has_role(place.message, "truncate") else None


@field_fault("truncate-twice", "A Truncate has a relation twice.")
def _truncate_twice(place: Place) -> Fields | None:
    if not has_role(place.message, "truncate"):
        return None
    oids = meaning_of(place.message, "relations")
    return {"relations": (*oids, oids[0])}


# Faults in Relation and Type messages


def _relation(place: Place) -> Relation | None:
    message = place.message
    return message if isinstance(message, Relation) and message.columns else None


@field_fault("identity", "The replica identity contradicts the key flags of the columns.")
def _identity(place: Place) -> Fields | None:
    if (relation := _relation(place)) is None:
        return None
    has_key = any(column.flags & ColumnFlag.KEY for column in relation.columns)
    return {"replica_identity": ReplicaIdentity.NOTHING if has_key else ReplicaIdentity.FULL}


@fault("column-missing", "A relation has one column less than its tuples.")
def _columns(stream: Stream, position: int) -> Messages | None:
    """Return the messages, without the last column of the Relation message at `position`.

    Return None for other messages, and if no change of a row needs the Relation message (`is_needed`).
    """
    relation = _relation(stream.places[position])
    if relation is None or not is_needed(stream, position, rows=True):
        return None
    return stream.with_fields(position, columns=relation.columns[:-1])


def _with_last_column(place: Place, **fields: Any) -> Fields | None:
    """Return {"columns": …} for a Relation message, with `fields` changed in its last column.

    Return None for other messages, and for a Relation message without columns.
    """
    if (relation := _relation(place)) is None:
        return None
    return {"columns": (*relation.columns[:-1], msgspec.structs.replace(relation.columns[-1], **fields))}


@field_fault("column-twice", "Two columns of a relation have the same name.")
def _name_twice(place: Place) -> Fields | None:
    relation = _relation(place)
    if relation is None or len(relation.columns) < 2:
        return None
    return _with_last_column(place, name=relation.columns[0].name)


@field_fault("column-nameless", "A column has no name.")
def _nameless(place: Place) -> Fields | None:
    return _with_last_column(place, name="")


@field_fault("type-unknown", "A column has a type without a Type message.")
def _type_unknown(place: Place) -> Fields | None:
    return _with_last_column(place, type_oid=_UNUSED_OID)


@field_fault("type-zero", "A column has the type OID 0.")
def _type_zero(place: Place) -> Fields | None:
    return _with_last_column(place, type_oid=0)


@fault("type-oid", "A Type message describes a type that the Relation does not use.")
def _other_type(stream: Stream, position: int) -> Messages | None:
    if not has_role(stream.places[position].message, "type") or position + 1 == len(stream.messages):
        return None
    return stream.with_fields(position, oid=_UNUSED_OID)
