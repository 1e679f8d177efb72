"""Entry point of the data source `pgoutput`: Spark imports `pyspark_pgoutput` for the format `pgoutput`."""

from pgoutput.spark.source import PgoutputDataSource as DefaultSource

__all__ = ["DefaultSource"]
