"""Read the committed changes of a segment by relation, without building rows of the view `changes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from logicalrep._arrays import Mask, Numbers
from logicalrep._index import MessageIndex, read_text_columns
from logicalrep.recording import Metadata, SegmentReader
from logicalrep.views.alterations import OPERATION, alteration_values
from logicalrep.views.change_cells import is_unchanged, key_first, new_first, old_first
from logicalrep.views.changes import commit_columns, operations
from logicalrep.views.committed_changes import CommittedBatch, CommittedChangesReader
from logicalrep.views.relation_changes import (
    ChangedRelation,
    Column,
    RelationChanges,
    altered_changes,
    change_rows,
    number_lists,
    tuple_array,
    tuple_type,
)
from logicalrep.views.relation_schemas import RelationFilter, RelationSchema
from logicalrep.views.tasks import Task

_TEXT: Final = pa.string()


def read_changes(segment: SegmentReader, task: Task, wanted: RelationFilter) -> Iterator[RelationChanges]:
    """Yield the committed changes of a segment.

    Args:
        segment: The segment.
        task: The task for this segment, with the transactions to read.
        wanted: Called with a relation's schema; returns whether to read the relation's changes.

    Raises:
        RecordingError: The file is damaged, or a message is invalid or out of place.
    """
    reader = CommittedChangesReader(segment, task, wanted)
    is_snapshot = segment.metadata.kind == "snapshot"
    for batch in segment.batches():
        yield from _committed(reader.read(batch), segment.metadata, snapshot=is_snapshot)


def _committed(committed: CommittedBatch, metadata: Metadata, *, snapshot: bool) -> Iterator[RelationChanges]:
    """Yield the committed changes of a batch of messages, by relation and schema version.

    Args:
        committed: The changes.
        metadata: Metadata of the segment.
        snapshot: Whether the changes are rows of a snapshot.
    """
    incomplete = {table.oid: table.reason for table in metadata.incomplete}
    changes, unchanged = committed.changes, is_unchanged(committed.changes.index)
    common = {"operation": operations(changes)} | commit_columns(committed, snapshot=snapshot)
    firsts = new_first(changes), old_first(changes), key_first(changes)
    if len(changes.schemas) > 1:
        order = np.argsort(changes.schema, kind="stable")
        common = {name: column.take(pa.array(order)) for name, column in common.items()}
        firsts = firsts[0][order], firsts[1][order], firsts[2][order]
    ends = np.cumsum(np.bincount(changes.schema, minlength=len(changes.schemas))).tolist()
    for schema, (begin, end) in zip(changes.schemas, pairwise([0, *ends]), strict=True):
        new, old, key = (first[begin:end] for first in firsts)
        columns = {name: column.slice(begin, end - begin) for name, column in common.items()} | {
            "old": _read_tuples(changes.index, schema, old),
            "new": _read_tuples(changes.index, schema, new),
            "key_only": pa.array(key >= 0),
            "unchanged": _find_unchanged(unchanged, len(schema.names), new),
        }
        relation = _relation(schema, incomplete, metadata)
        yield RelationChanges(relation, change_rows(columns))
    for one in committed.alterations:
        alone = committed._replace(
            positions=np.array([one.position]), ordinals=np.zeros(1, np.int64), commit=np.array([one.commit])
        )
        alteration = one.alteration
        columns = commit_columns(alone, snapshot=False) | {"operation": pa.array([OPERATION], _TEXT)}
        relation = _relation(alteration.relation, incomplete, metadata)
        yield altered_changes(relation, alteration_values(alteration), columns)


def _relation(schema: RelationSchema, incomplete: Mapping[int, str], metadata: Metadata) -> ChangedRelation:
    columns = zip(schema.names, schema.relation.columns, strict=True)
    return ChangedRelation(
        schema.relation.oid,
        schema.namespace,
        schema.name,
        tuple(Column(name, one.type_oid, one.type_modifier) for name, one in columns),
        tuple(schema.names[key] for key in schema.keys),
        incomplete=incomplete.get(schema.relation.oid),
        following_columns=metadata.following_columns.get(schema.relation.oid, ()),
    )


def _read_tuples(index: MessageIndex, schema: RelationSchema, first: Numbers) -> pa.StructArray:
    """Return tuples as structs of text; `first` has the index of each tuple's first cell, -1 for NULL."""
    missing = first < 0
    if missing.all():
        return pa.nulls(len(first), tuple_type(len(schema.types)))
    texts = read_text_columns(index, first, schema.types)
    return tuple_array(texts, missing)


def _find_unchanged(unchanged: Mask, columns: int, first: Numbers) -> pa.ListArray:
    """Return for each new tuple the indices of the columns whose cell is UNCHANGED.

    Args:
        unchanged: For each cell of the batch, whether it is UNCHANGED.
        columns: Number of columns.
        first: Index of the first cell of each tuple; -1 without a tuple.
    """
    if not unchanged.any():
        return number_lists(np.zeros((len(first), 0), np.bool_))
    cells = first[:, np.newaxis] + np.arange(columns)
    return number_lists(unchanged[np.maximum(cells, 0)] & (first >= 0)[:, np.newaxis])
