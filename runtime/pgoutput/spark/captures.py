"""Capture files as DataFrames. A file is decoded as a whole, by one task, since a stream has an order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pgoutput.captures import Capture, capture_name
from pgoutput.messages import Message
from pgoutput.schemas import spark
from pgoutput.spark.rows import message_columns
from pgoutput.stream import Transactions
from pgoutput.values import base_types
from pgoutput.versions import CODECS, LATEST
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

BATCH_ROWS: Final = 10_000
"""Rows of an Arrow batch."""

CAPTURED_MESSAGES: Final = StructType(
    [
        StructField("capture", StringType(), False, {"comment": "Name of the file, without suffix."}),
        StructField("position", LongType(), False, {"comment": "Line in the file: the order of the stream."}),
        *spark.MESSAGES.fields,
    ]
)
"""One row per message of pgoutput, envelopes taken off."""

CHANGES: Final = StructType(
    [
        StructField("capture", StringType(), False, {"comment": "Name of the file, without suffix."}),
        StructField("sequence", LongType(), False, {"comment": "Running number, in the order of commits."}),
        StructField("xid", LongType(), False, {"comment": "Xid of the top-level transaction."}),
        StructField("commit_lsn", LongType(), False, {"comment": "The LSN of the commit record."}),
        StructField("commit_time", TimestampType(), False, {"comment": "Commit time."}),
        StructField("operation", StringType(), False, {"comment": "Insert, Update, Delete or Truncate."}),
        StructField("relation_oid", LongType(), False, {"comment": "OID of the relation."}),
        StructField(
            "relation",
            BinaryType(),
            False,
            {"comment": "Its Relation message, domains as base types."},
        ),
        StructField("change", BinaryType(), False, {"comment": "The message of the change."}),
    ]
)
"""One row per change of committed work; a truncate has one for each of its relations. Messages are encoded
in the newest protocol version, as outside stream blocks."""


def read_messages(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Every message of some captures, one row each, by the schema `CAPTURED_MESSAGES`.

    Args:
        session: The session that reads.
        paths: Files, folders or globs, as `DataFrameReader.load` takes them.

    Raises:
        ValueError: There are no files, or two of one name.
    """
    return _read(session, paths, _messages, CAPTURED_MESSAGES)


def read_changes(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The changes of committed transactions, one row each, by the schema `CHANGES`.

    Rolled-back transactions and savepoints leave no rows, nor do transactions that are still open at the
    end of a capture. Arguments are those of `read_messages`.
    """
    return _read(session, paths, _changes, CHANGES)


def _read(
    session: SparkSession,
    paths: Sequence[str],
    rows: Callable[[Capture], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    def run(files: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in files:
            for path, content in zip(*(column.to_pylist() for column in file.columns), strict=True):
                with Capture(path, content=content) as capture:
                    yield from rows(capture)

    files = session.read.format("binaryFile").load(list(paths)).select("path", "content")
    _names_differ([row["path"] for row in files.select("path").collect()])
    return files.mapInArrow(run, schema)


def _names_differ(paths: Sequence[str]) -> None:
    if not paths:
        raise ValueError("there are no capture files here (Spark passes over names that begin with _ or .)")
    by_name: dict[str, str] = {}
    for path in paths:
        other = by_name.setdefault(capture_name(path), path)
        if other != path:
            raise ValueError(f"{other} and {path} are captures of one name: read them one by one")


def _messages(capture: Capture) -> Iterator[pa.RecordBatch]:
    decoded = ((one.record.line, one.message) for one in capture.messages() if one.message is not None)
    for rows in _batched(decoded):
        columns = [
            pa.array([capture.name] * len(rows)),
            pa.array([line for line, _ in rows], pa.int64()),
            *message_columns([message for _, message in rows]),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=CAPTURED_MESSAGES.fieldNames())


def _changes(capture: Capture) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(CHANGES, timezone="UTC")
    for rows in _batched(_change_rows(capture)):
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _change_rows(capture: Capture) -> Iterator[tuple[Any, ...]]:
    transactions = Transactions(capture.decoder)
    sequence = 0
    for decoded in capture.messages():
        transaction = None if decoded.message is None else transactions.feed(decoded.message)
        if transaction is None:
            continue
        commit_time = transaction.commit_time + EPOCH_UNIX_MICROSECONDS
        head = (transaction.xid, transaction.commit_lsn, commit_time)
        for change in transaction.changes:
            operation = type(change.message).__name__
            for relation in change.relations:
                sequence += 1
                shape = _encode(base_types(relation, capture.decoder.types))
                yield (
                    capture.name,
                    sequence,
                    *head,
                    operation,
                    relation.oid,
                    shape,
                    _encode(change.message),
                )


def _encode(message: Message) -> bytes:
    return CODECS[LATEST].encode(msgspec.structs.replace(message, xid=None))


def _batched(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH_ROWS)):
        yield batch
