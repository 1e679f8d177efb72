"""Targets: folders with one table for each relation, in a table format behind one protocol.

- `protocol`: the interface of a table format.
- `delta`, `iceberg`: the formats, Delta and Iceberg.
- `commits`: the metadata in which a commit describes its changes, in each format.
- `registry`: the tables of a target, by relation OID.
- `data_files`: flushes, copies and removes data files.
- `parquet`: reads and writes Parquet files, for formats that consist of them.
- `partitions`: partition fields, and a writer of the data files of each partition.
- `small_files`: the small text files of a target.
"""

from __future__ import annotations

from logicalrep._extras import require

require("replica", "deltalake", "numpy", "pyarrow", "pyroaring")

from logicalrep.targets.parquet import (
    FILE_BYTES as FILE_BYTES,
    ParquetWriter as ParquetWriter,
    read_groups as read_groups,
    read_parquet as read_parquet,
)
from logicalrep.targets.partitions import parse_partition as parse_partition
from logicalrep.targets.protocol import (
    KEY as KEY,
    NO_ROWS as NO_ROWS,
    NOTHING as NOTHING,
    RENAMED as RENAMED,
    ChangeRange as ChangeRange,
    ConflictError as ConflictError,
    DataFile as DataFile,
    Position as Position,
    RowGroup as RowGroup,
    State as State,
    Table as Table,
    TableFormat as TableFormat,
    Version as Version,
    Writer as Writer,
)
from logicalrep.targets.registry import (
    DROPPED as DROPPED,
    MAY_DIFFER as MAY_DIFFER,
    NAME as NAME,
    NAMESPACE as NAMESPACE,
    RECORDING as RECORDING,
    SINCE as SINCE,
    THREADS as THREADS,
    IcebergCatalog as IcebergCatalog,
    archive_name as archive_name,
    archive_table as archive_table,
    change_table as change_table,
    check_recording as check_recording,
    column_types as column_types,
    copy_format as copy_format,
    create_table as create_table,
    decode_dropped as decode_dropped,
    find_table as find_table,
    folder_name as folder_name,
    missing_entry as missing_entry,
    move_table as move_table,
    open_format as open_format,
    open_version as open_version,
    read_catalog as read_catalog,
    register_table as register_table,
    registered_oids as registered_oids,
    remove_table as remove_table,
    rename_pause as rename_pause,
    restore_registry as restore_registry,
    store_catalog as store_catalog,
    table_names as table_names,
    unregistered_tables as unregistered_tables,
)
from logicalrep.targets.small_files import (
    create_file as create_file,
    read_file as read_file,
    remove_file as remove_file,
    write_file as write_file,
)
