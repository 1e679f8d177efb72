"""A pipeline: a table with a recording's committed changes, and a view that counts them by relation."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions

spark = SparkSession.active()


@dp.table(comment="One row per committed change. Each run reads only new segments.")
def changes() -> DataFrame:
    return spark.readStream.format("pgoutput").load(spark.conf.get("logicalrep.path"))


@dp.materialized_view(comment="Changes per relation and operation.")
def changes_by_relation() -> DataFrame:
    relation = functions.concat_ws(".", "relation.namespace", "relation.name").alias("relation")
    counted = spark.read.table("changes").groupBy(relation, "operation")
    return counted.agg(functions.count("*").alias("changes"), functions.max("commit_time").alias("last"))
