"""Read the checkpoint of a streaming query: the query's ID, and the offsets of its micro-batches."""

from __future__ import annotations

import msgspec
from pyspark.sql import SparkSession

from pgoutput.errors import RecordingError, ReplicaError
from pgoutput.recording import locate
from pgoutput.replica import MissedBatch, Offset, Owner, parse_offsets


class Batch(msgspec.Struct, frozen=True):
    """A micro-batch: its number, and the streaming query that writes it."""

    number: int
    owner: Owner
    checkpoint: str

    def as_missed(self, session: SparkSession) -> MissedBatch:
        """Return a record of this micro-batch, with its segments, for failed tables that have missed it."""
        before = read_offset(session, self.checkpoint, self.number - 1) if self.number else Offset()
        last = read_offset(session, self.checkpoint, self.number).segment
        return MissedBatch(self.number, before.segment + 1, last)


def read_query_id(session: SparkSession, checkpoint: str) -> str:
    """Return Spark's ID of a streaming query from the metadata in its checkpoint (StreamMetadata)."""
    return str(msgspec.json.decode(_read_text(session, f"{checkpoint}/metadata"))["id"])


def read_offset(session: SparkSession, checkpoint: str, batch: int) -> Offset:
    """Return the end offset of a micro-batch, without a UUID if the changes do not come from a recording.

    Spark writes the end offset to the checkpoint before it runs the micro-batch (OffsetSeqLog).
    """
    offsets = parse_offsets(_read_text(session, f"{checkpoint}/offsets/{batch}"))
    recorded = [offset for offset in offsets if offset.recording]
    if len(recorded) > 1:
        raise ReplicaError("the changes come from several streams: replicate each into a target of its own")
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
