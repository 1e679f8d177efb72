"""A program for spark-submit: applies a recording to Delta tables, with the executors of a cluster.

    spark-submit --master spark://host:7077 --conf spark.sql.shuffle.partitions=8 examples/replicate.py
        RECORDING TARGET

The number of partitions is the number of the executors' cores; with Spark's default of 200, small
micro-batches take minutes. Driver and executors need `logicalrep[replica,spark]`, with an object
store `logicalrep[replica,spark,store]`, in the Python that PYSPARK_PYTHON names, and reach recording and
target under the same paths or URIs. The program can be killed; the next run continues.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from logicalrep.replica import replica_tables
from logicalrep.spark import replicate


def main(recording: str, target: str) -> int:
    """Apply what the target does not have yet; return 1 if tables have failed, and 0 otherwise."""
    spark = SparkSession.builder.appName(f"logicalrep: {target}").getOrCreate()
    replicate(spark, recording, target)  # follow=True: keep running, and apply new segments
    tables = replica_tables(target).values()
    for table in tables:
        print(f"{table.namespace}.{table.name}: {table.error or table.place}")
    return int(any(table.error for table in tables))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
