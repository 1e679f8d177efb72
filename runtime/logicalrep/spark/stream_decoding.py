"""Decode the messages of streaming DataFrames, with the earlier messages of each stream in Spark's state.

Rows are packed when they move between Spark's stages: one binary value contains many rows as an Arrow stream.
So no value passes through pandas, which would change integers and timestamps with NULLs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from logicalrep import _roles
from logicalrep.errors import StreamError
from logicalrep.messages import Relation
from logicalrep.spark.decoded_rows import add_decoded, sort_keys
from logicalrep.stream import StreamDecoder, encode_for
from logicalrep.views import CONTEXT_TAGS, Key, UnorderedDecoder, build_stream_context, format_key

_STREAM: Final = "_logicalrep_stream"
"""Name of a temporary column; its value is different in each replication stream."""

_PACKED: Final = pa.schema([(_STREAM, pa.string()), ("data", pa.binary())])
_PACKED_DDL: Final = f"{_STREAM} string, data binary"

_ROWS: Final = 10_000
"""Maximum number of rows in a packed value of the result."""

_OPENS_BLOCK: Final = frozenset(bytes([tag]) for tag in _roles.tags("open_block"))


class _Stream(msgspec.Struct):
    """State of a replication stream after a micro-batch; later messages are decoded with this state."""

    last: list[Any] | None = None
    """Sort key of the last row; None before the first row."""
    context: list[bytes] = []
    """Messages that describe the stream's types and relations, and the Stream Start of an open block."""


def decode_stream(
    rows: DataFrame,
    partitions: Sequence[str | Column],
    make_decoder: Callable[[], StreamDecoder],
    mode: str,
    schema: StructType,
) -> DataFrame:
    """Return a streaming DataFrame with the columns that `decode` adds.

    Args:
        rows: The rows. Their last column is a struct of the sort key (`order`) and the message (`data`).
        partitions: Columns that have different values in different streams; empty for one stream.
        make_decoder: Returns a new decoder.
        mode: The mode of `decode`, in capitals.
        schema: The columns of the result.
    """
    stream = functions.to_json(functions.struct(*partitions)) if partitions else functions.lit("")
    step = partial(_decode_rows, make_decoder, mode, schema.names)
    packed = rows.select(stream.alias(_STREAM), "*").mapInArrow(_pack_streams, _PACKED_DDL)
    decoded = packed.groupBy(_STREAM).applyInPandasWithState(
        step, "data binary", "stream binary", "append", "NoTimeout"
    )
    return decoded.mapInArrow(_unpack_all, schema)


def _pack_streams(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with a row for each replication stream: the rows of the stream, in one binary value."""
    for batch in batches:
        streams, rows = batch.column(0), batch.drop_columns([_STREAM])
        names = pc.unique(streams)
        data = [_pack(rows.filter(pc.equal(streams, name))) for name in names]
        yield pa.record_batch([names, pa.array(data, pa.binary())], schema=_PACKED)


def _pack(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpack_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for data in batch.column(0):
            yield from pa.ipc.open_stream(data.as_buffer())


def _decode_rows(
    make_decoder: Callable[[], StreamDecoder],
    mode: str,
    names: Sequence[str],
    stream: tuple[str],
    frames: Iterable[pd.DataFrame],
    state: GroupState,
) -> Iterator[pd.DataFrame]:
    """Yield the packed rows of one stream with the columns that `decode` adds; update the state."""
    known = msgspec.msgpack.decode(state.get[0], type=_Stream) if state.exists else _Stream()
    packed = [data for frame in frames for data in frame["data"]]
    table = pa.Table.from_batches([batch for data in packed for batch in pa.ipc.open_stream(data)])
    (rows,) = _sorted(table).to_batches()
    order, messages = rows.columns[-1].flatten()
    keys = sort_keys(order)
    sorted_keys: list[Key] = list(zip(*(column.to_pylist() for column in keys), strict=True))
    late = _late_rows(sorted_keys, known.last)
    # Use numbers as keys, because the messages of `known.context` are stored without keys. These messages get
    # the lowest numbers, because they precede the rows.
    first = len(known.context)
    has_key = np.array([None not in key for key in sorted_keys])
    numbers = pa.array(first + np.arange(len(rows)), mask=~has_key)
    on_time = np.ones(len(rows), np.bool_)
    on_time[list(late)] = False
    messages = pc.if_else(on_time, messages, None)
    context = [((number,), data) for number, data in enumerate(known.context)]
    is_context = pc.is_in(pc.binary_slice(messages, 0, 1), pa.array(CONTEXT_TAGS, messages.type))
    found = np.flatnonzero(pc.and_(is_context, has_key).fill_null(False)).tolist()
    context += [((first + row,), messages[row].as_py()) for row in found]
    decoder = make_decoder()
    stream_context = build_stream_context(context, decoder)
    placed = UnorderedDecoder(stream_context, make_decoder())
    decoded = placed.decode([numbers], messages)
    decoded = msgspec.structs.replace(decoded, errors={**decoded.errors, **late})
    result = add_decoded(rows.drop_columns(rows.schema.names[-1:]), keys, decoded, mode, names)
    ends = [list(key) for key in sorted_keys if None not in key]
    last = max([*ends, *([] if known.last is None else [known.last])], default=None)
    relations = stream_context.latest_relations()
    state.update((msgspec.msgpack.encode(_Stream(last, _stored(decoder, relations, context))),))
    for begin in range(0, len(result), _ROWS):
        yield pd.DataFrame({"data": [_pack(result.slice(begin, _ROWS))]})


def _sorted(table: pa.Table) -> pa.Table:
    """Return the rows in the order of the stream; rows whose sort key has a NULL come last."""
    order, _ = table.combine_chunks().to_batches()[0].columns[-1].flatten()
    keys = sort_keys(order)
    names = [str(number) for number in range(len(keys))]
    indices = pc.sort_indices(pa.table(keys, names), [(name, "ascending") for name in names])
    return table.take(indices).combine_chunks()


def _late_rows(keys: Sequence[Key], last: Sequence[Any] | None) -> dict[int, StreamError]:
    """Return an error for each late or repeated row, by row number.

    Such a row has a sort key that is not greater than `last`, or not greater than the key of an earlier row.
    Keys with a NULL are not checked.

    Args:
        keys: Sort keys of the rows.
        last: Sort key of the last row that was decoded before; None if there is none.
    """
    errors: dict[int, StreamError] = {}
    before = None if last is None else tuple(last)
    for row, key in enumerate(keys):
        if None in key:
            continue
        if before is not None and key <= before:
            errors[row] = StreamError(
                f"the row at {format_key(key)} is late or repeated: rows up to {format_key(before)} were "
                "decoded already"
            )
        else:
            before = key
    return errors


def _stored(
    decoder: StreamDecoder, relations: Iterable[Relation], context: Sequence[tuple[Key, bytes]]
) -> list[bytes]:
    """Return the messages that give a new decoder the state of `decoder`.

    Args:
        decoder: A decoder that has decoded the messages of `context`.
        relations: The relations that are valid after `context`. Their columns have base types in place of
            domains, so that a later Type message cannot change the types.
        context: The messages on which the decoding of other messages depends, each with its sort key, in
            order.
    """
    types = [msgspec.structs.replace(message, xid=None) for message in decoder.types.values()]
    stored = [encode_for(message, decoder.proto_version) for message in (*types, *relations)]
    if decoder.in_stream:
        stored.append(next(data for _, data in reversed(context) if data[:1] in _OPENS_BLOCK))
    return stored
