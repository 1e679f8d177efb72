"""Reader of the views of a recording: the driver plans Spark partitions, and Spark tasks read them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from logicalrep.errors import RecordingError
from logicalrep.recording import Recording, SegmentReader
from logicalrep.spark.filters import Filters
from logicalrep.views import (
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

VIEWS: Final[Mapping[str, pa.Schema | None]] = {
    "messages": MESSAGES,
    "changes": CHANGES,
    "table": None,
    "schema": SCHEMA,
}
"""Columns of each view, by the value of the option `view`; None for columns that depend on the recording."""


class SourceOptions(msgspec.Struct, frozen=True):
    """The read options of the data source `pgoutput`."""

    path: str
    """Path or URI of the recording, or of one segment."""
    view: str = "changes"
    """Name of the view to read: a key of `VIEWS`."""
    table: str | None = None
    """Qualified name of the table to read with the view "table"; None if the option is not set."""
    columns: tuple[str, ...] = ()
    """Names of the columns to return, in this order; all columns if empty."""
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
        raise ValueError("the option `path` is missing: give the folder or URI of a recording")
    if view not in VIEWS:
        raise ValueError(f"the option `view` must be one of {', '.join(VIEWS)}, not {view!r}")
    if view == "table" and not table:
        raise ValueError(
            "the view `table` needs the option `table`: the name of a table, such as public.orders"
        )
    if files is not None and not (files.isdecimal() and int(files)):
        raise ValueError(f"the option `maxFilesPerTrigger` must be an integer of at least 1, not {files!r}")
    columns = tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip())
    return SourceOptions(path, view, table, columns, None if files is None else int(files))


class ViewReader:
    """A reader of the view of a recording that the options select.

    Args:
        options: The read options of the data source `pgoutput`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.filters: Filters = Filters()

    def schema(self) -> pa.Schema:
        """Return the columns to read: for the view `table`, with all columns that the table has had so far.

        Raises:
            RecordingError: The recording has no table with the name in the options.
            ValueError: The view does not have a column that the options select.
        """
        if (schema := VIEWS[self.options.view]) is not None:
            return self._select(schema)
        recording = Recording(self.options.path)
        versions = schema_versions(recording.metadata(recording.numbers), recording.beginning.relations)
        shapes = [version.schema for version in versions]
        matching = [shape for shape in shapes if self._is_table(shape)]
        if not matching:
            names = sorted({shape.qualified_name for shape in shapes})
            raise RecordingError(
                f"{recording.location}: the recording has no table {self.options.table}; "
                + (f"it has {', '.join(names)}" if names else "it has no tables")
            )
        return self._select(table_schema(row_type(matching)))

    def _select(self, schema: pa.Schema) -> pa.Schema:
        """Return those columns of a view that the options select."""
        names = self.options.columns or schema.names
        if unknown := [name for name in names if name not in schema.names]:
            raise ValueError(
                f"the option `columns` names {', '.join(unknown)}, but "
                f"the columns of the view `{self.options.view}` are {', '.join(schema.names)}"
            )
        return pa.schema([schema.field(name) for name in names])

    def accepts_schema(self, schema: pa.Schema) -> bool:
        """Return whether `schema` is equal to the schema of the view.

        For the view `table`, only the names of the view's columns are compared. The types of its columns
        `before` and `after` contain the columns of the table, which may have changed since `schema` was made.
        """
        if self.options.view == "table":
            return bool(schema.names == self._select(table_schema(row_type([]))).names)
        return bool(schema.equals(self.schema()))

    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[InputPartition]:
        """Return the Spark partitions, whose values Spark passes to `read` in the executors.

        A Spark partition is one segment or several consecutive segments. If there are enough segments, there
        is at least one Spark partition for each core. The view `schema` has one Spark partition, because all
        its rows come from the metadata of the segments.

        Args:
            recording: The recording to read.
            numbers: Numbers of the segments whose rows are read.

        Returns:
            Spark partitions. The value of each is a list of `Task` objects, one for each segment to read. For
            the view `schema`, the value is a pair: the numbers of the first and the last segment.
        """
        if self.options.view == "schema":
            return [InputPartition((numbers[0], numbers[-1]))] if numbers else []
        if self.options.view == "messages":
            tasks = plan_messages(recording, numbers)
        else:
            tasks = plan_changes(recording, numbers, self.filters.lsns)
        return [InputPartition(group) for group in group_tasks(tasks, os.cpu_count() or 1)]

    def read(self, partition: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a Spark partition.

        Args:
            partition: The value of the Spark partition that `plan` returned.
            schema: The columns of the rows to return.
        """
        if self.options.view == "schema":
            yield self._read_schema_versions(*partition).select(schema.names)
            return
        for task in partition:
            with SegmentReader(task.place) as segment:
                for rows in read(segment, self._view(segment, task, schema)):
                    yield rows.select(schema.names)

    def _view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """Return the view that converts the messages of one segment to rows."""
        if self.options.view == "messages":
            return MessagesView(segment)
        if self.options.view == "changes":
            return ChangesView(segment, task, self.filters.selects_relation)
        return TableView(segment, task, self._is_selected, schema)

    def _read_schema_versions(self, first: int, last: int) -> pa.RecordBatch:
        """Return the schema versions that begin in a range of segments, as rows of the view `schema`."""
        recording = Recording(self.options.path)
        segments = recording.metadata(number for number in recording.numbers if number <= last)
        earlier = recording.beginning.relations
        positions = {version.position for one in segments if one.number >= first for version in one.relations}
        if first == recording.beginning.segment:
            positions |= {version.position for version in earlier}
        versions = schema_versions(segments, earlier)
        return schema_batch(version for version in versions if version.position in positions)

    def _is_selected(self, shape: RelationSchema) -> bool:
        return self._is_table(shape) and self.filters.selects_relation(shape)

    def _is_table(self, shape: RelationSchema) -> bool:
        return shape.qualified_name == self.options.table
