"""The rows of a replica's table as of an LSN: hashes by key range, and single rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep._arrays import Numbers
from logicalrep.replica import TableAsOf
from logicalrep.verification.key_ranges import KeyRanges
from logicalrep.verification.row_texts import ColumnTexts, column_texts, record_texts
from logicalrep.verification.source_rows import BUCKETS, Sums
from logicalrep.verification.text_hash import Hashes

_THREADS: Final = 2
"""Number of threads that hash rows."""

_BYTES: Final = 64 << 20
"""Largest size of the rows that are converted to text at once, in bytes; a larger row is converted alone."""


class _HashedRows(msgspec.Struct, frozen=True):
    """Some rows of the table with their hashes."""

    columns: list[ColumnTexts]
    ranges: Numbers
    """Number of each row's key range."""
    hashes: Hashes

    @property
    def cells(self) -> Numbers:
        """For each row the number of its bucket: `r * BUCKETS + b` for bucket b of key range r.

        Bucket b consists of the rows of a key range whose hashes have b as their lowest bits.
        """
        return self.ranges * BUCKETS + (self.hashes & np.uint64(BUCKETS - 1)).astype(np.int64)


class ReplicaRows:
    """The rows of a replica's table.

    Args:
        table: The table.
        ranges: The key ranges of the table.
        hash_texts: Returns the hashes of texts.
        key: Indices of the columns that identify a row; empty if only the whole row does.
    """

    def __init__(
        self,
        table: TableAsOf,
        ranges: KeyRanges,
        hash_texts: Callable[[pa.StringArray], Hashes],
        key: Sequence[int],
    ) -> None:
        self._table, self._ranges, self._hash_texts, self._key = table, ranges, hash_texts, key

    def sums(self) -> list[Sums]:
        """Return for each key range the row count and the hash sum of each of its buckets.

        A bucket consists of the rows of a key range whose hashes have the same lowest bits (`BUCKETS`).
        """
        size = len(self._ranges) * BUCKETS
        sums = np.zeros((3, size), np.uint64)
        half = np.uint64(32)
        for rows in self._read():
            cells = rows.cells
            # `bincount` adds floats: sums of fewer than 2**21 integers of 32 bits are exact, so the upper and
            # lower halves of the hashes are added apart.
            parts = (None, rows.hashes >> half, rows.hashes & np.uint64((1 << 32) - 1))
            for total, weights in zip(sums, parts, strict=True):
                total += np.bincount(cells, weights, size).astype(np.uint64)
        totals = np.stack([sums[0], (sums[1] << half) + sums[2]])
        return list(totals.reshape(2, len(self._ranges), BUCKETS).transpose(1, 0, 2))

    def hashes_in(self, buckets: Iterable[int]) -> npt.NDArray[np.uint64]:
        """Return an array with a line (key range, hash of the key, hash of the row) for each row in buckets.

        Args:
            buckets: Numbers of the buckets. Bucket b of key range r has the number `r * BUCKETS + b`. It
                consists of the rows of r whose hashes have b as their lowest bits.
        """
        wanted = np.zeros(len(self._ranges) * BUCKETS, np.bool_)
        wanted[[*buckets]] = True
        found = [np.zeros((0, 3), np.uint64)]
        for rows in self._read():
            selected = wanted[rows.cells]
            if selected.any():
                columns = rows.ranges.astype(np.uint64), self._keys(rows), rows.hashes
                found.append(np.stack(columns, 1)[selected])
        return np.concatenate(found)

    def rows(self, keys: Iterable[int]) -> Iterator[tuple[int, int, tuple[str | None, ...], set[int]]]:
        """Yield the rows whose key has one of the hashes `keys`.

        Yields:
            Hash of the key, hash of the row, values as text, and indices of the columns whose value was never
            sent.
        """
        wanted = np.array([*keys], np.uint64)
        for rows in self._read():
            found = self._keys(rows)
            for row in np.flatnonzero(np.isin(found, wanted)).tolist():
                values = tuple(column.texts[row].as_py() for column in rows.columns)
                never_sent = {at for at, column in enumerate(rows.columns) if row in column.never_sent}
                yield int(found[row]), int(rows.hashes[row]), values, never_sent

    def _keys(self, rows: _HashedRows) -> Hashes:
        if not self._key:
            return rows.hashes
        columns = [rows.columns[at] for at in self._key]
        return self._hash_texts(record_texts(columns, len(rows.hashes)))

    def _read(self) -> Iterator[_HashedRows]:
        with ThreadPoolExecutor(_THREADS, "logicalrep-replica") as pool:
            pending: deque[Future[_HashedRows]] = deque()
            for whole in self._table.read():
                for batch in _split(whole):
                    pending.append(pool.submit(self._hash, batch))
                    if len(pending) > _THREADS:
                        yield pending.popleft().result()
            for future in pending:
                yield future.result()

    def _hash(self, batch: pa.RecordBatch) -> _HashedRows:
        columns = column_texts(batch, self._table)
        hashes = self._hash_texts(record_texts(columns, batch.num_rows))
        if self._ranges.bounds:
            ranges = self._ranges.find(columns[self._ranges.column].texts)
        else:
            ranges = np.zeros(len(hashes), np.int64)
        return _HashedRows(columns, ranges, hashes)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into batches of at most `_BYTES` bytes or one row."""
    if batch.num_rows > 1 and batch.nbytes > _BYTES:
        half = batch.num_rows // 2
        yield from _split(batch.slice(0, half))
        yield from _split(batch.slice(half))
    elif batch.num_rows:
        yield batch
