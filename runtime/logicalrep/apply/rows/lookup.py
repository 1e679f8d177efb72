"""Look up the rows of a Delta table that have given keys, and the data file and row number of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import NO_NUMBERS, Mask, Numbers, boolean_array
from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.rows.key_index import Keys
from logicalrep.apply.rows.keys import NEVER_SENT, NULL, number_keys, number_values
from logicalrep.apply.schema import TableLayout
from logicalrep.targets import DataFile
from logicalrep.values import Rescued, to_arrow
from logicalrep.views import Column


class LookupResult(msgspec.Struct, frozen=True):
    """Rows of a Delta table that were looked up by key."""

    rows: pa.Table
    """The rows that were found, with the requested columns."""
    keys: Numbers
    """For each found row, the index of its key among the looked-up keys; -1 if the key is partly unknown.

    A row's key is partly unknown if the value of a key column was never sent. If keys are unique, NULL in a
    key column also means that the value was never sent, because key columns are NOT NULL.
    """
    files: Sequence[DataFile]
    """The data files with found rows."""
    file: Numbers
    """For each found row, the index of its data file in `files`."""
    number: Numbers
    """For each found row, its row number in the data file, from 0."""
    row_values: npt.NDArray[np.int64]
    """For each found row, the numbers (`number_values`) of the values in its key columns."""
    key_values: npt.NDArray[np.int64]
    """For each looked-up key, the numbers (`number_values`) of the values in its columns."""

    def match_partly(self, keys: Mapping[int, int]) -> dict[int, int]:
        """Match keys with found rows whose key is partly unknown: the values that were sent have to be equal.

        A row is matched with one key at most. If several rows match, any one of them is taken. So use this
        only if all columns are key columns: such rows do not differ in any known value.

        Args:
            keys: The keys to match, by an ID such as the index of a change. Each key is given as its index
                among the looked-up keys.

        Returns:
            By ID, the index in `rows` of the row that matches the key. Keys without such a row are left out.
        """
        rows = np.flatnonzero(self.keys < 0)
        matches: dict[int, int] = {}
        for number, key in keys.items() if len(rows) else ():
            values = self.row_values[rows]
            same = ((values == NEVER_SENT) | (values == self.key_values[key])).all(axis=1)
            if same.any():
                matches[number] = int(rows[same.argmax()])
                rows = np.delete(rows, same.argmax())
        return matches

    def unsent_key_columns(self) -> list[int]:
        """Return the indices of the key columns that have, in some found row, a value that was never sent."""
        unknown = self.row_values[self.keys < 0] < 0
        return [int(column) for column in np.flatnonzero(unknown.any(axis=0))]


class _KeyColumn:
    """A key column of a Delta table, with the values to look up in this column.

    Attributes:
        name: Name of the column.
        values: The values, in the type of the Delta table.
        rescued: Values that the type cannot represent, by index in `values`, which has NULL for them.
    """

    def __init__(self, name: str, values: pa.Array, rescued: Rescued) -> None:
        self.name = name
        self.values = values
        self.rescued = rescued
        self._range: tuple[Any, Any] | None = None
        if pa.types.is_integer(values.type) or pa.types.is_date(values.type):
            least, greatest = pc.min_max(values).as_py().values()
            self._range = least, greatest
        self._sorted = np.sort(values.drop_null()) if pa.types.is_integer(values.type) else None

    def may_be_in(self, file: DataFile) -> bool:
        """Return False if the statistics of a data file show that the file contains none of the values.

        Only the statistics of integers and dates are used. Statistics of other types may not be exact:
        delta-rs truncates timestamps to milliseconds, and ignores NaN.
        """
        low, high = file.min_values.get(self.name), file.max_values.get(self.name)
        if self._range is None or low is None or high is None or file.null_counts.get(self.name) != 0:
            return True
        least, greatest = self._range
        return least is not None and bool(least <= high and low <= greatest)

    def matches(self, values: pa.ChunkedArray) -> Mask:
        """Return which values of the column equal one of the values to look up, or are NULL.

        A value that was never sent is NULL in the table, and may equal any value.
        """
        if self._sorted is None or values.null_count or not len(self._sorted):
            searched = pa.concat_arrays([self.values, pa.nulls(1, self.values.type)])
            return np.asarray(pc.is_in(values, searched))
        numbers = values.to_numpy()  # a binary search is faster than a hash table
        at = np.searchsorted(self._sorted, numbers)
        return np.asarray(self._sorted.take(at, mode="clip") == numbers)


def look_up_rows(
    files: DataFiles,
    layout: TableLayout,
    key: Sequence[tuple[str, Column]],
    keys: Sequence[pa.StringArray],
    count: int,
    columns: set[str],
    *,
    unique: bool,
) -> LookupResult:
    """Return the rows of a Delta table that have, or may have, one of the given keys.

    With history, only current row versions are returned.

    Args:
        files: The data files of the table.
        layout: The layout of the table.
        key: For each key column of the relation, its name in the Delta table, and the column.
        keys: The keys to look up, all different: for each key column the texts of its values.
        count: Number of keys.
        columns: Names of the columns to return, in addition to the key columns and `_rescued_data`.
        unique: Whether a key identifies at most one row.
    """
    requested = {*columns, *(name for name, _ in key), layout.rescued}
    schema = pa.schema([field for field in layout.schema if field.name in requested])
    searched = list(files) if count else []
    key_columns = _typed_keys(layout, key, keys) if searched else []
    search = _Search(files, layout, schema, key_columns, unique=unique)
    parts, used, numbers = [schema.empty_table()], [], [NO_NUMBERS]
    for file in searched:
        if all(column.may_be_in(file) for column in key_columns):
            candidates, part = search.find(file)
            if len(candidates):
                parts.append(part)
                used.append(file)
                numbers.append(candidates)
    rows, number = pa.concat_tables(parts).combine_chunks(), np.concatenate(numbers)
    file_index = np.repeat(np.arange(len(used)), [len(part) for part in numbers[1:]])
    if not len(number):
        none = np.zeros((0, len(key)), np.int64)
        return LookupResult(rows, number, used, file_index, number, none, none)
    values = [_number_column(column, rows, layout) for column in key_columns]
    # A table without columns has an empty key, which all rows share.
    values = values or [np.zeros(count + len(number), np.int64)]
    table = np.column_stack(values)
    ids, _ = number_keys(values)
    by_id = np.full(ids.max() + 1, -1, np.int64)
    by_id[ids[:count]] = np.arange(count)
    found = by_id[ids[count:]]
    unknown = table[count:] == NEVER_SENT
    if unique:
        unknown |= table[count:] == NULL
    kept = np.flatnonzero((found >= 0) | unknown.any(axis=1))
    return LookupResult(
        rows.take(pa.array(kept)).combine_chunks(),
        found[kept],
        used,
        file_index[kept],
        number[kept],
        table[count:][kept],
        table[:count],
    )


def _typed_keys(
    layout: TableLayout, key: Sequence[tuple[str, Column]], keys: Sequence[pa.StringArray]
) -> list[_KeyColumn]:
    """Convert keys, given as texts, to the types of a Delta table's columns.

    `key` has, for each key column, its name in the Delta table and the column of the relation. `keys` has the
    texts of its values.
    """
    typed = []
    for (name, column), texts in zip(key, keys, strict=True):
        type_ = layout.schema.field(name).type
        typed.append(_KeyColumn(name, *to_arrow(texts, column.type_oid, column.type_modifier, type_)))
    return typed


class _Search:
    """Searches data files for the rows that may have one of the given keys.

    Args:
        files: The data files of the table.
        layout: The layout of the table.
        schema: The columns to return.
        key_columns: The key columns, with the values to look up.
        unique: Whether a key identifies at most one row.
    """

    def __init__(
        self,
        files: DataFiles,
        layout: TableLayout,
        schema: pa.Schema,
        key_columns: Sequence[_KeyColumn],
        *,
        unique: bool,
    ) -> None:
        self._files, self._end, self._rescued, self._schema = files, layout.end, layout.rescued, schema
        self._key = [column for column in key_columns if not pa.types.is_nested(column.values.type)]
        self._keys: Keys | None = None
        if self._key and unique and files.deletes_rows:  # otherwise, each rewritten file needs a new index
            self._keys = Keys([one.name for one in self._key], [one.values for one in self._key])

    def find(self, file: DataFile) -> tuple[Numbers, pa.Table]:
        """Return the row numbers of rows in a data file that may have one of the keys, and these rows."""
        if self._keys is None or (found := self._keys.find(self._files, file)) is None:
            return self._scan(file)
        left = ~np.isin(found.rows, self._files.deleted(file), assume_unique=True)
        numbers, keys = found.rows[left], found.keys[left]
        if self._keys.are_exact and len(self._schema) == 2 and (keys >= 0).all():
            (column,) = self._key  # the values of the keys are known, and no other column is needed
            key = {column.name: column.values.take(pa.array(keys))}
            arrays = [key.get(one.name, pa.nulls(len(keys), one.type)) for one in self._schema]
            return numbers, pa.table(arrays, schema=self._schema)
        rows = self._read(file, numbers)
        if self._end is None:
            return numbers, rows
        current = rows[self._end].is_null()
        return numbers[current.to_numpy()], rows.filter(current)

    def _scan(self, file: DataFile) -> tuple[Numbers, pa.Table]:
        """Find rows as `find` does, without an index: read key columns, then the other columns of matches."""
        names = [*(column.name for column in self._key), *filter(None, (self._end,)), self._rescued]
        table = pa.Table.from_batches(self._files.read_all(file, names))
        matches = np.ones(table.num_rows, np.bool_)
        for column in self._key:
            matches &= column.matches(table[column.name])
        if self._end is not None:
            matches &= table[self._end].is_null().to_numpy()
        matches[self._files.deleted(file)] = False
        numbers = np.flatnonzero(matches)
        if set(self._schema.names) <= {*names}:
            return numbers, table.select(self._schema.names).filter(boolean_array(matches))
        return numbers, self._read(file, numbers)

    def _read(self, file: DataFile, numbers: Numbers) -> pa.Table:
        rows = _take_rows(self._files, file, self._schema.names, numbers) if len(numbers) else ()
        return pa.Table.from_batches(rows, self._schema)


def _take_rows(
    files: DataFiles, file: DataFile, names: Sequence[str], numbers: Numbers
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file with the row numbers `numbers` (ascending)."""
    first = 0
    for batch in files.read_all(file, names):
        low, high = np.searchsorted(numbers, (first, first + batch.num_rows))
        yield batch.take(pa.array(numbers[low:high] - first))
        first += batch.num_rows


def _number_column(column: _KeyColumn, rows: pa.Table, layout: TableLayout) -> Numbers:
    """Return the numbers that `number_values` gives to the values to look up, then those of `rows`."""
    rescued = dict(column.rescued)
    for row, texts in rescued_values(rows[layout.rescued]).items():
        if column.name in texts:
            rescued[len(column.values) + row] = texts[column.name]
    both = [column.values, *rows[column.name].cast(column.values.type).chunks]
    return number_values(pa.concat_arrays(both), rescued)


def rescued_values(maps: pa.ChunkedArray) -> dict[int, dict[str, str | None]]:
    """Return the rescued values of each row that has some: by row index, then by column name."""
    if maps.null_count == len(maps):
        return {}
    rows = pc.indices_nonzero(maps.is_valid()).to_pylist()
    return dict(zip(rows, map(dict, maps.drop_null().to_pylist()), strict=True))
