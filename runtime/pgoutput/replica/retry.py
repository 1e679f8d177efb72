"""Tables that were set aside catch up with the others, from the recording."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput._text import one_line
from pgoutput.errors import PgoutputError, ReplicaError
from pgoutput.recording import Location, PathOrUri, Recording, SegmentReader, locate
from pgoutput.replica.apply import Applied, apply_changes
from pgoutput.replica.aside import Aside, Missed, catch_up, read_aside, read_missed, set_aside, take_back
from pgoutput.replica.claim import Claim, read_claim
from pgoutput.views import CHANGES, ChangesView, plan_changes, read


def retry_tables(recording: PathOrUri, target: PathOrUri) -> Iterator[Applied]:
    """Apply what the tables that were set aside have missed, batch by batch.

    The query of the target must not run at the same time. The changes are read from the recording: do not use
    this for a query whose DataFrame filters or alters them. The changes that a batch has for one
    table are written to a temporary file first, in `tempfile.gettempdir()`.

    Args:
        recording: The recording of which the target is a replica.
        target: The folder of the tables, as a path or URI.

    Yields:
        What was done to a table, for each batch; the last one of a table that fails again has the error.

    Raises:
        ReplicaError: The recording or the target cannot be read, or do not belong together.
    """
    folder = locate(target)
    aside = read_aside(folder)
    if not aside:
        return
    source = Recording(recording)
    owner = read_claim(target)
    if owner is None or owner.recording != source.identity:
        raise ReplicaError(
            f"{folder}: the target is not a replica of recording {source.identity} in {source.location}"
        )
    for table in aside.values():
        yield from _retry(source, folder, owner, table)


def _retry(source: Recording, target: Location, owner: Claim, table: Aside) -> Iterator[Applied]:
    try:
        while missed := read_missed(target, table.oid):  # a query at work may note further batches
            for one in missed:
                error = ""
                for applied in _apply(source, target, owner, table, one):
                    yield applied
                    error = applied.error
                if error:
                    set_aside(target, msgspec.structs.replace(table, error=error))
                    return
                catch_up(target, table.oid, one.batch)
    except ReplicaError as error:  # of the notes
        set_aside(target, msgspec.structs.replace(table, error=str(error)))
        yield Applied(table.oid, table.namespace, table.name, {}, error=str(error))
        return
    take_back(target, table.oid)


def _apply(
    source: Recording, target: Location, owner: Claim, table: Aside, missed: Missed
) -> Iterator[Applied]:
    with TemporaryDirectory(prefix="pgoutput-") as folder:
        file = os.path.join(folder, "changes")
        try:
            _store(source, table.oid, missed, file)
        except PgoutputError as error:
            yield Applied(table.oid, table.namespace, table.name, {}, error=str(error))
            return
        except Exception as error:  # as for a table whose changes cannot be applied
            text = f"{table.namespace}.{table.name}: {one_line(error)}"
            yield Applied(table.oid, table.namespace, table.name, {}, error=text)
            return
        yield from apply_changes(
            _in_order(file),
            target.place,
            owner.query,
            missed.batch,
            recording=owner.recording,
            history=owner.keeps == "history",
        )


def _store(source: Recording, oid: int, missed: Missed, file: str) -> None:
    """Write the changes of a relation in a batch into a file: they can be more than memory holds."""
    numbers = range(missed.first, missed.last + 1)
    source.check(numbers)
    with pa.ipc.new_file(file, CHANGES) as writer:
        for task in plan_changes(source, numbers):
            with SegmentReader(task.place) as segment:
                for batch in read(
                    segment, ChangesView(segment, task, lambda shape: shape.relation.oid == oid)
                ):
                    writer.write_batch(batch)


def _in_order(file: str) -> Iterator[pa.RecordBatch]:
    """Return changes in the order in which the query applies them. They are not concatenated.

    Arrow arrays of strings hold 2 GiB.
    """
    with pa.OSFile(file) as source, pa.ipc.open_file(source) as reader:
        keys = [_keys(reader.get_batch(number)) for number in range(reader.num_record_batches)]
        if not keys:
            return
        part_of = np.repeat(np.arange(len(keys)), [len(lsns) for lsns, _ in keys])
        row = np.concatenate([np.arange(len(lsns)) for lsns, _ in keys])
        order = np.lexsort([np.concatenate(column) for column in reversed([*zip(*keys, strict=True)])])
        turns = np.flatnonzero(np.diff(part_of[order])) + 1
        for some in np.split(order, turns):
            if len(some):
                part = reader.get_batch(int(part_of[some[0]]))
                yield part.take(pa.array(row[some]))


def _keys(part: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The columns by which changes are ordered, copied out of the batch."""
    return part["commit_lsn"].to_numpy().copy(), part["position"].to_numpy().copy()
