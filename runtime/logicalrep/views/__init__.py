"""Views of a recording as Arrow batches: its messages, its committed changes, one table, or its schema.

`plan_messages` and `plan_changes` return the tasks of a view. A task says which transactions of one
segment to read. Tasks can run in parallel. `MessagesView`, `ChangesView` and `TableView` convert the
batches of a segment to rows of `MESSAGES`, `CHANGES` or a schema that `table_schema` returns. `read` converts
a whole segment. `read_changes` reads the committed changes of a segment by relation, for replicas.
`schema_versions` and `schema_batch` give the rows of the view `schema`.

`build_stream_context` and `UnorderedDecoder` decode messages in any order; the messages need not come from a
recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from logicalrep.recording import SegmentReader
from logicalrep.views.changes import CHANGES as CHANGES, changes_batch
from logicalrep.views.committed_changes import CommittedBatch, CommittedChangesReader
from logicalrep.views.decoded_messages import DECODED as DECODED, decoded_batch as decoded_batch
from logicalrep.views.messages import MESSAGES as MESSAGES, MessagesView as MessagesView
from logicalrep.views.relation_changes import (
    ChangedRelation as ChangedRelation,
    Column as Column,
    ColumnCells as ColumnCells,
    RelationChanges as RelationChanges,
    new_columns as new_columns,
    old_columns as old_columns,
    pack_changes as pack_changes,
    split_by_key as split_by_key,
    unpack_changes as unpack_changes,
)
from logicalrep.views.relation_reader import read_changes as read_changes
from logicalrep.views.relation_schemas import RelationFilter, RelationSchema as RelationSchema
from logicalrep.views.schema_history import (
    SCHEMA as SCHEMA,
    schema_batch as schema_batch,
    schema_versions as schema_versions,
)
from logicalrep.views.stream_context import (
    CONTEXT_TAGS as CONTEXT_TAGS,
    Key as Key,
    KeyColumns as KeyColumns,
    UnorderedBatch as UnorderedBatch,
    UnorderedDecoder as UnorderedDecoder,
    build_stream_context as build_stream_context,
    format_key as format_key,
    key_at as key_at,
)
from logicalrep.views.table import (
    RESCUED as RESCUED,
    RESCUED_TYPE as RESCUED_TYPE,
    row_type as row_type,
    table_batch,
    table_schema as table_schema,
)
from logicalrep.views.tasks import (
    LsnRange as LsnRange,
    Task as Task,
    group_tasks as group_tasks,
    plan_changes as plan_changes,
    plan_messages as plan_messages,
)


class View(Protocol):
    """Converts the messages of one segment to rows of a view."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the view's rows for a batch of messages.

        Args:
            batch: Messages in the columns of `logicalrep.recording.SCHEMA`. Each call continues where the
                batch of the previous call ended.

        Raises:
            RecordingError: A message is invalid or out of place.
        """


def read(segment: SegmentReader, view: View) -> Iterator[pa.RecordBatch]:
    """Yield all rows that a view has for a segment, in non-empty batches.

    Raises:
        RecordingError: The file is damaged, or a message is invalid or out of place.
    """
    for batch in segment.batches():
        rows = view.convert(batch)
        if rows.num_rows:
            yield rows


class ChangesView:
    """Converts the messages of a segment to rows of `CHANGES`.

    Args:
        segment: The segment.
        task: The task for this segment, with the transactions to read.
        wanted: Called with a relation's schema; returns whether to read the relation's changes.
    """

    def __init__(self, segment: SegmentReader, task: Task, wanted: RelationFilter) -> None:
        self._changes = CommittedChangesReader(segment, task, wanted)
        self._snapshot = segment.metadata.kind == "snapshot"
        self._incomplete = {table.oid: table.reason for table in segment.metadata.incomplete}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `CHANGES` for a batch of messages.

        Args:
            batch: Messages in the columns of `logicalrep.recording.SCHEMA`. Each call continues where the
                batch of the previous call ended.

        Raises:
            RecordingError: A message is invalid or out of place.
        """
        return self._rows(self._changes.read(batch), snapshot=self._snapshot)

    def _rows(self, committed: CommittedBatch, *, snapshot: bool) -> pa.RecordBatch:
        return changes_batch(committed, snapshot=snapshot, incomplete=self._incomplete)


class TableView(ChangesView):
    """Converts the messages of a segment to rows of one table.

    Args:
        segment: The segment.
        task: The task for this segment, with the transactions to read.
        wanted: Called with a relation's schema; returns whether the relation is the table.
        schema: Schema of the rows, as `table_schema` returns it.
    """

    def __init__(self, segment: SegmentReader, task: Task, wanted: RelationFilter, schema: pa.Schema) -> None:
        super().__init__(segment, task, wanted)
        self._schema = schema

    def _rows(self, committed: CommittedBatch, *, snapshot: bool) -> pa.RecordBatch:
        return table_batch(committed, self._schema, snapshot=snapshot)
