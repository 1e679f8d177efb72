"""Messages and what they change, side by side: one row per message, of any stream, committed or not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from pgoutput.columns.messages import message_columns
from pgoutput.schemas import arrow as schemas
from pgoutput.views.changes import CHANGES, change_columns
from pgoutput.views.rows import Changes
from pgoutput.views.timeline import Placed

CHANGE: Final = pa.struct(
    [
        CHANGES.field(name)
        for name in ("operation", "relation", "key_columns", "columns", "before", "after", "unchanged")
    ]
)
"""What a message alone says of a change: the columns of the view `changes` but for those of its commit."""

# Rows without a message lack all its fields. Arrow finds that in fields that are not nullable, and minds.
_MESSAGE: Final = pa.struct([field.with_nullable(True) for field in schemas.MESSAGES])

DECODED: Final = pa.schema(
    [
        pa.field("message", _MESSAGE),
        pa.field("changes", pa.list_(pa.field("element", CHANGE, nullable=False))),
    ]
)
"""One row per message.

- `message`: The message, by `pgoutput.schemas.arrow.MESSAGES`.
- `changes`: What it changes, an element per relation, so that only truncates have several; NULL for messages
  that change nothing. Its fields are those of the view `changes`.
"""


def decoded_batch(placed: Placed) -> pa.RecordBatch:
    """The rows of `DECODED`; all NULL for what is no message, or a wrong one."""
    none = placed.index.tags == 0
    none[list(placed.errors)] = True
    columns = message_columns(placed.index)
    messages = pa.StructArray.from_arrays(columns, fields=list(_MESSAGE), mask=pa.array(none))
    return pa.record_batch([messages, _changes(placed.changes)], schema=DECODED)


def _changes(changes: Changes) -> pa.ListArray:
    columns = change_columns(changes)
    elements = pa.StructArray.from_arrays([columns[field.name] for field in CHANGE], fields=list(CHANGE))
    sizes = np.bincount(changes.rows, minlength=len(changes.index))
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    type_ = DECODED.field("changes").type
    return pa.ListArray.from_arrays(offsets, elements, type=type_, mask=pa.array(sizes == 0))
