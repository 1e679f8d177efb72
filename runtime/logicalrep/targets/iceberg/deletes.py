"""Position delete files: the row numbers of deleted rows, which data files still contain.

Sections of the Iceberg specification: "Position Delete Files", "Scan Planning", "Reserved Field IDs".
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.types import LongType, NestedField, StringType

from logicalrep._arrays import Numbers
from logicalrep.recording import Location
from logicalrep.targets.data_files import NewFile
from logicalrep.targets.iceberg.columns import arrow_field
from logicalrep.targets.protocol import DataFile

DELETE_FIELDS: Final = {
    "file_path": NestedField(PATH_FIELD_ID, "file_path", StringType(), required=True),
    "pos": NestedField(2147483545, "pos", LongType(), required=True),
}
_SCHEMA: Final = pa.schema([arrow_field(one, ids=True) for one in DELETE_FIELDS.values()])


def write_deletes(folder: Location, uri: str, rows: Numbers) -> DataFile:
    """Write a position delete file for a data file, given its URI and its deleted rows in ascending order."""
    path, bound = f"deletes-{uuid4()}.parquet", {"file_path": uri}
    file = NewFile(folder, path)
    pq.write_table(
        pa.table([pa.repeat(uri, len(rows)), pa.array(rows, pa.int64())], schema=_SCHEMA),
        file.sink,
        compression="zstd",
        use_dictionary=["file_path"],
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
    )
    return DataFile(path, file.complete(), len(rows), bound, bound, {})
