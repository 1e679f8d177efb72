"""Position delete files: the row numbers of deleted rows, which data files still contain.

Sections of the Iceberg specification: "Position Delete Files", "Scan Planning", "Reserved Field IDs".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput._arrays import Numbers
from pgoutput.recording import Location
from pgoutput.targets.data_files import NewFile
from pgoutput.targets.parquet import FIELD_ID

PATH_ID: Final = 2147483546
"""Field ID of the column with the path of the data file."""
_POSITION_ID: Final = 2147483545

_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(PATH_ID).encode()}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(_POSITION_ID).encode()}),
    ]
)


def write_deletes(file: NewFile, data_file: str, rows: Numbers) -> int:
    """Write a position delete file for one data file.

    Args:
        file: The new file.
        data_file: URI of the data file.
        rows: Row numbers of the deleted rows, in ascending order.

    Returns:
        Size of the file, in bytes.
    """
    table = pa.table([pa.repeat(data_file, len(rows)), pa.array(rows, pa.int64())], schema=_SCHEMA)
    pq.write_table(
        table,
        file.sink,
        compression="zstd",
        use_dictionary=["file_path"],
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
    )
    return file.complete()


def read_deletes(file: Location) -> Iterator[tuple[str, Numbers]]:
    """Yield the URI and the deleted row numbers of each data file in a position delete file."""
    with file.filesystem.open_input_file(file.path) as source:
        table = pq.read_table(source, columns=["file_path", "pos"])
    for data_file in pc.unique(table["file_path"]).to_pylist():
        rows = table.filter(pc.equal(table["file_path"], data_file))["pos"]
        yield data_file, np.unique(np.asarray(rows.combine_chunks(), np.int64))
