"""Compare the rows of two sets of data files by digests, which need 16 bytes of memory per row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep.values import default_type, from_arrow

Digests: TypeAlias = npt.NDArray[np.bytes_]
"""Digests of rows (128 bits). Equal rows have equal digests; different rows almost never do."""

_SIZE: Final = 16
_TYPE: Final = f"S{_SIZE}"


def digest_rows(rows: pa.RecordBatch, columns: Sequence[str], rescued: str) -> Digests:
    """Return the digest of each row of a Delta table.

    Args:
        rows: The rows.
        columns: Names of the columns to compare.
        rescued: Name of the column with rescued values, which are compared too.
    """
    texts = [from_arrow(rows[name], *default_type(rows[name].type)) for name in columns]
    texts.append(_rescued_texts(rows[rescued], frozenset(columns)))
    # The length before each value distinguishes NULL from an empty text, and ("a:", "b") from ("a", ":b").
    cells = chain.from_iterable((pc.binary_length(one).cast(pa.string()), one) for one in texts)
    lines = pc.binary_join_element_wise(*cells, ":", null_handling="replace", null_replacement="")
    digests = (blake2b(line, digest_size=_SIZE).digest() for line in lines.cast(pa.binary()).to_pylist())
    return np.frombuffer(b"".join(digests), _TYPE)


def _rescued_texts(rescued: pa.MapArray, columns: frozenset[str]) -> pa.StringArray:
    """Return for each row its rescued values of `columns`, as JSON; NULL if the row has none."""
    if rescued.null_count == len(rescued):
        return pa.nulls(len(rescued), pa.string())
    kept = (sorted(cell for cell in one or () if cell[0] in columns) for one in rescued.to_pylist())
    return pa.array([msgspec.json.encode(cells).decode() if cells else None for cells in kept], pa.string())


class RowSet:
    """A multiset of rows, given by their digests.

    Args:
        digests: Digests of the rows, in any number of arrays.
        size: Number of rows.
    """

    def __init__(self, digests: Iterable[Digests], size: int) -> None:
        rows = np.empty(size, _TYPE)
        first = 0
        for one in digests:
            rows[first : first + len(one)] = one
            first += len(one)
        assert first == size
        rows.sort()
        self._digests, counts = _count_sorted(rows)
        self._counts = counts.astype(np.min_scalar_type(counts.max(initial=0)))

    def take(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Remove rows, given by digests, from the multiset; return for each whether it was contained."""
        order = np.argsort(digests, kind="stable")
        unique, counts = _count_sorted(digests[order])
        at = np.searchsorted(self._digests, unique)
        known = at < len(self._digests)
        known[known] = self._digests[at[known]] == unique[known]
        taken = np.zeros(len(unique), np.int64)
        taken[known] = np.minimum(self._counts[at[known]], counts[known])
        self._counts[at[known]] -= taken[known].astype(self._counts.dtype)
        # If `digests` has more equal rows than the multiset had, the first of them count as contained.
        number = np.arange(len(digests)) - np.repeat(np.cumsum(counts) - counts, counts)
        contained = np.empty(len(digests), np.bool_)
        contained[order] = number < np.repeat(taken, counts)
        return contained


def _count_sorted(digests: Digests) -> tuple[Digests, npt.NDArray[Any]]:
    """Return the different digests of a sorted array, and how often each of them occurs."""
    is_first = np.ones(len(digests), np.bool_)
    is_first[1:] = digests[1:] != digests[:-1]
    if is_first.all():
        return digests, is_first.view(np.uint8)
    starts = np.flatnonzero(is_first)
    return digests[starts], np.diff(starts, append=len(digests))
