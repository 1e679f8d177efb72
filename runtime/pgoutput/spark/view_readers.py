"""How each view of a recording is planned by the driver and read by the tasks."""

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
    """What `option` gave."""

    path: str
    view: str = "changes"
    table: str | None = None
    max_files: int | None = None


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of the data source.

    Raises:
        ValueError: One is missing, or is not what it can be.
    """
    path, view, table = given.get("path"), given.get("view", "changes"), given.get("table")
    files = given.get("maxFilesPerTrigger")
    if not path:
        raise ValueError("the option path is missing: the folder of a recording")
    if view not in VIEW_READERS:
        raise ValueError(f"the option view is one of {', '.join(VIEW_READERS)}, not {view!r}")
    if view == "table" and not table:
        raise ValueError("the view table needs the option table: which, as public.orders")
    if files is not None and not (files.isdecimal() and int(files)):
        raise ValueError(f"the option maxFilesPerTrigger is a number of segments, 1 or more, not {files!r}")
    return SourceOptions(path, view, table, None if files is None else int(files))


class ViewReader(ABC):
    """A view of a recording.

    Args:
        options: Which.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.filters = Filters()

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Its columns."""

    def has_columns(self, schema: pa.Schema) -> bool:
        """Whether the view can have these columns."""
        return bool(schema.equals(self.schema()))

    @abstractmethod
    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Any]:
        """What there is to read: an item for each task.

        Args:
            recording: The recording.
            numbers: The segments of which the rows are wanted.
        """

    @abstractmethod
    def read(self, item: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of an item of the plan.

        Args:
            item: The item.
            schema: The columns that are wanted.
        """


class OfSegments(ViewReader):
    """A view that reads the messages of segments."""

    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Sequence[Task]]:
        """An item for one or several segments that follow each other; one for each core at least."""
        return group_tasks(self.tasks(recording, numbers), os.cpu_count() or 1)

    def tasks(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Task]:
        """What has to be read of which segments."""
        return plan_changes(recording, numbers, self.filters.lsns)

    def read(self, item: Sequence[Task], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of the segments."""
        for task in item:
            with SegmentReader(task.place) as segment:
                yield from read(segment, self.view(segment, task, schema))

    @abstractmethod
    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """The decode step."""


class Messages(OfSegments):
    """All messages."""

    def schema(self) -> pa.Schema:
        """See `ViewReader`."""
        return MESSAGES

    def tasks(self, recording: Recording, numbers: Sequence[int]) -> Sequence[Task]:
        """All of the segments."""
        return plan_messages(recording, numbers)

    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """See `OfSegments`."""
        return MessagesView(segment)


class Changes(OfSegments):
    """Committed changes."""

    def schema(self) -> pa.Schema:
        """See `ViewReader`."""
        return CHANGES

    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """See `OfSegments`."""
        return ChangesView(segment, task, self.filters.wants)


class TableChanges(OfSegments):
    """Committed changes of one table."""

    def schema(self) -> pa.Schema:
        """All columns that the table has had so far.

        Raises:
            RecordingError: The recording knows no such table.
        """
        recording = Recording(self.options.path)
        schemas = [version.schema for version in schema_versions(recording.metadata(recording.numbers))]
        mine = [schema for schema in schemas if self._is_mine(schema)]
        if not mine:
            names = sorted({_name(schema) for schema in schemas})
            raise RecordingError(
                f"{recording.location}: no table {self.options.table} is in it; "
                + (f"it has {', '.join(names)}" if names else "it has none")
            )
        return table_schema(row_type(mine))

    def has_columns(self, schema: pa.Schema) -> bool:
        """Whether the view can have these columns: the table's may be others than those of now."""
        return bool(schema.names == table_schema(row_type([])).names)

    def view(self, segment: SegmentReader, task: Task, schema: pa.Schema) -> View:
        """See `OfSegments`."""
        return TableView(segment, task, self._wants, schema)

    def _wants(self, schema: RelationSchema) -> bool:
        return self._is_mine(schema) and self.filters.wants(schema)

    def _is_mine(self, schema: RelationSchema) -> bool:
        return _name(schema) == self.options.table


class Schema(ViewReader):
    """The schema versions of all relations. One task reads them: they are in the segments' metadata."""

    def schema(self) -> pa.Schema:
        """See `ViewReader`."""
        return SCHEMA

    def plan(self, recording: Recording, numbers: Sequence[int]) -> Sequence[tuple[int, int]]:
        """One item."""
        return [(numbers[0], numbers[-1])] if numbers else []

    def read(self, item: tuple[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The schema versions that begin in segments, from one to another."""
        recording = Recording(self.options.path)
        first, last = item
        segments = recording.metadata(number for number in recording.numbers if number <= last)
        positions = {version.position for one in segments if one.number >= first for version in one.relations}
        versions = schema_versions(segments)
        yield schema_batch(version for version in versions if version.position in positions)


VIEW_READERS: Final[Mapping[str, type[ViewReader]]] = {
    "messages": Messages,
    "changes": Changes,
    "table": TableChanges,
    "schema": Schema,
}
"""The views, by the option `view`."""


def _name(schema: RelationSchema) -> str:
    return f"{schema.namespace}.{schema.name}"
