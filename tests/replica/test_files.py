"""The files of a table are written in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pgoutput.replica.files import FILE_BYTES, Files


def test_large_rows_are_not_collected(tmp_path: Path) -> None:
    """They are written once they are as many bytes as a file has, however few rows they are."""
    schema = pa.schema([pa.field("v", pa.string())])
    files = Files(DeltaTable.create(tmp_path, schema), schema)
    rows = (pa.record_batch([[f"{number}" * (1 << 20)]], schema=schema) for number in range(100, 200))
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        files.write(rows)
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 4 * FILE_BYTES
