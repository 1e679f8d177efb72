"""The files of a table are written in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pgoutput.replica.files import FILE_BYTES, Files


def test_large_rows_are_not_collected(tmp_path: Path) -> None:
    """They are written once they are as many bytes as a file has, however few rows they are."""
    schema = pa.schema([pa.field("v", pa.string())])
    files = Files(DeltaTable.create(tmp_path, schema), schema)
    before = pa.total_allocated_bytes()
    held: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(100, 200):
            yield pa.record_batch([[f"{number}" * (1 << 20)]], schema=schema)
            held.append(pa.total_allocated_bytes() - before)

    files.write(rows())
    assert max(held) < 4 * FILE_BYTES
