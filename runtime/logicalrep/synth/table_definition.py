"""Table definitions: columns, replica identity, column list and row filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, TypeAlias

import msgspec

from logicalrep import catalog
from logicalrep.errors import ScenarioError
from logicalrep.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity, Type
from logicalrep.synth.column_types import ColumnType
from logicalrep.synth.identifiers import qualified
from logicalrep.synth.text_format import to_text

Cells: TypeAlias = tuple[str | None, ...]
"""Values of a row in text format, by attribute index. Columns added after the row was written are missing."""

_TOAST_THRESHOLD: Final = 2000
"""Size in bytes above which a value is TOASTed (TOAST_TUPLE_TARGET less the row header)."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    number: int
    """Attribute index, from 0 (pg_attribute.attnum minus 1)."""
    name: str
    type: ColumnType
    primary: bool = False
    """Whether the column is part of the primary key."""
    source: int | None = None
    """For a stored generated column: attribute index of the column that it copies. Otherwise None."""

    def is_toasted(self, text: str | None) -> bool:
        """Return whether a value is TOASTed for its size, without compression (SET STORAGE EXTERNAL)."""
        if text is None or not self.type.is_toastable:
            return False
        is_hex = catalog.FORMS.get(self.type.base_oid) is catalog.BY_NAME["bytea"]
        return ((len(text) - 2) // 2 if is_hex else len(text.encode())) > _TOAST_THRESHOLD


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = dict(
    zip(("=", "<>", "<", "<=", ">", ">="), (eq, ne, lt, le, gt, ge), strict=True)
)
_COMPARABLE: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("int2", "int4", "int8", "numeric"), lambda text: _numeric_sort_key(Decimal(text))),
    **dict.fromkeys(("text", "varchar"), str.encode),
    "bool": str,
}
"""Functions by type name. Each converts text to a Python value that sorts as on the server (collation C)."""


def _numeric_sort_key(number: Decimal) -> tuple[bool, Decimal]:
    """Return a sort key in which NaN equals itself and is greater than all other numbers (numeric_cmp)."""
    return (True, Decimal()) if number.is_nan() else (False, number)


class RowFilter(msgspec.Struct, frozen=True):
    """A row filter that compares one column with a constant.

    Raises:
        ScenarioError: The operator is unknown, or row filters do not support the column's type.
    """

    column: Column
    operator: str
    value: str

    def __post_init__(self) -> None:
        if self.operator not in _OPERATORS:
            raise ScenarioError(
                f"where: operator must be one of {', '.join(_OPERATORS)}, not {self.operator!r}"
            )
        if catalog.FORMS[self.column.type.base_oid].name not in _COMPARABLE:
            raise ScenarioError(
                f"where: column {self.column.name} must be of type {', '.join(_COMPARABLE)}, "
                f"not {catalog.FORMS[self.column.type.base_oid].name}"
            )

    def matches(self, cells: Cells) -> bool:
        """Return whether a row passes the filter; NULL does not pass (pgoutput_row_filter_exec_expr)."""
        text = cell(cells, self.column)
        if text is None:
            return False
        read = _COMPARABLE[catalog.FORMS[self.column.type.base_oid].name]
        return _OPERATORS[self.operator](read(text), read(self.value))


class TableDefinition(msgspec.Struct, frozen=True, dict=True):
    """Columns, replica identity and publication settings of a table, valid until the next ALTER TABLE."""

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    index_columns: frozenset[str] = frozenset()
    """Names of the columns of the unique index that is or was the replica identity; empty if none."""
    published: bool = True
    """Whether the table is part of the publication."""
    column_list: frozenset[str] | None = None
    """Names of the published columns; None publishes all columns."""
    publishes_generated: bool = False
    """Whether generated columns are published if there is no column list (publish_generated_columns)."""
    where: RowFilter | None = None
    """Row filter of the publication; None publishes all rows."""
    dropped: tuple[Column, ...] = ()
    """The dropped columns, in the order in which they were dropped."""
    attribute_count: int = 0
    """Number of columns ever created, including dropped columns (pg_class.relnatts)."""

    @property
    def full_name(self) -> str:
        """Schema and table name, separated by a dot; a part with a dot or quotes is in quotes."""
        return qualified(self.namespace, self.name)

    @cached_property
    def published_columns(self) -> tuple[Column, ...]:
        """The columns in the publication, in attribute order."""
        if self.column_list is not None:
            return tuple(column for column in self.columns if column.name in self.column_list)
        return tuple(c for c in self.columns if c.source is None or self.publishes_generated)

    @cached_property
    def identity_columns(self) -> frozenset[int]:
        """Attribute indices of the replica identity; all columns for REPLICA IDENTITY FULL."""
        chosen: Mapping[ReplicaIdentity, Callable[[Column], bool]] = {
            ReplicaIdentity.DEFAULT: lambda column: column.primary,
            ReplicaIdentity.INDEX: lambda column: column.name in self.index_columns,
            ReplicaIdentity.FULL: lambda _: True,
            ReplicaIdentity.NOTHING: lambda _: False,
        }
        return frozenset(column.number for column in filter(chosen[self.replica_identity], self.columns))

    @cached_property
    def unique_keys(self) -> tuple[tuple[Column, ...], ...]:
        """Columns of each unique key: the primary key, and the unique index of the replica identity."""
        primary = tuple(column for column in self.columns if column.primary)
        index = tuple(column for column in self.columns if column.name in self.index_columns)
        return tuple(dict.fromkeys(key for key in (primary, index) if key))

    def relation_message(self) -> Relation:
        """Return the table's Relation message (logicalrep_write_rel)."""
        identity = self.identity_columns
        return Relation(
            oid=self.oid,
            namespace=self.namespace,
            name=self.name,
            replica_identity=self.replica_identity,
            columns=tuple(
                RelationColumn(
                    flags=ColumnFlag(column.number in identity),
                    name=column.name,
                    type_oid=column.type.oid,
                    type_modifier=column.type.modifier,
                )
                for column in self.published_columns
            ),
        )

    def type_messages(self) -> Iterator[Type]:
        """Yield a Type message for each column of a user-defined type, even if columns share a type."""
        for column in self.published_columns:
            if column.type.type_message is not None:
                yield column.type.type_message

    def column(self, name: str) -> Column:
        """Return the column called `name`.

        Raises:
            ScenarioError: The column does not exist.
        """
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns) or "none"
        raise ScenarioError(f"{self.full_name} has no column {name}; it has {known}")

    def to_texts(self, values: Mapping[str, Any]) -> dict[str, str | None]:
        """Convert Python values, by column name, to text format.

        Raises:
            ScenarioError: A column does not exist or is generated, or its type cannot represent the value.
        """
        texts = {}
        for name, value in values.items():
            column = self.column(name)
            if column.source is not None:
                raise ScenarioError(f"{self.full_name}.{name}: a generated column cannot be set")
            texts[name] = self._to_text(value, column)
        return texts

    def _to_text(self, value: Any, column: Column) -> str | None:
        try:
            return to_text(value, column.type)
        except ScenarioError as error:
            raise ScenarioError(f"{self.full_name}.{column.name}: {error}") from None

    def fill_row(self, old: Cells, given: Mapping[str, str | None]) -> Cells:
        """Return the row `old` with the new values `given` (by column name) and recomputed generated columns.

        Raises:
            ScenarioError: The type of a generated column cannot represent the value of its source column.
        """
        cells = [*old, *(None,) * (self.attribute_count - len(old))]
        for name, text in given.items():
            cells[self.column(name).number] = text
        for column in self.columns:
            if column.source is not None:
                cells[column.number] = self._to_text(cells[column.source], column)
        return tuple(cells)

    def has_toasted(self, cells: Cells) -> bool:
        """Return whether a value of a row is stored out of line (TOASTed)."""
        return any(column.is_toasted(cell(cells, column)) for column in self.columns)

    def publishes_row(self, cells: Cells) -> bool:
        """Return whether the row filter of the publication passes a row."""
        return self.where is None or self.where.matches(cells)

    def check_replica_identity(self, verb: str) -> None:
        """Check that the publication permits updates and deletes of the table (CheckCmdReplicaIdentity).

        Args:
            verb: The command as the error names it: `update` or `delete from`.

        Raises:
            ScenarioError: A subscriber could not find the old row by the replica identity.
        """
        if not self.published:
            return
        identity = {column.name for column in self.columns if column.number in self.identity_columns}
        hidden = {column.name for column in self.columns if column.source is not None}
        wrong = ""
        if not identity:
            wrong = "it has no replica identity but publishes updates and deletes; add a key"
        elif self.column_list is not None and not identity <= self.column_list:
            wrong = "its column list does not cover the replica identity"
        elif self.where is not None and self.where.column.name not in identity:
            wrong = "its row filter uses a column outside the replica identity"
        elif identity & hidden and not self.publishes_generated:
            wrong = "its replica identity has a generated column that is not published"
        if wrong:
            raise ScenarioError(f"cannot {verb} table {self.full_name}: {wrong}")


def cell(cells: Cells, column: Column) -> str | None:
    """Return the value of one column in a row; None for NULL or a column newer than the row."""
    return cells[column.number] if column.number < len(cells) else None
