"""Changes of relations from a recording, in a temporary file: they may not fit in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.errors import RecordingError
from pgoutput.recording import Recording, SegmentReader
from pgoutput.views import CHANGES, ChangesView, LsnRange, plan_changes, read

_ALL: Final = LsnRange()


class StoredChanges:
    """Changes of relations in an Arrow file, of which each batch belongs to one relation.

    Args:
        file: Path of the file.
        batches: Numbers of each relation's batches, by the relation's OID.
        counts: Number of changes of each relation, by the relation's OID.
    """

    def __init__(self, file: str, batches: dict[int, list[int]], counts: Counter[int]) -> None:
        self._file, self._batches = file, batches
        self.counts: Counter[int] = counts

    def __contains__(self, oid: int) -> bool:
        """Return whether there are changes of a relation."""
        return oid in self._batches

    def sorted(self, oid: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a relation, sorted by `sequence`, the order in which a query applies changes.

        The batches are not concatenated, because Arrow arrays of strings are limited to 2 GiB.
        """
        if oid not in self:
            return
        with pa.OSFile(self._file) as source, pa.ipc.open_file(source) as reader:
            numbers = self._batches[oid]
            keys = [_sort_keys(reader.get_batch(number)) for number in numbers]
            batch_of = np.repeat(numbers, [len(lsns) for lsns, _ in keys])
            row = np.concatenate([np.arange(len(lsns)) for lsns, _ in keys])
            order = np.lexsort([np.concatenate(column) for column in reversed([*zip(*keys, strict=True)])])
            boundaries = np.flatnonzero(np.diff(batch_of[order])) + 1
            for rows in np.split(order, boundaries):
                batch = reader.get_batch(int(batch_of[rows[0]]))
                yield batch.take(pa.array(row[rows]))


def store_changes(
    source: Recording,
    oids: Collection[int],
    numbers: Sequence[int],
    file: str,
    lsns: LsnRange = _ALL,
    select: Callable[[int, pa.RecordBatch], pa.BooleanArray] | None = None,
) -> StoredChanges:
    """Write the changes of some relations to an Arrow file.

    Args:
        source: The recording.
        oids: OIDs of the relations.
        numbers: Numbers of the segments with the commits of the changes.
        file: Path of the file.
        lsns: Commit LSNs of the changes; changes with other commit LSNs may be written too.
        select: Called with an OID and changes of the relation; returns which of the changes to write. None
            for all changes.
    """
    batches: dict[int, list[int]] = {}
    counts: Counter[int] = Counter()
    count = 0
    with pa.ipc.new_file(file, CHANGES) as writer:
        for task in plan_changes(source, numbers, lsns):
            with SegmentReader(task.place) as segment:
                for batch in read(segment, ChangesView(segment, task, lambda one: one.relation.oid in oids)):
                    relations = pc.struct_field(batch["relation"], "oid")
                    for oid in pc.unique(relations).to_pylist():
                        changes = batch.filter(pc.equal(relations, oid))
                        if select is not None:
                            changes = changes.filter(select(oid, changes))
                        if changes.num_rows:
                            writer.write_batch(changes)
                            batches.setdefault(oid, []).append(count)
                            counts[oid] += changes.num_rows
                            count += 1
    return StoredChanges(file, batches, counts)


def complete_since(recording: Recording, oid: int, first: int, last: int) -> int:
    """Return the number of the segment from which on changes of a relation give all its rows.

    Args:
        recording: The recording.
        oid: OID of the relation.
        first: Number of the first segment with changes of the relation, which may have been pruned.
        last: Number of the last segment to read.

    Returns:
        `first`; if it was pruned, the last segment in which a snapshot replaces the rows of the relation.

    Raises:
        RecordingError: Segment `first` was pruned, and no such snapshot follows.
    """
    try:
        recording.check_not_pruned(first)
    except RecordingError as error:
        for number in reversed([number for number in recording.numbers if first <= number <= last]):
            if recording.metadata([number])[0].kind == "snapshot" and _replaces(recording, number, oid):
                return number
        raise RecordingError(
            f"{error}; or have the recorder copy the rows of the table again (`pgoutput snapshot`), and "
            "repeat this command when the replica has applied what was recorded"
        ) from None
    return first


def _replaces(recording: Recording, number: int, oid: int) -> bool:
    """Return whether a snapshot that ends in a segment replaces all rows of a relation."""
    for task in plan_changes(recording, [number]):
        with SegmentReader(task.place) as segment:
            changes = ChangesView(segment, task, lambda schema: schema.relation.oid == oid)
            if any(
                pc.any(pc.equal(rows["operation"], "Truncate")).as_py() for rows in read(segment, changes)
            ):
                return True
    return False


def _sort_keys(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return copies of the columns `commit_lsn` and `position`, so that the Arrow batch can be freed."""
    return batch["commit_lsn"].to_numpy().copy(), batch["position"].to_numpy().copy()
