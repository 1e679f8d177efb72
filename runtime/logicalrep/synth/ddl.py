"""CREATE TABLE and ALTER TABLE: build table definitions from declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from logicalrep.errors import ScenarioError
from logicalrep.messages import ReplicaIdentity
from logicalrep.synth.column_types import TypeRegistry
from logicalrep.synth.identifiers import check_column_names, local_name
from logicalrep.synth.table_definition import Column, RowFilter, TableDefinition
from logicalrep.synth.text_format import to_text

_IDENTITIES: Final = ("default", "nothing", "full")


def build_columns(declared: Mapping[str, str], types: TypeRegistry, first: int = 0) -> tuple[Column, ...]:
    """Return the columns of `declared`, which maps names to declarations; attribute indices start at `first`.

    Raises:
        ScenarioError: A type does not exist.
    """
    columns = []
    for number, (name, declaration) in enumerate(declared.items(), start=first):
        try:
            type_, primary = types.parse_declaration(declaration)
        except ScenarioError as error:
            raise ScenarioError(f"column {name}: {error}") from None
        columns.append(Column(number, name, type_, primary))
    check_column_names([*declared], first + len(declared))
    return tuple(columns)


def add_generated_columns(definition: TableDefinition, generated: Mapping[str, str]) -> TableDefinition:
    """Return the definition with generated columns; `generated` maps their names to the columns to copy.

    Raises:
        ScenarioError: The source column of a generated column does not exist.
    """
    columns = list(definition.columns)
    for name, from_ in generated.items():
        source = definition.column(from_)
        columns.append(Column(len(columns), name, source.type, source=source.number))
    check_column_names([*generated], len(columns))
    if len({column.name for column in columns}) < len(columns):
        raise ScenarioError(f"{definition.full_name}: the table would have two columns with the same name")
    return msgspec.structs.replace(definition, columns=tuple(columns), attribute_count=len(columns))


def with_replica_identity(definition: TableDefinition, wanted: str | Sequence[str]) -> TableDefinition:
    """Return the table definition with another replica identity: a name such as `full`, or index columns.

    Raises:
        ScenarioError: The replica identity is unknown, an index column does not exist, or the list of index
            columns is empty.
    """
    if isinstance(wanted, str):
        if wanted not in _IDENTITIES:
            raise ScenarioError(
                f"{definition.full_name}: replica_identity must be one of {', '.join(_IDENTITIES)}, "
                f"or a list with the columns of a unique index, not {wanted!r}"
            )
        return msgspec.structs.replace(definition, replica_identity=ReplicaIdentity[wanted.upper()])
    index = frozenset(definition.column(name).name for name in wanted)
    if not index:
        raise ScenarioError(
            f"{definition.full_name}: replica_identity is an empty list, but "
            "a unique index needs at least one column"
        )
    return msgspec.structs.replace(definition, replica_identity=ReplicaIdentity.INDEX, index_columns=index)


def with_publication(
    definition: TableDefinition, column_list: Sequence[str] | None, where: tuple[str, str, Any] | None
) -> TableDefinition:
    """Return the table definition with another column list or row filter.

    Args:
        definition: The table definition.
        column_list: Names of the published columns; None keeps the column list.
        where: Row filter as (column, operator, value); None keeps the row filter.

    Raises:
        ScenarioError: A column or operator does not exist, or row filters do not support the column's type.
    """
    if column_list is not None:
        names = frozenset(definition.column(name).name for name in column_list)
        definition = msgspec.structs.replace(definition, column_list=names)
    if where is not None:
        try:
            name, operator, constant = where
        except ValueError:
            raise ScenarioError(
                f"{definition.full_name}: where must be (column, operator, value), not {where!r}"
            ) from None
        column = definition.column(name)
        value = to_text(constant, column.type)
        if value is None:
            raise ScenarioError(
                f"{definition.full_name}: where: a row filter cannot compare with NULL; give another value"
            )
        definition = msgspec.structs.replace(definition, where=RowFilter(column, operator, value))
    return definition


def alter_definition(
    definition: TableDefinition,
    types: TypeRegistry,
    add: Mapping[str, str],
    drop: Sequence[str],
    rename: Mapping[str, str],
    retype: Mapping[str, str],
    name: str | None,
    replica_identity: str | Sequence[str] | None,
) -> TableDefinition:
    """Return the table definition after ALTER TABLE with the arguments of `TransactionScope.alter`.

    Raises:
        ScenarioError: The server would refuse the change, or `Scenario` does not support the change.
    """

    def refuse(why: str, columns: Iterable[str] = ()) -> NoReturn:
        raise ScenarioError(f"{definition.full_name}: {why}{', '.join(sorted(columns))}")

    dropped = {definition.column(old).name for old in drop}
    key_columns = definition.index_columns | {column.name for column in definition.columns if column.primary}
    sources = {column.source for column in definition.columns}
    if used := {name for name in dropped | retype.keys() if definition.column(name).number in sources}:
        refuse("cannot drop or retype the source of a generated column: ", used)
    if used := dropped & key_columns:
        refuse("cannot drop part of a key: ", used)
    changed = dropped.union(rename, retype)
    if definition.column_list is not None and changed:
        refuse("cannot drop, rename or retype columns of a table with a column list")
    if definition.where is not None and definition.where.column.name in changed:
        refuse("cannot drop, rename or retype the row filter's column")
    kept = []
    for column in definition.columns:
        if column.name not in dropped:
            type_ = types.parse(retype[column.name]) if column.name in retype else column.type
            kept.append(
                msgspec.structs.replace(column, name=rename.get(column.name, column.name), type=type_)
            )
    for named in (*rename, *retype):
        definition.column(named)
    added = build_columns(add, types, definition.attribute_count)
    check_column_names([*rename.values()], 0)
    if any(column.primary for column in added):
        refuse("cannot add a column to the primary key")
    columns = (*kept, *added)
    if len({column.name for column in columns}) < len(columns):
        refuse("the table would have two columns with the same name")
    altered = msgspec.structs.replace(
        definition,
        name=local_name(name) if name is not None else definition.name,
        columns=columns,
        dropped=(*definition.dropped, *(one for one in definition.columns if one.name in dropped)),
        index_columns=frozenset(rename.get(one, one) for one in definition.index_columns),
        attribute_count=definition.attribute_count + len(added),
    )
    return altered if replica_identity is None else with_replica_identity(altered, replica_identity)
