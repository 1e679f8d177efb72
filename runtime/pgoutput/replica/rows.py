"""What the rows of a Delta table look like: the columns of a relation, and what stands beside them.

Of a column that is renamed the values are kept, in a table with history those of all versions: its column is
renamed. That it was is seen where as many columns as before have the types that they had, and the last one
has its name: one that is dropped and added is the last. (A publication's list of columns that has one column
instead of another of that type looks the same.) For that, the column of rescued values says in its metadata
which columns the relation had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from pgoutput.replica.chunks import Column
from pgoutput.values import arrow_type, common_type
from pgoutput.views import RESCUED, RESCUED_TYPE

MOMENT: Final = pa.struct(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("commit_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""When a version of a row begins or ends: `sequence` and `commit_time` of the change."""

COLUMNS: Final = "pgoutput.columns"
"""Metadata of the column of rescued values: the columns of the relation."""

START: Final = "__START_AT"
END: Final = "__END_AT"


class Layout(msgspec.Struct, frozen=True):
    """The columns of a Delta table, by what they are for."""

    schema: pa.Schema
    rescued: str
    """The column of what other columns cannot hold."""
    start: str | None = None
    end: str | None = None
    """The columns that say when a version of a row begins and ends, in a table with history."""
    columns: tuple[Column, ...] = ()
    """Those of the relation, as far as that is known."""
    sources: Mapping[str, str] = {}
    """For columns that the table had before, what they were called."""

    @property
    def values(self) -> list[pa.Field]:
        """The columns that a relation has, or had."""
        beside = {self.rescued, self.start, self.end}
        return [field for field in self.schema if field.name not in beside]


def column_names(columns: Iterable[Column]) -> list[str]:
    """What columns are called in Delta, where names that differ in case only are the same.

    Underscores behind a name tell it apart from the names before it.
    """
    taken: set[str] = set()
    return [_untaken(column.name, taken) for column in columns]


def _untaken(name: str, taken: set[str]) -> str:
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


def make_layout(columns: Sequence[Column], *, history: bool, old: Layout | None = None) -> Layout:
    """The columns of a table for a relation.

    Args:
        columns: Of the relation.
        history: Whether the versions of rows are kept.
        old: What the table has now. With history its columns stay, those that change their types with a type
            that holds all their values.
    """
    types = {
        name: arrow_type(column.type_oid, column.type_modifier)
        for name, column in zip(column_names(columns), columns, strict=True)
    }
    sources = {} if old is None else _sources(columns, old)
    if history and old is not None:
        types, sources = _with_history(types, sources, old)
    taken = {name.lower() for name in types}
    rescued = _untaken(RESCUED, taken)
    fields = [
        *(pa.field(name, type_) for name, type_ in types.items()),
        pa.field(rescued, RESCUED_TYPE, metadata={COLUMNS: msgspec.json.encode(columns)}),
    ]
    if not history:
        return Layout(pa.schema(fields), rescued, None, None, tuple(columns), sources)
    start, end = _untaken(START, taken), _untaken(END, taken)
    schema = pa.schema([*fields, pa.field(start, MOMENT), pa.field(end, MOMENT)])
    return Layout(schema, rescued, start, end, tuple(columns), sources)


def _with_history(
    types: Mapping[str, pa.DataType], sources: Mapping[str, str], old: Layout
) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """The columns of a relation, and those that it had, with what all were called."""
    names = {source: name for name, source in sources.items()}
    taken = {name.lower() for name in types}
    all_types, all_sources = {}, {}
    for field in old.values:
        if field.name in names:
            name = names[field.name]
            all_types[name] = common_type(field.type, types[name])
        else:
            name = _untaken(field.name, taken)
            all_types[name] = field.type
        all_sources[name] = field.name
    return {
        **all_types,
        **{name: type_ for name, type_ in types.items() if name not in all_types},
    }, all_sources


def _sources(columns: Sequence[Column], old: Layout) -> dict[str, str]:
    """What columns of a relation are called in a table, as far as it has them."""
    there = {field.name.lower(): field.name for field in old.values}
    before = dict(zip((column.name for column in old.columns), column_names(old.columns), strict=True))
    renamed = renamed_columns(old.columns, columns)
    sources: dict[str, str] = {}
    others = []
    for name, column in zip(column_names(columns), columns, strict=True):
        source = before.get(renamed.get(column.name, column.name), "")
        if there.pop(source.lower(), None) is None:
            others.append(name)
        else:
            sources[name] = source
    for name in others:
        if source := there.get(name.lower(), ""):
            sources[name] = source
    return sources


def renamed_columns(old: Sequence[Column], new: Sequence[Column]) -> dict[str, str]:
    """Return the old names of columns that were renamed, by their new names, as far as that can be inferred.

    Args:
        old: The columns that the relation had; none if they are not known.
        new: The columns that it has.
    """
    if not old or len(old) != len(new) or old[-1] != new[-1]:
        return {}
    if any(
        a.type_oid != b.type_oid or a.type_modifier != b.type_modifier for a, b in zip(old, new, strict=True)
    ):
        return {}
    pairs = {b.name: a.name for a, b in zip(old, new, strict=True) if a.name != b.name}
    known = {column.name for column in old}
    kept = {column.name for column in new}
    return {} if known & pairs.keys() or kept.intersection(pairs.values()) else pairs


def read_layout(schema: pa.Schema) -> Layout:
    """What the columns of a table that was made by `make_layout` are for.

    Raises:
        ValueError: It was not.
    """
    # No column of a relation is a map or a struct.
    maps = [field for field in schema if pa.types.is_map(field.type)]
    moments = [field.name for field in schema if pa.types.is_struct(field.type)]
    if len(maps) != 1 or len(moments) not in (0, 2):
        raise ValueError("columns that are not of the relation")
    text = (maps[0].metadata or {}).get(COLUMNS.encode())
    columns = () if text is None else msgspec.json.decode(text, type=tuple[Column, ...])
    start, end = moments or (None, None)
    return Layout(schema, maps[0].name, start, end, columns)
