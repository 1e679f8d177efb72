"""How the tables of a scenario look, from one ALTER TABLE to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, TypeAlias

import msgspec

from pgoutput import catalog
from pgoutput.errors import ScenarioError
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity, Type
from pgoutput.synth.literals import to_text
from pgoutput.synth.types import ColumnType

Cells: TypeAlias = tuple[str | None, ...]
"""The values of a row in text format, by attribute number; short where columns came later."""

OUT_OF_LINE: Final = 2000
"""Bytes from which a value is stored out of line (TOAST_TUPLE_TARGET, less the header of the row)."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    number: int
    """Its place in `Cells` (pg_attribute.attnum less 1)."""
    name: str
    type: ColumnType
    primary: bool = False
    """Whether it belongs to the primary key."""

    def is_out_of_line(self, text: str | None) -> bool:
        """Whether the value is stored out of line, and so not sent where an update leaves it.

        No value is compressed, as with SET STORAGE EXTERNAL.
        """
        if text is None or not self.type.is_variable:
            return False
        size = (len(text) - 2) // 2 if self.type.base_oid == _BYTEA else len(text.encode())
        return size > OUT_OF_LINE


_BYTEA: Final = catalog.BY_NAME["bytea"].oid

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_COMPARED: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("int2", "int4", "int8", "numeric"), lambda text: _comparable(Decimal(text))),
    **dict.fromkeys(("text", "varchar"), str.encode),
    "bool": str,
}
"""What makes values of text that compare as the server's do, under the collation C."""


def _comparable(number: Decimal) -> tuple[bool, Decimal]:
    """PostgreSQL's NaN equals itself, and is greater than all others (numeric_cmp)."""
    return (True, Decimal()) if number.is_nan() else (False, number)


class Filter(msgspec.Struct, frozen=True):
    """A row filter: a column against a value."""

    column: Column
    operator: str
    value: str

    @classmethod
    def make(cls, column: Column, operator: str, value: str) -> Filter:
        """The filter, if it can be one.

        Raises:
            ScenarioError: There is no such operator, or values of the type are not compared here.
        """
        if operator not in _OPERATORS:
            raise ScenarioError(f"where has one of {', '.join(_OPERATORS)}, not {operator!r}")
        if catalog.BY_OID[column.type.base_oid].name not in _COMPARED:
            raise ScenarioError(f"where compares columns of {', '.join(_COMPARED)}, not {column.name}")
        return cls(column, operator, value)

    def matches(self, cells: Cells) -> bool:
        """Whether a row passes; NULL does not (pgoutput_row_filter_exec_expr)."""
        text = cell(cells, self.column)
        if text is None:
            return False
        read = _COMPARED[catalog.BY_OID[self.column.type.base_oid].name]
        return _OPERATORS[self.operator](read(text), read(self.value))


class Shape(msgspec.Struct, frozen=True, dict=True):
    """How a table looks, from one ALTER TABLE to the next."""

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    index: frozenset[str] = frozenset()
    """Columns of the unique index that is the replica identity, or was."""
    published: bool = True
    column_list: frozenset[str] | None = None
    """Names of the columns that are published; None for all."""
    where: Filter | None = None
    width: int = 0
    """How many columns it has had, dropped ones included (pg_class.relnatts)."""

    @property
    def full_name(self) -> str:
        """Schema and name."""
        return f"{self.namespace}.{self.name}"

    @cached_property
    def sent(self) -> tuple[Column, ...]:
        """The columns that are published."""
        return tuple(c for c in self.columns if self.column_list is None or c.name in self.column_list)

    @cached_property
    def identity(self) -> frozenset[int]:
        """Numbers of the columns of the replica identity; all of them if it is full."""
        if self.replica_identity == ReplicaIdentity.FULL:
            return frozenset(column.number for column in self.columns)
        if self.replica_identity == ReplicaIdentity.INDEX:
            return frozenset(column.number for column in self.columns if column.name in self.index)
        if self.replica_identity == ReplicaIdentity.NOTHING:
            return frozenset()
        return frozenset(column.number for column in self.columns if column.primary)

    @cached_property
    def keys(self) -> tuple[tuple[Column, ...], ...]:
        """What is unique: the primary key, and the index of the replica identity."""
        primary = tuple(column for column in self.columns if column.primary)
        index = tuple(column for column in self.columns if column.name in self.index)
        return tuple(dict.fromkeys(key for key in (primary, index) if key))

    def relation(self) -> Relation:
        """Its Relation message (logicalrep_write_rel)."""
        identity = self.identity
        return Relation(
            oid=self.oid,
            namespace=self.namespace,
            name=self.name,
            replica_identity=self.replica_identity,
            columns=tuple(
                RelationColumn(
                    ColumnFlag.KEY if column.number in identity else 0,
                    column.name,
                    column.type.oid,
                    column.type.modifier,
                )
                for column in self.sent
            ),
        )

    def types(self) -> Iterator[Type]:
        """The Type messages before it: one for each column, though it be the same type."""
        for column in self.sent:
            if column.type.named is not None:
                yield column.type.named

    def column(self, name: str) -> Column:
        """The column of this name.

        Raises:
            ScenarioError: There is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns) or "none"
        raise ScenarioError(f"{self.full_name} has no column {name}; it has {known}")

    def texts(self, values: Mapping[str, Any]) -> dict[str, str | None]:
        """Values by column, as the server writes them.

        Raises:
            ScenarioError: There is no such column, or its type does not have the value.
        """
        texts = {}
        for name, value in values.items():
            column = self.column(name)
            try:
                texts[name] = to_text(value, column.type)
            except ScenarioError as error:
                raise ScenarioError(f"{self.full_name}.{name}: {error}") from None
        return texts

    def filled(self, old: Cells, given: Mapping[str, str | None]) -> Cells:
        """A row with some of its values replaced; NULL where it had none."""
        cells = [*old, *(None,) * (self.width - len(old))]
        for name, text in given.items():
            cells[self.column(name).number] = text
        return tuple(cells)

    def check_identity(self, verb: str) -> None:
        """Whether rows may be changed as far as the publication is concerned (CheckCmdReplicaIdentity).

        Raises:
            ScenarioError: Subscribers could not find them.
        """
        if not self.published:
            return
        identity = {column.name for column in self.columns if column.number in self.identity}
        wrong = ""
        if not identity:
            wrong = "it has no replica identity and publishes updates and deletes: give it a key"
        elif self.column_list is not None and not identity <= self.column_list:
            wrong = "its column list does not cover the replica identity"
        elif self.where is not None and self.where.column.name not in identity:
            wrong = "its row filter has a column that is not part of the replica identity"
        if wrong:
            raise ScenarioError(f"cannot {verb} table {self.full_name}: {wrong}")


def cell(cells: Cells, column: Column) -> str | None:
    """The value of a column."""
    return cells[column.number] if column.number < len(cells) else None
