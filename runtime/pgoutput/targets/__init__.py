"""Targets: the tables that a replica writes, behind one protocol.

- `protocol`: what a replica needs of a table format.
- `delta`: the format that is used, Delta.
- `parquet`: reads and writes Parquet files, for formats that consist of them.
- `small_files`: the small text files of a target.
"""

from __future__ import annotations

from typing import Final

from pgoutput._extras import require

require("replica", "deltalake", "numpy", "pyarrow")

from pgoutput.targets.delta import DeltaFormat
from pgoutput.targets.parquet import FILE_BYTES, ParquetWriter, read_parquet
from pgoutput.targets.protocol import (
    NOTHING,
    ChangeRange,
    ConflictError,
    DataFile,
    Position,
    State,
    Table,
    TableFormat,
    Version,
    Writer,
)
from pgoutput.targets.small_files import create_file, read_file, remove_file, write_file

FORMAT: Final[TableFormat] = DeltaFormat()
"""The format of all tables."""

__all__ = [
    "FILE_BYTES",
    "FORMAT",
    "NOTHING",
    "ChangeRange",
    "ConflictError",
    "DataFile",
    "ParquetWriter",
    "Position",
    "State",
    "Table",
    "TableFormat",
    "Version",
    "Writer",
    "create_file",
    "read_file",
    "read_parquet",
    "remove_file",
    "write_file",
]
