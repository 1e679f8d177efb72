"""The view `messages`: one row per message, with all fields of the message."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from logicalrep._index import index_messages, message_columns
from logicalrep.recording import SegmentReader
from logicalrep.schemas import arrow as schemas

MESSAGES: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("wal_start", pa.int64()),
        pa.field("received_at", pa.timestamp("us", tz="UTC")),
        *schemas.MESSAGES,
    ]
)
"""Columns of the view `messages`, one row per message: the following, and the columns of
`logicalrep.schemas.arrow.MESSAGES`.

- `position`: Position of the message.
- `wal_start`: `wal_start` of the message's XLogData; 0 if the server gives none.
- `received_at`: When the recorder received the message.
"""


class MessagesView:
    """Converts the messages of a segment to rows of `MESSAGES`."""

    def __init__(self, segment: SegmentReader) -> None:
        self._segment = segment
        self._decoder = segment.decoder()

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `MESSAGES` for a batch of messages.

        Args:
            batch: Messages in the columns of `logicalrep.recording.SCHEMA`. Each call continues where the
                batch of the previous call ended.

        Raises:
            RecordingError: A message is invalid.
        """
        index = index_messages(batch["data"], self._decoder)
        if index.errors:
            row = min(index.errors)
            raise self._segment.error_at(batch["position"][row].as_py(), index.errors[row])
        columns = [batch["position"], batch["lsn"], batch["received_at"], *message_columns(index)]
        if batch["position"].null_count:  # leave out the keyframe
            sent = batch["position"].is_valid()
            columns = [column.filter(sent) for column in columns]
        return pa.record_batch(columns, schema=MESSAGES)
