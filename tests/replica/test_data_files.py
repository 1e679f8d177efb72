"""The data files of Delta tables are written in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from logicalrep.apply.data_files import DataFiles
from logicalrep.recording import locate
from logicalrep.targets import FILE_BYTES
from logicalrep.targets.delta import DeltaFormat


def test_large_rows_are_written_in_bounded_memory(tmp_path: Path) -> None:
    """Rows are written to disk once they have the size of a data file, even if they are only a few rows."""
    schema = pa.schema([pa.field("v", pa.string())])
    files = DataFiles(DeltaFormat().create(locate(tmp_path), schema, {}))
    before = pa.total_allocated_bytes()
    held: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(100, 200):
            yield pa.record_batch([[f"{number}" * (1 << 20)]], schema=schema)
            held.append(pa.total_allocated_bytes() - before)

    (file, *_) = files.write(rows())
    assert max(held) < 4 * FILE_BYTES
    assert max(batch.nbytes for batch in files.read(file)) < 2 * FILE_BYTES
