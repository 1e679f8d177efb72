"""The view `messages`: one row per message, by the generated schema."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pgoutput.columns.messages import message_columns
from pgoutput.columns.read import index_messages
from pgoutput.recording import SegmentReader
from pgoutput.schemas import arrow as schemas

MESSAGES: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("wal_start", pa.int64()),
        pa.field("received_at", pa.timestamp("us", tz="UTC")),
        *schemas.MESSAGES,
    ]
)
"""One row per message.

- `position`: Place of the message in the recording.
- `wal_start`: The LSN of its XLogData, 0 where the server gives none.
- `received_at`: When the recorder read it.
- The others are `pgoutput.schemas.arrow.MESSAGES`.
"""


class MessagesView:
    """Rows of `MESSAGES`."""

    def __init__(self, segment: SegmentReader) -> None:
        self._segment = segment
        self._decoder = segment.decoder()

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `View`."""
        index = index_messages(batch["data"], self._decoder)
        if index.errors:
            row = min(index.errors)
            raise self._segment.error_at(batch["position"][row].as_py(), index.errors[row])
        columns = [batch["position"], batch["lsn"], batch["received_at"], *message_columns(index)]
        if batch["position"].null_count:  # the keyframe has none
            sent = batch["position"].is_valid()
            columns = [column.filter(sent) for column in columns]
        return pa.record_batch(columns, schema=MESSAGES)
