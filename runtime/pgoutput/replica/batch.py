"""Apply the changes of a micro-batch to the Delta tables of a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, PathOrUri, locate
from pgoutput.replica.chunks import MAX_BYTES, MAX_ROWS, Chunk, split_changes
from pgoutput.replica.registry import find_table, open_table
from pgoutput.replica.rows import ChunkCommit
from pgoutput.replica.schema import (
    Difference,
    alter_table,
    follow_schema,
    make_layout,
    read_layout,
    update_properties,
)

CHUNK_BITS: Final = 20
"""Number of a txnVersion's low bits, for the chunk's number. Higher bits hold the micro-batch's number."""

_ATTEMPTS: Final = 5


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
        One result for each relation that the changes belong to, except relations without a Delta table that
        were only altered.

    Raises:
        ReplicaError: The target is a URI that pyarrow does not know.
    """
    location = locate(target)
    for oid, chunks in groupby(split_changes(batches, max_rows, max_bytes), lambda chunk: chunk.oid):
        error = failed.get(oid, "")
        result = _apply_chunks(chunks, location, query, batch, recording, history=history, error=error)
        if result.error or result.changes:
            yield result


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
            if writer is None and chunk.is_alteration and find_table(target, chunk.oid) is None:
                continue  # the relation is not published, or no change of it was applied yet
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


class TableWriter:
    """A writer that applies the chunks of one relation to its Delta table.

    Args:
        target: The folder that holds the replica.
        chunk: The relation's first chunk of changes in the micro-batch. If the table does not exist, it is
            created with the columns of this chunk.
        query: ID of the query that writes. It is the txnAppId of the Delta transaction identifiers.
        recording: UUID of the recording; empty if the changes do not come from a recording.
        history: Whether to keep all versions of rows (SCD type 2).

    Raises:
        ReplicaError: The target cannot be read, or the table's folder contains something other than a Delta
            table.
    """

    def __init__(
        self, target: Location, chunk: Chunk, query: str, recording: str = "", *, history: bool
    ) -> None:
        self._history = history
        self._query = query
        layout = make_layout(chunk.columns, history=history)
        self._table = open_table(target, chunk, layout.schema, recording)

    def apply(self, chunk: Chunk, version: int) -> list[Difference]:
        """Apply the changes of a chunk in one commit, unless the table has this or a later txnVersion.

        Returns:
            Reasons why the table may differ from its source, without reasons known before this chunk.

        Args:
            chunk: The chunk.
            version: The txnVersion of the commit, greater than the txnVersion of the previous chunk.

        Raises:
            ReplicaError: A row has to be found by a key column whose value was never sent.
            deltalake.exceptions.CommitFailedError: Several attempts failed because of concurrent commits.
        """
        differences: list[Difference] = []
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                done = self._table.transaction_version(self._query)
                if done is None or version > done:
                    layout = read_layout(self._table, f"{chunk.namespace}.{chunk.name}")
                    differences += update_properties(self._table, layout, chunk)
                    transaction = Transaction(self._query, version)
                    if chunk.is_alteration:
                        alter_table(self._table, layout, chunk, transaction, history=self._history)
                        return differences
                    layout = follow_schema(self._table, layout, chunk, history=self._history)
                    ChunkCommit(self._table, layout, chunk).run(transaction)
                return differences
            except CommitFailedError:
                # Another program has compacted the table, or a task of a killed Spark session still runs.
                if attempt == _ATTEMPTS:
                    raise
                self._table.update_incremental()
        raise AssertionError("unreachable")
