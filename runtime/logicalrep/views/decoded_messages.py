"""Rows of decoded messages with their changes: one row per message, whether committed or not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from logicalrep._index import message_columns
from logicalrep.schemas import arrow as schemas
from logicalrep.views.change_cells import Changes
from logicalrep.views.changes import CHANGES, change_columns
from logicalrep.views.stream_context import UnorderedBatch

CHANGE: Final = pa.struct(
    [
        CHANGES.field(name)
        for name in ("operation", "relation", "key_columns", "columns", "before", "after", "unchanged")
    ]
)
"""A change as a struct: the columns of the view `changes` that do not depend on the commit."""

_MESSAGE: Final = pa.struct(list(schemas.MESSAGES))

DECODED: Final = pa.schema(
    [
        pa.field("message", _MESSAGE),
        pa.field("changes", pa.list_(pa.field("element", CHANGE, nullable=False))),
    ]
)
"""Columns of decoded messages, one row per message.

- `message`: The message, with the fields of `logicalrep.schemas.arrow.MESSAGES`.
- `changes`: A list of `CHANGE` with one element per relation of the message, or per new row of an insert with
  a list of new rows, which the spec allows; NULL for messages that are not changes.
"""


def decoded_batch(batch: UnorderedBatch) -> pa.RecordBatch:
    """Return messages as rows of `DECODED`; a NULL or invalid message gives a row of NULLs."""
    missing = batch.index.tags == 0
    missing[list(batch.errors)] = True
    columns = message_columns(batch.index)
    messages = pa.StructArray.from_arrays(columns, fields=list(_MESSAGE), mask=pa.array(missing))
    return pa.record_batch([messages, _changes(batch.changes)], schema=DECODED)


def _changes(changes: Changes) -> pa.ListArray:
    columns = change_columns(changes)
    elements = pa.StructArray.from_arrays([columns[field.name] for field in CHANGE], fields=list(CHANGE))
    sizes = np.bincount(changes.rows, minlength=len(changes.index))
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    type_ = DECODED.field("changes").type
    return pa.ListArray.from_arrays(offsets, elements, type=type_, mask=pa.array(sizes == 0))
