"""Which rows of a table have the keys that changes name, and where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.replica.chunks import Column
from pgoutput.replica.files import File, Files
from pgoutput.replica.fold import Key
from pgoutput.replica.rows import Layout
from pgoutput.values import to_arrow


class Found(msgspec.Struct, frozen=True):
    """Rows of a table."""

    rows: pa.Table
    keys: dict[Key, list[int]]
    """Which of them have a key: -1 is the first."""
    places: list[tuple[File, int]]
    """Their files, and their places in these."""
    vague: dict[int, tuple[Any, ...]]
    """The rows that have key columns which were never sent, with what they have in all. Where a key has one
    row at most, no column of it is NULL, so NULL is what was never sent, too."""
    identities: dict[Key, tuple[Any, ...]]
    """What a row with a key has in its columns."""

    def alike(self, key: Key) -> int | None:
        """Take a row that can be one with a key, but for columns that were never sent.

        That is right where the key is all columns: rows that are the same in what was sent are told apart by
        nothing.
        """
        wanted = self.identities.get(key, ())
        for row, identity in self.vague.items():
            if all(one in (NEVER_SENT, other) for one, other in zip(identity, wanted, strict=False)):
                del self.vague[row]
                return row
        return None

    def unknown(self) -> list[int]:
        """Which columns of the key were never sent for some row, so that it can be one of any key."""
        return sorted({at for row in self.vague.values() for at, one in enumerate(row) if one in _UNKNOWN})


class _KeyColumn(NamedTuple):
    name: str
    values: pa.Array
    """What the keys have in it."""

    @property
    def is_nested(self) -> bool:
        """Whether it is a list."""
        return bool(pa.types.is_nested(self.values.type))

    def may_be_in(self, file: File) -> bool:
        """Whether the file can have one of the values, by its statistics.

        Where others wrote it, what they say of other types is not to rely on: delta-rs cuts timestamps to
        milliseconds, and leaves NaN out.
        """
        if not (pa.types.is_integer(self.values.type) or pa.types.is_date(self.values.type)):
            return True
        low, high = file.low.get(self.name), file.high.get(self.name)
        if low is None or high is None or file.nulls.get(self.name) != 0:
            return True
        least, greatest = pc.min_max(self.values).as_py().values()
        return least is not None and bool(least <= high and low <= greatest)


def find_rows(
    files: Files,
    layout: Layout,
    key: Sequence[tuple[str, Column]],
    keys: Sequence[Key],
    columns: set[str],
    *,
    unique: bool,
) -> Found:
    """The rows that have some keys; of a table with history, those that hold now.

    Args:
        files: The table's.
        layout: Its columns.
        key: The key's columns, each with its name in the table.
        keys: The keys.
        columns: What is wanted of the rows, beside the key.
        unique: Whether a key has one row at most.
    """
    wanted = {*columns, *(name for name, _ in key), layout.rescued}
    names = [name for name in layout.schema.names if name in wanted]
    found = Found(pa.table([], pa.schema([])), {}, [], {}, {})
    parts: list[pa.Table] = []
    if keys:
        key_columns, by_identity = _identities(layout, key, keys)
        found.identities.update((key, identity) for identity, key in by_identity.items())
        for file in files:
            if not all(column.may_be_in(file) for column in key_columns):
                continue
            places = list(_candidates(files, file, key_columns, layout))
            if not places:
                continue
            rows = pa.Table.from_batches(files.read(file, names)).take(pa.array(places, pa.int64()))
            mine = []
            for index, identity in enumerate(_row_identities(rows, key_columns, layout)):
                if identity in by_identity:
                    mine.append(index)
                    found.places.append((file, places[index]))
                    found.keys.setdefault(by_identity[identity], []).append(-len(found.places))
                elif NEVER_SENT in identity or (unique and None in identity):
                    mine.append(index)
                    found.places.append((file, places[index]))
                    found.vague[-len(found.places)] = identity
            parts.append(rows.take(pa.array(mine, pa.int64())))
    schema = pa.schema([layout.schema.field(name) for name in names])
    table = pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()
    return msgspec.structs.replace(found, rows=table)


def _identities(
    layout: Layout, key: Sequence[tuple[str, Column]], keys: Sequence[Key]
) -> tuple[list[_KeyColumn], dict[tuple[Any, ...], Key]]:
    """The keys as the table has them: typed, or rescued."""
    columns, identities = [], []
    for (name, column), texts in zip(key, zip(*keys, strict=True), strict=True):
        type_ = layout.schema.field(name).type
        array, lost = to_arrow(texts, column.type_oid, column.type_modifier, type_)
        # A column that was never sent is NULL, and the value can be any.
        values = pa.concat_arrays([array, pa.nulls(1, type_)])
        columns.append(_KeyColumn(name, values))
        identities.append(
            [_identity(value, lost.get(row, _HELD)) for row, value in enumerate(array.to_pylist())]
        )
    rows = zip(*identities, strict=True) if key else [()] * len(keys)
    return columns, dict(zip(rows, keys, strict=True))


def _candidates(files: Files, file: File, key_columns: Sequence[_KeyColumn], layout: Layout) -> Iterator[int]:
    """Places in a file of rows that can have one of the keys."""
    searched = [column for column in key_columns if not column.is_nested]
    names = [column.name for column in searched] + [name for name in (layout.end,) if name is not None]
    first = 0
    for batch in files.read(file, names):
        fits = pa.array([True] * batch.num_rows)
        for column in searched:
            fits = pc.and_(fits, pc.is_in(batch[column.name], column.values))  # NULL is in it
        if layout.end is not None:
            fits = pc.and_(fits, batch[layout.end].is_null())
        for place in pc.indices_nonzero(fits).to_pylist():
            yield first + place
        first += batch.num_rows


def _row_identities(
    rows: pa.Table, key_columns: Sequence[_KeyColumn], layout: Layout
) -> Iterator[tuple[Any, ...]]:
    maps = [dict(one or ()) for one in rows[layout.rescued].to_pylist()]
    names = [column.name for column in key_columns]
    columns = zip(*(rows[name].to_pylist() for name in names), strict=True) if names else [()] * len(maps)
    for row, values in enumerate(columns):
        yield tuple(
            _identity(value, maps[row].get(name, _HELD)) for name, value in zip(names, values, strict=True)
        )


class _Rescued(msgspec.Struct, frozen=True):
    """A value of a column that cannot hold it; equal to no value that one holds."""

    text: str | None


_HELD: Final = object()
NEVER_SENT: Final = _Rescued(None)
_UNKNOWN: Final = (NEVER_SENT, None)


def _identity(value: Any, rescued: Any) -> Any:
    """What equals for equal values only: floating-point numbers are told apart by their bits."""
    if rescued is not _HELD:
        return _Rescued(rescued)
    if isinstance(value, list):
        return tuple(_identity(item, _HELD) for item in value)
    return repr(value) if isinstance(value, float) else value
