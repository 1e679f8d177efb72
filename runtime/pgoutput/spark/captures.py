"""Recorded streams as DataFrames. Each is decoded as a whole, by one task, since a stream has an order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from os import PathLike
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pgoutput.captures import Capture, capture_name
from pgoutput.messages import Message, Relation
from pgoutput.reading import Recorded
from pgoutput.schemas import spark
from pgoutput.segments import Segments, is_recording
from pgoutput.spark.rows import message_columns
from pgoutput.values import base_types
from pgoutput.versions import CODECS
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A path, or several."""

BATCH_ROWS: Final = 10_000
"""Rows of an Arrow batch."""

CAPTURED_MESSAGES: Final = StructType(
    [
        StructField(
            "capture", StringType(), False, {"comment": "Name of the file or folder, without suffix."}
        ),
        StructField("position", LongType(), False, {"comment": "Place in it: the order of the stream."}),
        *spark.MESSAGES.fields,
    ]
)
"""One row per message of pgoutput, envelopes taken off."""

CHANGES: Final = StructType(
    [
        StructField(
            "capture", StringType(), False, {"comment": "Name of the file or folder, without suffix."}
        ),
        StructField("sequence", LongType(), False, {"comment": "Running number, in the order of commits."}),
        StructField("xid", LongType(), False, {"comment": "Xid of the top-level transaction."}),
        StructField("commit_lsn", LongType(), False, {"comment": "The LSN of the commit record."}),
        StructField("commit_time", TimestampType(), False, {"comment": "Commit time."}),
        StructField("operation", StringType(), False, {"comment": "Insert, Update, Delete or Truncate."}),
        StructField("relation_oid", LongType(), False, {"comment": "OID of the relation."}),
        StructField("proto_version", IntegerType(), False, {"comment": "Protocol version of the next two."}),
        StructField("relation", BinaryType(), False, {"comment": "The Relation message, with base types."}),
        StructField("change", BinaryType(), False, {"comment": "The message of the change."}),
    ]
)
"""One row per change of committed work; a truncate has one for each of its relations. Messages are encoded as
outside stream blocks."""


def read_messages(session: SparkSession, paths: Paths) -> DataFrame:
    """Every message of some captures, one row each, by the schema `CAPTURED_MESSAGES`.

    Args:
        session: The session that reads.
        paths: The folder of a recording, or capture files: a file, folder or glob, as
            `DataFrameReader.load` takes them, of which what is called `*.jsonl` or `*.jsonl.gz` is read.
            Or several of these.

    Raises:
        ValueError: There are no files, or two of one name.
    """
    return _read(session, paths, _messages, CAPTURED_MESSAGES)


def read_changes(session: SparkSession, paths: Paths) -> DataFrame:
    """The changes of committed transactions, one row each, by the schema `CHANGES`.

    Rolled-back transactions and savepoints leave no rows, nor do transactions that are still open at the
    end of a capture. Arguments are those of `read_messages`.
    """
    return _read(session, paths, _changes, CHANGES)


def _read(
    session: SparkSession,
    paths: Paths,
    rows: Callable[[Recorded], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    def of_captures(files: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in files:
            for path, content in zip(*(column.to_pylist() for column in file.columns), strict=True):
                with Capture(path, content=content) as capture:
                    yield from rows(capture)

    def of_recordings(folders: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in folders:
            for folder in batch["path"].to_pylist():
                with Segments(folder) as segments:
                    yield from rows(segments)

    several = list(map(str, [paths] if isinstance(paths, str | PathLike) else paths))
    folders = [path for path in several if is_recording(path)]
    others = [path for path in several if path not in folders]
    named, frames = list(folders), []
    if folders:
        listed = session.createDataFrame([(folder,) for folder in folders], "path string")
        frames.append(listed.repartition(len(folders), "path").mapInArrow(of_recordings, schema))
    if others:
        reader = session.read.format("binaryFile").option("pathGlobFilter", "*.jsonl*")
        files = reader.load(others).select("path", "content")
        named += [row["path"] for row in files.select("path").collect()]
        frames.append(files.mapInArrow(of_captures, schema))
    _names_differ(named)
    return reduce(DataFrame.unionAll, frames)


def _names_differ(paths: Sequence[str]) -> None:
    if not paths:
        raise ValueError(
            "no segments and no *.jsonl or *.jsonl.gz files are here "
            "(Spark passes over names that begin with _ or .)"
        )
    by_name: dict[str, str] = {}
    for path in paths:
        other = by_name.setdefault(capture_name(path), path)
        if other != path:
            raise ValueError(f"{other} and {path} are captures of one name: read them one by one")


def _messages(capture: Recorded) -> Iterator[pa.RecordBatch]:
    decoded = ((one.record.number, one.message) for one in capture.messages() if one.message is not None)
    for rows in _batched(decoded):
        columns = [
            pa.array([capture.name] * len(rows)),
            pa.array([line for line, _ in rows], pa.int64()),
            *message_columns([message for _, message in rows]),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=CAPTURED_MESSAGES.fieldNames())


def _changes(capture: Recorded) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(CHANGES, timezone="UTC")
    for rows in _batched(_change_rows(capture)):
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _change_rows(capture: Recorded) -> Iterator[tuple[Any, ...]]:
    sequence = 0
    shapes: dict[int, tuple[Relation, bytes]] = {}  # what was encoded last of each OID
    for transaction in capture.transactions():
        version = capture.decoder.proto_version
        commit_time = transaction.commit_time + EPOCH_UNIX_MICROSECONDS
        head = (transaction.xid, transaction.commit_lsn, commit_time)
        for change in transaction.changes:
            operation = type(change.message).__name__
            for relation in change.relations:
                sequence += 1
                known, shape = shapes.get(relation.oid, (None, b""))
                if known is not relation:
                    shape = _encode(base_types(relation, capture.decoder.types), version)
                    shapes[relation.oid] = relation, shape
                what = (operation, relation.oid, version, shape, _encode(change.message, version))
                yield capture.name, sequence, *head, *what


def _encode(message: Message, version: int) -> bytes:
    return CODECS[version].encode(msgspec.structs.replace(message, xid=None))


def _batched(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH_ROWS)):
        yield batch
