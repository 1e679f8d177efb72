"""Key ranges: parts of a table that are compared one after the other.

A table is divided by the first column of an index that is part of the replica identity, if the values of the
column sort alike on the server and in Arrow: integers and UUIDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput import catalog
from pgoutput._arrays import Numbers
from pgoutput.messages import ColumnFlag
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.published_tables import PublishedTable

ROWS: Final = 1_000_000
"""Target number of rows in a key range."""

_TYPES: Final = {catalog.BY_NAME[name].oid for name in ("int2", "int4", "int8", "uuid")}

_UUID: Final = catalog.BY_NAME["uuid"].oid

_STATISTICS: Final = """\
SELECT array_to_json(s.histogram_bounds::text::text[]), c.reltuples::int8,
    coalesce(abs(s.correlation) > {correlation}, false)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = {column}
JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
    AND s.inherited = (c.relkind = 'p')
WHERE c.oid = {oid} LIMIT 1"""

_CORRELATION: Final = 0.9
"""Least correlation of column and rows on the disk. Below it, each range would read most of the table."""


class KeyRanges(msgspec.Struct, frozen=True):
    """The division of a table into key ranges; without bounds, one range is the whole table."""

    column: int = 0
    """Index of the column that divides the table."""
    sql: str = ""
    """The column as SQL."""
    is_uuid: bool = False
    """Whether the type of the column is uuid, not an integer type."""
    bounds: tuple[str, ...] = ()
    """Lowest value of each range but the first, as text, ascending."""

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def condition(self, number: int) -> str:
        """Return the SQL condition for the rows of a range; NULL is in the first range."""
        if not self.bounds:
            return "true"
        least = [f"{self.sql} >= '{self.bounds[number - 1]}'"] if number else []
        end = [f"{self.sql} < '{self.bounds[number]}'"] if number < len(self.bounds) else []
        condition = " AND ".join([*least, *end])
        return condition if number else f"({condition} OR {self.sql} IS NULL)"

    def find(self, texts: pa.StringArray) -> Numbers:
        """Return the number of the range of each value, from the text of the column."""
        if not self.bounds:
            return np.zeros(len(texts), np.int64)
        type_ = "S36" if self.is_uuid else np.int64
        filled = texts.fill_null("" if self.is_uuid else str(-(1 << 63)))
        values = np.array(filled.to_pylist() if self.is_uuid else filled.cast(pa.int64()), type_)
        return np.searchsorted(np.array(self.bounds, type_), values, side="right")


def choose_ranges(connection: Connection, table: PublishedTable, rate: float | None) -> KeyRanges:
    """Return the key ranges of a table from the server's statistics; one range without them.

    Args:
        connection: Connection to the server.
        table: The table.
        rate: Number of rows that may be read per second; None for no limit. With a limit, ranges are smaller.
    """
    rows_per_range = ROWS if rate is None else min(ROWS, max(1, int(10 * rate)))
    correlation = _CORRELATION if rate is None else -1
    for number, column in enumerate(table.relation.columns):
        if not column.flags & ColumnFlag.KEY or column.type_oid not in _TYPES:
            continue
        query = _STATISTICS.format(
            oid=table.relation.oid, column=_literal(column.name), correlation=correlation
        )
        for bounds, rows, is_sorted in connection.query(query):
            if bounds is not None and is_sorted == "t":
                is_uuid = column.type_oid == _UUID
                count = min(int(str(rows)) // rows_per_range + 1, 10_000)
                return KeyRanges(
                    number, quote(column.name), is_uuid, _take(msgspec.json.decode(bounds), count)
                )
    return KeyRanges()


def _take(bounds: Sequence[str], count: int) -> tuple[str, ...]:
    """Return bounds that divide the values into at most `count` ranges of similar size."""
    places = {len(bounds) * number // count for number in range(1, count)}
    return tuple(dict.fromkeys(bounds[place] for place in sorted(places) if place))


def quote(name: str) -> str:
    """Return a name as a quoted identifier; the name need not be valid UTF-8."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
