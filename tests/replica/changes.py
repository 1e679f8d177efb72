"""Rows of `CHANGES`: of real captures, and made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.recording import Recording, SegmentReader
from pgoutput.views import CHANGES, ChangesView, plan_changes, read
from tests.recording.recordings import sent, source, write


def captured_changes(folder: Path, name: str, cut: int | None = None) -> pa.Table:
    """The changes of a capture, relation by relation, in their order."""
    folder.mkdir(exist_ok=True)
    write(folder, source(name), sent(name), cut)
    return in_order(recorded(folder))


def recorded(folder: Path) -> Iterator[pa.RecordBatch]:
    """The changes of a recording."""
    recording = Recording(folder)
    for task in plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            yield from read(segment, ChangesView(segment, task, lambda shape: True))


def in_order(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Changes as a task of Spark gets them."""
    table = pa.Table.from_batches(batches, schema=CHANGES)
    sorting = pa.table(
        {
            "oid": pc.struct_field(table["relation"], "oid"),
            "lsn": table["commit_lsn"],
            "position": table["position"],
        }
    )
    order = pc.sort_indices(sorting, [(name, "ascending") for name in sorting.column_names])
    return table.take(order)
