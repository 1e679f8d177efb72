"""PySpark over recordings of replication streams.

The data source `pgoutput` (`pgoutput.spark.source`) reads recordings: their messages, committed changes, a
table, the history of the schema, in batch and in streaming. `decode` reads messages in any DataFrame.
`replicate` keeps Delta tables equal to the source, `write_feed` writes its changes as Parquet.
"""

from pgoutput._extras import require

require("spark", "pyspark", "pandas", "pyarrow", "deltalake")

from pgoutput.replica import replica_tables
from pgoutput.spark.decoding import decode
from pgoutput.spark.replication import replicate, write_feed
from pgoutput.spark.session import local_session
from pgoutput.spark.source import PgoutputDataSource

__all__ = [
    "PgoutputDataSource",
    "decode",
    "local_session",
    "replica_tables",
    "replicate",
    "write_feed",
]
