"""Column functions for DataFrames with messages, as `from_avro` and `to_avro` are for Avro."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession, functions
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from logicalrep._index import MessageIndex, index_messages, message_columns, scatter, tag_mask
from logicalrep._message_rows import TYPE, from_row
from logicalrep._roles import ROLES
from logicalrep.errors import DecodeError, EncodeError, StreamError
from logicalrep.schemas import arrow as schemas
from logicalrep.stream import StreamDecoder, encode_for

_arrow_udf: Final[Any] = arrow_udf  # Any, because arrow_udf's annotations lack struct types

_MODES: Final = "PERMISSIVE", "FAILFAST"

_IS_BLOCK_BORDER: Final = tag_mask("open_block", "close_block")

_TAGS: Final = {kind.__name__: ord(kind.wire_tag) for kind in ROLES}
"""Tag of each message class of the output plugin, by name."""

_CORRUPT: Final = pa.field("_corrupt_record", pa.string())
"""The field with the error of an invalid message."""


def from_pgoutput(
    data: str | Column,
    *,
    proto_version: int,
    message: str | None = None,
    two_phase: bool = False,
    mode: str = "PERMISSIVE",
) -> Column:
    """Decode messages to structs. Each message is decoded alone, so the rows need no order.

    The fields of a struct are those of `logicalrep.schemas.spark.MESSAGES`, or of `BY_MESSAGE[message]` if
    only messages of one class are wanted; other messages are then NULL. In mode PERMISSIVE, the last field is
    `_corrupt_record`: the error of an invalid message, whose other fields are NULL. NULL gives NULL.

    The option `streaming` of the replication stream must be `off`, because a message inside a stream block
    cannot be decoded without the messages before it. `decode` decodes such streams, and also gives the values
    of rows by column name.

    Args:
        data: The column with the messages, of type binary.
        proto_version: The option `proto_version` of the replication stream.
        message: Name of a message class, such as `Insert`; None for all messages.
        two_phase: Whether to accept messages of two-phase commit in a protocol version that lacks them (see
            `StreamDecoder`).
        mode: What to do with an invalid message: PERMISSIVE or FAILFAST, which raises an error.

    Raises:
        ValueError: An argument is invalid.

    An action on the result raises a PythonException that contains the DecodeError of FAILFAST, or a TypeError
    if the column is not binary.
    """
    column: Column = _decoder(proto_version, message, two_phase, mode)(data)
    return column


def to_pgoutput(struct: str | Column, *, proto_version: int, message: str | None = None) -> Column:
    """Return structs encoded as messages: the inverse of `from_pgoutput`.

    NULL gives NULL, and so does a struct whose field `type` is NULL, such as that of an invalid message.

    Args:
        struct: A column of structs with fields of `logicalrep.schemas.spark.MESSAGES`. A field may be missing
            if the message does not need it.
        proto_version: Protocol version of the encoded messages.
        message: Name of the message class, if the structs have no field `type`.

    Raises:
        ValueError: There is no such message class or protocol version.

    An action on the result raises a PythonException that contains the EncodeError of a struct that is no
    message.
    """
    column: Column = _encoder(proto_version, message)(struct)
    return column


def lsn_text(lsn: str | Column) -> Column:
    """Return LSNs as PostgreSQL writes them, such as `16/B374D848`; NULL for NULL.

    Args:
        lsn: A column of type long, such as `end_lsn`.
    """
    column = functions.col(lsn) if isinstance(lsn, str) else lsn
    high, low = functions.shiftrightunsigned(column, 32), column.bitwiseAND(functions.lit(0xFFFFFFFF))
    return functions.concat(functions.hex(high), functions.lit("/"), functions.hex(low))


def register_functions(
    session: SparkSession, *, proto_version: int, two_phase: bool = False, mode: str = "PERMISSIVE"
) -> None:
    """Make `from_pgoutput(binary)`, `to_pgoutput(struct)` and `lsn_text(bigint)` known to Spark SQL.

    Args:
        session: The session whose SQL gets the functions.
        proto_version: Protocol version of the messages.
        two_phase: As in `from_pgoutput`.
        mode: As in `from_pgoutput`.

    Raises:
        ValueError: An argument is invalid.
    """
    session.udf.register("from_pgoutput", _decoder(proto_version, None, two_phase, mode))
    session.udf.register("to_pgoutput", _encoder(proto_version, None))
    text = "concat(hex(shiftrightunsigned(lsn, 32)), '/', hex(lsn & 4294967295))"
    session.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION lsn_text(lsn BIGINT) RETURNS STRING RETURN {text}")


def _decoder(proto_version: int, message: str | None, two_phase: bool, mode: str) -> Any:
    """Return the function behind `from_pgoutput`, as a user-defined function of Spark."""
    StreamDecoder(proto_version, two_phase=two_phase)  # refuses unknown versions
    if mode.upper() not in _MODES:
        raise ValueError(f"the argument `mode` must be one of {', '.join(_MODES)}, not {mode!r}")
    _check_name(message)
    read = schemas.BY_MESSAGE[message] if message else schemas.MESSAGES
    is_permissive = mode.upper() == "PERMISSIVE"
    returned = pa.schema([*read, _CORRUPT]) if is_permissive else read

    def decode(data: pa.Array) -> pa.Array:
        if not (pa.types.is_binary(data.type) or pa.types.is_large_binary(data.type)):
            raise TypeError(f"from_pgoutput: expected a column of type binary, found {data.type}")
        index, errors = _index(data, StreamDecoder(proto_version, two_phase=two_phase))
        if errors and not is_permissive:
            raise errors[min(errors)]
        missing = index.tags != _TAGS[message] if message else index.tags == 0
        columns = message_columns(index, read)
        if is_permissive:
            rows = np.array(sorted(errors), np.int64)
            missing[rows] = False
            columns.append(scatter([str(errors[row]) for row in rows.tolist()], rows, len(data), pa.string()))
        return pa.StructArray.from_arrays(columns, fields=list(returned), mask=pa.array(missing))

    return _arrow_udf(decode, from_arrow_schema(returned))


def _index(data: pa.Array, decoder: StreamDecoder) -> tuple[MessageIndex, dict[int, DecodeError]]:
    """Return a `MessageIndex` of the messages, and by row number the error of each invalid message.

    All messages count as being outside stream blocks; therefore Stream Start and Stream Stop are invalid.
    """
    outside = np.zeros(len(data), np.bool_)
    index = index_messages(data, decoder, outside)
    errors: dict[int, DecodeError] = dict(index.errors)
    borders = np.flatnonzero(_IS_BLOCK_BORDER[index.tags])
    if len(borders):
        for row, message in zip(borders.tolist(), index.messages(borders.tolist()), strict=True):
            errors[row] = StreamError.at(
                message, "from_pgoutput cannot decode stream blocks: use logicalrep.spark.decode"
            )
        others = np.ones(len(data), np.bool_)
        others[borders] = False
        index = index_messages(pc.if_else(others, data, None), decoder, outside)
    return index, errors


def _encoder(proto_version: int, message: str | None) -> Any:
    """Return the function behind `to_pgoutput`, as a user-defined function of Spark."""
    StreamDecoder(proto_version)  # refuses unknown versions
    _check_name(message)

    def encode(structs: pa.Array) -> pa.Array:
        if message is None and structs.type.get_field_index(TYPE) < 0:
            raise EncodeError(
                "the structs have no field `type`: pass the argument `message` to to_pgoutput", field=TYPE
            )
        rows = structs.to_pylist()
        if message is not None:
            rows = [None if row is None else {**row, TYPE: message} for row in rows]
        encoded = [
            None if row is None or row[TYPE] is None else encode_for(from_row(row), proto_version)
            for row in rows
        ]
        return pa.array(encoded, pa.binary())

    return _arrow_udf(encode, "binary")


def _check_name(message: str | None) -> None:
    if message is not None and message not in _TAGS:
        raise ValueError(f"there is no message {message!r}; the messages are {', '.join(_TAGS)}")
