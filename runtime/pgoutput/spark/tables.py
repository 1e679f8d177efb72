"""Committed changes to tables whose columns have their own types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from pgoutput.messages import Relation
from pgoutput.spark.captures import Paths, read_changes, read_messages
from pgoutput.stream import Change, Tables
from pgoutput.stream.tables import Row
from pgoutput.values import arrow_type, to_arrow
from pgoutput.versions import CODECS
from pgoutput.wire import shown_text

RESCUED: Final = "_rescued_data"
"""The column of what other columns cannot hold: a map from their names to values as text. It stands last; in
a table that has a column of this name, underscores behind it tell it apart."""


class SourceTable(msgspec.Struct, frozen=True):
    """A table of a captured database, as its last Relation message describes it."""

    capture: str
    oid: int
    relation: Relation

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its rows: the columns by their types, then `_rescued_data`."""
        columns = self.relation.columns
        names = [shown_text(column.name) for column in columns]
        types = [arrow_type(column.type_oid, column.type_modifier) for column in columns]
        rescued = RESCUED
        while rescued in names:
            rescued += "_"
        return pa.schema([*zip(names, types, strict=True), (rescued, pa.map_(pa.string(), pa.string()))])


def list_tables(changes: DataFrame) -> list[SourceTable]:
    """The tables that changes of `read_changes` touch, by capture and name."""
    last = F.max_by(F.struct("proto_version", "relation"), "sequence").alias("last")
    rows = changes.groupBy("capture", "relation_oid").agg(last).select("capture", "relation_oid", "last.*")
    tables = [
        SourceTable(row.capture, row.relation_oid, _decode(row.proto_version, row.relation))
        for row in rows.collect()
    ]
    return sorted(tables, key=lambda t: (t.capture, t.relation.namespace, t.relation.name, t.oid))


def read_table(changes: DataFrame, table: SourceTable) -> DataFrame:
    """The rows of a table as they stand after all `changes`, with their own types.

    The changes of one table are folded by one task, in the order of commits.
    """
    mine = changes.where((F.col("capture") == table.capture) & (F.col("relation_oid") == table.oid))
    schema = table.schema

    def replay(batch: pa.Table) -> pa.Table:
        tables = Tables()
        relations: dict[bytes, Relation] = {}  # each is decoded once: a new object is a new shape to a table
        rows = batch.sort_by("sequence").select(["proto_version", "relation", "change"])
        for version, relation, change in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if relation not in relations:
                relations[relation] = _decode(version, relation)
            tables.apply_change(Change(_decode(version, change), (relations[relation],)))
        return _typed(list(tables[table.oid]), tables[table.oid].relation, schema)

    columns = ("relation_oid", "sequence", "proto_version", "relation", "change")
    grouped = mine.select(*columns).groupBy("relation_oid")
    return grouped.applyInArrow(replay, from_arrow_schema(schema))


def write_tables(session: SparkSession, paths: Paths, out: str) -> list[SourceTable]:
    """The job: decode captures, and write their messages and tables as Parquet.

    Messages go to `OUT/messages`, partitioned by capture; the rows of each table to
    `OUT/tables/CAPTURE/NAMESPACE.NAME`, with unusual characters in names quoted as in URLs.

    Args:
        session: The session that works.
        paths: Capture files, as `read_messages` takes them.
        out: Folder to write to, as a path that Spark understands. It must not hold such a result already.

    Returns:
        The tables that were written.
    """
    read_messages(session, paths).write.partitionBy("capture").parquet(f"{out}/messages")
    changes = read_changes(session, paths).cache()
    try:
        tables = list_tables(changes)
        for table, path in zip(tables, table_paths(tables), strict=True):
            read_table(changes, table).write.parquet(f"{out}/tables/{path}")
    finally:
        changes.unpersist()
    return tables


def table_paths(tables: Sequence[SourceTable]) -> list[str]:
    """Where below `OUT/tables` each table goes; tables of one name are told apart by their OIDs."""
    names = [f"{t.capture}/{_quoted(t.relation.namespace)}.{_quoted(t.relation.name)}" for t in tables]
    count = Counter(names)
    return [name if count[name] == 1 else f"{name}@{t.oid}" for name, t in zip(names, tables, strict=True)]


def _quoted(name: str) -> str:
    """A name that is fit for a path: what is not a letter, digit, `_`, `-` or space, as in URLs."""
    return re.sub(r"[^\w -]", lambda match: quote(match[0], safe=""), shown_text(name))


def _decode(version: int, data: bytes) -> Any:
    """A message from one of the binary columns of `CHANGES`."""
    return CODECS[version].decode(data)


def _typed(rows: list[Row], relation: Relation, schema: pa.Schema) -> pa.Table:
    rescued: list[dict[str, str | None]] = [{} for _ in rows]
    arrays = []
    for column in relation.columns:
        array, lost = to_arrow([row[column.name] for row in rows], column.type_oid, column.type_modifier)
        arrays.append(array)
        for row, text in lost.items():
            rescued[row][shown_text(column.name)] = text
    arrays.append(pa.array([list(items.items()) or None for items in rescued], schema.types[-1]))
    return pa.Table.from_arrays(arrays, schema=schema)
