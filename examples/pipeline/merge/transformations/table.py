"""A pipeline that keeps a target table equal to one table of a recording, with AUTO CDC.

The format of the target table must support MERGE, as Delta Lake and Apache Iceberg do with their Spark
connectors, which are not on PyPI. If the target is one of Spark's own Parquet tables, the run fails with the
error AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE. `spark-pipelines dry-run` accepts the definitions in any case.

AUTO CDC replaces whole rows by their key. Therefore:

- An update of the key becomes two events: a delete of the old key, and an upsert of the new key.
- An unchanged TOASTed value, which an update does not send, is taken from the old tuple. The old tuple is
  complete if the source table has REPLICA IDENTITY FULL; otherwise the target gets NULL.
- A truncate has no key and is not applied.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

spark = SparkSession.active()
PATH = spark.conf.get("logicalrep.path")
TABLE = str(spark.conf.get("logicalrep.table"))
KEY = str(spark.conf.get("logicalrep.key"))
TARGET = TABLE.rpartition(".")[2]


def read_changes() -> DataFrame:
    """Return the committed changes of the source table, as a streaming DataFrame."""
    return spark.readStream.format("pgoutput").options(view="table", table=TABLE).load(PATH)


ROW = (
    read_changes().schema["after"].dataType
)  # at module level, because functions of a pipeline must not read a schema
assert isinstance(ROW, StructType)
COLUMNS = ROW.names


@dp.temporary_view
def row_events() -> DataFrame:
    """Return one row for each delete or upsert: the columns of the table, `operation` and `sequence`."""
    changes = read_changes()
    before = {name: functions.col(f"before.`{name}`").alias(name) for name in COLUMNS}
    after = {name: functions.col(f"after.`{name}`").alias(name) for name in COLUMNS}
    values = [
        functions.when(functions.array_contains("unchanged", name), before[name])
        .otherwise(after[name])
        .alias(name)
        for name in COLUMNS
    ]
    removes_key = before[KEY].isNotNull() & ~before[KEY].eqNullSafe(after[KEY])
    deletes = changes.where(removes_key).select(
        *before.values(), functions.lit("Delete").alias("operation"), "sequence"
    )
    upserts = changes.where("after IS NOT NULL").select(*values, "operation", "sequence")
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
