"""Spark: read and write recordings as DataFrames, decode messages, and keep Delta tables up to date.

- `LogicalrepDataSource`: the data source `pgoutput`. It reads the messages, the committed changes, one table
  or the schema history of a recording, in batch and in streaming queries, and writes DataFrames as
  recordings.
- `rows`: converts messages to rows for `createDataFrame` with the schemas in `logicalrep.schemas.spark`.
- `from_pgoutput`, `to_pgoutput`: column functions that decode and encode messages one by one.
- `lsn_text`: column function that returns LSNs as PostgreSQL writes them.
- `register_functions`: makes the column functions known to Spark SQL.
- `decode`: decodes the messages of whole streams in a column of any DataFrame, with the changes of rows.
- `replicate`: keeps one Delta table per relation equal to the source of a recording. It needs the extra
  `replica` too.
- `local_session`: starts Spark on this machine, with a Java from PyPI if no Java is installed.
"""

from logicalrep._extras import require

require("spark", "numpy", "pandas", "pyarrow", "pyspark")

from typing import TYPE_CHECKING, Any

from logicalrep.spark.decoding import decode
from logicalrep.spark.functions import from_pgoutput, lsn_text, register_functions, to_pgoutput
from logicalrep.spark.rows import rows
from logicalrep.spark.session import cluster_session as cluster_session, local_session
from logicalrep.spark.source import LogicalrepDataSource

if TYPE_CHECKING:
    from logicalrep.spark.replication import replicate

__all__ = [
    "LogicalrepDataSource",
    "decode",
    "from_pgoutput",
    "local_session",
    "lsn_text",
    "register_functions",
    "replicate",
    "rows",
    "to_pgoutput",
]


def __getattr__(name: str) -> Any:
    """Import `replicate` at the first access: it alone needs the extra `replica`."""
    if name != "replicate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("replica", "deltalake", "pyroaring")
    from logicalrep.spark.replication import replicate

    globals()["replicate"] = replicate
    return replicate
