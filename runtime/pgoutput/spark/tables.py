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
from pgoutput.spark.captures import read_changes, read_messages
from pgoutput.stream import Change, Tables
from pgoutput.stream.tables import Row
from pgoutput.values import arrow_type, to_arrow
from pgoutput.versions import CODECS, LATEST
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
    last = changes.groupBy("capture", "relation_oid").agg(F.max_by("relation", "sequence").alias("relation"))
    tables = [SourceTable(row.capture, row.relation_oid, _decode(row.relation)) for row in last.collect()]
    return sorted(tables, key=lambda t: (t.capture, t.relation.namespace, t.relation.name, t.oid))


def read_table(changes: DataFrame, table: SourceTable) -> DataFrame:
    """The rows of a table as they stand after all `changes`, with their own types.

    The changes of one table are folded by one task, in the order of commits.
    """
    mine = changes.where((F.col("capture") == table.capture) & (F.col("relation_oid") == table.oid))
    schema = table.schema

    def replay(batch: pa.Table) -> pa.Table:
        tables = Tables()
        for relation, change in zip(
            *(batch.sort_by("sequence")[name].to_pylist() for name in ("relation", "change")),
            strict=True,
        ):
            tables.apply_change(Change(_decode(change), (_decode(relation),)))
        return _typed(list(tables[table.oid]), tables[table.oid].relation, schema)

    grouped = mine.select("relation_oid", "sequence", "relation", "change").groupBy("relation_oid")
    return grouped.applyInArrow(replay, from_arrow_schema(schema))


def write_tables(
    session: SparkSession, paths: Sequence[str], out: str, *, mode: str = "error"
) -> list[SourceTable]:
    """The job: decode captures, and write their messages and tables as Parquet.

    Messages go to `OUT/messages`, partitioned by capture; the rows of each table to
    `OUT/tables/CAPTURE/NAMESPACE.NAME`, with unusual characters in names quoted as in URLs.

    Args:
        session: The session that works.
        paths: Capture files, as `read_messages` takes them.
        out: Folder to write to, as a path that Spark understands.
        mode: What to do if there is something already: `error`, `overwrite` and so on.

    Returns:
        The tables that were written.
    """
    read_messages(session, paths).write.mode(mode).partitionBy("capture").parquet(f"{out}/messages")
    changes = read_changes(session, paths).cache()
    try:
        tables = list_tables(changes)
        for table, path in zip(tables, table_paths(tables), strict=True):
            read_table(changes, table).write.mode(mode).parquet(f"{out}/tables/{path}")
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


def _decode(data: bytes) -> Any:
    """A message from one of the binary columns of `CHANGES`."""
    return CODECS[LATEST].decode(data)


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
