"""Tables of a scenario: how they look, and the rows in them as each transaction sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, TypeAlias

import msgspec

from pgoutput import catalog
from pgoutput.errors import ScenarioError
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity, Type
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
    **dict.fromkeys(("int2", "int4", "int8", "numeric"), Decimal),
    **dict.fromkeys(("text", "varchar"), str.encode),
    "bool": str,
}
"""What makes values of text that compare as the server's do, under the collation C."""


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


def cell(cells: Cells, column: Column) -> str | None:
    """The value of a column."""
    return cells[column.number] if column.number < len(cells) else None


class Row(msgspec.Struct, eq=False):
    """A row: as it was committed, and as the transaction has it that changed it since."""

    number: int
    """Its place in `Table.rows`."""
    committed: Cells | None
    current: Cells | None
    writer: object = None
    """The transaction that changed it and has not ended."""

    def seen_by(self, transaction: object) -> Cells | None:
        """The row as a transaction sees it; None if it is not there."""
        return self.current if self.writer is transaction else self.committed


class Table:
    """A table of a scenario; made by `Scenario.table`.

    Attributes:
        shape: How it looks now, to the transaction that altered it.
        committed_shape: How it looks to the others.
        first_shape: How it looked when it was made.
        root: The table that it is a partition of, if it is one.
        partitions: Its partitions by name, if it has such; rows lie in them.
    """

    def __init__(self, shape: Shape, root: Table | None = None) -> None:
        self.shape = self.committed_shape = self.first_shape = shape
        self.root = root
        self.partitions: dict[str, Table] = {}
        self.partition_by: Column | None = None
        self.rows: dict[int, Row] = {}
        """By a running number, so that they stay in the order in which they were inserted."""
        self.users: set[object] = set()
        """Transactions that changed it and have not ended."""
        self.locked_by: object = None
        """The one of them that truncated or altered it: others would wait."""
        self.truncated_in: object = None
        """The part of it that truncated it last (rd_newRelfilelocatorSubid)."""
        self.claims: dict[tuple[tuple[Column, ...], Cells], object] = {}
        """Key values that open transactions have given to rows, though they may have changed them since."""
        self._partition_of: dict[str | None, Table] = {}
        self._by_key: dict[tuple[Column, ...], dict[Cells, list[Row]]] = {}
        self._next = 0

    def __repr__(self) -> str:
        return f"<table {self.shape.full_name}>"

    def leaves(self) -> Iterator[Table]:
        """Where its rows lie: its partitions, or itself."""
        return iter(self.partitions.values()) if self.partitions else iter((self,))

    def partition_for(self, cells: Cells) -> Table:
        """Where a row belongs: the partition for its values, or the table itself.

        Raises:
            ScenarioError: No partition takes it.
        """
        if not self.partitions:
            return self
        assert self.partition_by is not None
        value = cell(cells, self.partition_by)
        leaf = self._partition_of.get(value)
        if leaf is None:
            raise ScenarioError(
                f"{self.shape.full_name} has no partition for {self.partition_by.name} = {value}; it has "
                f"them for {', '.join(map(str, self._partition_of))}"
            )
        return leaf

    def partition(self, by: Column, leaf: Table, values: Iterable[str | None]) -> None:
        """Take in a partition, for rows with these values in a column (PARTITION BY LIST)."""
        self.partition_by = by
        self.partitions[leaf.shape.name] = leaf
        self._partition_of |= dict.fromkeys(values, leaf)

    def add(self, cells: Cells, writer: object) -> Row:
        """A new row, inserted by a transaction."""
        row = self.rows[self._next] = Row(self._next, None, cells, writer)
        self._next += 1
        self.index(row)
        return row

    def unclaim(self, keys: Iterable[tuple[tuple[Column, ...], Cells]]) -> None:
        """Let go of key values that were claimed."""
        for key in keys:
            self.claims.pop(key, None)

    def index(self, row: Row) -> None:
        """Note under which keys the row is found now."""
        if row.current is not None:
            for key in self.shape.keys:
                rows = self._index_of(key).setdefault(_values(row.current, key), [])
                if row not in rows:
                    rows.append(row)

    def find(self, key: tuple[Column, ...], values: Cells) -> list[Row]:
        """Rows that have, or had when they were committed, these values in a key."""
        rows = self._index_of(key).get(values, [])
        rows[:] = [row for row in rows if any(_values(state, key) == values for state in _states(row))]
        return list(rows)

    def _index_of(self, key: tuple[Column, ...]) -> dict[Cells, list[Row]]:
        if key not in self._by_key:
            made = self._by_key[key] = {}
            for row in self.rows.values():
                for values in {_values(state, key) for state in _states(row)}:
                    made.setdefault(values, []).append(row)
        return self._by_key[key]


def _states(row: Row) -> Iterator[Cells]:
    return (state for state in (row.current, row.committed) if state is not None)


def _values(cells: Cells, key: tuple[Column, ...]) -> Cells:
    return tuple(cell(cells, column) for column in key)
