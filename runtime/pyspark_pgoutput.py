"""Where Spark looks for the data source `pgoutput` when a format of this name is asked for."""

from pgoutput.spark.source import PgoutputDataSource as DefaultSource

__all__ = ["DefaultSource"]
