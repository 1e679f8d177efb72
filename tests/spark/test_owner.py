"""A streaming query refuses changes of a second recording; tested without a Spark session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgoutput.errors import ReplicaError
from pgoutput.spark import replication
from pgoutput.spark.tables import TablesWriter

_EMPTY = '{"segment": 0, "recording": ""}'


def test_a_second_recording_that_begins_later_is_refused(tmp_path: Path) -> None:
    """The query reads a union of two recordings, one of which has no segments in the first micro-batch."""
    checkpoint, done = tmp_path / "checkpoint", []
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"query"}')
    run = replication._BatchFunction(
        str(tmp_path / "target"),
        "tables",
        str(checkpoint),
        cast(TablesWriter, lambda rows, batch, owner: done.append(batch.number)),
    )
    rows: Any = SimpleNamespace(sparkSession=None)
    for batch, other in enumerate([_EMPTY, '{"segment": 1, "recording": "two"}']):
        offsets = ["v1", '{"batchWatermarkMs":0}', f'{{"segment": {batch + 1}, "recording": "one"}}', other]
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(offsets))
        if batch:
            with pytest.raises(ReplicaError, match="the changes come from several sources"):
                run(rows, batch)
        else:
            run(rows, batch)
    assert done == [0]
