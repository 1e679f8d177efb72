"""The segments of a micro-batch, from the checkpoint of its streaming query (Spark's OffsetSeqLog)."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from pyspark.sql import SparkSession

from pgoutput.errors import RecordingError, ReplicaError
from pgoutput.recording import locate


class Offset(msgspec.Struct, frozen=True):
    """An offset of the data source `pgoutput`: how far a query has read."""

    segment: int = 0
    """Number of the last segment that was read; 0 at the beginning of the recording."""
    recording: str = ""
    """UUID of the recording; empty if there are no segments yet or the changes come from another source."""
    path: str = ""
    """Absolute path or URI of the recording."""


class Batch(msgspec.Struct, frozen=True):
    """A micro-batch of a streaming query."""

    number: int
    recording: str
    """UUID of the recording; empty if the changes do not come from a recording."""
    path: str
    """Absolute path or URI of the recording."""
    segments: range
    """Numbers of the segments whose changes are in the micro-batch."""


def read_batch(session: SparkSession, checkpoint: str, number: int) -> Batch:
    """Return the micro-batch with a number, from the checkpoint, where Spark stores it before it begins."""
    before = _read_offset(session, checkpoint, number - 1) if number else Offset()
    end = _read_offset(session, checkpoint, number)
    return Batch(number, end.recording, end.path, range(before.segment + 1, end.segment + 1))


def _read_offset(session: SparkSession, checkpoint: str, batch: int) -> Offset:
    """Return the end offset of a micro-batch, without a UUID if the changes do not come from a recording."""
    recorded = []
    # One line for each source of the query, after the version and the micro-batch's metadata.
    for line in _read_text(session, f"{checkpoint}/offsets/{batch}").splitlines()[2:]:
        with suppress(msgspec.DecodeError):  # the offset of another source
            offset = msgspec.json.decode(line, type=Offset)
            recorded += [offset] if offset.recording else []
    if len(recorded) > 1:
        raise ReplicaError(
            "the changes come from several sources: replicate each recording into a target of its own"
        )
    return recorded[0] if recorded else Offset()


def _read_text(session: SparkSession, path: str) -> str:
    """Return the text of a file; a Spark job reads it if only Hadoop knows its filesystem."""
    try:
        place = locate(path)
        with place.filesystem.open_input_stream(place.path) as stream:
            return bytes(stream.read()).decode()
    except (RecordingError, OSError):
        (row,) = session.read.text(path, wholetext=True).collect()
        return str(row["value"])
