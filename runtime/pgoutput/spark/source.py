"""The data source `pgoutput`: recordings as batch and streaming DataFrames, and DataFrames as recordings.

A segment is read with no other; a partition is one, or several small ones. The offset of a stream is the
number of a segment, up to which all has been read, and the UUID of the recording: a checkpoint of another
recording is refused.

Options:

- `path`: The folder of a recording, or one segment: a path, or a URI as pyarrow's filesystems take it.
- `view`: `messages`, `changes` (the default), `table` or `schema`: see `pgoutput.views`.
- `table`: For the view `table`: which, as `public.orders`. A table that was renamed has both names, each for
  the time when it was called so.
- `maxFilesPerTrigger`: How many segments a micro-batch takes at most; else all that are there.

Those of writing are in `pgoutput.spark.writer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pgoutput.errors import RecordingError
from pgoutput.recording import Recording
from pgoutput.spark.filters import Filters, PushFilters
from pgoutput.spark.target import find_place, read_target
from pgoutput.spark.view_readers import VIEW_READERS, ViewReader, read_options
from pgoutput.spark.writer import RecordingWriter


class PgoutputDataSource(DataSource):
    """Recordings of PostgreSQL's logical replication.

    Raises:
        ValueError: An option is missing, or is not what it can be.
        RecordingError: A recording cannot be read.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = read_options(options)

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "pgoutput"

    def schema(self) -> StructType:
        """The columns of the view."""
        return from_arrow_schema(self._reading().schema(), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there."""
        return _BatchReader(self._reading(), self._wanted(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads what is there and what comes."""
        return _StreamReader(self._reading(), self._wanted(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes rows of one table."""
        target = read_target(self.options, to_arrow_schema(schema, timezone="UTC"))
        return RecordingWriter(
            *find_place(self._options.path, target, overwrite=overwrite), overwrite=overwrite
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """There is none.

        Raises:
            ValueError: Always: it says what there is instead.
        """
        raise ValueError("pgoutput writes batches only: append each in foreachBatch, with df.write")

    def _reading(self) -> ViewReader:
        return VIEW_READERS[self._options.view](self._options)

    def _wanted(self, schema: StructType) -> pa.Schema:
        wanted = to_arrow_schema(schema, timezone="UTC")
        if not self._reading().has_columns(wanted):
            raise ValueError(f"the view {self._options.view} has columns of its own: leave out .schema(…)")
        return wanted


class _Reader:
    """What both readers have in common.

    Args:
        reading: The view.
        schema: The columns that are wanted.
    """

    def __init__(self, reading: ViewReader, schema: pa.Schema) -> None:
        self._reading = reading
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if partition.value is not None:  # as it is where there are no partitions
            yield from self._reading.read(partition.value, self._schema)

    def _partitions(self, recording: Recording, numbers: Sequence[int]) -> list[InputPartition]:
        return [InputPartition(item) for item in self._reading.plan(recording, numbers)]


class _BatchReader(_Reader, DataSourceReader):
    def __init__(self, reading: ViewReader, schema: pa.Schema) -> None:
        super().__init__(reading, schema)
        self.pushFilters = PushFilters(self._push)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        recording = Recording(self._reading.options.path)
        recording.check()
        return self._partitions(recording, recording.numbers)

    def _push(self, filters: Filters) -> None:
        self._reading.filters = filters


_Offset: TypeAlias = dict[str, Any]
"""Number of a segment, and the UUID of its recording; empty while the recording has no segments."""


class _StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: ViewReader, schema: pa.Schema) -> None:
        super().__init__(reading, schema)
        self._recording = Recording(reading.options.path, may_be_empty=True)
        self._identity = self._recording.identity
        self._last: int | None = None

    def initialOffset(self) -> _Offset:
        return {"segment": 0, "recording": self._identity}

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        last = self._latest() if self._last is None else self._last
        if last:
            _require_same(self._recording, self._identity, start)
        if last < start["segment"]:
            raise RecordingError(
                f"{self._recording.location}: the checkpoint has read segment {start['segment']}, but the "
                f"last one that is here is {last or 'none'}: what is recorded next would be skipped. Put the "
                "segments back, or begin anew with a new target and a new checkpoint"
            )
        if not last:
            return start
        if isinstance(limit, ReadMaxFiles):
            last = min(last, start["segment"] + limit.max_files)
        return {"segment": last, "recording": self._identity}

    def getDefaultReadLimit(self) -> ReadLimit:
        files = self._reading.options.max_files
        return ReadAllAvailable() if files is None else ReadMaxFiles(files)

    def reportLatestOffset(self) -> _Offset:
        return {"segment": self._latest(), "recording": self._identity}

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._latest()

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        recording = Recording(self._reading.options.path)  # anew: it remembers what it read
        for offset in (start, end):
            _require_same(recording, recording.identity, offset)
        numbers = range(start["segment"] + 1, end["segment"] + 1)
        there = {*recording.numbers}
        missing = [number for number in numbers if number not in there]
        if missing:
            raise RecordingError(
                f"{recording.location}: segment {missing[0]} is missing, and this query has not read it"
            )
        recording.check([number for number in (start["segment"], *numbers) if number in there])
        return self._partitions(recording, numbers)

    def _latest(self) -> int:
        self._recording.refresh()
        self._identity = self._identity or self._recording.identity
        return max(self._recording.numbers, default=0)


def _require_same(recording: Recording, identity: str, offset: Mapping[str, Any]) -> None:
    """Raise RecordingError if an offset of the checkpoint belongs to another recording."""
    known = offset.get("recording") or "without a UUID"
    if offset["segment"] and known != identity:
        raise RecordingError(
            f"{recording.location}: this is recording {identity}, but the checkpoint belongs to recording "
            f"{known}. Read that recording, or begin anew with a new target and a new checkpoint"
        )
