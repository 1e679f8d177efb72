"""Messages and what they change, side by side: one row per message, of any stream, committed or not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.schemas import arrow as schemas
from pgoutput.views.changes import CHANGES, changes_batch
from pgoutput.views.committed import Changes, Commit
from pgoutput.views.messages import message_columns
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


def decoded_batch(rows: Sequence[Placed | None]) -> pa.RecordBatch:
    """The rows of `DECODED`; all NULL for None."""
    there = [row for row in rows if row is not None]
    numbers = iter(range(len(there)))
    index = pa.array([None if row is None else next(numbers) for row in rows], pa.int32())
    columns = message_columns([row.message for row in there])
    messages = pa.StructArray.from_arrays(columns, fields=list(_MESSAGE))
    return pa.record_batch([messages.take(index), _changes(rows)], schema=DECODED)


_NO_COMMIT: Final = Commit(0, 0, 0)


def _changes(rows: Sequence[Placed | None]) -> pa.ListArray:
    sizes = [0 if row is None else len(row.shapes) for row in rows]
    pairs = [(row.message, shape) for row in rows if row is not None for shape in row.shapes]
    changes = Changes(
        positions=[0] * len(pairs),
        commits=[_NO_COMMIT] * len(pairs),
        shapes=[shape for _, shape in pairs],
        messages=[message for message, _ in pairs],  # type: ignore[misc]
    )
    batch = changes_batch(changes, snapshot=False)
    elements = pa.StructArray.from_arrays([batch[field.name] for field in CHANGE], fields=list(CHANGE))
    offsets = pa.array(accumulate(sizes, initial=0), pa.int32())
    missing = pa.array([size == 0 for size in sizes] + [False])
    type_ = DECODED.field("changes").type
    return pa.ListArray.from_arrays(pc.if_else(missing, None, offsets), elements, type=type_)
