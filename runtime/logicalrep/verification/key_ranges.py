"""Key ranges: parts of a table that are compared one after the other.

A table is divided by the first column of an index that is part of the replica identity, if the values of the
column can be sorted here as the server sorts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import catalog
from logicalrep._arrays import Numbers
from logicalrep.messages import ColumnFlag
from logicalrep.recorder import Connection, PublishedTable, quote_name, quote_text

ROWS: Final = 1_000_000
"""Target number of rows in a key range."""

_ROW_BYTES: Final = 28
"""Least size of a row in a table of the server, in bytes: its header and its line pointer."""

_BYTES: Final = 36
"""Number of bytes of a text that are compared with bounds (enough for the text of a UUID)."""

_DATETIME: Final = "^[0-9]{4}-[0-9 :.+-]+$"
"""Regular expression for dates and timestamps whose text sorts as their values do."""

_WHOLE: Final = "^-?[0-9]{1,18}$"
"""Regular expression for integers that certainly fit into 64 bits."""


class _Order(NamedTuple):
    """How the values of a type are sorted, and which of them can be bounds of key ranges."""

    keys: Callable[[pa.StringArray], npt.NDArray[Any]]
    """Function that returns sort keys of texts. They sort values and bounds as the server sorts them."""
    bound: Callable[[str], str] = str
    """Function that returns a bound of a key range, near a value; an empty string if there is none."""


def _integers(texts: pa.StringArray) -> Numbers:
    return np.array(texts.cast(pa.int64()), np.int64)


def _first_bytes(texts: pa.StringArray) -> npt.NDArray[np.bytes_]:
    return np.array(pc.binary_slice(texts.cast(pa.binary()), 0, _BYTES).to_pylist(), f"S{_BYTES}")


def _datetimes(texts: pa.StringArray) -> npt.NDArray[np.bytes_]:
    """Return the sort keys of dates or timestamps, given as text.

    The sort key of a date in the years 1 to 9999 is its text. Before year 1 (also for `-infinity`) it is "",
    and after year 9999 (also for `infinity`) "~".
    """
    is_early = pc.or_(pc.starts_with(texts, "-"), pc.ends_with(texts, " BC"))
    is_usual = pc.match_substring_regex(texts, _DATETIME)
    return _first_bytes(pc.if_else(is_early, "", pc.if_else(is_usual, texts, "~")))


def _numerics(texts: pa.StringArray) -> Numbers:
    """Return the integer parts of numbers as sort keys.

    Bounds are positive integers: a number is below a bound if and only if its integer part is below the
    bound. An integer part that is not a number of at most 18 digits (`_WHOLE`) becomes the least integer of
    64 bits if it is negative, otherwise (also for NaN) the greatest.
    """
    parts = pc.replace_substring_regex(texts, r"\..*", "")
    limits = pc.if_else(pc.starts_with(parts, "-"), str(-(1 << 63)), str((1 << 63) - 1))
    return _integers(pc.if_else(pc.match_substring_regex(parts, _WHOLE), parts, limits))


def _text_bound(text: str) -> str:
    """Return a bound of a key range, near a text: at most the first `_BYTES` bytes of the text.

    The bound ends before the first backslash, because some servers read a backslash as an escape.
    """
    return text.partition("\\")[0].encode()[:_BYTES].decode(errors="ignore")


def _numeric_bound(text: str) -> str:
    whole = text.partition(".")[0]
    return whole if re.match(_WHOLE, whole) and int(whole) > 0 else ""


_ORDERS: Final = {
    catalog.BY_NAME[name].oid: order
    for names, order in {
        ("int2", "int4", "int8"): _Order(_integers),
        ("numeric",): _Order(_numerics, _numeric_bound),
        ("date", "timestamp", "timestamptz"): _Order(
            _datetimes, lambda text: text if re.match(_DATETIME, text) else ""
        ),
        ("uuid",): _Order(_first_bytes),
        ("text", "varchar"): _Order(_first_bytes, _text_bound),
    }.items()
    for name in names
}
"""Order of the values of each type whose columns can divide a table, by OID of the type."""

_STATISTICS: Final = """\
SELECT array_to_json(s.histogram_bounds::text::text[]), c.reltuples::int8,
    coalesce(abs(s.correlation) > {correlation}, false)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = {column}
JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
    AND s.inherited = (c.relkind = 'p')
WHERE c.oid = {oid} AND (a.attcollation = 0 OR a.attcollation = i.indcollation[0] AND {is_collated_in_c})
LIMIT 1"""

_IS_COLLATED_IN_C: Final = """\
getdatabaseencoding() = 'UTF8' AND EXISTS (
    SELECT FROM pg_collation l, pg_database d WHERE l.oid = a.attcollation AND d.datname = current_database()
    AND CASE l.collprovider WHEN 'd' THEN d.datcollate ELSE l.collcollate END IN ('C', 'POSIX')
    AND coalesce(nullif(l.collprovider::text, 'd'), to_jsonb(d) ->> 'datlocprovider', 'c') = 'c'
)"""
"""SQL condition: the column's texts are sorted by their bytes. `datlocprovider` is new in PostgreSQL 15."""

_CORRELATION: Final = 0.9
"""Least pg_stats.correlation of a column. Below it, reading one range would read most of the table."""


class KeyRanges(msgspec.Struct, frozen=True):
    """The division of a table into key ranges; without bounds, one range is the whole table."""

    column: int = 0
    """Index of the column that divides the table."""
    sql: str = ""
    """The column as SQL."""
    type_oid: int = 0
    """OID of the column's type."""
    bounds: tuple[str, ...] = ()
    """Lowest value of each range but the first, as text, ascending."""

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def condition(self, number: int) -> str:
        """Return the SQL condition for the rows of a range; NULL is in the first range."""
        if not self.bounds:
            return "true"
        least = [f"{self.sql} >= {quote_text(self.bounds[number - 1])}"] if number else []
        end = [f"{self.sql} < {quote_text(self.bounds[number])}"] if number < len(self.bounds) else []
        condition = " AND ".join([*least, *end])
        return condition if number else f"({condition} OR {self.sql} IS NULL)"

    def find(self, texts: pa.StringArray) -> Numbers:
        """Return the number of the key range of each value.

        Args:
            texts: Values of the column that divides the table, as text.
        """
        if not self.bounds:
            return np.zeros(len(texts), np.int64)
        keys = _ORDERS[self.type_oid].keys
        values = keys(texts.fill_null(self.bounds[0]))
        numbers = np.searchsorted(keys(pa.array(self.bounds, pa.string())), values, side="right")
        numbers[pc.indices_nonzero(texts.is_null()).to_pylist()] = 0
        return numbers


def choose_ranges(connection: Connection, table: PublishedTable, size: int, rate: float | None) -> KeyRanges:
    """Return the key ranges of a table from the server's statistics; one range without statistics.

    Args:
        connection: Connection to the server.
        table: The table.
        size: Size of the table, in bytes.
        rate: Number of rows that may be read per second; None for no limit. With a limit, ranges are smaller.
    """
    rows_per_range = ROWS if rate is None else min(ROWS, max(1, int(10 * rate)))
    if size < rows_per_range * _ROW_BYTES:
        return KeyRanges()
    correlation = _CORRELATION if rate is None else -1
    for number, column in enumerate(table.relation.columns):
        if not column.flags & ColumnFlag.KEY or column.type_oid not in _ORDERS:
            continue
        query = _STATISTICS.format(
            oid=table.relation.oid,
            column=quote_text(column.name),
            correlation=correlation,
            is_collated_in_c=_IS_COLLATED_IN_C,
        )
        for bounds, rows, is_sorted in connection.query(query):
            if bounds is not None and is_sorted == "t":
                count = min(int(str(rows)) // rows_per_range + 1, 10_000)
                possible = _possible_bounds(msgspec.json.decode(bounds), _ORDERS[column.type_oid])
                return KeyRanges(number, quote_name(column.name), column.type_oid, _take(possible, count))
    return KeyRanges()


def _possible_bounds(values: Sequence[str], order: _Order) -> list[str]:
    """Return the bound that `order.bound` gives for each value, sorted, without duplicates.

    Values for which there is no bound are left out.
    """
    bounds = [bound for value in values if (bound := order.bound(value))]
    _, places = np.unique(order.keys(pa.array(bounds, pa.string())), return_index=True)
    return [bounds[place] for place in places]


def _take(bounds: Sequence[str], count: int) -> tuple[str, ...]:
    """Return at most `count - 1` of the sorted `bounds`, evenly spaced, for ranges of similar size."""
    places = {len(bounds) * number // count for number in range(1, count)}
    return tuple(dict.fromkeys(bounds[place] for place in sorted(places) if place))
