"""Entry point of the data source `pgoutput`: Spark imports `pyspark_logicalrep` for the format `pgoutput`."""

from logicalrep.spark.source import LogicalrepDataSource as DefaultSource

__all__ = ["DefaultSource"]
