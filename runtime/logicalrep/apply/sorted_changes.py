"""Changes of a micro-batch by relation, sorted by commit LSN and position, in memory or a temporary file."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import IO, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep.views import ChangedRelation, RelationChanges

MEMORY: Final = 64 << 20
"""Default maximum size of the changes that are held in memory, in bytes."""


class _Stored(NamedTuple):
    """Changes in the temporary file: an Arrow batch of `size` bytes at `offset`."""

    relation: ChangedRelation
    schema: pa.Schema
    offset: int
    size: int


class _Part(NamedTuple):
    """Changes that were appended together."""

    first: tuple[int, int]
    """Commit LSN and position of the first change."""
    last: tuple[int, int]
    """Commit LSN and position of the last change."""
    is_sorted: bool
    changes: RelationChanges | _Stored


class SortedChanges:
    """Collects the changes of a micro-batch; yields those of a relation sorted by commit LSN, then position.

    A context manager. Its exit removes the temporary file, if there is one.

    Attributes:
        counts: Number of changes of each relation, by OID.

    Args:
        memory: Maximum size of changes to hold in memory, in bytes. If there are more, they are written to
            a temporary file in `tempfile.gettempdir()`. If the changes of a relation were appended in
            another order, sorting them needs 40 bytes more for each change.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.counts: Counter[int] = Counter()
        self._memory = memory
        self._bytes = 0
        self._parts: defaultdict[int, list[_Part]] = defaultdict(list)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, changes: RelationChanges) -> None:
        """Add one or more changes of one relation, in any order."""
        oid, rows = changes.relation.oid, changes.rows
        lsns, positions = _sort_keys(rows)
        first, last = ((int(lsns[at]), int(positions[at])) for at in (0, -1))
        place = changes if self._file is None else self._write(changes)
        self._parts[oid].append(_Part(first, last, _is_sorted(lsns, positions), place))
        self.counts[oid] += rows.num_rows
        self._bytes += rows.nbytes
        if self._file is None and self._bytes > self._memory:
            self._file = tempfile.TemporaryFile(prefix="logicalrep-")  # noqa: SIM115
            for parts in self._parts.values():
                parts[:] = [part._replace(changes=self._write(part.changes)) for part in parts]

    def sorted(self, oid: int) -> Iterator[RelationChanges]:
        """Yield the changes of one relation, sorted by commit LSN, then by position (`sequence`).

        The changes are yielded in several batches, because Arrow arrays of strings are limited to 2 GiB.
        """
        parts = self._parts[oid]
        follow = all(before.last <= after.first for before, after in pairwise(parts))
        if follow and all(part.is_sorted for part in parts):
            yield from map(self._read, parts)
            return
        # Copies, so that the Arrow batches can be freed.
        keys = [[column.copy() for column in _sort_keys(self._read(part).rows)] for part in parts]
        lsns, positions = (np.concatenate(column) for column in zip(*keys, strict=True))
        order = np.lexsort([positions, lsns])
        lengths = [len(part_lsns) for part_lsns, _ in keys]
        del keys, lsns, positions
        begins = np.cumsum([0, *lengths[:-1]])
        part_of = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)[order]
        for rows in np.split(order, np.flatnonzero(np.diff(part_of)) + 1):
            number = int(np.searchsorted(begins, rows[0], "right")) - 1
            changes = self._read(parts[number])
            yield changes.with_rows(changes.rows.take(pa.array(rows - begins[number])))

    def _write(self, changes: RelationChanges | _Stored) -> _Stored:
        assert isinstance(changes, RelationChanges)
        assert self._file is not None
        data = changes.rows.serialize()
        stored = _Stored(changes.relation, changes.rows.schema, self._file.tell(), len(data))
        self._file.write(data)
        return stored

    def _read(self, part: _Part) -> RelationChanges:
        stored = part.changes
        if not isinstance(stored, _Stored):
            return stored
        assert self._file is not None
        self._file.seek(stored.offset)
        data = pa.py_buffer(self._file.read(stored.size))
        return RelationChanges(stored.relation, pa.ipc.read_record_batch(data, stored.schema))


def _sort_keys(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the commit LSNs and the positions of changes."""
    return rows["commit_lsn"].to_numpy(), rows["position"].to_numpy()


def _is_sorted(lsns: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> bool:
    same = lsns[1:] == lsns[:-1]
    return bool(((lsns[1:] > lsns[:-1]) | same & (positions[1:] >= positions[:-1])).all())
