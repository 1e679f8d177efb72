"""Views of a recording as Arrow batches: its messages, its committed changes, one table, or its schema.

`plan_messages` and `plan_changes` return the tasks of a view. A task names one segment and which of its
transactions to read. Tasks can run in parallel. `MessagesView`, `ChangesView` and `TableView` convert the
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

from pgoutput.recording import SegmentReader
from pgoutput.views.changes import BATCHES, CHANGES, changes_batch
from pgoutput.views.changes_from_rows import from_rows as from_rows
from pgoutput.views.committed_changes import CommittedBatch, CommittedChangesReader
from pgoutput.views.decoded_messages import CHANGE, DECODED, decoded_batch
from pgoutput.views.messages import MESSAGES, MessagesView
from pgoutput.views.relation_changes import (
    AlteredNames as AlteredNames,
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
from pgoutput.views.relation_reader import read_changes as read_changes
from pgoutput.views.relation_schemas import RelationFilter, RelationSchema, relation_schema
from pgoutput.views.schema_history import (
    SCHEMA,
    NumberedSchemaVersion,
    schema_batch,
    schema_versions,
)
from pgoutput.views.stream_context import (
    CONTEXT_TAGS,
    Key,
    KeyColumns,
    StreamContext,
    UnorderedBatch,
    UnorderedDecoder,
    build_stream_context,
    format_key,
    key_at,
)
from pgoutput.views.table import RESCUED, RESCUED_TYPE, row_type, table_batch, table_schema
from pgoutput.views.tasks import LsnRange, Task, group_tasks, plan_changes, plan_messages

__all__ = [
    "BATCHES",
    "CHANGE",
    "CHANGES",
    "CONTEXT_TAGS",
    "DECODED",
    "MESSAGES",
    "RESCUED",
    "RESCUED_TYPE",
    "SCHEMA",
    "ChangesView",
    "Key",
    "KeyColumns",
    "LsnRange",
    "MessagesView",
    "NumberedSchemaVersion",
    "RelationFilter",
    "RelationSchema",
    "StreamContext",
    "TableView",
    "Task",
    "UnorderedBatch",
    "UnorderedDecoder",
    "View",
    "build_stream_context",
    "decoded_batch",
    "format_key",
    "group_tasks",
    "key_at",
    "plan_changes",
    "plan_messages",
    "read",
    "relation_schema",
    "row_type",
    "schema_batch",
    "schema_versions",
    "table_schema",
]


class View(Protocol):
    """Converts the messages of one segment to rows of a view."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the view's rows for a batch of messages.

        Args:
            batch: Messages in the columns of `pgoutput.recording.SCHEMA`. Each call continues where the batch
                of the previous call ended.

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
        task: The task for this segment; names the transactions to read.
        wanted: Called with a relation's schema; returns whether to read the relation's changes.
    """

    def __init__(self, segment: SegmentReader, task: Task, wanted: RelationFilter) -> None:
        self._changes = CommittedChangesReader(segment, task, wanted)
        self._snapshot = segment.metadata.kind == "snapshot"
        self._incomplete = {table.oid: table.reason for table in segment.metadata.incomplete}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `CHANGES` for a batch of messages.

        Args:
            batch: Messages in the columns of `pgoutput.recording.SCHEMA`. Each call continues where the batch
                of the previous call ended.

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
        task: The task for this segment; names the transactions to read.
        wanted: Called with a relation's schema; returns whether the relation is the table.
        schema: Schema of the rows, as `table_schema` returns it.
    """

    def __init__(self, segment: SegmentReader, task: Task, wanted: RelationFilter, schema: pa.Schema) -> None:
        super().__init__(segment, task, wanted)
        self._schema = schema

    def _rows(self, committed: CommittedBatch, *, snapshot: bool) -> pa.RecordBatch:
        return table_batch(committed, self._schema, snapshot=snapshot)
