"""Tables that were set aside catch up with the others, from the recording."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from pgoutput.errors import CaptureError, PgoutputError
from pgoutput.replica.apply import Applied, apply_changes
from pgoutput.replica.aside import Aside, Missed, catch_up, read_aside, read_missed, set_aside, take_back
from pgoutput.replica.claim import Claim, read_claim
from pgoutput.segments import Place, Segment, locate
from pgoutput.segments.location import Location, one_line
from pgoutput.views import CHANGES, ChangesView, Recording, committed_changes, read


def retry_tables(recording: Place, target: Place) -> Iterator[Applied]:
    """Apply what the tables that were set aside have missed, batch by batch.

    The query of the target must not run at the same time. The changes are read from the recording: do not use
    this for a query whose DataFrame filters or alters them. All changes that a batch has for one table are
    in memory at once.

    Args:
        recording: The recording of which the target is a replica.
        target: The folder of the tables, as a path or URI.

    Yields:
        What was done to a table, for each batch; the last one of a table that fails again has the error.

    Raises:
        CaptureError: The recording or the target cannot be read, or do not belong together.
    """
    folder = locate(target)
    aside = read_aside(folder)
    if not aside:
        return
    source = Recording(recording)
    owner = read_claim(target)
    if owner is None or owner.recording != source.identity:
        raise CaptureError(
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
    except CaptureError as error:  # of the notes
        set_aside(target, msgspec.structs.replace(table, error=str(error)))
        yield Applied(table.oid, table.namespace, table.name, {}, error=str(error))
        return
    take_back(target, table.oid)


def _apply(
    source: Recording, target: Location, owner: Claim, table: Aside, missed: Missed
) -> Iterator[Applied]:
    try:
        changes = _changes(source, table.oid, missed)
    except PgoutputError as error:
        yield Applied(table.oid, table.namespace, table.name, {}, error=str(error))
        return
    except Exception as error:  # as for a table whose changes cannot be applied
        text = f"{table.namespace}.{table.name}: {one_line(error)}"
        yield Applied(table.oid, table.namespace, table.name, {}, error=text)
        return
    yield from apply_changes(
        changes.to_batches(),
        target.place,
        owner.query,
        missed.batch,
        recording=owner.recording,
        history=owner.keeps == "history",
    )


def _changes(source: Recording, oid: int, missed: Missed) -> pa.Table:
    """The changes of a relation in a batch, in the order in which the query applies them."""
    numbers = range(missed.first, missed.last + 1)
    source.check(numbers)
    batches: list[pa.RecordBatch] = []
    for task in committed_changes(source, numbers):
        with Segment(task.place) as segment:
            batches += read(segment, ChangesView(segment, task, lambda shape: shape.relation.oid == oid))
    changes = pa.Table.from_batches(batches, CHANGES)
    return changes.sort_by([("commit_lsn", "ascending"), ("position", "ascending")])
