"""Looks at the rows of a published table on the server: a whole small table, some pages, or rows by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from random import Random
from typing import Final, NamedTuple, TypeAlias

from logicalrep.verification.selfcheck.published import Publications, PublishedTable, quoted

MAX_ROWS: Final = 10_000
"""Largest number of rows of a table that is compared as a whole."""

MAX_PAGES: Final = 4_000
"""Largest number of pages of a table that is compared as a whole: they are read in less than a second."""

_PAGES: Final = 5
"""Number of pages that a sample is drawn from; each can lead to another row group of the replica."""

_PAGE_ROWS: Final = 291
"""Largest number of rows in a page of 8 kB (MaxHeapTuplesPerPage)."""

Key: TypeAlias = tuple[str, ...]
"""Values of the columns of a key, as text; empty for each row of a table without a key."""


class Row(NamedTuple):
    """A row version on the server."""

    place: tuple[str, str, str]
    """tableoid, xmin and ctid. While they stay the same, so does the row."""
    digest: str
    """MD5 of the row's text."""


Rows: TypeAlias = dict[Key, list[Row]]


_ROWS: Final = (
    "SELECT t.tableoid, t.xmin, t.ctid, md5({row}), {key} FROM {place} WHERE {condition} LIMIT {limit}"
)


def look_at_all(server: Publications, table: PublishedTable, limit: int = MAX_ROWS + 1) -> Rows:
    """Return all rows of a table, or the first ones."""
    return _look(server, table, f"{table.place} t", limit)


def look_at_pages(server: Publications, table: PublishedTable, limit: int, chance: Random) -> Rows:
    """Return at most `limit` rows from random pages of a table with a key."""
    sizes = [one.pages for one in table.leaves]
    chosen = chance.choices(table.leaves, sizes, k=_PAGES) if any(sizes) else ()
    found: Rows = {}
    for place, page in {(one.place, chance.randrange(one.pages)) for one in chosen}:
        tids = f"SELECT format('({page},%s)', item)::tid FROM generate_series(1, {_PAGE_ROWS}) item"
        found |= _look(server, table, f"{place} t", limit // _PAGES + 1, f"t.ctid = ANY (ARRAY({tids}))")
    return found


def look_up(server: Publications, table: PublishedTable, keys: Collection[Key]) -> Rows:
    """Return the rows with some keys, found by the index of the key."""
    if not keys:
        return {}
    columns = [(f'"logicalrep key {at}"', table.columns[at]) for at in table.key]
    types = [one.type for _, one in columns]
    rows = (
        ", ".join(f"{quoted(text)}::{type_}" for text, type_ in zip(key, types, strict=True)) for key in keys
    )
    equal = " AND ".join(f"t.{one.quoted} = k.{name}" for name, one in columns)
    values = f"(VALUES ({'), ('.join(rows)})) k({', '.join(name for name, _ in columns)})"
    return _look(server, table, f"{values} JOIN {table.place} t ON {equal}", 10 * len(keys))


def _look(
    server: Publications, table: PublishedTable, place: str, limit: int, condition: str = "true"
) -> Rows:
    keys = [f"format('%s', t.{table.columns[at].quoted})" for at in table.key]
    query = _ROWS.format(
        row=f"convert_to(ROW({', '.join(f't.{one.quoted}' for one in table.columns)})::text, 'UTF8')",
        key=", ".join(keys or ["NULL"]),
        place=place,
        condition=f"{condition} AND ({table.condition})",
        limit=limit,
    )
    found: Rows = defaultdict(list)
    for oid, xmin, ctid, digest, *key in server.query(query):
        found[tuple(key) if keys else ()].append(Row((oid, xmin, ctid), digest))
    return found
