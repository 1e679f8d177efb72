"""Columns of cells to messages, a batch at a time: what a codec makes of single ones, in Arrow.

A column of `pa.string()` is cells in text format, one of `pa.binary()` cells in binary format; NULL is NULL.
"""

from pgoutput.columns.borders import encode_begins, encode_commits
from pgoutput.columns.cells import Cells, encode_cells
from pgoutput.columns.encode import encode_deletes, encode_inserts, encode_updates
from pgoutput.columns.envelopes import encode_copy_data, encode_xlog_data

__all__ = [
    "Cells",
    "encode_begins",
    "encode_cells",
    "encode_commits",
    "encode_copy_data",
    "encode_deletes",
    "encode_inserts",
    "encode_updates",
    "encode_xlog_data",
]
