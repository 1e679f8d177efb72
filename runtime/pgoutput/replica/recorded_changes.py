"""The changes of one relation from a recording, in a temporary file: they may not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput.recording import Recording, SegmentReader
from pgoutput.views import CHANGES, ChangesView, LsnRange, plan_changes, read

_ALL: Final = LsnRange()


def store_changes(
    source: Recording,
    oid: int,
    numbers: Sequence[int],
    file: str,
    lsns: LsnRange = _ALL,
    select: Callable[[pa.RecordBatch], pa.BooleanArray] | None = None,
) -> int:
    """Write the changes of a relation to an Arrow file; return the number of changes.

    Args:
        source: The recording.
        oid: OID of the relation.
        numbers: Numbers of the segments with the commits of the changes.
        file: Path of the file.
        lsns: Commit LSNs of the changes; changes with other commit LSNs may be written too.
        select: Returns which rows of the view `changes` to write; None for all rows.
    """
    rows = 0
    with pa.ipc.new_file(file, CHANGES) as writer:
        for task in plan_changes(source, numbers, lsns):
            with SegmentReader(task.place) as segment:
                for batch in read(
                    segment, ChangesView(segment, task, lambda shape: shape.relation.oid == oid)
                ):
                    selected = batch if select is None else batch.filter(select(batch))
                    writer.write_batch(selected)
                    rows += selected.num_rows
    return rows


def sorted_changes(file: str) -> Iterator[pa.RecordBatch]:
    """Yield the changes of an Arrow file, sorted by `sequence`, the order in which a query applies changes.

    The file's batches are not concatenated, because Arrow arrays of strings are limited to 2 GiB.
    """
    with pa.OSFile(file) as source, pa.ipc.open_file(source) as reader:
        keys = [_sort_keys(reader.get_batch(number)) for number in range(reader.num_record_batches)]
        if not keys:
            return
        batch_of = np.repeat(np.arange(len(keys)), [len(lsns) for lsns, _ in keys])
        row = np.concatenate([np.arange(len(lsns)) for lsns, _ in keys])
        order = np.lexsort([np.concatenate(column) for column in reversed([*zip(*keys, strict=True)])])
        boundaries = np.flatnonzero(np.diff(batch_of[order])) + 1
        for rows in np.split(order, boundaries):
            if len(rows):
                batch = reader.get_batch(int(batch_of[rows[0]]))
                yield batch.take(pa.array(row[rows]))


def _sort_keys(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return copies of the columns `commit_lsn` and `position`, so that the Arrow batch can be freed."""
    return batch["commit_lsn"].to_numpy().copy(), batch["position"].to_numpy().copy()
