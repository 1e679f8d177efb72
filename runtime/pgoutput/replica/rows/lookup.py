"""Look up the rows of a Delta table that have given keys, and the data file and row number of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.replica.chunks import Column
from pgoutput.replica.data_files import DataFile, DataFiles
from pgoutput.replica.rows.merge import Key
from pgoutput.replica.schema import TableLayout
from pgoutput.values import to_arrow

KeyValues: TypeAlias = tuple[Any, ...]
"""The values of a row's key columns, as hashable objects that are equal only for equal values."""


class LookupResult(msgspec.Struct, frozen=True):
    """Rows of a Delta table that were looked up by key. Row -1 is the first row found, -2 the second."""

    rows: pa.Table
    """The rows that were found, with the requested columns; the first is row -1, the second row -2."""
    rows_by_key: dict[Key, list[int]]
    """Row numbers, by the key that the rows have."""
    locations: list[tuple[DataFile, int]]
    """For each found row, its data file and its row number in that file, from 0."""
    partial_keys: dict[int, KeyValues]
    """Key values of the rows whose key is partly unknown, by row number.

    A row's key is partly unknown if the value of a key column was never sent. If keys are unique, NULL in a
    key column also means that the value was never sent, because key columns are NOT NULL.
    """
    key_values: dict[Key, KeyValues]
    """The looked-up keys, converted to the column types of the Delta table, by the key as text."""

    def take_partial_match(self, key: Key) -> int | None:
        """Return the number of a row that equals `key` in all columns that were sent; None if no row does.

        The row is removed from `partial_keys`. Use this only if `key` consists of all columns: rows that are
        equal in all sent columns cannot be distinguished then.
        """
        wanted = self.key_values.get(key, ())
        for row, values in self.partial_keys.items():
            if all(one in (NEVER_SENT, other) for one, other in zip(values, wanted, strict=False)):
                del self.partial_keys[row]
                return row
        return None

    def unsent_key_columns(self) -> list[int]:
        """Return the indices of the key columns that have, in some row, a value that was never sent."""
        return sorted(
            {at for values in self.partial_keys.values() for at, one in enumerate(values) if one in _UNKNOWN}
        )


class _KeyColumn(NamedTuple):
    """A key column of a Delta table, with the values to look up in this column."""

    name: str
    values: pa.Array

    def may_be_in(self, file: DataFile) -> bool:
        """Return False if the statistics of a data file show that the file contains none of the values.

        Only the statistics of integers and dates are used. Statistics of other types may not be exact:
        delta-rs truncates timestamps to milliseconds, and ignores NaN.
        """
        if not (pa.types.is_integer(self.values.type) or pa.types.is_date(self.values.type)):
            return True
        low, high = file.min_values.get(self.name), file.max_values.get(self.name)
        if low is None or high is None or file.null_counts.get(self.name) != 0:
            return True
        least, greatest = pc.min_max(self.values).as_py().values()
        return least is not None and bool(least <= high and low <= greatest)


def look_up_rows(
    files: DataFiles,
    layout: TableLayout,
    key: Sequence[tuple[str, Column]],
    keys: Sequence[Key],
    columns: set[str],
    *,
    unique: bool,
) -> LookupResult:
    """Return the rows of a Delta table that have, or may have, a given key; with history, current versions.

    Args:
        files: The data files of the table.
        layout: The layout of the table.
        key: For each key column of the relation, its name in the Delta table, and the column.
        keys: The keys to look up.
        columns: Names of the columns to return, in addition to the key columns and `_rescued_data`.
        unique: Whether a key identifies at most one row.
    """
    requested = {*columns, *(name for name, _ in key), layout.rescued}
    names = [name for name in layout.schema.names if name in requested]
    result = LookupResult(pa.table([], pa.schema([])), {}, [], {}, {})
    parts: list[pa.Table] = []
    if keys:
        key_columns, keys_by_values = _typed_keys(layout, key, keys)
        result.key_values.update((key, values) for values, key in keys_by_values.items())
        for file in files:
            if not all(column.may_be_in(file) for column in key_columns):
                continue
            candidates = list(_find_candidates(files, file, key_columns, layout))
            if not candidates:
                continue
            rows = pa.Table.from_batches(files.read(file, names)).take(pa.array(candidates, pa.int64()))
            matches = []
            for index, values in enumerate(_read_key_values(rows, key_columns, layout)):
                if values in keys_by_values:
                    matches.append(index)
                    result.locations.append((file, candidates[index]))
                    result.rows_by_key.setdefault(keys_by_values[values], []).append(-len(result.locations))
                elif NEVER_SENT in values or (unique and None in values):
                    matches.append(index)
                    result.locations.append((file, candidates[index]))
                    result.partial_keys[-len(result.locations)] = values
            parts.append(rows.take(pa.array(matches, pa.int64())))
    schema = pa.schema([layout.schema.field(name) for name in names])
    table = pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()
    return msgspec.structs.replace(result, rows=table)


def _typed_keys(
    layout: TableLayout, key: Sequence[tuple[str, Column]], keys: Sequence[Key]
) -> tuple[list[_KeyColumn], dict[KeyValues, Key]]:
    """Convert keys to a Delta table's types; return the key columns, and each key by its converted values."""
    columns, comparable = [], []
    for (name, column), texts in zip(key, zip(*keys, strict=True), strict=True):
        type_ = layout.schema.field(name).type
        array, rescued = to_arrow(texts, column.type_oid, column.type_modifier, type_)
        # NULL is searched too: a column whose value was never sent is NULL, and may have any value.
        columns.append(_KeyColumn(name, pa.concat_arrays([array, pa.nulls(1, type_)])))
        comparable.append(
            [
                _comparable(value, rescued.get(row, _NOT_RESCUED))
                for row, value in enumerate(array.to_pylist())
            ]
        )
    rows = zip(*comparable, strict=True) if key else [()] * len(keys)
    return columns, dict(zip(rows, keys, strict=True))


def _find_candidates(
    files: DataFiles, file: DataFile, key_columns: Sequence[_KeyColumn], layout: TableLayout
) -> Iterator[int]:
    """Yield the numbers, from 0, of the rows in a data file that may have one of the keys."""
    searched = [column for column in key_columns if not pa.types.is_nested(column.values.type)]
    names = [column.name for column in searched] + [name for name in (layout.end,) if name is not None]
    first = 0
    for batch in files.read(file, names):
        matches = pa.array([True] * batch.num_rows)
        for column in searched:
            matches = pc.and_(matches, pc.is_in(batch[column.name], column.values))
        if layout.end is not None:
            matches = pc.and_(matches, batch[layout.end].is_null())
        for row in pc.indices_nonzero(matches).to_pylist():
            yield first + row
        first += batch.num_rows


def _read_key_values(
    rows: pa.Table, key_columns: Sequence[_KeyColumn], layout: TableLayout
) -> Iterator[KeyValues]:
    """Yield for each row the values of its key columns."""
    rescued = [dict(one or ()) for one in rows[layout.rescued].to_pylist()]
    names = [column.name for column in key_columns]
    columns = zip(*(rows[name].to_pylist() for name in names), strict=True) if names else [()] * len(rescued)
    for row, values in enumerate(columns):
        yield tuple(
            _comparable(value, rescued[row].get(name, _NOT_RESCUED))
            for name, value in zip(names, values, strict=True)
        )


class _RescuedValue(msgspec.Struct, frozen=True):
    """A rescued value in a key column, unequal to every value that the column's type can represent."""

    text: str | None
    """The rescued value as text; None if the value was never sent."""


NEVER_SENT: Final = _RescuedValue(None)
_NOT_RESCUED: Final = object()
_UNKNOWN: Final = (NEVER_SENT, None)


def _comparable(value: Any, rescued: Any) -> Any:
    """Return a hashable form of a value, equal only to forms of equal values (of floats: of equal text)."""
    if rescued is not _NOT_RESCUED:
        return _RescuedValue(rescued)
    if isinstance(value, list):
        return tuple(_comparable(item, _NOT_RESCUED) for item in value)
    return repr(value) if isinstance(value, float) else value
