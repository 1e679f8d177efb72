"""Readers of the views of a recording: the driver plans Spark partitions, and Spark tasks read them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from pgoutput.errors import RecordingError
from pgoutput.recording import Recording, SegmentReader
from pgoutput.spark.filters import Filters
from pgoutput.views import (
    CHANGES,
    MESSAGES,
    SCHEMA,
    ChangesView,
    MessagesView,
    RelationSchema,
    TableView,
    Task,
    View,
    group_tasks,
    plan_changes,
    plan_messages,
    read,
    row_type,
    schema_batch,
    schema_versions,
    table_schema,
)


class SourceOptions(msgspec.Struct, frozen=True):
    """The read options of the data source `pgoutput`."""

    path: str
    """Path or URI of the recording, or of one segment."""
    view: str = "changes"
    """Name of the view to read: "messages", "changes", "table" or "schema"."""
    table: str | None = None
    """Qualified name of the table to read with the view "table"; None if the option is not set."""
    max_files: int | None = None
    """Maximum number of segments in a micro-batch; None for no limit."""


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the read options of the data source `pgoutput`.

    Raises:
        ValueError: An option is missing or has an invalid value.
    """
    path, view, table = options.get("path"), options.get("view", "changes"), options.get("table")
    files = options.get("maxFilesPerTrigger")
    if not path:
        raise ValueError("the option path is missing: the folder of a recording")
    if view not in VIEW_READERS:
        raise ValueError(f"the option view is one of {', '.join(VIEW_READERS)}, not {view!r}")
    if view == "table" and not table:
        raise ValueError("the view table needs the option table: the name of a table, such as public.orders")
    if files is not None and not (files.isdecimal() and int(files)):
        raise ValueError(f"the option maxFilesPerTrigger is a number of segments, 1 or more, not {files!r}")
    return SourceOptions(path, view, table, None if files is None else int(files))


class ViewReader(ABC):
    """A reader of one view of a recording.

    Args:
        options: The read options of the data source `pgoutput`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.filters: Filters = Filters()

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns of the view as an Arrow schema."""

    def accepts_schema(self, schema: pa.Schema) -> bool:
        """Return whether `schema` is equal to the schema of the view."""
        return bool(schema.equals(self.schema()))

    @abstractmethod
    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Any]:
        """Plan Spark partitions; return for each a value, which Spark passes to `read` in an executor.

        Args:
            recording: The recording to read.
            numbers: Numbers of the segments whose rows are read.
        """

    @abstractmethod
    def read(self, partition: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a Spark partition.

        Args:
            partition: The value of the partition, as returned by `plan`.
            schema: The columns of the rows to return.
        """


class SegmentViewReader(ViewReader):
    """A reader of a view whose rows are derived from the messages in segments."""

    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Sequence[Task]]:
        """Plan Spark partitions; return for each the list of the tasks that read its segments.

        A Spark partition is one segment or several consecutive segments. If there are enough segments, there
        is at least one Spark partition for each core.
        """
        return group_tasks(self.tasks(recording, numbers), os.cpu_count() or 1)

    def tasks(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Task]:
        """Return the tasks that read the rows of the segments with these numbers."""
        return plan_changes(recording, numbers, self.filters.lsns)

    def read(self, partition: Sequence[Task], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a Spark partition.

        Args:
            partition: The tasks of the Spark partition, as returned by `plan`.
            schema: The columns of the rows to return.
        """
        for task in partition:
            with SegmentReader(task.place) as segment:
                yield from read(segment, self.view(segment, task, schema))

    @abstractmethod
    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """Return the view that converts the messages of one segment to rows."""


class MessagesReader(SegmentViewReader):
    """A reader of the view `messages`: all messages of a recording."""

    def schema(self) -> pa.Schema:
        """Return the columns of the view `messages`."""
        return MESSAGES

    def tasks(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Task]:
        """Return one task for each segment, which reads all messages of the segment."""
        return plan_messages(recording, numbers)

    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """Return the view `messages` of one segment."""
        return MessagesView(segment)


class ChangesReader(SegmentViewReader):
    """A reader of the view `changes`: the committed changes of all tables."""

    def schema(self) -> pa.Schema:
        """Return the columns of the view `changes`."""
        return CHANGES

    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """Return the view `changes` of one segment."""
        return ChangesView(segment, task, self.filters.selects_relation)


class TableReader(SegmentViewReader):
    """A reader of the view `table`: the committed changes of one table, with the columns of the table."""

    def schema(self) -> pa.Schema:
        """Return the columns of the view `table`, with all columns that the table has had so far.

        Raises:
            RecordingError: The recording has no table with this name.
        """
        recording = Recording(self.options.path)
        shapes = [version.schema for version in schema_versions(recording.metadata(recording.numbers))]
        matching = [shape for shape in shapes if self._is_table(shape)]
        if not matching:
            names = sorted({_qualified_name(shape) for shape in shapes})
            raise RecordingError(
                f"{recording.location}: the recording has no table {self.options.table}; "
                + (f"it has {', '.join(names)}" if names else "it has no tables")
            )
        return table_schema(row_type(matching))

    def accepts_schema(self, schema: pa.Schema) -> bool:
        """Return whether `schema` has the column names of the view `table`.

        The types of `before` and `after` are not compared, since the table may have other columns by now.
        """
        return bool(schema.names == table_schema(row_type([])).names)

    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """Return the view `table` of one segment."""
        return TableView(segment, task, self._is_selected, schema)

    def _is_selected(self, shape: RelationSchema) -> bool:
        return self._is_table(shape) and self.filters.selects_relation(shape)

    def _is_table(self, shape: RelationSchema) -> bool:
        return _qualified_name(shape) == self.options.table


class SchemaReader(ViewReader):
    """A reader of the view `schema`: the schema versions of all relations.

    There is one Spark partition, because all rows come from the metadata of the segments.
    """

    def schema(self) -> pa.Schema:
        """Return the columns of the view `schema`."""
        return SCHEMA

    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Return one Spark partition: the first and the last segment number; empty without segments."""
        return [(numbers[0], numbers[-1])] if numbers else []

    def read(self, partition: tuple[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the schema versions that begin in a range of segments, as rows of the view `schema`.

        Args:
            partition: Numbers of the first and the last segment.
            schema: The columns of the rows to return.
        """
        recording = Recording(self.options.path)
        first, last = partition
        segments = recording.metadata(number for number in recording.numbers if number <= last)
        positions = {version.position for one in segments if one.number >= first for version in one.relations}
        versions = schema_versions(segments)
        yield schema_batch(version for version in versions if version.position in positions)


VIEW_READERS: Final[Mapping[str, type[ViewReader]]] = {
    "messages": MessagesReader,
    "changes": ChangesReader,
    "table": TableReader,
    "schema": SchemaReader,
}
"""The view reader class for each value of the option `view`."""


def _qualified_name(shape: RelationSchema) -> str:
    return f"{shape.namespace}.{shape.name}"
