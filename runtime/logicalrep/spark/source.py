"""The Spark data source `pgoutput`: reads recordings, in batch and streaming queries, and writes them.

A Spark partition is one segment or several small consecutive segments. The offset of a streaming query is the
number of the last segment that was read, and the UUID of the recording. A checkpoint of another recording
is refused.

Options for reading:

- `path`: The folder of a recording, or one segment, as a path or as a URI of a pyarrow filesystem.
- `view`: `messages`, `changes` (the default), `table` or `schema`: see `logicalrep.views`.
- `table`: For the view `table`, the qualified name of the table, such as `public.orders`. For a renamed
  table, each name selects the changes made while the table had that name.
- `columns`: Names of the columns to read, separated by commas; all columns by default. Spark does not tell a
  Python data source which columns a query needs.
- `maxFilesPerTrigger`: Maximum number of segments in a micro-batch. By default, a micro-batch contains all
  available segments.

The options for writing are described in `logicalrep.spark.writer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial
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

from logicalrep.errors import RecordingError
from logicalrep.recording import Recording
from logicalrep.spark.filters import PushFilters
from logicalrep.spark.view_reader import ViewReader, parse_options
from logicalrep.spark.write_plan import describe_table, plan_segments
from logicalrep.spark.writer import RecordingWriter


class LogicalrepDataSource(DataSource):
    """The Spark data source `pgoutput`, which reads and writes recordings.

    Registration with `spark.dataSource.register(LogicalrepDataSource)` is possible, but not needed: Spark
    finds the format `pgoutput` in the installed module `pyspark_logicalrep`.

    Raises:
        ValueError: An option is missing or has an invalid value.
        RecordingError: A recording cannot be read.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source: "pgoutput". Spark's method `format` accepts this name."""
        return "pgoutput"

    def schema(self) -> StructType:
        """Return the columns of the view that the options select."""
        return from_arrow_schema(self._view_reader().schema(), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for batch queries, of the view that the options select."""
        return _BatchReader(self._view_reader(), self._check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for streaming queries, of the view that the options select."""
        return _StreamReader(self._view_reader(), self._check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that stores the rows of a DataFrame in a recording, as changes of one table."""
        table = describe_table(self.options, to_arrow_schema(schema, timezone="UTC"))
        return RecordingWriter(
            *plan_segments(self._options.path, table, overwrite=overwrite), overwrite=overwrite
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse to write a streaming query; use `foreachBatch` and write each micro-batch as a DataFrame.

        Raises:
            ValueError: Always.
        """
        raise ValueError("logicalrep cannot write a stream: in foreachBatch, append each batch with df.write")

    def _view_reader(self) -> ViewReader:
        return ViewReader(self._options)

    def _check_schema(self, schema: StructType) -> pa.Schema:
        """Convert a Spark schema to Arrow; raise ValueError if the selected view has other columns."""
        arrow_schema = to_arrow_schema(schema, timezone="UTC")
        if not self._view_reader().accepts_schema(arrow_schema):
            raise ValueError(
                f"the view `{self._options.view}` has other columns than the given schema: "
                "leave out .schema(…)"
            )
        return arrow_schema


class _Reader:
    """The base class of the readers for batch queries and for streaming queries.

    Args:
        view_reader: The reader of the view that the options select.
        schema: The columns of the rows to return.
    """

    def __init__(self, view_reader: ViewReader, schema: pa.Schema) -> None:
        self._view_reader = view_reader
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a Spark partition as Arrow batches."""
        if partition.value is not None:  # if there are no partitions, Spark passes one with the value None
            yield from self._view_reader.read(partition.value, self._schema)


class _BatchReader(_Reader, DataSourceReader):
    """The data source's reader for batch queries."""

    def __init__(self, view_reader: ViewReader, schema: pa.Schema) -> None:
        super().__init__(view_reader, schema)
        self.pushFilters = PushFilters(partial(setattr, view_reader, "filters"))  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        recording = Recording(self._view_reader.options.path)
        recording.check()
        return self._view_reader.plan(recording, recording.numbers)


_Offset: TypeAlias = dict[str, Any]
"""An offset of a streaming query: number of the last segment that was read, and UUID of the recording.

The UUID is empty while the recording has no segments.
"""


class _StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The data source's reader for streaming queries."""

    def __init__(self, view_reader: ViewReader, schema: pa.Schema) -> None:
        super().__init__(view_reader, schema)
        self._recording = Recording(view_reader.options.path, may_be_empty=True)
        self._identity = self._recording.identity
        self._last_available: int | None = None

    def initialOffset(self) -> _Offset:
        return self._offset(0)

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        last = self._last_segment() if self._last_available is None else self._last_available
        if last:
            _check_recording(self._recording, self._identity, start)
        if last < start["segment"]:
            raise RecordingError(
                f"{self._recording.location}: the checkpoint has read segment {start['segment']}, but the "
                f"last segment here is {last or 'none'}: new segments would be skipped. Put the missing "
                "segments back, or begin anew with a new checkpoint and a new output"
            )
        if last == start["segment"]:
            return start
        self._recording.check_not_pruned(start["segment"] + 1)
        if isinstance(limit, ReadMaxFiles):
            last = min(last, start["segment"] + limit.max_files)
        return self._offset(last)

    def getDefaultReadLimit(self) -> ReadLimit:
        files = self._view_reader.options.max_files
        return ReadAllAvailable() if files is None else ReadMaxFiles(files)

    def reportLatestOffset(self) -> _Offset:
        return self._offset(self._last_segment())

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_available = self._last_segment()

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        recording = Recording(
            self._view_reader.options.path
        )  # not self._recording, whose cached metadata may be out of date
        for offset in (start, end):
            _check_recording(recording, recording.identity, offset)
        numbers = range(start["segment"] + 1, end["segment"] + 1)
        if numbers:
            recording.check_not_pruned(numbers[0])
        available = {*recording.numbers}
        missing = [number for number in numbers if number not in available]
        if missing:
            raise RecordingError(
                f"{recording.location}: segment {missing[0]} is missing, and this query has not read it. Put "
                "the segment back, or begin anew with a new checkpoint and a new output"
            )
        recording.check([number for number in (start["segment"], *numbers) if number in available])
        return self._view_reader.plan(recording, numbers)

    def _offset(self, segment: int) -> _Offset:
        return {"segment": segment, "recording": self._identity}

    def _last_segment(self) -> int:
        self._recording.refresh()
        self._identity = self._identity or self._recording.identity
        return max(self._recording.numbers, default=0)


def _check_recording(recording: Recording, identity: str, offset: Mapping[str, Any]) -> None:
    """Raise RecordingError if a checkpoint's offset is not of the recording with the UUID `identity`."""
    known = offset.get("recording") or "without a UUID"
    if offset["segment"] and known != identity:
        raise RecordingError(
            f"{recording.location}: this is recording {identity}, but the checkpoint belongs to recording "
            f"{known}. Read that recording, or begin anew with a new checkpoint and a new output"
        )
