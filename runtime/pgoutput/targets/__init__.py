"""Targets: folders with one table for each relation, in a table format behind one protocol.

- `protocol`: what a replica needs of a table format.
- `delta`: the format that is used, Delta.
- `registry`: the tables of a target, by relation OID.
- `parquet`: reads and writes Parquet files, for formats that consist of them.
- `small_files`: the small text files of a target.
"""

from __future__ import annotations

from pgoutput._extras import require

require("replica", "deltalake", "numpy", "pyarrow", "pyroaring")

from pgoutput.targets.parquet import (
    FILE_BYTES as FILE_BYTES,
    ParquetWriter as ParquetWriter,
    read_parquet as read_parquet,
)
from pgoutput.targets.protocol import (
    NO_ROWS as NO_ROWS,
    NOTHING as NOTHING,
    ChangeRange as ChangeRange,
    ConflictError as ConflictError,
    DataFile as DataFile,
    Position as Position,
    State as State,
    Table as Table,
    TableFormat as TableFormat,
    Version as Version,
    Writer as Writer,
)
from pgoutput.targets.registry import (
    DROPPED as DROPPED,
    MAY_DIFFER as MAY_DIFFER,
    NAME as NAME,
    NAMESPACE as NAMESPACE,
    RECORDING as RECORDING,
    archive_table as archive_table,
    check_recording as check_recording,
    create_table as create_table,
    decode_dropped as decode_dropped,
    find_table as find_table,
    folder_name as folder_name,
    move_table as move_table,
    open_version as open_version,
    register_table as register_table,
    registered_oids as registered_oids,
    remove_table as remove_table,
)
from pgoutput.targets.small_files import (
    create_file as create_file,
    read_file as read_file,
    remove_file as remove_file,
    write_file as write_file,
)
