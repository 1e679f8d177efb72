"""The checkpoint of a query: how far the micro-batches of a target have been planned and applied.

The files are those of Spark's structured streaming (StreamMetadata, OffsetSeqLog and CommitLog), so that a
query can be resumed with Spark after it has run without, and the other way round: `metadata` has the query's
ID, `offsets/N` the end offset of micro-batch N, written before it is applied, and `commits/N` is written
after it was applied.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, PathOrUri, locate
from pgoutput.replica.small_files import create_file, read_file, remove_file, write_file

CHECKPOINT_FOLDER: Final = "_checkpoint"
"""Name of the checkpoint's folder in a target, unless another location is given."""

_VERSION: Final = "v1"
"""First line of the files in `offsets` and `commits`."""

_RETAINED: Final = 100
"""Number of micro-batches whose files are kept, as spark.sql.streaming.minBatchesToRetain says by default."""


class Offset(msgspec.Struct, frozen=True):
    """An offset of the data source `pgoutput`: how far a query has read."""

    segment: int = 0
    """Number of the last segment that was read; 0 at the beginning of the recording."""
    recording: str = ""
    """UUID of the recording; empty if there are no segments yet or the changes come from another source."""


def parse_offsets(text: str) -> list[Offset]:
    """Return the offsets in a file of the folder `offsets`, one for each source of the query.

    The offset of a source that is not a recording has no UUID.
    """
    offsets = []
    for line in text.splitlines()[2:]:  # after the version, and the micro-batch's metadata
        with suppress(msgspec.DecodeError):  # the offset of another source
            offsets.append(msgspec.json.decode(line, type=Offset))
    return offsets


def applied_offset(target: PathOrUri) -> Offset:
    """Return how far a replica has applied its recording, from the checkpoint in its target.

    Raises:
        ReplicaError: The checkpoint cannot be read, or is that of a query that reads something else.
    """
    return Checkpoint(locate(target) / CHECKPOINT_FOLDER).applied


class Checkpoint:
    """The checkpoint of a query that reads one recording.

    Attributes:
        query: ID of the query; a new one if there is no checkpoint.
        batch: Number of the last planned micro-batch; -1 for none.
        offset: End offset of that micro-batch.
        is_committed: Whether that micro-batch was applied.

    Args:
        location: The folder of the checkpoint.

    Raises:
        ReplicaError: The checkpoint cannot be read, or is that of a query that reads something else.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        stored = self._read_query()
        self.query: str = stored or str(uuid4())
        self._is_stored = bool(stored)
        self.batch: int = max(self._batches("offsets"), default=-1)
        self.offset: Offset = self.end_of(self.batch)
        self.is_committed: bool = self.batch < 0 or self.batch in self._batches("commits")

    def end_of(self, batch: int) -> Offset:
        """Return the end offset of a planned micro-batch; the beginning of the recording for batch -1.

        Raises:
            ReplicaError: The checkpoint cannot be read, or is that of a query that reads something else.
        """
        if batch < 0:
            return Offset()
        file = self._location / "offsets" / str(batch)
        offsets = parse_offsets(read_file(file))
        if len(offsets) != 1 or not offsets[0].recording:
            raise ReplicaError(
                f"{file}: the file does not have the offset of one recording: resume the query as it was "
                "started, or begin anew with a new target and a new checkpoint"
            )
        return offsets[0]

    @property
    def applied(self) -> Offset:
        """End offset of the last micro-batch that was applied; the beginning of the recording for none.

        Raises:
            ReplicaError: The checkpoint cannot be read, or is that of a query that reads something else.
        """
        return self.offset if self.is_committed else self.end_of(self.batch - 1)

    def plan(self, end: Offset) -> None:
        """Store the end offset of the next micro-batch, before it is applied.

        Raises:
            ReplicaError: Another process has planned this micro-batch, or the file cannot be written.
        """
        if not self._is_stored:
            create_file(self._location / "metadata", _to_json({"id": self.query}))
            self._is_stored = True
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
        lines = _VERSION, _to_json(metadata), _to_json(end)
        create_file(self._location / "offsets" / str(self.batch + 1), "\n".join(lines))
        self.batch, self.offset, self.is_committed = self.batch + 1, end, False

    def commit(self) -> None:
        """Store that the planned micro-batch was applied; remove the files of micro-batches long past.

        Raises:
            ReplicaError: A file cannot be written or removed.
        """
        text = f"{_VERSION}\n{_to_json({'nextBatchWatermarkMs': 0})}"
        write_file(self._location / "commits" / str(self.batch), text)
        self.is_committed = True
        for folder in ("offsets", "commits"):
            for name in (old := str(self.batch - _RETAINED), f".{old}.crc"):  # Spark's checksum
                remove_file(self._location / folder / name)

    def _read_query(self) -> str:
        """Return the ID of the query; an empty string if there is no checkpoint."""
        file = self._location / "metadata"
        if not (text := read_file(file)):
            if self._batches("offsets"):
                raise ReplicaError(f"{file}: the file is missing. Put it back, or begin anew")
            return ""
        try:
            return str(msgspec.json.decode(text, type=dict[str, Any])["id"])
        except (msgspec.DecodeError, KeyError) as error:
            raise ReplicaError(f"{file}: {error}. Put the file back, or begin anew") from error

    def _batches(self, folder: str) -> list[int]:
        return [int(name) for name in (self._location / folder).names() if name.isdecimal()]


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
