"""Schemas and offsets that the data source's readers accept, tested without a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from logicalrep import messages as m
from logicalrep.errors import RecordingError
from logicalrep.recording import list_segments, record_capture_file
from logicalrep.spark import LogicalrepDataSource
from tests.codec import corpus
from tests.recording.recordings import PARALLEL, record

TWO = StructType([StructField("operation", StringType()), StructField("position", LongType())])


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("recorded") / "pg18"
    record_capture_file(corpus.path("pg18_p1"), folder)
    return str(folder)


@pytest.mark.parametrize("view", ["messages", "changes", "table", "schema"])
def test_a_schema_given_by_the_caller_is_refused(recording: str, view: str) -> None:
    source = LogicalrepDataSource({"path": recording, "view": view, "table": "app.strm"})
    for reader in (source.reader, source.streamReader):
        assert reader(source.schema()) is not None
        with pytest.raises(
            ValueError,
            match=rf"the view `{view}` has other columns than the given schema: leave out \.schema",
        ):
            reader(TWO)


def test_a_table_may_have_other_columns_when_a_streaming_query_restarts(recording: str) -> None:
    """A streaming query keeps the schema that the table had when the query was first started."""
    source = LogicalrepDataSource({"path": recording, "view": "table", "table": "app.strm"})
    other = LogicalrepDataSource({"path": recording, "view": "table", "table": "app.t_def"})
    assert other.schema() != source.schema()
    assert source.streamReader(other.schema()) is not None


@pytest.mark.parametrize("last", [0, 1])
def test_a_recording_that_ends_before_the_checkpoint_is_refused(last: int, tmp_path: Path) -> None:
    """In a restored older copy of a recording, new segments get numbers of segments already read."""
    folder = tmp_path / "recording"
    folder.mkdir()
    for number in range(1, 4):
        record(
            folder,
            m.Begin(final_lsn=100 * number, commit_time=1, xid=7),
            m.Commit(commit_lsn=100 * number, end_lsn=100 * number + 10, commit_time=0),
            lsn=100 * number,
        )
    offset = {"segment": 3, "recording": PARALLEL.recording}
    assert latest_offset(folder, offset) == offset
    for segment in list_segments(folder)[last:]:
        segment.unlink()
    with pytest.raises(
        RecordingError, match="the checkpoint has read segment 3, but the last segment here is"
    ):
        latest_offset(folder, offset)


def latest_offset(folder: Path, start: dict[str, Any]) -> dict[str, Any]:
    """Return the latest offset that the data source reports to a streaming query with this start offset."""
    source = LogicalrepDataSource({"path": str(folder)})
    return source.streamReader(source.schema()).latestOffset(start, ReadAllAvailable())
