"""Apply the changes of a micro-batch to the Delta tables of a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, PathOrUri, locate
from pgoutput.replica.chunks import MAX_BYTES, MAX_ROWS, Chunk, split_changes
from pgoutput.replica.schema import Difference
from pgoutput.replica.table_writer import CHUNK_BITS, TableWriter


class TableResult(msgspec.Struct, frozen=True):
    """The result of applying a micro-batch to the Delta table of one relation."""

    oid: int
    namespace: str
    name: str
    changes: dict[str, int]
    """Number of applied changes, by operation such as "Insert"; empty if the table has failed."""
    may_differ: tuple[Difference, ...] = ()
    """Reasons why the table may differ from its source, without reasons known before this micro-batch."""
    error: str = ""
    """Why the micro-batch was not applied to the table, or only in part; empty if all of it was applied."""


def apply_changes(
    batches: Iterable[pa.RecordBatch],
    target: PathOrUri,
    query: str,
    batch: int,
    *,
    recording: str = "",
    history: bool = False,
    failed: Mapping[int, str] = {},
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[TableResult]:
    """Apply the changes of a micro-batch to the Delta tables of a target.

    Applying a micro-batch again changes nothing, because each commit has a Delta transaction identifier:
    txnAppId is the query, txnVersion increases with each commit. If a table fails, it keeps the state of its
    last commit, and the other tables are not affected.

    Args:
        batches: Rows of the view `changes`, grouped by relation and sorted by `sequence`.
        target: The folder of the tables, as a path or URI.
        query: ID of the query that applies the changes, the same for all micro-batches of a target.
        batch: The number of the micro-batch, greater than the numbers of earlier micro-batches.
        recording: UUID of the recording; empty if the changes do not come from a recording.
        history: Whether to keep all versions of rows (SCD type 2).
        failed: Errors of the failed tables, by relation OID. Changes of these relations are not applied.
        max_rows: Maximum number of changes in a commit.
        max_bytes: Maximum size of a commit's values, in bytes of text. A larger single change is applied in a
            commit of its own.

    Yields:
        One result for each relation that the changes belong to.

    Raises:
        ReplicaError: The target is a URI that pyarrow does not know.
    """
    location = locate(target)
    for oid, chunks in groupby(split_changes(batches, max_rows, max_bytes), lambda chunk: chunk.oid):
        error = failed.get(oid, "")
        yield _apply_chunks(chunks, location, query, batch, recording, history=history, error=error)


def _apply_chunks(
    chunks: Iterator[Chunk],
    target: Location,
    query: str,
    batch: int,
    recording: str,
    *,
    history: bool,
    error: str,
) -> TableResult:
    """Apply a micro-batch's changes of one relation in one commit for each chunk, until there is an error."""
    first = next(chunks)
    writer: TableWriter | None = None
    counts: Counter[str] = Counter()
    may_differ: list[Difference] = []
    for number, chunk in enumerate(chain([first], chunks)):
        if error:
            break
        name = f"{chunk.namespace}.{chunk.name}"
        try:
            if number >> CHUNK_BITS:
                raise ReplicaError(
                    f"{name}: a batch has more than {1 << CHUNK_BITS} commits for this table. "
                    "Begin anew, with an empty target and smaller batches"
                )
            if writer is None:
                writer = TableWriter(target, chunk, query, recording, history=history)
            may_differ += writer.apply(chunk, batch << CHUNK_BITS | number)
        except ReplicaError as failure:
            error = one_line(failure)
        except (DeltaError, OSError, pa.ArrowException) as failure:
            error = f"{name}: {one_line(failure)}"
        except Exception as failure:  # an unexpected error of one table must not stop the other tables either
            error = f"{name}: {type(failure).__name__}: {one_line(failure)}"
        for count in pc.value_counts(chunk.changes["operation"]).to_pylist():
            counts[count["values"]] += count["counts"]
    applied = {} if error else dict(counts)  # a retry applies and counts the whole batch again
    return TableResult(first.oid, first.namespace, first.name, applied, tuple(may_differ), error)
