"""Columns of cells to messages, a batch at a time: what a codec makes of single ones, in Arrow.

A column of `pa.string()` is cells in text format, one of `pa.binary()` cells in binary format; NULL is NULL.
"""

from pgoutput.columns.borders import encode_begins, encode_commits
from pgoutput.columns.encode import encode_deletes, encode_inserts, encode_updates

__all__ = ["encode_begins", "encode_commits", "encode_deletes", "encode_inserts", "encode_updates"]
