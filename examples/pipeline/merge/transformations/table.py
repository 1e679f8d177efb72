"""A table that is kept equal to its source by AUTO CDC.

The target's format has to support MERGE, as Delta Lake's and Apache Iceberg's do with their Spark connectors,
which do not come from PyPI. The Parquet tables that Spark makes by itself are refused when the pipeline runs:
AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE. `spark-pipelines dry-run` accepts the definitions in any case.

AUTO CDC replaces whole rows by their key, so:

- An update of the key is two events: a delete of the old key, and an upsert of the new one.
- A value that an update left as it was and that was not sent (TOAST) is taken from the old row. That is there
  if the source table has REPLICA IDENTITY FULL; without it the target would get NULL.
- A truncate has no key: no target can follow it.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

spark = SparkSession.active()
PATH = spark.conf.get("pgoutput.path")
TABLE = str(spark.conf.get("pgoutput.table"))
KEY = str(spark.conf.get("pgoutput.key"))
TARGET = TABLE.rpartition(".")[2]


def read_changes() -> DataFrame:
    """The changes of the table, as they come."""
    return spark.readStream.format("pgoutput").options(view="table", table=TABLE).load(PATH)


ROW = read_changes().schema["after"].dataType  # here, since functions of a pipeline must not ask for a schema
assert isinstance(ROW, StructType)
COLUMNS = ROW.names


@dp.temporary_view
def row_events() -> DataFrame:
    """The rows of the table as they come and go: their columns, `operation` and `sequence`."""
    changes = read_changes()
    before = {name: functions.col(f"before.`{name}`").alias(name) for name in COLUMNS}
    after = {name: functions.col(f"after.`{name}`").alias(name) for name in COLUMNS}
    there = [
        functions.when(functions.array_contains("unchanged", name), before[name])
        .otherwise(after[name])
        .alias(name)
        for name in COLUMNS
    ]
    moved = before[KEY].isNotNull() & ~before[KEY].eqNullSafe(after[KEY])
    deletes = changes.where(moved).select(
        *before.values(), functions.lit("Delete").alias("operation"), "sequence"
    )
    upserts = changes.where("after IS NOT NULL").select(*there, "operation", "sequence")
    return deletes.union(upserts)


dp.create_streaming_table(TARGET)
dp.create_auto_cdc_flow(
    target=TARGET,
    source="row_events",
    keys=[KEY],
    sequence_by="sequence",
    apply_as_deletes="operation = 'Delete'",
    except_column_list=["operation", "sequence"],
)
