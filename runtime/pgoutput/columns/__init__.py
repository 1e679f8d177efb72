"""Messages to columns and back, a batch at a time: what a codec does with single ones, in Arrow.

`ColumnDecoder` reads batches of messages. The functions write them: a column of `pa.string()` is cells in
text format, one of `pa.binary()` cells in binary format; NULL is NULL.
"""

from pgoutput._extras import require

require("arrow", "numpy", "pyarrow")

from pgoutput.columns.borders import encode_begins, encode_commits
from pgoutput.columns.cells import Cells, encode_cells
from pgoutput.columns.decode import HEADERS, ColumnDecoder, Decoded, RelationTuples, Tuples
from pgoutput.columns.encode import encode_deletes, encode_inserts, encode_updates
from pgoutput.columns.envelopes import Received, decode_xlog_data, encode_copy_data, encode_xlog_data

__all__ = [
    "HEADERS",
    "Cells",
    "ColumnDecoder",
    "Decoded",
    "Received",
    "RelationTuples",
    "Tuples",
    "decode_xlog_data",
    "encode_begins",
    "encode_cells",
    "encode_commits",
    "encode_copy_data",
    "encode_deletes",
    "encode_inserts",
    "encode_updates",
    "encode_xlog_data",
]
