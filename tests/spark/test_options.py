"""The columns that a caller wants of a view, without a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pgoutput.segments import record_capture
from pgoutput.spark import PgoutputDataSource
from tests.codec import corpus

TWO = StructType([StructField("operation", StringType()), StructField("position", LongType())])


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("recorded") / "pg18"
    record_capture(corpus.path("pg18_p1"), folder)
    return str(folder)


@pytest.mark.parametrize("view", ["messages", "changes", "table", "schema"])
def test_a_view_has_columns_of_its_own(recording: str, view: str) -> None:
    source = PgoutputDataSource({"path": recording, "view": view, "table": "app.strm"})
    for reader in (source.reader, source.streamReader):
        assert reader(source.schema()) is not None
        with pytest.raises(ValueError, match=rf"the view {view} has columns of its own: leave out \.schema"):
            reader(TWO)


def test_a_table_may_have_other_columns_than_when_it_was_asked_for(recording: str) -> None:
    """The schema of a stream is that of its start."""
    source = PgoutputDataSource({"path": recording, "view": "table", "table": "app.strm"})
    other = PgoutputDataSource({"path": recording, "view": "table", "table": "app.t_def"})
    assert other.schema() != source.schema()
    assert source.streamReader(other.schema()) is not None
