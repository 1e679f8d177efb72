"""The rows of a published table on the server: hashes by key range, and single rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep.errors import ReplicationError
from logicalrep.recorder import Connection, PublishedTable, Row, quote_name
from logicalrep.verification.key_ranges import KeyRanges
from logicalrep.verification.text_hash import Hashes, hash_texts, md5_hashes

BUCKETS: Final = 1024
"""Number of buckets of each key range. A bucket is the rows of a key range whose hashes have the same lowest
bits. These bits are the number of the bucket."""

Sums: TypeAlias = npt.NDArray[np.uint64]
"""Number of rows, and sum of their hashes modulo 2**64, of each bucket: an array of 2 rows."""

Total: TypeAlias = tuple[int, int]
"""Number of rows, and sum of their hashes modulo 2**64, of a key range."""

_HASHED: Final = 'hashtextextended({} COLLATE "C", 0)'
_DIGESTED: Final = "('x' || left(md5({}), 16))::bit(64)::int8"
_CONVERTED: Final = "convert_to({}, 'UTF8')"

_TOTAL: Final = "SELECT count(*), coalesce(sum({row}), 0) FROM ({select}) r WHERE {condition}"
"""SQL for the total of a key range. The server may run it in parallel, unlike `_SUMS`."""

_SUMS: Final = """\
SELECT h & {mask}, count(*), sum(h) FROM (SELECT {row} AS h FROM ({select}) r WHERE {condition} OFFSET 0) q
GROUP BY 1"""
"""SQL for the sums of the buckets of a key range. OFFSET 0 keeps the planner from computing hashes twice."""

_PAIRS: Final = """\
SELECT k, h FROM (SELECT {key} AS k, {row} AS h FROM ({select}) r WHERE {condition} OFFSET 0) q
WHERE h & {mask} IN ({buckets})"""

_ROWS: Final = """\
SELECT q.* FROM (SELECT {key} AS "logicalrep key", {row} AS "logicalrep row", {columns} FROM ({select}) r
WHERE {condition} OFFSET 0) q WHERE "logicalrep key" IN (VALUES {keys})"""

_PROBE: Final = "A probe with more than two blocks."
_NO_SPACES: Final = "\u00e0\u0085\u00a0"
"""Characters whose bytes are white space in some locales; record_out asks isspace() for each byte."""


class RowHash(msgspec.Struct, frozen=True):
    """A hash function for texts, as SQL and as a Python function. Both return the same 64 bits for a text."""

    sql: str
    """SQL for the hash of `{}`, as a signed integer of 64 bits."""
    function: Callable[[pa.StringArray], Hashes]
    """Function for the hashes of texts, as unsigned integers."""


def choose_hash(connection: Connection) -> RowHash:
    """Return the hash to use with a server: its own hash of texts, or MD5.

    The server's own hash is not used if the server is older than PostgreSQL 11, has another byte order, or
    has a database in another encoding than UTF-8 or SQL_ASCII.

    Raises:
        ReplicationError: The server's text of rows depends on its locale.
    """
    encoding = str(connection.query("SELECT getdatabaseencoding()")[0][0])
    if encoding == "UTF8":
        (row,) = connection.query(f"SELECT ROW('{_NO_SPACES}')::text")
        if row != (f"({_NO_SPACES})",):
            raise ReplicationError(
                "`logicalrep verify` cannot compare this database: the locale of the database treats single "
                "bytes of multibyte letters as white space, which changes the server's text of rows. Compare "
                "a copy of the database that has another locale, such as C"
            )
    if encoding not in ("UTF8", "SQL_ASCII"):
        return RowHash(_DIGESTED.format(_CONVERTED), md5_hashes)
    if connection.server_version >= 110_000:
        ((found,),) = connection.query("SELECT " + _HASHED.format(f"'{_PROBE}'"))
        if int(str(found)) == hash_texts(pa.array([_PROBE])).view(np.int64)[0]:
            return RowHash(_HASHED, hash_texts)
    return RowHash(_DIGESTED, md5_hashes)


def table_sizes(connection: Connection, tables: Sequence[PublishedTable]) -> dict[int, int]:
    """Return the size of each table in bytes, by OID, with TOAST but without indexes."""
    if not (oids := ", ".join(str(leaf.oid) for table in tables for leaf in table.leaves)):
        return {}
    rows = connection.query(f"SELECT oid, pg_table_size(oid) FROM pg_class WHERE oid IN ({oids})")
    sizes = {int(str(oid)): int(str(size or 0)) for oid, size in rows}
    return {table.relation.oid: sum(sizes.get(leaf.oid, 0) for leaf in table.leaves) for table in tables}


class SourceRows:
    """The published rows of a table on the server.

    Args:
        connection: Connection in a transaction that sees the snapshot.
        table: The table.
        ranges: The key ranges of the table.
        row_hash: The hash function for rows and keys.
        key: Indices of the columns that identify a row; empty if only the whole row does.
    """

    def __init__(
        self,
        connection: Connection,
        table: PublishedTable,
        ranges: KeyRanges,
        row_hash: RowHash,
        key: Sequence[int],
    ) -> None:
        self._connection, self._ranges = connection, ranges
        self._columns = columns = [f"r.{quote_name(one.name)}" for one in table.relation.columns]
        row = row_hash.sql.format(f"ROW({', '.join(columns)})::text")
        key_columns = ", ".join(columns[one] for one in key)
        self._values = {
            "select": table.select,
            "row": row,
            "key": row_hash.sql.format(f"ROW({key_columns})::text") if key else row,
            "mask": str(BUCKETS - 1),
        }

    def total(self, number: int) -> Total:
        """Return the number of rows in a key range, and the sum of their hashes."""
        ((rows, total),) = self._query(_TOTAL, number)
        return int(str(rows)), int(str(total)) % (1 << 64)

    def sums(self, number: int) -> Sums:
        """Return the row count and the hash sum of each bucket of a key range.

        A bucket consists of the rows of a key range whose hashes have the same lowest bits (`BUCKETS`).

        Args:
            number: Number of the key range.
        """
        sums = np.zeros((2, BUCKETS), np.uint64)
        for bucket, rows, total in self._query(_SUMS, number):
            sums[0, int(str(bucket))] = int(str(rows))
            sums[1, int(str(bucket))] = int(str(total)) % (1 << 64)
        return sums

    def pairs(self, number: int, buckets: Iterable[int]) -> npt.NDArray[np.uint64]:
        """Return an array with a line (hash of the key, hash of the row) for each row in some buckets.

        Args:
            number: Number of the key range.
            buckets: Numbers of the buckets in the key range. Bucket b consists of the rows whose hashes have
                b as their lowest bits.
        """
        rows = self._query(_PAIRS, number, buckets=", ".join(map(str, buckets)))
        return (
            np.array([(int(str(k)), int(str(h))) for k, h in rows], np.int64).reshape(-1, 2).view(np.uint64)
        )

    def rows(
        self, number: int, keys: Iterable[int], columns: Iterable[int] | None = None
    ) -> Iterator[tuple[int, int, tuple[str | None, ...]]]:
        """Yield (hash of the key, hash of the row, values) of rows whose key has one of the hashes `keys`.

        Args:
            number: Number of the key range.
            keys: Hashes of keys.
            columns: Indices of the columns whose values are read; None for all columns.
        """
        signed = np.array([*keys], np.uint64).view(np.int64).tolist()
        names = self._columns if columns is None else [self._columns[at] for at in columns]
        rows = self._query(
            _ROWS, number, keys=", ".join(f"({one})" for one in signed), columns=", ".join(names) or "r.*"
        )
        for key, row, *values in rows:
            mask = (1 << 64) - 1
            yield int(str(key)) & mask, int(str(row)) & mask, tuple(values)

    def _query(self, query: str, number: int, **values: str) -> list[Row]:
        condition = self._ranges.condition(number)
        return self._connection.query(query.format(condition=condition, **self._values, **values))
