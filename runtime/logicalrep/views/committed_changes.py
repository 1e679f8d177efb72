"""Read the changes of a segment that belong to committed transactions, without reading other segments.

A segment alone does not show whether its streamed and prepared transactions, and the transactions that
continue in other segments, commit later. The segment's task lists the transactions to read, with their
commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logicalrep import _roles, messages
from logicalrep._arrays import Numbers
from logicalrep._changes import change_error
from logicalrep._index import (
    MessageIndex,
    SchemaTracker,
    index_messages,
    misfits,
    ordinals,
    tag_mask,
)
from logicalrep.errors import DecodeError, StreamError
from logicalrep.recording import SegmentReader
from logicalrep.views.alterations import IS_LOGICAL, Alteration, read_alterations
from logicalrep.views.change_cells import Changes, used_schemas
from logicalrep.views.commits import CommitColumns, CommitTracker
from logicalrep.views.relation_schemas import RelationFilter, RelationSchema, schema_of
from logicalrep.views.tasks import Task


class CommittedAlteration(NamedTuple):
    """An alteration of a relation, described by a logical message."""

    alteration: Alteration
    position: int
    """Position of the message."""
    commit: int
    """Index of the alteration's commit in `CommittedBatch.commits`."""


class CommittedBatch(NamedTuple):
    """The committed changes of a batch of messages."""

    changes: Changes
    positions: Numbers
    """Position of each change's message."""
    ordinals: Numbers
    """Index of each change, from 0, among the changes of its message."""
    commits: CommitColumns
    """Commits, among them those that the changes belong to."""
    commit: Numbers
    """Index of each change's commit in `commits`."""
    alterations: Sequence[CommittedAlteration] = ()
    """The committed alterations of relations that messages of the batch describe."""


class CommittedChangesReader:
    """Reads the changes of a segment that belong to committed transactions, batch by batch.

    Args:
        segment: The segment.
        task: The task for this segment, with the transactions to read.
        wanted: Called with a relation's schema; returns whether to read the relation's changes.
    """

    def __init__(self, segment: SegmentReader, task: Task, wanted: RelationFilter) -> None:
        self._segment = segment
        self._decoder = segment.decoder()
        self._commits = CommitTracker(segment.metadata, task)

        def schema_if_wanted(relation: messages.Relation) -> RelationSchema | None:
            schema = schema_of(relation)
            return schema if wanted(schema) else None

        self._wanted = wanted
        self._tracker = SchemaTracker(schema_if_wanted)

    def read(self, batch: pa.RecordBatch) -> CommittedBatch:
        """Return the committed changes of a batch of messages.

        Each call continues where the batch of the previous call ended.

        Args:
            batch: Messages in the columns of `logicalrep.recording.SCHEMA`.

        Raises:
            RecordingError: A message is invalid or out of place.
        """
        index = index_messages(batch["data"], self._decoder)
        positions = batch["position"]
        numbers = np.asarray(positions.fill_null(-1) if positions.null_count else positions)
        commits, commit = self._commits.advance(index, numbers)
        known = self._tracker.advance(index)
        rows = np.flatnonzero(IS_CHANGE[index.tags] & commits.wanted[commit] & (numbers >= 0))
        rows, oids = split_changes(index, self._commits.not_rolled_back(index, rows, commits, commit))
        of_message = ordinals(rows)
        versions = known.versions.find(oids, rows + 1)
        unknown = rows[versions < 0], oids[versions < 0]
        wanted = np.array([*(schema is not None for schema in known.values), False], np.bool_)[versions]
        if not wanted.all():
            rows, versions, of_message = rows[wanted], versions[wanted], of_message[wanted]
        changes = Changes(index, rows, *used_schemas(known.values, versions))
        altered = self._alterations(index, numbers, commits, commit)
        committed = CommittedBatch(changes, numbers[rows], of_message, commits, commit[rows], altered)
        if errors := list(_first_errors(committed, *unknown)):
            row, error = min(errors, key=itemgetter(0))
            raise self._segment.error_at(positions[row].as_py(), error)
        return committed

    def _alterations(
        self, index: MessageIndex, positions: Numbers, commits: CommitColumns, commit: Numbers
    ) -> list[CommittedAlteration]:
        rows = np.flatnonzero(IS_LOGICAL[index.tags] & commits.wanted[commit] & (positions >= 0))
        return [
            CommittedAlteration(one, int(positions[row]), int(commit[row]))
            for row, one in read_alterations(index, rows)
            if self._wanted(one.relation) and not self._commits.is_rolled_back(one.xid, commits, commit[row])
        ]


def split_changes(index: MessageIndex, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return two arrays with an item per change: the row of its message, and the OID of its relation.

    A Truncate is one change for each of its relations. The spec also allows inserts with a list of new rows:
    such a message is one change for each row.

    Args:
        index: The messages.
        rows: Rows of the messages that change rows.
    """
    oids = index.meaning("relation", rows)
    new = index.tuples("new")
    counts = None if new is None or new.counts is None else new.counts[rows]
    tags = index.tags[rows]
    truncates = np.logical_or.reduce([tags == tag for tag in _TRUNCATES])
    if not truncates.any():
        return (rows, oids) if counts is None else (np.repeat(rows, counts), np.repeat(oids, counts))
    if counts is None:
        counts = np.ones(len(rows), np.int64)
    truncated = [_roles.meaning_of(one, "relations") for one in index.messages(rows[truncates].tolist())]
    counts[truncates] = list(map(len, truncated))
    repeated = np.repeat(oids, counts)
    repeated[np.repeat(truncates, counts)] = list(chain.from_iterable(truncated))
    return np.repeat(rows, counts), repeated


def _first_errors(
    committed: CommittedBatch, unknown: Numbers, unknown_oids: Numbers
) -> Iterator[tuple[int, DecodeError]]:
    """Yield (row, error) of the first message with an error of each kind.

    Args:
        committed: The changes.
        unknown: Rows of changes of relations that no Relation message has described.
        unknown_oids: The relation OIDs of these changes.
    """
    changes = committed.changes
    index = changes.index
    yield from ((row, index.errors[row]) for row in sorted(index.errors)[:1])
    for row, oid in zip(unknown[:1].tolist(), unknown_oids[:1].tolist(), strict=True):
        yield row, change_error(index.messages([row])[0], oid, None)
    for change in np.flatnonzero(misfits(index, changes.rows, changes.widths))[:1].tolist():
        row, relation = int(changes.rows[change]), changes.schemas[changes.schema[change]].relation
        yield row, change_error(index.messages([row])[0], relation.oid, relation)
    far = committed.commits.lsns < 0
    for row in changes.rows[far[committed.commit]][:1].tolist() if far.any() else ():
        yield (
            row,
            StreamError.at(index.messages([row])[0], "the commit LSN of the transaction must be below 2**63"),
        )


IS_CHANGE: Final = tag_mask(*_roles.CHANGES)
"""For each of the 256 possible first bytes, whether it is the tag of a message that changes rows."""
_TRUNCATES: Final = sorted(_roles.tags("truncate"))
