"""Schema versions of relations: a Relation message is valid until the relation's next Relation message.

A rank is a number that orders messages; each schema version begins at a rank. In a batch, the rank of a
message is its row number + 1; rank 0 is before the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np

from logicalrep import _roles
from logicalrep._arrays import Mask, Numbers
from logicalrep._index.base import (
    IS_SCHEMA_MESSAGE,
    RANK_BITS,
    MessageIndex,
    TupleLocations,
    latest_versions,
    ordinals,
)
from logicalrep.messages import Relation, Type
from logicalrep.values import base_types

_T = TypeVar("_T")


class SchemaVersions:
    """Schema versions, found by relation OID and rank; the number of a version is its index in `oids`.

    Args:
        oids: Relation OID of each schema version.
        ranks: Rank at which each schema version begins (a rank orders messages); unique within an OID.
    """

    def __init__(self, oids: Sequence[int] | Numbers, ranks: Sequence[int] | Numbers) -> None:
        keys = _keys(np.asarray(oids, np.int64), np.asarray(ranks, np.int64))
        self._numbers = np.argsort(keys)
        self._keys = keys[self._numbers]

    def find(self, oids: Numbers, ranks: Numbers) -> Numbers:
        """Return for each OID the number of its last schema version that begins before the rank; -1 if none.

        A rank is a number that orders messages.
        """
        return latest_versions(self._keys, self._numbers, oids, ranks)

    def find_tuples(self, index: MessageIndex, meaning: str) -> TupleLocations:
        """Return where the tuples of a meaning (new, old or key) are, and each tuple's schema version."""
        tuples = index.tuples(meaning)
        if tuples is None:
            return TupleLocations(*np.empty((4, 0), np.int64))
        rows, first, versions = index.first_tuples(tuples.first, self._keys, self._numbers)
        if tuples.counts is not None:
            counts = tuples.counts[rows]
            rows, first, versions = (np.repeat(numbers, counts) for numbers in (rows, first, versions))
            first += tuples.widths[rows] * ordinals(rows)
        return TupleLocations(rows, first, versions, tuples.widths[rows])

    def begins_at(self, oids: Numbers, ranks: Numbers) -> Mask:
        """Return for each OID whether one of its schema versions begins exactly at the given rank.

        A rank is a number that orders messages.
        """
        return np.isin(_keys(oids, ranks), self._keys)


def _keys(oids: Numbers, ranks: Numbers) -> Numbers:
    return oids << RANK_BITS | ranks


class BatchVersions(Generic[_T]):
    """The schema versions that the messages of a batch can refer to.

    Args:
        entries: For each schema version: relation OID, rank at which it begins (row number + 1; 0 if before
            the batch), and its item of `values`.

    Attributes:
        values: What the function `derive` of `SchemaTracker` returned for each schema version.
        versions: Finds the schema version of a change by the change's relation OID and rank.
    """

    def __init__(self, entries: Sequence[tuple[int, int, _T]]) -> None:
        self.entries = entries
        self.values = [value for _, _, value in entries]
        self.versions = SchemaVersions([oid for oid, _, _ in entries], [rank for _, rank, _ in entries])


class SchemaTracker(Generic[_T]):
    """Tracks the schema versions of a stream's relations, batch by batch.

    Args:
        derive: Function that is called once with the Relation message of each new schema version; its
            results are in `BatchVersions.values`. In the message, domains are replaced by their base types,
            and the xid is None.
    """

    def __init__(self, derive: Callable[[Relation], _T]) -> None:
        self._derive = derive
        self._types: dict[int, Type] = {}
        self._latest: dict[int, tuple[Relation, _T]] = {}
        self._known = BatchVersions[_T]([])

    def __contains__(self, oid: object) -> bool:
        return oid in self._latest

    def advance(self, index: MessageIndex) -> BatchVersions[_T]:
        """Return the schema versions that the messages of the next batch can refer to.

        Args:
            index: Index of the next batch, which follows the batch of the previous call.
        """
        known = self._known
        added: list[tuple[int, int, _T]] = []
        rows = np.flatnonzero(IS_SCHEMA_MESSAGE[index.tags]).tolist()
        for row, message in zip(rows, index.messages(rows), strict=True):
            if isinstance(message, Type):
                self._types[message.oid] = message
            elif isinstance(message, Relation):
                relation = msgspec.structs.replace(base_types(message, self._types), xid=None)
                latest = self._latest.get(relation.oid)
                if latest is None or latest[0] != relation:
                    value = self._derive(relation)
                    self._latest[relation.oid] = relation, value
                    added.append((relation.oid, row + 1, value))
        if not added:
            return known
        self._known = BatchVersions([(oid, 0, value) for oid, (_, value) in self._latest.items()])
        return BatchVersions([*known.entries, *added])


def misfits(index: MessageIndex, rows: Numbers, widths: Numbers) -> Mask:
    """Return for each change whether a tuple has more or fewer cells than the relation has columns.

    Args:
        index: The messages.
        rows: Rows of the changes in the batch.
        widths: Number of columns of each change's relation.
    """
    wrong = np.zeros(len(rows), np.bool_)
    for meaning in _roles.ROWS:
        if (tuples := index.tuples(meaning)) is not None:
            wrong |= (tuples.first[rows] >= 0) & (tuples.widths[rows] != widths)
    return wrong
