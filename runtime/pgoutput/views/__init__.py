"""What a recording holds, as rows in Arrow batches: its messages, its committed changes, a table, its schema.

A view takes a batch of messages and gives a batch of rows; it reads one segment, and needs no other. Which
segments a view has to read, and what of each, `Recording` and the tasks made of it say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from pgoutput.recording import SegmentReader
from pgoutput.views.changes import CHANGES, changes_batch
from pgoutput.views.committed import Committed, CommittedChanges
from pgoutput.views.messages import MESSAGES, MessagesView
from pgoutput.views.relations import SCHEMA, Epoch, epochs, epochs_batch
from pgoutput.views.shapes import Shape, Wanted
from pgoutput.views.table import RESCUED, row_type, table_batch, table_schema
from pgoutput.views.tasks import Lsns, Recording, Task, committed_changes, every_message, put_together

__all__ = [
    "CHANGES",
    "MESSAGES",
    "RESCUED",
    "SCHEMA",
    "ChangesView",
    "Epoch",
    "Lsns",
    "MessagesView",
    "Recording",
    "Shape",
    "TableView",
    "Task",
    "View",
    "Wanted",
    "committed_changes",
    "epochs",
    "epochs_batch",
    "every_message",
    "put_together",
    "read",
    "row_type",
    "table_schema",
]


class View(Protocol):
    """The decode step: messages of one segment in, rows out."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that messages give.

        Args:
            batch: Rows of the segment, by `pgoutput.recording.SCHEMA`, which follow those of the last call.

        Raises:
            RecordingError: A message cannot be read, or no server sends it there.
        """


def read(segment: SegmentReader, view: View) -> Iterator[pa.RecordBatch]:
    """All rows of a view of a segment.

    Raises:
        RecordingError: As `View.convert`, or the file is damaged.
    """
    for batch in segment.batches():
        rows = view.convert(batch)
        if rows.num_rows:
            yield rows


class ChangesView:
    """Rows of `CHANGES`."""

    def __init__(self, segment: SegmentReader, task: Task, wanted: Wanted) -> None:
        self._changes = CommittedChanges(segment, whole=task.whole, commits=task.commits, wanted=wanted)
        self._snapshot = segment.metadata.kind == "snapshot"
        self._incomplete = {one.oid: one.reason for one in segment.metadata.incomplete}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `View`."""
        committed = self._changes.pick(batch["position"], batch["data"])
        return self.rows(committed, snapshot=self._snapshot)

    def rows(self, committed: Committed, *, snapshot: bool) -> pa.RecordBatch:
        """The rows of changes."""
        return changes_batch(committed, snapshot=snapshot, incomplete=self._incomplete)


class TableView(ChangesView):
    """Rows of a schema that `table_schema` gives."""

    def __init__(self, segment: SegmentReader, task: Task, wanted: Wanted, schema: pa.Schema) -> None:
        super().__init__(segment, task, wanted)
        self._schema = schema

    def rows(self, committed: Committed, *, snapshot: bool) -> pa.RecordBatch:
        """The rows of changes of the table."""
        return table_batch(committed, self._schema, snapshot=snapshot)
