"""Looks at the rows of a published table on the server: a whole small table, some pages, or rows by key."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

from pgoutput.verification.selfcheck.published import PublishedTable, Server, quoted

MAX_ROWS: Final = 10_000
"""Largest number of rows of a table that is compared as a whole."""

_MAX_PAGES: Final = 4_000
"""Largest number of pages of a table that may be small: reading them takes much less than a second."""

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


def look_at_all(server: Server, table: PublishedTable, limit: int) -> Rows | None:
    """Return all rows of a table, or `limit` of them; None if it may have more than `MAX_ROWS`."""
    pages = sum(pages for _, pages, _ in table.leaves)
    rows = sum(rows for _, _, rows in table.leaves)
    if limit == MAX_ROWS and (pages > _MAX_PAGES or (table.key and rows > 2 * MAX_ROWS)):
        return None
    found = _look(server, table, f"{table.place} t", limit + (limit == MAX_ROWS))
    return None if sum(map(len, found.values())) > MAX_ROWS else found


def look_at_pages(server: Server, table: PublishedTable, limit: int, chance: random.Random) -> Rows:
    """Return at most `limit` rows from random pages of a table with a key."""
    sizes = [pages for _, pages, _ in table.leaves]
    chosen = chance.choices(table.leaves, sizes, k=_PAGES) if any(sizes) else ()
    found: Rows = {}
    for place, page in {(place, chance.randrange(pages)) for place, pages, _ in chosen}:
        tids = f"SELECT format('({page},%s)', item)::tid FROM generate_series(1, {_PAGE_ROWS}) item"
        found |= _look(server, table, f"{place} t", limit // _PAGES + 1, f"t.ctid = ANY (ARRAY({tids}))")
    return found


def look_up(server: Server, table: PublishedTable, keys: Collection[Key]) -> Rows:
    """Return the rows with some keys, found by the index of the key."""
    if not keys:
        return {}
    columns = list(zip(table.key, table.key_types, zip(*keys, strict=True), strict=True))
    arrays = ", ".join(f"ARRAY[{', '.join(map(quoted, values))}]::{type_}[]" for _, type_, values in columns)
    names = ", ".join(f'"pgoutput key {at}"' for at in table.key)
    equal = " AND ".join(f't.{table.names[at]} = k."pgoutput key {at}"' for at in table.key)
    return _look(
        server, table, f"unnest({arrays}) k({names}) JOIN {table.place} t ON {equal}", 10 * len(keys)
    )


def _look(server: Server, table: PublishedTable, place: str, limit: int, condition: str = "true") -> Rows:
    keys = [f"format('%s', t.{table.names[at]})" for at in table.key]
    query = _ROWS.format(
        row=f"convert_to(ROW({', '.join(f't.{name}' for name in table.names)})::text, 'UTF8')",
        key=", ".join(keys or ["NULL"]),
        place=place,
        condition=f"{condition} AND ({table.condition})",
        limit=limit,
    )
    found: Rows = defaultdict(list)
    for oid, xmin, ctid, digest, *key in server.query(query):
        found[tuple(key) if keys else ()].append(Row((oid, xmin, ctid), digest))
    return found
