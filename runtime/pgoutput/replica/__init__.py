"""Tables kept up to date: committed changes applied to Delta tables, one for each relation.

What comes in are rows of `pgoutput.views.CHANGES`, what comes out can be read by any reader of Delta tables.
A table has the relation's columns, with the types of `pgoutput.values.arrow_type`, and `_rescued_data`, as in
the view `table`; with history also `__START_AT` and `__END_AT`, as Spark's AUTO CDC calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.errors import CaptureError
from pgoutput.replica.chunks import MAX_BYTES, MAX_ROWS, cut
from pgoutput.replica.folders import replica_tables
from pgoutput.replica.table import CHUNK_BITS, Replica
from pgoutput.segments.location import Place, locate

__all__ = ["Applied", "apply_changes", "replica_tables"]


class Applied(NamedTuple):
    """How many changes of one kind a batch has for a relation."""

    oid: int
    namespace: str
    name: str
    operation: str
    changes: int


def apply_changes(
    batches: Iterable[pa.RecordBatch],
    target: Place,
    query: str,
    batch: int,
    *,
    history: bool = False,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Applied]:
    """Make changes in the tables of a target. A batch that is made again changes nothing.

    The transactions of each table have the name of the query, and versions that grow.

    Args:
        batches: Rows of `pgoutput.views.CHANGES`; those of a relation together, by `sequence`.
        target: The folder of the tables, as a path or URI.
        query: Who makes the changes: the same for all batches of a target.
        batch: The number of the batch, greater than those before.
        history: Whether the versions of rows are kept.
        max_rows: How many changes a commit has at most.
        max_bytes: How many bytes of text it has at most; a larger change is a commit of its own.

    Yields:
        What was applied, relation by relation.

    Raises:
        CaptureError: The target cannot be read, or holds something else; or the batch is too large.
        deltalake.exceptions.CommitFailedError: Others change a table all the time.
    """
    location = locate(target)
    replica: Replica | None = None
    oid = number = -1
    counts: Counter[tuple[int, str, str, str]] = Counter()
    for chunk in cut(batches, max_rows, max_bytes):
        if replica is None or chunk.oid != oid:
            yield from _applied(counts)
            replica = Replica(location, chunk, query, history=history)
            oid, number = chunk.oid, -1
        number += 1
        if number >> CHUNK_BITS:
            raise CaptureError(
                f"{chunk.namespace}.{chunk.name}: a batch has more than {1 << CHUNK_BITS} commits for it. "
                "Begin anew, with an empty target and smaller batches"
            )
        replica.apply(chunk, batch << CHUNK_BITS | number)
        for one in pc.value_counts(chunk.changes["operation"]).to_pylist():
            counts[chunk.oid, chunk.namespace, chunk.name, one["values"]] += one["counts"]
    yield from _applied(counts)


def _applied(counts: Counter[tuple[int, str, str, str]]) -> Iterator[Applied]:
    for key, changes in counts.items():
        yield Applied(*key, changes)
    counts.clear()
