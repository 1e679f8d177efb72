"""Decode batches of messages to Arrow columns, and encode Arrow columns as messages.

`ColumnDecoder` decodes batches of messages: a row for each message, and the tuples of each relation by
column. `encode_inserts`, `encode_updates`, `encode_deletes`, `encode_begins` and `encode_commits` encode
columns as messages; `encode_cells` encodes cells once for use in several messages. `decode_xlog_data` unpacks
messages from the envelopes of the streaming replication protocol, and `decode_copy_data` unpacks messages
from CopyData messages that contain such envelopes. `encode_xlog_data` wraps messages in XLogData envelopes,
and `encode_copy_data` wraps envelopes in CopyData messages.

To encode, a column of `pa.string()` holds cells in text format, a column of `pa.binary()` cells in binary
format. A column of another type holds values, which are encoded as PostgreSQL's text. A NULL value becomes a
NULL cell.
"""

from logicalrep._extras import require

require("arrow", "numpy", "pyarrow")

from logicalrep.columns.batch_encoder import Columns as Columns
from logicalrep.columns.cells import Cells as Cells, encode_cells
from logicalrep.columns.decode import ColumnDecoder, DecodedBatch, Tuples
from logicalrep.columns.encode import (
    encode_begins,
    encode_commits,
    encode_deletes,
    encode_inserts,
    encode_updates,
)
from logicalrep.columns.envelopes import (
    XLogDataBatch as XLogDataBatch,
    decode_copy_data as decode_copy_data,
    decode_xlog_data as decode_xlog_data,
    encode_copy_data as encode_copy_data,
    encode_xlog_data as encode_xlog_data,
)

__all__ = [
    "ColumnDecoder",
    "DecodedBatch",
    "Tuples",
    "encode_begins",
    "encode_cells",
    "encode_commits",
    "encode_deletes",
    "encode_inserts",
    "encode_updates",
]
