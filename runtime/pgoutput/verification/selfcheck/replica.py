"""Rows of a replica's table: all rows of a small table, random rows, or rows by key.

Whatever the size of the table, at most `_FILES` data files are opened and `_GROUPS` row groups are read.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from hashlib import md5
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import NO_NUMBERS, Numbers
from pgoutput._text import qualified_name
from pgoutput.apply import convert_batch, make_layout, read_layout
from pgoutput.messages import Relation
from pgoutput.recording import Location
from pgoutput.replica import TableAsOf
from pgoutput.targets import DataFile, RowGroup, Table, find_table
from pgoutput.values import to_arrow
from pgoutput.verification.row_texts import column_texts, record_texts
from pgoutput.verification.selfcheck.source import Key
from pgoutput.views import Column
from pgoutput.wire import stored_name

_MAX_ROWS: Final = 100_000
"""Largest number of rows in the files of a table that is read as a whole, including deleted rows."""

_FILES: Final = 24
_GROUPS: Final = 24
_DRAWS: Final = 2
"""Number of row groups from which rows are drawn."""

Digests = dict[Key, list[str]]
"""MD5 of the text of each row, by key."""


class ReplicaTable:
    """The newest version of a relation's table, with the relation's columns as the server has them now.

    Values are converted as the next change of the relation would convert them, so a column that the table
    lacks is NULL.

    Attributes:
        is_small: Whether the table can be read as a whole.
        drawn: Paths of the data files from which rows were drawn last.

    Args:
        target: The folder that holds the replica.
        relation: The relation, as the server describes it.
        key: Indices of the columns of the key.
    """

    def __init__(self, target: Location, relation: Relation, key: Collection[int]) -> None:
        self._target, self._relation, self._key = target, relation, key
        self.drawn: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read the newest version of the table."""
        self._table: Table | None = find_table(self._target, self._relation.oid)
        self._files: list[DataFile] = []
        self.is_small: bool = True
        if self._table is None:
            return
        columns = [
            Column(stored_name(one.name), one.type_oid, one.type_modifier) for one in self._relation.columns
        ]
        name = qualified_name(self._relation.namespace, self._relation.name)
        self._layout = read_layout(self._table, name)
        has_history = self._layout.end is not None
        self._new = make_layout(columns, self._target, history=has_history, old=self._layout)
        self._as_of = TableAsOf(None, self._new)
        self._files = self._table.files()
        self.is_small = sum(one.rows for one in self._files) <= _MAX_ROWS

    @property
    def exists(self) -> bool:
        """Whether the replica has the table."""
        return self._table is not None

    def all(self) -> Digests:
        """Return all rows."""
        return self._digests(batch for file in self._files for batch in self._read(file, lambda group: True))

    def draw(self, count: int, chance: random.Random) -> set[Key]:
        """Return the keys of about `count` random rows."""
        keys: set[Key] = set()
        self.drawn = set()
        files = [file for file in self._files if file.rows]
        sizes = [file.rows for file in files]

        def choose(rows: Numbers) -> Numbers:
            return np.array(chance.sample(rows.tolist(), min(count // _DRAWS, len(rows))), np.int64)

        for file in chance.choices(files, sizes, k=_DRAWS) if files else ():
            self.drawn.add(file.path)
            wanted = partial(_has_row, chance.randrange(file.rows))

            keys.update(self._digests(self._read(file, wanted, choose=choose)))
        return keys

    def find(self, keys: Collection[Key], chance: random.Random) -> tuple[Digests, bool]:
        """Return the rows with some keys, and whether all row groups that can have them were read."""
        columns = [_KeyColumn(self, at, number, keys) for number, at in enumerate(self._key)] if keys else []
        files = (
            [one for one in self._files if all(column.may_be_in(one) for column in columns)] if keys else []
        )
        chance.shuffle(files)
        files.sort(key=lambda file: file.path not in self.drawn)
        left = _GROUPS + 1

        def wanted(group: RowGroup) -> bool:
            nonlocal left
            is_candidate = left > 0 and all(column.may_be_among(group) for column in columns)
            left -= is_candidate
            return is_candidate and left > 0

        found = (batch for file in files[:_FILES] for batch in self._read(file, wanted, columns))
        digests = self._digests(found)
        return {key: digests[key] for key in keys if key in digests}, left > 0 and len(files) <= _FILES

    def source(self, at: int) -> str:
        """Return the name in the data files of a column of the relation; empty if they lack it."""
        return self._new.sources.get(self._as_of.columns[at][0], "")

    def typed(self, at: int, texts: Iterable[str]) -> pa.Array | None:
        """Return values of a column as in the data files; None if these have another type."""
        (name, column), source = self._as_of.columns[at], self.source(at)
        type_ = self._new.schema.field(name).type
        if not source or self._layout.schema.field(source).type != type_:
            return None
        return to_arrow([*texts], column.type_oid, column.type_modifier, type_)[0]

    def _read(
        self,
        file: DataFile,
        wanted: Callable[[RowGroup], bool],
        columns: Iterable[_KeyColumn] = (),
        choose: Callable[[Numbers], Numbers] = lambda rows: rows,
    ) -> Iterator[pa.RecordBatch]:
        """Yield chosen rows of the wanted row groups that may have the keys, with the new layout."""
        assert self._table is not None
        deleted = self._table.deleted_rows(file) if file.deleted else NO_NUMBERS
        for first, batch in self._table.read_groups(file, self._layout.schema, wanted):
            kept = np.ones(batch.num_rows, np.bool_)
            low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
            kept[deleted[low:high] - first] = False
            if self._layout.end is not None:
                kept &= np.asarray(pc.is_null(batch[self._layout.end]))
            for column in columns:
                kept &= column.matches(batch)
            rows = batch.take(pa.array(choose(np.flatnonzero(kept))))
            yield convert_batch(rows, self._layout, self._new, self._new.columns)

    def _digests(self, batches: Iterable[pa.RecordBatch]) -> Digests:
        found: Digests = defaultdict(list)
        for batch in batches:
            columns = column_texts(batch, self._as_of)
            texts = record_texts(columns, batch.num_rows).to_pylist()
            keys = (
                zip(*(columns[at].texts.to_pylist() for at in self._key), strict=True)
                if self._key
                else ((),) * len(texts)
            )
            for key, text in zip(keys, texts, strict=True):
                found[key].append(md5(text.encode(), usedforsecurity=False).hexdigest())
        return found


def _has_row(number: int, group: RowGroup) -> bool:
    return number in group.rows


class _KeyColumn:
    """A column of the key, with the values to find."""

    def __init__(self, table: ReplicaTable, at: int, number: int, keys: Collection[Key]) -> None:
        self._name = table.source(at)
        self._values = values = table.typed(at, (key[number] for key in keys))
        self._sorted: list[Any] = []
        """The values; empty if statistics do not show where they are, as they ignore NaN."""
        if values is not None and not values.null_count and not pa.types.is_floating(values.type):
            self._sorted = sorted(set(values.to_pylist()))

    def may_be_in(self, file: DataFile) -> bool:
        """Return False if the statistics of a data file exclude all values."""
        low, high = file.min_values.get(self._name), file.max_values.get(self._name)
        has_bounds = low is not None and high is not None and file.null_counts.get(self._name) == 0
        return self._may_have((low, high) if has_bounds else None)

    def may_be_among(self, group: RowGroup) -> bool:
        """Return False if the statistics of a row group exclude all values."""
        return self._may_have(group.bounds(self._name))

    def _may_have(self, bounds: tuple[Any, Any] | None) -> bool:
        if not self._sorted or bounds is None:
            return True
        try:
            at = bisect_left(self._sorted, bounds[0])
            return at < len(self._sorted) and bool(self._sorted[at] <= bounds[1])
        except TypeError:  # the statistics have another type
            return True

    def matches(self, batch: pa.RecordBatch) -> Any:
        """Return which rows have one of the values, or one that the type of the column cannot represent."""
        if self._values is None:
            return np.ones(batch.num_rows, np.bool_)
        column = batch[self._name]
        return np.asarray(pc.or_(pc.is_in(column, self._values), pc.is_null(column)))
