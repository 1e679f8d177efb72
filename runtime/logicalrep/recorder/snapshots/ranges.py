"""Ranges of tables, each copied by one COPY: pages of a table or partition, or rows with given keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from logicalrep.recorder.catalogs import Catalog, Leaf, PublishedTable
from logicalrep.recorder.client import Connection
from logicalrep.recorder.snapshots.copy_folder import CopiedTable, Place
from logicalrep.recorder.snapshots.row_keys import Keys, RowKey, key_columns, key_conditions

RANGE_BYTES: int = 64 << 20
"""Size of a range, in bytes of the file that stores the table."""

_TIDS: Final = """\
ctid = ANY (ARRAY(SELECT format('(%s,%s)', page, item)::tid
FROM generate_series({begin}, {end} - 1) page, generate_series(1, {items}) item))"""
"""SQL condition for the rows of some pages, for servers before PostgreSQL 14, which scan the whole table for
any other condition on pages.
"""

_ROW_BYTES: Final = 28
"""Least number of bytes that a row takes in its page (MaxHeapTuplesPerPage)."""


class Task(NamedTuple):
    """A range of a table that is to be copied."""

    table: PublishedTable
    leaf: Leaf
    """Table or partition that stores the range."""
    number: int
    """Number of the range in `leaf`, from 0."""
    since: int | None = None
    """Transaction ID; rows that earlier transactions have written are left out. None for all rows."""


class RangePlan:
    """Division of tables into ranges, each copied by one COPY.

    Attributes:
        mixable: OIDs of the tables whose ranges may be copied from different snapshots.
        keys: Keys of the rows to copy, by OID of the table; of a table without an entry, all rows are copied.
        bytes: Size of all tables, in bytes, by an estimate of the server.

    Args:
        connection: Connection in the transaction that sees the snapshot, with locks on the tables.
        tables: The tables.
        catalog: The catalogs as of the snapshot.
        rows: Requested keys of rows, by OID of the table. All rows of the table are copied instead if a key
            has more or fewer values than there are key columns, if COPY writes binary format, or if not every
            change of the table contains the key of its row.
    """

    def __init__(
        self,
        connection: Connection,
        tables: list[PublishedTable],
        catalog: Catalog,
        rows: Mapping[int, Keys] = {},
    ) -> None:
        sizes = _leaf_sizes(connection, [leaf.oid for table in tables for leaf in table.leaves])
        self._page_bytes = int(str(connection.query("SELECT current_setting('block_size')")[0][0]))
        self._has_range_scans = connection.server_version >= 140_000
        by_oid = {table.relation.oid: table for table in tables}
        self.keys: dict[int, frozenset[RowKey]] = {
            oid: keys
            for oid, keys in rows.items()
            if keys is not None
            and (table := by_oid.get(oid)) is not None
            and _has_keys(table, keys)
            and _is_mixable(table, catalog)
        }
        self._conditions = {
            oid: list(key_conditions(connection, by_oid[oid].relation, keys))
            for oid, keys in self.keys.items()
        }
        self._tables = {
            oid: (table, (_whole(table),) if oid in self.keys else _leaves(table))
            for oid, table in by_oid.items()
        }
        self._counts: dict[int, int] = {}
        self._range_bytes: dict[int, int] = {}
        for oid, (table, leaves) in self._tables.items():
            if oid in self.keys:
                self._counts[oid] = len(self._conditions[oid])
                continue
            for leaf in leaves:
                stored, all_bytes = sizes.get(leaf.oid, (0, 0))
                self._counts[leaf.oid] = max(1, -(-stored // RANGE_BYTES)) if table.has_ranges else 1
                self._range_bytes[leaf.oid] = all_bytes // self._counts[leaf.oid]
        self.bytes: int = sum(self.size(place) for oid in self._tables for place in self._places(oid))
        self.mixable: set[int] = {
            oid
            for oid, (table, _) in self._tables.items()
            if oid not in self.keys and _is_mixable(table, catalog)
        }

    def size(self, place: Place) -> int:
        """Return the estimated size of a range, in bytes; 0 for rows with given keys."""
        return self._range_bytes.get(place[0], 0)

    def missing(self, oid: int, copied: CopiedTable) -> list[Task]:
        """Return the ranges of the table `oid` that are not in `copied`."""
        table, leaves = self._tables[oid]
        by_oid = {leaf.oid: leaf for leaf in leaves}
        have = copied.last
        return [
            Task(table, by_oid[leaf], number)
            for leaf, number in self._places(oid)
            if (leaf, number) not in have
        ]

    def outdated(self, oid: int, copied: CopiedTable, lsn: int) -> list[Task]:
        """Return the ranges to copy again if a table was copied from several snapshots; otherwise [].

        Args:
            oid: OID of the table.
            copied: The copied ranges of the table, of which none is missing.
            lsn: LSN of the current snapshot; ranges that were copied from it are not returned.
        """
        if len(copied.lsns) < 2:
            return []
        table, leaves = self._tables[oid]
        by_oid = {leaf.oid: leaf for leaf in leaves}
        return [
            Task(table, by_oid[one.leaf], one.number, one.xmin)
            for one in copied.last.values()
            if one.lsn != lsn
        ]

    def statement(self, task: Task) -> str:
        """Return the COPY statement for a range."""
        conditions = []
        if of_keys := self._conditions.get(task.table.relation.oid):
            conditions.append(of_keys[task.number])
        elif self._counts[task.leaf.oid] > 1 or task.number or task.since is not None:
            conditions.append(self._condition(task.number))
        if task.since is not None:
            conditions.append(f"age(xmin) <= age('{task.since}'::xid)")
        return task.table.copy_statement(task.leaf.place, conditions)

    def _condition(self, number: int) -> str:
        """Return the SQL condition for the rows in the pages of a range."""
        pages = RANGE_BYTES // self._page_bytes
        begin, end = number * pages, (number + 1) * pages
        if self._has_range_scans:
            return f"ctid >= '({begin},0)'::tid AND ctid < '({end},0)'::tid"
        return _TIDS.format(begin=begin, end=end, items=self._page_bytes // _ROW_BYTES)

    def _places(self, oid: int) -> list[Place]:
        leaves = self._tables[oid][1]
        return [(leaf.oid, number) for leaf in leaves for number in range(self._counts[leaf.oid])]


def identity(table: PublishedTable, catalog: Catalog, timeline: int, keys: Keys) -> str:
    """Return a digest that changes when earlier copied ranges of a table cannot be used any more.

    It changes when the table is altered, rewritten or truncated, when its publications change, when other
    keys of rows are requested, and after a failover, which changes the timeline.

    Args:
        table: The table.
        catalog: The catalogs.
        timeline: Timeline of the server.
        keys: Keys of the rows to copy; None for all rows.
    """
    described = catalog.tables[table.relation.oid]
    types = {column.type_oid for column in described.columns.values()}
    facts = (
        table,
        [sorted(one.items()) for one in (described.columns, described.memberships)],
        sorted(catalog.publications_of(described), key=lambda one: one.oid),
        sorted((oid, sorted(parts.items())) for oid, parts in catalog.types.items() if oid in types),
        timeline,
        RANGE_BYTES,
        *([] if keys is None else sorted(keys)),
    )
    return sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _is_mixable(table: PublishedTable, catalog: Catalog) -> bool:
    """Return whether the ranges of a table may be copied from different snapshots.

    True if every change of a row is sent and contains the key of the row. A later copy or change then
    replaces an earlier copy of the same row.
    """
    return table.has_key and not catalog.unsent_operations(catalog.tables[table.relation.oid])


def _has_keys(table: PublishedTable, keys: frozenset[RowKey]) -> bool:
    """Return whether rows can be selected by `keys`: each key has all key columns, and COPY writes text.

    The keys are text, and are compared with the copied cells.
    """
    width = len(key_columns(table.relation))
    return table.binary is None and all(len(key) == width for key in keys)


def _whole(table: PublishedTable) -> Leaf:
    return Leaf(table.relation.oid, table.place, None)


def _leaves(table: PublishedTable) -> tuple[Leaf, ...]:
    """Return the partitions that store a table's rows, or the table itself if it has no partitions.

    The result is also the table itself if the user may not read each partition alone (`has_ranges`).
    """
    if table.has_ranges and table.leaves:
        return table.leaves
    return (_whole(table),)


def _leaf_sizes(connection: Connection, oids: Iterable[int]) -> Mapping[int, tuple[int, int]]:
    """Return the sizes of the main file and of the whole table (pg_table_size), in bytes, by OID."""
    listed = ",".join(map(str, oids))
    query = f"SELECT oid, pg_relation_size(oid), pg_table_size(oid) FROM unnest('{{{listed}}}'::oid[]) oid"
    rows = (map(int, map(str, row)) for row in connection.query(query) if None not in row)
    return {oid: (stored, all_bytes) for oid, stored, all_bytes in rows}
