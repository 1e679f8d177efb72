"""Verification: prove that the Delta tables of a replica equal the tables of the source, as of one LSN.

The server hashes the rows of each table as of an exported snapshot; this process hashes the rows of the
replica as of the same LSN. Rows are fetched only where the sums of the hashes differ.

How the package is divided:

- `verify`: compares the tables one after the other.
- `source_rows`, `replica_rows`: the rows of a table on both sides, as hashes and as text.
- `text_hash`, `row_texts`: the server's hash, and the server's text of rows.
- `key_ranges`, `differences`: divide a table, and find the rows that differ.
- `selfcheck`: compares samples while `logicalrep sync` runs.
- `workspace`: keeps the progress of an interrupted comparison.
"""

from __future__ import annotations

from logicalrep._extras import require

require("replica", "deltalake", "pyarrow")
require("recorder", "numpy", "psycopg")

from logicalrep.verification.differences import RowDifference as RowDifference
from logicalrep.verification.selfcheck import (
    Publications as Publications,
    Replicated as Replicated,
    SelfCheck as SelfCheck,
)
from logicalrep.verification.verify import AwaitingRecording as AwaitingRecording, TableVerdict, verify_tables

__all__ = [
    "TableVerdict",
    "verify_tables",
]
