"""What the rows of a Delta table look like: the columns of a relation, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from pgoutput.replica.chunks import Column
from pgoutput.values import arrow_type, common_type
from pgoutput.views import RESCUED

RESCUED_TYPE: Final = pa.map_(pa.string(), pa.string())
MOMENT: Final = pa.struct(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("commit_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""When a version of a row begins or ends: `sequence` and `commit_time` of the change."""

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
    if history and old is not None:
        beside = {old.rescued, old.start, old.end}
        kept = {field.name: field.type for field in old.schema if field.name not in beside}
        for name, type_ in types.items():
            kept[name] = common_type(kept[name], type_) if name in kept else type_
        types = kept
    taken = {name.lower() for name in types}
    rescued = _untaken(RESCUED, taken)
    if not history:
        return Layout(pa.schema([*types.items(), (rescued, RESCUED_TYPE)]), rescued)
    start, end = _untaken(START, taken), _untaken(END, taken)
    schema = pa.schema([*types.items(), (rescued, RESCUED_TYPE), (start, MOMENT), (end, MOMENT)])
    return Layout(schema, rescued, start, end)


def read_layout(schema: pa.Schema) -> Layout:
    """What the columns of a table that was made by `make_layout` are for."""
    # No column of a relation is a map or a struct.
    (rescued,) = (field.name for field in schema if pa.types.is_map(field.type))
    moments = [field.name for field in schema if pa.types.is_struct(field.type)]
    return Layout(schema, rescued, *moments)
