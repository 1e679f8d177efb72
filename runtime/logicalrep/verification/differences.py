"""Find the rows that differ between a table of the source and its replica."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from logicalrep.recorder import Keys
from logicalrep.verification.replica_rows import ReplicaRows
from logicalrep.verification.source_rows import BUCKETS, SourceRows, Sums
from logicalrep.wire import is_utf8

_GROUP_ROWS: Final = 500_000
"""Largest number of rows whose hashes are fetched at once, unless a single bucket has more."""

Kind: TypeAlias = Literal["only in the source", "only in the replica", "different"]


class ValueDifference(msgspec.Struct, frozen=True):
    """A value that differs between the source and the replica."""

    source: str | None
    """The value in the source, as text."""
    replica: str | None
    """The value in the replica, as text."""
    never_sent: bool = False
    """Whether the server never sent the value, so that the replica has NULL."""


class RowDifference(msgspec.Struct, frozen=True):
    """A row that differs between the source and the replica."""

    kind: Kind
    key: dict[str, str | None]
    """The values of the key columns, as text, by column name; of all columns if the table has no key."""
    columns: dict[str, ValueDifference] = {}
    """The values that differ, by column name; empty for a row that only one side has."""


class FoundDifferences(msgspec.Struct, frozen=True):
    """The differences between a table of the source and its replica."""

    rows: int
    """Number of source rows in the key ranges that differ."""
    count: int
    """Number of rows that differ, including those of one side only."""
    only_in_source: int
    """Number of rows that only the source has."""
    only_in_replica: int
    """Number of rows that only the replica has."""
    shown: tuple[RowDifference, ...]
    """The first of the rows that differ."""
    keys: Keys = frozenset()
    """Keys of differing rows in the source and in the replica; None if the keys do not identify the rows."""


_Hash: TypeAlias = tuple[int, int]
"""Hash of a row's key, and hash of the row."""


def find_differences(
    source: SourceRows,
    replica: ReplicaRows,
    replica_sums: Mapping[int, Sums],
    names: Sequence[str],
    key: Sequence[int],
    limit: int,
    identity: Sequence[int] = (),
    max_keys: int = 0,
) -> FoundDifferences:
    """Compare the key ranges whose sums of hashes differ; return the rows that differ.

    Args:
        source: The rows of the source.
        replica: The rows of the replica.
        replica_sums: For each key range that differs, by its number: the sums of the range in the replica.
        names: Names of the columns.
        key: Indices of the columns that identify a row; empty if only the whole row does.
        limit: Largest number of rows to return.
        identity: Indices of the columns of the replica identity, whose values are `FoundDifferences.keys`.
        max_keys: Largest number of keys to return; `FoundDifferences.keys` is None if more rows differ.
    """
    count = only_in_source = only_in_replica = 0
    shown: dict[int, dict[_Hash, int]] = defaultdict(dict)
    """By number of the key range and `_Hash`: how often the row is in the source, minus in the replica."""
    unequal: dict[int, dict[_Hash, int]] = defaultdict(dict)
    """As `shown`, for all rows whose keys are returned."""
    sums = {number: (source.sums(number), there) for number, there in replica_sums.items()}
    for cells in _groups(sums):
        for number, missing in _compare_pairs(source, replica, cells):
            for rows in _by_key(missing).values():
                plus = sum(times for times in rows.values() if times > 0)
                minus = -sum(times for times in rows.values() if times < 0)
                if count < limit:
                    shown[number].update(rows)
                if count < max_keys:
                    unequal[number].update(rows)
                count += max(plus, minus)
                only_in_source += max(plus - minus, 0)
                only_in_replica += max(minus - plus, 0)
    found = list(_describe(source, replica, shown, names, key))
    compared = sum(int(here[0].sum()) for here, _ in sums.values())
    keys = _find_keys(source, replica, unequal, identity) if count <= max_keys else None
    return FoundDifferences(compared, count, only_in_source, only_in_replica, tuple(found[:limit]), keys)


def _groups(sums: Mapping[int, tuple[Sums, Sums]]) -> Iterator[list[int]]:
    """Yield the buckets that differ, in groups.

    A group has at most `_GROUP_ROWS` rows, unless it is a single larger bucket.

    A bucket is the rows of a key range whose hashes end with the same bits (`BUCKETS`). Bucket b of key range
    r is yielded as the number `r * BUCKETS + b`.

    Args:
        sums: The sums of each key range in the source and in the replica, by number of the key range.
    """
    group: list[int] = []
    size = 0
    for number, (here, there) in sums.items():
        for bucket in np.flatnonzero((here != there).any(axis=0)).tolist():
            rows = int(max(here[0, bucket], there[0, bucket]))
            if group and size + rows > _GROUP_ROWS:
                yield group
                group, size = [], 0
            group.append(number * BUCKETS + bucket)
            size += rows
    if group:
        yield group


def _compare_pairs(
    source: SourceRows, replica: ReplicaRows, cells: Sequence[int]
) -> Iterator[tuple[int, dict[_Hash, int]]]:
    """Compare the rows of some buckets. Yield the number of each key range, with its rows that differ.

    A key of the dict is a row: the hash of its key, and the hash of the row. The value is how often the
    source has the row, minus how often the replica has it.

    Args:
        source: The rows of the source.
        replica: The rows of the replica.
        cells: Numbers of the buckets to compare, as `_groups` yields them: `r * BUCKETS + b` for bucket b of
            key range r.
    """
    there = replica.hashes_in(cells)
    buckets: dict[int, list[int]] = defaultdict(list)
    for cell in cells:
        buckets[cell // BUCKETS].append(cell % BUCKETS)
    for number, wanted in buckets.items():
        pairs = source.pairs(number, wanted), there[there[:, 0] == number][:, 1:]
        yield number, _missing(*pairs)


def _missing(here: npt.NDArray[np.uint64], there: npt.NDArray[np.uint64]) -> dict[_Hash, int]:
    unique, inverse = np.unique(np.concatenate([here, there]), axis=0, return_inverse=True)
    signs = np.concatenate([np.ones(len(here), np.int64), np.full(len(there), -1, np.int64)])
    times = np.zeros(len(unique), np.int64)
    np.add.at(times, inverse.ravel(), signs)
    rows = np.flatnonzero(times)
    return {
        (key, row): count
        for (key, row), count in zip(unique[rows].tolist(), times[rows].tolist(), strict=True)
    }


def _by_key(missing: Mapping[_Hash, int]) -> dict[int, dict[_Hash, int]]:
    by_key: dict[int, dict[_Hash, int]] = defaultdict(dict)
    for one, times in missing.items():
        by_key[one[0]][one] = times
    return by_key


def _find_keys(
    source: SourceRows,
    replica: ReplicaRows,
    unequal: Mapping[int, Mapping[_Hash, int]],
    identity: Sequence[int],
) -> Keys:
    """Return the keys of rows that differ; None if the keys do not identify the rows.

    Args:
        source: The rows of the source.
        replica: The rows of the replica.
        unequal: The rows that differ, by number of the key range and `_Hash`. The value is how often the
            source has the row, minus how often the replica has it.
        identity: Indices of the columns of the replica identity.
    """
    keys: set[tuple[str | None, ...]] = set()
    surplus: set[int] = set()
    """Hashes of the keys of rows that the source lacks, or has fewer times than the replica."""
    for number, rows in unequal.items():
        here = {one[0] for one, times in rows.items() if times > 0}
        if here:
            keys.update(values for _, _, values in source.rows(number, here, identity))
        surplus |= {one[0] for one, times in rows.items() if times < 0}
    found: Counter[int] = Counter()
    """Number of rows in the replica, by hash of the key."""
    for hashed, _, values, _ in replica.rows(surplus) if surplus else ():
        found[hashed] += 1
        keys.add(tuple(values[at] for at in identity))
    texts = {tuple(value for value in key if value is not None and is_utf8(value)) for key in keys}
    # The keys do not identify the rows if two rows share a key (a Delete would remove only one of them), or
    # if a key has NULL or text that is not valid UTF-8 (`texts` lacks these values).
    if max(found.values(), default=0) > 1 or any(len(key) < len(identity) for key in texts):
        return None
    return frozenset(texts)


def _describe(
    source: SourceRows,
    replica: ReplicaRows,
    shown: Mapping[int, Mapping[_Hash, int]],
    names: Sequence[str],
    key: Sequence[int],
) -> Iterator[RowDifference]:
    """Yield the differences of the rows in `shown`, with their values.

    Args:
        source: The rows of the source.
        replica: The rows of the replica.
        shown: The rows to describe, by number of the key range and `_Hash`. The value is how often the source
            has the row, minus how often the replica has it.
        names: Names of the columns.
        key: Indices of the columns that identify a row; empty if only the whole row does.
    """
    if not shown:
        return
    missing: dict[_Hash, int] = {one: times for rows in shown.values() for one, times in rows.items()}
    here: dict[int, list[tuple[str | None, ...]]] = defaultdict(list)
    there: dict[int, list[tuple[tuple[str | None, ...], set[int]]]] = defaultdict(list)
    for number, rows in shown.items():
        for hashed, row, values in source.rows(number, {one for one, _ in rows}):
            if missing.get((hashed, row), 0) > 0:
                missing[hashed, row] -= 1
                here[hashed].append(values)
    for hashed, row, values, never_sent in replica.rows({one for one, _ in missing}):
        if missing.get((hashed, row), 0) < 0:
            missing[hashed, row] += 1
            there[hashed].append((values, never_sent))
    key = key or range(len(names))
    for hashed in dict.fromkeys([*here, *there]):
        ours, theirs = here[hashed], there[hashed]
        for values, (others, never_sent) in zip(ours, theirs, strict=False):
            columns = {
                name: ValueDifference(value, other, at in never_sent)
                for at, (name, value, other) in enumerate(zip(names, values, others, strict=True))
                if value != other
            }
            yield RowDifference("different", {names[at]: values[at] for at in key}, columns)
        for values in ours[len(theirs) :]:
            yield RowDifference("only in the source", {names[at]: values[at] for at in key})
        for values, _ in theirs[len(ours) :]:
            yield RowDifference("only in the replica", {names[at]: values[at] for at in key})
