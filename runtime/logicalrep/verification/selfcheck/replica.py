"""Rows of a replica's table: all rows of a small table, random rows, or rows by key.

Whatever the size of the table, at most `_FILES` data files are opened and `_GROUPS` row groups are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from hashlib import md5
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import NO_NUMBERS, Numbers
from logicalrep.apply import convert_batch, make_layout, read_layout
from logicalrep.recording import Location
from logicalrep.replica import TableAsOf
from logicalrep.targets import DataFile, RowGroup, find_table
from logicalrep.values import to_arrow
from logicalrep.verification.row_texts import column_texts, record_texts
from logicalrep.verification.selfcheck.published import PublishedTable
from logicalrep.verification.selfcheck.source import Key

_MAX_ROWS: Final = 100_000
"""Largest number of rows in the files of a table that is read as a whole, including deleted rows."""

_FILES: Final = 24
_GROUPS: Final = 24
_DRAWS: Final = 2
"""Number of row groups from which rows are drawn."""

Digests = dict[Key, list[str]]
"""MD5 of the text of each row, by key."""


class _Sought(NamedTuple):
    """The values to find in a column of the key."""

    values: pa.Array
    ordered: list[Any]
    """The values; empty if statistics do not show where they are, as they ignore NaN."""


class ReplicaTable:
    """The newest version of a relation's table, with the relation's columns as the server has them now.

    Values are converted as the next change of the relation would convert them, so a column that the table
    lacks is NULL.

    Attributes:
        exists: Whether the replica has the table.
        is_small: Whether the table can be read as a whole.

    Args:
        target: The folder that holds the replica.
        table: The table, as the server describes it.
        seed: Decides which data files are read first. `draw` and `find` with one seed read the same files.
    """

    def __init__(self, target: Location, table: PublishedTable, seed: int) -> None:
        found = find_table(target, table.oid)
        self.exists, self.is_small = found is not None, True
        if found is None:
            return
        self._table, self._key, self._chance = found, table.key, Random(seed)
        self._old = old = read_layout(found, table.full_name)
        self._new = make_layout(table.stored_columns, target, history=old.end is not None, old=old)
        self._as_of = TableAsOf(None, self._new)
        files = [file for file in found.files() if file.rows]
        # This is a random order in which large files tend to come first.
        files.sort(key=lambda file: Random(f"{seed} {file.path}").random() ** (1 / file.rows), reverse=True)
        self._files = files
        self.is_small = sum(file.rows for file in files) <= _MAX_ROWS

    def all(self) -> Digests:
        """Return all rows."""
        return self._digests(batch for file in self._files for batch in self._read(file))

    def draw(self, count: int) -> set[Key]:
        """Return the keys of about `count` random rows."""
        keys: set[Key] = set()

        def choose(_: pa.RecordBatch, rows: Numbers) -> Numbers:
            return np.array(self._chance.sample(rows.tolist(), min(count // _DRAWS, len(rows))), np.int64)

        for draw in range(_DRAWS if self._files else 0):
            file = self._files[draw % len(self._files)]
            row = self._chance.randrange(file.rows)
            keys.update(self._digests(self._read(file, partial(_has_row, row), choose)))
        return keys

    def find(self, keys: Collection[Key]) -> tuple[Digests, bool]:
        """Return the rows with some keys, and whether all row groups that can have them were read."""
        sought = self._sought(keys) if keys else {}
        left = _GROUPS

        def wanted(group: RowGroup) -> bool:
            nonlocal left
            may_have = all(_may_have(one, group.bounds(name)) for name, one in sought.items())
            left -= may_have
            return may_have and left >= 0

        files = [
            file
            for file in self._files
            if keys and all(_may_have(one, _bounds(file, name)) for name, one in sought.items())
        ]

        def choose(batch: pa.RecordBatch, rows: Numbers) -> Numbers:
            for name, one in sought.items():  # a value that the type cannot represent is NULL
                column = batch[name]
                rows = rows[np.asarray(pc.or_(pc.is_in(column, one.values), pc.is_null(column)))[rows]]
            return rows

        found = self._digests(batch for file in files[:_FILES] for batch in self._read(file, wanted, choose))
        return {key: found[key] for key in keys if key in found}, left >= 0 and len(files) <= _FILES

    def _sought(self, keys: Collection[Key]) -> dict[str, _Sought]:
        """Return what to find in each column of the data files; none if it has another type there."""
        found = {}
        for texts, at in zip(zip(*keys, strict=True), self._key, strict=True):
            name, column = self._as_of.columns[at]
            source, type_ = self._new.sources.get(name), self._new.schema.field(name).type
            if source and self._old.schema.field(source).type == type_:
                values = to_arrow([*texts], column.type_oid, column.type_modifier, type_)[0]
                is_ordered = not (
                    values.null_count or pa.types.is_floating(type_) or pa.types.is_nested(type_)
                )
                found[source] = _Sought(values, sorted(set(values.to_pylist())) if is_ordered else [])
        return found

    def _read(
        self,
        file: DataFile,
        wanted: Callable[[RowGroup], bool] = lambda _: True,
        choose: Callable[[pa.RecordBatch, Numbers], Numbers] = lambda _, rows: rows,
    ) -> Iterator[pa.RecordBatch]:
        """Yield chosen rows of the wanted row groups, with the new layout."""
        deleted = self._table.deleted_rows(file) if file.deleted else NO_NUMBERS
        for first, batch in self._table.read_groups(file, self._old.schema, wanted):
            kept = np.ones(batch.num_rows, np.bool_)
            low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
            kept[deleted[low:high] - first] = False
            if self._old.end is not None:
                kept &= np.asarray(pc.is_null(batch[self._old.end]))
            rows = batch.take(pa.array(choose(batch, np.flatnonzero(kept))))
            yield convert_batch(rows, self._old, self._new, self._new.columns)

    def _digests(self, batches: Iterable[pa.RecordBatch]) -> Digests:
        found: Digests = defaultdict(list)
        for batch in batches:
            columns = column_texts(batch, self._as_of)
            texts = record_texts(columns, batch.num_rows).to_pylist()
            keys = zip(*(columns[at].texts.to_pylist() for at in self._key), strict=True)
            for key, text in zip(keys if self._key else ((),) * len(texts), texts, strict=True):
                found[key].append(md5(text.encode(), usedforsecurity=False).hexdigest())
        return found


def _has_row(number: int, group: RowGroup) -> bool:
    return number in group.rows


def _bounds(file: DataFile, name: str) -> tuple[Any, Any] | None:
    is_known = name in file.min_values and name in file.max_values and file.null_counts.get(name) == 0
    return (file.min_values[name], file.max_values[name]) if is_known else None


def _may_have(sought: _Sought, bounds: tuple[Any, Any] | None) -> bool:
    """Return False if the least and greatest value of a column exclude all values."""
    ordered = sought.ordered
    if bounds is None or not ordered or type(bounds[0]) is not type(ordered[0]):
        return True
    at = bisect_left(ordered, bounds[0])
    return at < len(ordered) and bool(ordered[at] <= bounds[1])
