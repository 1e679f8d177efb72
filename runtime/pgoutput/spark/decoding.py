"""Messages in any DataFrame, decoded where they lie: from Kafka, from files, out of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
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

from pgoutput._index import scatter
from pgoutput.errors import DecodeError
from pgoutput.messages import Streaming
from pgoutput.stream import StreamDecoder
from pgoutput.views import (
    CONTEXT_TAGS,
    DECODED,
    Key,
    KeyColumns,
    UnorderedDecoder,
    build_timeline,
    decoded_batch,
    format_key,
    key_at,
)

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
"""Types that Python sorts like Spark."""

Order: TypeAlias = str | Column | Sequence[str | Column]


class DecoderOptions(NamedTuple):
    """What tells how a stream's messages are read."""

    proto_version: int
    streaming: Streaming
    two_phase: bool

    def decoder(self) -> StreamDecoder:
        """A new decoder."""
        return StreamDecoder(self.proto_version, streaming=self.streaming, two_phase=self.two_phase)


def decode(
    df: DataFrame,
    column: str | Column,
    *,
    proto_version: int,
    streaming: Streaming = "off",
    two_phase: bool = False,
    order_by: Order,
    mode: str = "PERMISSIVE",
    context: DataFrame | None = None,
) -> DataFrame:
    """Decode the pgoutput messages in a column.

    The rows are the messages of one stream, as XLogData carries them or as
    pg_logical_slot_peek_binary_changes gives them, in any order and any partitions. They are read twice: now,
    to find the few messages that the others need (of relations, types, stream blocks), which the driver
    holds; and whenever the result is used, to decode each row by itself, with what holds at its place. In
    both readings `df` has to give the same: cache it, or bound it, as Kafka by `endingOffsets`.

    The result has the columns of `df` as they are, and these:

    - `message`: The message, by `pgoutput.schemas.spark.MESSAGES`.
    - `changes`: What it changes: an array with one element for an insert, update or delete, and one for each
      relation of a truncate; NULL for other messages. The elements have the fields of the view `changes` but
      for those of the commit. So `select("*", inline("changes"))` gives the rows of that view, and those of
      transactions that were never committed.
    - `_corrupt_record`: In the mode PERMISSIVE what is wrong with the message; the record itself is still in
      its column. The setting spark.sql.columnNameOfCorruptRecord names it.

    Rows where `column` is NULL are no messages, and have NULL in all of them.

    Args:
        df: Where the messages are.
        column: The column, of type binary.
        proto_version: The protocol version that the client asked for.
        streaming: The option `streaming` that the client asked for.
        two_phase: Whether messages of two-phase commit are read on a stream of a version that has none: see
            `StreamDecoder`.
        order_by: What puts the messages in the order in which the server sent them: Kafka's `offset`, the
            `position` in a recording, file and line. It must tell all of them apart. LSNs do not: many
            messages share one, and they go back and forth.
        mode: What becomes of rows that are no message of this stream, or change a relation that no message
            before them tells of. As with Spark's own sources: PERMISSIVE keeps them, DROPMALFORMED drops
            them, FAILFAST raises an error when it meets one.
        context: Where to find the messages that the others need, if `df` does not have them all: a DataFrame
            with the same columns, as the table of all that came before a micro-batch. `column` and
            `order_by` are evaluated there too, so they should be names.

    Raises:
        ValueError: An argument cannot be, or `order_by` gives two of those messages the same place.
        TypeError: A column has a type that does not do.

    When the result is used, a PythonException tells of the DecodeError of FAILFAST, and of a ValueError where
    `df` has changed since.
    """
    options = DecoderOptions(proto_version, streaming, two_phase)
    reader = options.decoder()
    if mode.upper() not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
    sources = [df] if context is None else [df, context]
    if any(source.isStreaming for source in sources):
        raise ValueError(
            "decode reads all of a batch DataFrame first, for its relations, and a streaming one has no end: "
            "store the messages and decode what is stored, or decode each batch in foreachBatch with what is "
            "stored as its context, since a batch lacks the Relation messages of those before it"
        )
    place, data = _expressions(column, order_by)
    _see_types(df.select(place, data).schema)
    added = _added_fields(df, mode.upper())
    timeline = build_timeline(_context(df if context is None else context, place, data), reader)

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = UnorderedDecoder(timeline, options.decoder())
        for batch in batches:
            order, messages = batch.columns[-1].flatten()
            keys = _keys(order)
            found = decoder.decode(keys, messages)
            if failfast and found.errors:
                raise _first(found.errors, keys)
            arrays = [*batch.columns[:-1], *decoded_batch(found).columns, _texts(found.errors, len(batch))]
            if drop:
                arrays = [array.filter(arrays[-1].is_null()) for array in arrays]
            yield pa.RecordBatch.from_arrays(arrays[: len(names)], names)

    drop, failfast = mode.upper() == "DROPMALFORMED", mode.upper() == "FAILFAST"
    schema = StructType([*df.schema, *added])
    names = schema.names
    return df.select("*", functions.struct(place, data).alias("_pgoutput")).mapInArrow(convert, schema)


def _expressions(column: str | Column, order_by: Order) -> tuple[Column, Column]:
    """The order, as one struct, and the messages."""
    order = [order_by] if isinstance(order_by, str | Column) else list(order_by)
    if not order:
        raise ValueError("order_by names no column")
    data = functions.col(column) if isinstance(column, str) else column
    places = [functions.col(one) if isinstance(one, str) else one for one in order]
    numbered = [one.alias(f"order_by[{number}]") for number, one in enumerate(places)]
    return functions.struct(*numbered).alias("order"), data.alias("data")


def _see_types(schema: StructType) -> None:
    order, data = schema
    if not isinstance(data.dataType, BinaryType):
        raise TypeError(f"the column of messages is {data.dataType.simpleString()}, not binary")
    for field in _leaves(order):
        if not isinstance(field.dataType, _SORTED):
            raise TypeError(
                f"{field.name} is {field.dataType.simpleString()}, which does not number messages"
            )


def _leaves(field: StructField) -> Iterator[StructField]:
    if isinstance(field.dataType, StructType):
        for inner in field.dataType:
            yield from _leaves(inner)
    else:
        yield field


def _added_fields(df: DataFrame, mode: str) -> list[StructField]:
    """What the result has beside the columns of `df`."""
    added = list(from_arrow_schema(DECODED, prefer_timestamp_ntz=True))
    if mode == "PERMISSIVE":
        name = df.sparkSession.conf.get(_CORRUPT_SETTING, "_corrupt_record")
        added.append(StructField(str(name), StringType()))
    there = {name.lower() for name in df.columns}
    if taken := [field.name for field in added if field.name.lower() in there]:
        raise ValueError(f"the DataFrame has columns of the same name already, rename: {', '.join(taken)}")
    return added


def _context(df: DataFrame, place: Column, data: Column) -> Iterator[tuple[Key, bytes]]:
    """The messages that the others need, with their places."""
    tags = [functions.lit(tag) for tag in CONTEXT_TAGS]
    found = df.where(functions.substring(data, 1, 1).isin(*tags)).select(place, data)
    for batch in found.toArrow().to_batches():
        keys = zip(*(column.to_pylist() for column in _keys(batch.column(0))), strict=True)
        yield from zip(keys, batch.column(1).to_pylist(), strict=True)


def _keys(order: pa.StructArray) -> list[pa.Array]:
    """Where messages stand: all columns of the order."""
    columns = [order]
    while any(pa.types.is_struct(column.type) for column in columns):
        columns = [
            field
            for column in columns
            for field in (column.flatten() if pa.types.is_struct(column.type) else [column])
        ]
    return list(map(_comparable, columns))


def _comparable(column: pa.Array) -> pa.Array:
    """Values that compare as Spark's do; times as numbers, which need no time zone."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _first(errors: Mapping[int, DecodeError], keys: KeyColumns) -> DecodeError:
    """The first of the errors, which tells the place."""
    row = min(errors)
    text = f"the message at {format_key(key_at(keys, row))}: {errors[row]}"
    return DecodeError(text, message=errors[row].message, field=errors[row].field, offset=errors[row].offset)


def _texts(errors: Mapping[int, DecodeError], rows: int) -> pa.StringArray:
    """What is wrong with each message."""
    places = np.array(list(errors), np.int64)
    return scatter([str(error) for error in errors.values()], places, rows, pa.string())
