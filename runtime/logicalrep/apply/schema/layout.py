"""The layout of a Delta table: the columns of its relation, and the columns that describe its rows.

A renamed column keeps its values; in a table with history it also keeps the values of all versions. Relation
messages do not mention a rename. A rename is inferred if column count, all types, and the last column's name
are unchanged. A rename of the last column, or together with another schema change, is seen as drop and add:
the column becomes NULL. If a publication's column list replaces a column by another column of the same type,
this is mistaken for a rename. To infer renames, the metadata of the column `_rescued_data` contains the
columns of the relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from logicalrep import catalog
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets import RENAMED, Table, column_types
from logicalrep.values import arrow_type, common_type
from logicalrep.views import RESCUED, RESCUED_TYPE, Column

MOMENT: Final = pa.struct(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("commit_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""Type of `__START_AT` and `__END_AT`: a struct of a change's commit LSN, position and commit time."""

COLUMNS: Final = "logicalrep.columns"
"""Key in the metadata of the column `_rescued_data`; the value is the relation's columns as JSON."""

START: Final = "__START_AT"
END: Final = "__END_AT"


class TableLayout(msgspec.Struct, frozen=True):
    """The columns of a Delta table, and the purpose of each column."""

    schema: pa.Schema
    """Arrow schema with all columns of the Delta table."""
    rescued: str
    """Name of the column with rescued values, usually `_rescued_data`."""
    start: str | None = None
    """Name of the column, usually `__START_AT`, that says when a row version begins; None without history."""
    end: str | None = None
    """Name of the column, usually `__END_AT`, that says when a row version ends; None without history."""
    columns: tuple[Column, ...] = ()
    """Current columns of the relation; empty if they are not known."""
    sources: Mapping[str, str] = {}
    """Name in the previous layout, by name in this layout, of each column that the Delta table had before."""

    @property
    def values(self) -> list[pa.Field]:
        """The Arrow fields of the columns that the relation has, or had before they were dropped."""
        others = {self.rescued, self.start, self.end}
        return [field for field in self.schema if field.name not in others]


def delta_names(columns: Iterable[Column]) -> list[str]:
    """Return each column's name in a Delta table, where names that differ only in case are equal.

    Underscores are appended to an empty name, which readers of Iceberg take for another column, and to a name
    that an earlier column has already.
    """
    taken = {""}
    return [_unique_name(column.name, taken) for column in columns]


def _unique_name(name: str, taken: set[str]) -> str:
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


def make_layout(
    columns: Sequence[Column],
    target: Location,
    *,
    history: bool,
    old: TableLayout | None = None,
    renamed: Mapping[str, str] | None = None,
) -> TableLayout:
    """Return the layout of the Delta table for a relation.

    With history, a column that the relation no longer has stays in the table, and a column whose type has
    changed gets a type that can represent the values of both types.

    Args:
        columns: Columns of the relation.
        target: The target with the table.
        history: Whether to keep all versions of rows (SCD type 2).
        old: Current layout of the table; None for a new table.
        renamed: Earlier names of renamed columns, by new name; None to infer them.
    """
    special = column_types(target)
    types = {
        name: _column_type(column, special)
        for name, column in zip(delta_names(columns), columns, strict=True)
    }
    sources = {} if old is None else _find_sources(columns, old, renamed)
    if history and old is not None:
        types, sources = _add_dropped_columns(types, sources, old)
    taken = {name.lower() for name in types}
    rescued = _unique_name(RESCUED, taken)
    fields = [
        *(pa.field(name, type_, metadata=_renamed(name, sources, old)) for name, type_ in types.items()),
        pa.field(rescued, RESCUED_TYPE, metadata={COLUMNS: msgspec.json.encode(columns)}),
    ]
    if not history:
        return TableLayout(pa.schema(fields), rescued, None, None, tuple(columns), sources)
    start, end = _unique_name(START, taken), _unique_name(END, taken)
    schema = pa.schema([*fields, pa.field(start, MOMENT), pa.field(end, MOMENT)])
    return TableLayout(schema, rescued, start, end, tuple(columns), sources)


def _column_type(column: Column, special: Mapping[int, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of a column; `special` has the target's own Arrow types, by type OID."""
    element = catalog.BY_ARRAY_OID.get(column.type_oid)
    if element is not None and element.oid in special:
        return pa.list_(pa.field("element", special[element.oid]))
    return special.get(column.type_oid) or arrow_type(column.type_oid, column.type_modifier)


def _renamed(name: str, sources: Mapping[str, str], old: TableLayout | None) -> dict[bytes, bytes] | None:
    """Return metadata for a column's Arrow field: the old name of a renamed column; None if not renamed."""
    if old is None or name not in sources:
        return None
    source = sources[name]
    known = (old.schema.field(source).metadata or {}).get(RENAMED, source.encode())
    return None if known == name.encode() else {RENAMED: known}


def _add_dropped_columns(
    types: Mapping[str, pa.DataType], sources: Mapping[str, str], old: TableLayout
) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Return `types` and `sources` with the columns that the relation dropped: history keeps their values.

    A column that relation and table both have gets an Arrow type that can represent old and new values.

    Args:
        types: Arrow types of the relation's columns, by name in the new layout.
        sources: Old name, by new name, of each column of the relation that the table already has.
        old: Current layout of the table.
    """
    names = {source: name for name, source in sources.items()}
    taken = {name.lower() for name in types}
    all_types, all_sources = {}, {}
    for field in old.values:
        if field.name in names:
            name = names[field.name]
            all_types[name] = common_type(field.type, types[name])
        else:
            name = _unique_name(field.name, taken)
            all_types[name] = field.type
        all_sources[name] = field.name
    new = {name: type_ for name, type_ in types.items() if name not in all_types}
    return {**all_types, **new}, all_sources


def _find_sources(
    columns: Sequence[Column], old: TableLayout, renamed: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the old name, by new name, of each column that the Delta table already has.

    `renamed` has the earlier names of renamed columns of the relation, by new name; None to infer them.
    """
    remaining = {field.name.lower(): field.name for field in old.values}
    before = dict(zip((column.name for column in old.columns), delta_names(old.columns), strict=True))
    if renamed is None:
        renamed = renamed_columns(old.columns, columns)
    sources: dict[str, str] = {}
    others = []
    for name, column in zip(delta_names(columns), columns, strict=True):
        source = before.get(renamed.get(column.name, column.name), "")
        if remaining.pop(source.lower(), None) is None:
            others.append(name)
        else:
            sources[name] = source
    for name in others:
        if source := remaining.get(name.lower(), ""):
            sources[name] = source
    return sources


def renamed_columns(old: Sequence[Column], new: Sequence[Column]) -> dict[str, str]:
    """Return the old names of renamed columns, by new name; empty if no rename can be inferred.

    A rename is inferred if column count, all types, and the last column's name are unchanged.

    Args:
        old: Previous columns of the relation; empty if they are not known.
        new: Current columns of the relation.
    """
    if not old or len(old) != len(new) or old[-1] != new[-1]:
        return {}
    if any(
        a.type_oid != b.type_oid or a.type_modifier != b.type_modifier for a, b in zip(old, new, strict=True)
    ):
        return {}
    pairs = {b.name: a.name for a, b in zip(old, new, strict=True) if a.name != b.name}
    old_names = {column.name for column in old}
    new_names = {column.name for column in new}
    return {} if old_names & pairs.keys() or new_names.intersection(pairs.values()) else pairs


def read_layout(table: Table, name: str) -> TableLayout:
    """Return the layout of an existing Delta table, from its columns and their metadata.

    Args:
        table: The table.
        name: Qualified name of the relation, for error messages.

    Raises:
        ReplicaError: The columns of the table were changed by another program.
    """
    schema = table.schema
    # A column of a relation is never a map or a struct. Only logicalrep adds such columns: the map
    # `_rescued_data` and, with history, the structs `__START_AT` and `__END_AT`.
    maps = [field for field in schema if pa.types.is_map(field.type)]
    moments = [field.name for field in schema if pa.types.is_struct(field.type)]
    if len(maps) != 1 or len(moments) not in (0, 2):
        raise ReplicaError(
            f"{name}: another program has changed the columns of the table. Restore the version before "
            "this change, or build the table anew (`logicalrep replicate --reset-table`)"
        )
    text = (maps[0].metadata or {}).get(COLUMNS.encode())
    columns = () if text is None else msgspec.json.decode(text, type=tuple[Column, ...])
    start, end = moments or (None, None)
    return TableLayout(schema, maps[0].name, start, end, columns)
