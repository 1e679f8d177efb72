"""CREATE TABLE and ALTER TABLE: from one shape of a table to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.messages import ReplicaIdentity
from pgoutput.synth.literals import to_text
from pgoutput.synth.shapes import Column, Filter, Shape
from pgoutput.synth.types import Types

_WHERE: Final = 3
"""Parts of a row filter."""

_IDENTITIES: Final = {
    "default": ReplicaIdentity.DEFAULT,
    "nothing": ReplicaIdentity.NOTHING,
    "full": ReplicaIdentity.FULL,
}


def made_columns(declared: Mapping[str, str], types: Types, first: int = 0) -> tuple[Column, ...]:
    """Columns as CREATE TABLE makes them.

    Args:
        declared: Their types by name, with `key` behind those of the primary key.
        types: The types that there are.
        first: The number of the first.

    Raises:
        ScenarioError: A type does not exist.
    """
    columns = []
    for number, (name, declaration) in enumerate(declared.items(), start=first):
        try:
            type_, primary = types.declaration(declaration)
        except ScenarioError as error:
            raise ScenarioError(f"column {name}: {error}") from None
        columns.append(Column(number, name, type_, primary))
    return tuple(columns)


def identified(shape: Shape, wanted: str | Sequence[str]) -> Shape:
    """The table with another replica identity.

    Args:
        shape: The table.
        wanted: `default`, `nothing`, `full`, or the columns of a unique index.

    Raises:
        ScenarioError: There is no such replica identity, or no such column.
    """
    if isinstance(wanted, str):
        if wanted not in _IDENTITIES:
            raise ScenarioError(
                f"replica_identity is one of {', '.join(_IDENTITIES)}, or the columns of a unique index as a "
                f"list, not {wanted!r}"
            )
        return msgspec.structs.replace(shape, replica_identity=_IDENTITIES[wanted])
    index = frozenset(shape.column(name).name for name in wanted)
    if not index:
        raise ScenarioError("a unique index has at least one column")
    return msgspec.structs.replace(shape, replica_identity=ReplicaIdentity.INDEX, index=index)


def published_as(
    shape: Shape, column_list: Sequence[str] | None, where: tuple[str, str, Any] | None
) -> Shape:
    """The table with what the publication has of it; the arguments are those of `Scenario.table`.

    Raises:
        ScenarioError: As there.
    """
    if column_list is not None:
        names = frozenset(shape.column(name).name for name in column_list)
        shape = msgspec.structs.replace(shape, column_list=names)
    if where is not None:
        if len(where) != _WHERE:
            raise ScenarioError(f"where is a column, an operator and a value, not {where!r}")
        column = shape.column(where[0])
        value = to_text(where[2], column.type)
        if value is None:
            raise ScenarioError("a row filter compares with a value, not with NULL")
        shape = msgspec.structs.replace(shape, where=Filter.make(column, where[1], value))
    return shape


def altered(
    shape: Shape,
    types: Types,
    add: Mapping[str, str],
    drop: Sequence[str],
    rename: Mapping[str, str],
    retype: Mapping[str, str],
    name: str | None,
    replica_identity: str | Sequence[str] | None,
) -> Shape:
    """The table after ALTER TABLE; the arguments are those of `Work.alter`.

    Raises:
        ScenarioError: As there.
    """
    gone = {shape.column(old).name for old in drop}
    inside = shape.index | {column.name for column in shape.columns if column.primary}
    if used := gone & inside:
        raise ScenarioError(
            f"{shape.full_name}: {', '.join(sorted(used))} belongs to a key: it is not dropped here"
        )
    if shape.column_list is not None and (gone | set(rename) | set(retype)):
        raise ScenarioError(f"{shape.full_name}: columns of a table with a column list are not changed here")
    if shape.where is not None and ({shape.where.column.name} & (gone | set(rename) | set(retype))):
        raise ScenarioError(f"{shape.full_name}: the column of the row filter is not changed here")
    kept = []
    for column in shape.columns:
        if column.name not in gone:
            type_ = types.parse(retype[column.name]) if column.name in retype else column.type
            kept.append(
                msgspec.structs.replace(column, name=rename.get(column.name, column.name), type=type_)
            )
    for named in (*rename, *retype):
        shape.column(named)
    added = made_columns(add, types, shape.width)
    if any(column.primary for column in added):
        raise ScenarioError(f"{shape.full_name}: a column of the primary key is not added here")
    columns = (*kept, *added)
    if len({column.name for column in columns}) < len(columns):
        raise ScenarioError(f"{shape.full_name} would have two columns of one name")
    made = msgspec.structs.replace(
        shape,
        name=name or shape.name,
        columns=columns,
        index=frozenset(rename.get(one, one) for one in shape.index),
        width=shape.width + len(added),
    )
    return made if replica_identity is None else identified(made, replica_identity)
