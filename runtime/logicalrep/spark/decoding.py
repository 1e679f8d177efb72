"""Decode pgoutput messages in a column of any DataFrame, such as one read from Kafka, files or a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from logicalrep.messages import Streaming
from logicalrep.spark.decoded_rows import add_decoded, sort_keys
from logicalrep.spark.stream_decoding import decode_stream
from logicalrep.stream import StreamDecoder
from logicalrep.views import CONTEXT_TAGS, DECODED, Key, UnorderedDecoder, build_stream_context

_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_CORRUPT_SETTING: Final = "spark.sql.columnNameOfCorruptRecord"

_SORTED: Final = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""Spark types whose values Python and Spark sort in the same order."""

Order: TypeAlias = str | Column | Sequence[str | Column]


def decode(
    df: DataFrame,
    column: str | Column,
    *,
    proto_version: int,
    streaming: Streaming = "off",
    two_phase: bool = False,
    order_by: Order,
    partition_by: Order = (),
    mode: str = "PERMISSIVE",
    context: DataFrame | None = None,
) -> DataFrame:
    """Decode the pgoutput messages in a column.

    The rows are the messages of one stream, as in XLogData or as returned by
    pg_logical_slot_peek_binary_changes, in any order and any partitions.

    A batch DataFrame is evaluated twice. This call collects in the driver the messages on which the decoding
    of other messages depends (relations, types, stream blocks). An action on the result decodes each row with
    the collected messages, independently of other rows. Both evaluations of `df` must give the same rows:
    cache `df`, or limit its range, for example with Kafka's `endingOffsets`.

    A streaming DataFrame can have several replication streams, which `partition_by` distinguishes. For each
    stream, Spark's checkpoint keeps the sort key of the last row, and the messages on which other messages
    depend. So each row is decoded exactly once, also after a restart. All rows of one stream in a micro-batch
    are sorted in the memory of one task; together, their messages may have at most 2 GiB. A row that is late
    or repeated counts as an invalid message: its sort key is not after the last row of the earlier
    micro-batches, or equals the key of another row.

    The result has the unchanged columns of `df`, and these columns:

    - `message`: The message, with the type `logicalrep.schemas.spark.MESSAGES`.
    - `changes`: The row changes of the message: an array with one element for an insert, update or delete,
      one for each relation of a truncate, and one for each row of an insert with a list of new rows, which
      PostgreSQL does not send; NULL for other messages. The elements have the fields of the view `changes`,
      without the fields about the commit. `select("*", inline("changes"))` returns the rows of the view
      `changes`, and also the changes of transactions that were never committed.
    - `_corrupt_record`: The error of an invalid message, in the mode PERMISSIVE. The name of this column is
      the value of the Spark setting spark.sql.columnNameOfCorruptRecord.

    In rows where `column` is NULL, all of the added columns are NULL.

    Args:
        df: The DataFrame with the messages.
        column: The column with the messages, of type binary.
        proto_version: The option `proto_version` of the replication stream.
        streaming: The option `streaming` of the replication stream.
        two_phase: Whether to accept messages of two-phase commit in a protocol version that lacks them (see
            `StreamDecoder`).
        order_by: One or more columns that sort the messages as the server sent them, such as Kafka's
            `offset`, the `position` in a recording, or file and line. No two messages may have equal values.
            LSNs are unsuitable: several messages can have the same LSN, and LSNs can decrease. In a streaming
            DataFrame, the columns must be integers, text, binary, dates or timestamps.
        partition_by: In a streaming DataFrame, one or more columns that have different values in different
            replication streams, such as Kafka's `topic` and `partition`; empty if there is one stream.
        mode: What to do with invalid messages, and with changes of a relation without an earlier Relation
            message. As in Spark's own data sources: PERMISSIVE keeps such messages, DROPMALFORMED drops such
            messages, FAILFAST raises an error.
        context: A DataFrame with all messages on which the decoding depends, if `df` lacks some of them. For
            example, if `df` is a micro-batch: the table with all earlier messages. `context` needs the same
            columns as `df`. `column` and `order_by` are evaluated on both DataFrames, so pass column names.
            Not for a streaming DataFrame, whose query keeps these messages.

    Raises:
        ValueError: An argument is invalid, or `order_by` is equal for two of the collected messages.
        TypeError: `column` is not binary, or a column of `order_by` has a type that cannot sort messages.

    An action on the result raises a PythonException that contains the DecodeError of FAILFAST, or a
    ValueError if `df` has changed since this call.
    """
    make_decoder = partial(StreamDecoder, proto_version, streaming=streaming, two_phase=two_phase)
    decoder = make_decoder()
    if mode.upper() not in _MODES:
        raise ValueError(f"the argument `mode` must be one of {', '.join(_MODES)}, not {mode!r}")
    partitions = [partition_by] if isinstance(partition_by, str | Column) else list(partition_by)
    if df.isStreaming:
        if context is not None:
            raise ValueError(
                "the argument `context` is only for batch DataFrames: leave it out for a streaming DataFrame"
            )
    elif partitions or (context is not None and context.isStreaming):
        raise ValueError(
            "for a batch DataFrame, leave out `partition_by`, and pass a batch DataFrame as `context`: call "
            "`decode` once for each replication stream"
        )
    order, data = _make_expressions(column, order_by)
    _check_types(df.select(order, data).schema, is_streaming=df.isStreaming)
    added = _added_fields(df, mode.upper())
    schema = StructType([*df.schema, *added])
    rows = df.select("*", functions.struct(order, data).alias("_logicalrep"))
    if df.isStreaming:
        return decode_stream(rows, partitions, make_decoder, mode.upper(), schema)
    first_pass = _collect_context(df if context is None else context, order, data)
    stream_context = build_stream_context(first_pass, decoder)

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        placed = UnorderedDecoder(stream_context, make_decoder())
        for batch in batches:
            ordering, messages = batch.columns[-1].flatten()
            keys = sort_keys(ordering)
            decoded = placed.decode(keys, messages)
            others = batch.drop_columns(["_logicalrep"])
            yield add_decoded(others, keys, decoded, mode.upper(), schema.names)

    return rows.mapInArrow(convert, schema)


def _make_expressions(column: str | Column, order_by: Order) -> tuple[Column, Column]:
    """Return two column expressions: a struct of the columns that sort the messages, and the messages."""
    order = [order_by] if isinstance(order_by, str | Column) else list(order_by)
    if not order:
        raise ValueError("the argument `order_by` is empty: give the columns that sort the messages")
    data = functions.col(column) if isinstance(column, str) else column
    columns = [functions.col(one) if isinstance(one, str) else one for one in order]
    numbered = [one.alias(f"order_by[{number}]") for number, one in enumerate(columns)]
    return functions.struct(*numbered).alias("order"), data.alias("data")


def _check_types(schema: StructType, *, is_streaming: bool) -> None:
    order, data = schema
    if not isinstance(data.dataType, BinaryType):
        raise TypeError(
            "the argument `column`: expected messages in a column of type binary, found "
            f"{data.dataType.simpleString()}"
        )
    for field in _leaf_fields(order):
        type_, where = field.dataType, " of a streaming DataFrame" if is_streaming else ""
        if not isinstance(type_, _SORTED) or (is_streaming and isinstance(type_, DecimalType)):
            raise TypeError(
                f"{field.name} has the type {type_.simpleString()}, which cannot sort messages{where}: "
                "cast the column to an integer or string"
            )


def _leaf_fields(field: StructField) -> Iterator[StructField]:
    if isinstance(field.dataType, StructType):
        for inner in field.dataType:
            yield from _leaf_fields(inner)
    else:
        yield field


def _added_fields(df: DataFrame, mode: str) -> list[StructField]:
    """Return the columns that `decode` adds to a DataFrame."""
    added = list(from_arrow_schema(DECODED, prefer_timestamp_ntz=True))
    if mode == "PERMISSIVE":
        name = df.sparkSession.conf.get(_CORRUPT_SETTING, "_corrupt_record")
        added.append(StructField(str(name), StringType()))
    existing = {name.lower() for name in df.columns}
    if taken := [field.name for field in added if field.name.lower() in existing]:
        raise ValueError(
            f"these columns of the DataFrame have the names of columns that `decode` adds; rename them: "
            f"{', '.join(taken)}"
        )
    return added


def _collect_context(df: DataFrame, order: Column, data: Column) -> Iterator[tuple[Key, bytes]]:
    """Yield the sort key and the bytes of each message on which the decoding of other messages depends."""
    tags = [functions.lit(tag) for tag in CONTEXT_TAGS]
    found = df.where(functions.substring(data, 1, 1).isin(*tags)).select(order, data)
    for batch in found.toArrow().to_batches():
        keys = zip(*(column.to_pylist() for column in sort_keys(batch.column(0))), strict=True)
        yield from zip(keys, batch.column(1).to_pylist(), strict=True)
