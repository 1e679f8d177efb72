"""Position delete files: the row numbers of deleted rows, which data files still contain.

Sections of the Iceberg specification: "Position Delete Files", "Scan Planning", "Reserved Field IDs".
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import NestedField, StringType

from pgoutput._arrays import Numbers
from pgoutput.recording import Location
from pgoutput.targets.data_files import NewFile
from pgoutput.targets.parquet import FIELD_ID
from pgoutput.targets.protocol import DataFile

PATH_ID: Final = 2147483546
"""Field ID of the column with the path of the data file."""
_POSITION_ID: Final = 2147483545

_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(PATH_ID).encode()}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(_POSITION_ID).encode()}),
    ]
)


DELETE_FIELDS: Final = {"file_path": NestedField(PATH_ID, "file_path", StringType(), required=True)}
"""The fields of position delete files that have a least and a greatest value."""


def write_deletes(folder: Location, data_file: str, rows: Numbers) -> DataFile:
    """Write a position delete file for one data file.

    Args:
        folder: The folder of the new file.
        data_file: URI of the data file.
        rows: Row numbers of the deleted rows, in ascending order.
    """
    path, bound = f"deletes-{uuid4()}.parquet", {"file_path": data_file}
    file = NewFile(folder, path)
    pq.write_table(
        pa.table([pa.repeat(data_file, len(rows)), pa.array(rows, pa.int64())], schema=_SCHEMA),
        file.sink,
        compression="zstd",
        use_dictionary=["file_path"],
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
    )
    return DataFile(path, file.complete(), len(rows), bound, bound, {})
