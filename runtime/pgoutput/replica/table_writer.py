"""Apply chunks of changes to the Delta table of one relation."""

from __future__ import annotations

from typing import Final

from deltalake import Transaction
from deltalake.exceptions import CommitFailedError

from pgoutput.recording import Location
from pgoutput.replica.chunks import Chunk
from pgoutput.replica.registry import open_table
from pgoutput.replica.rows import ChunkCommit
from pgoutput.replica.schema import (
    Difference,
    follow_schema,
    make_layout,
    read_layout,
    update_properties,
)

CHUNK_BITS: Final = 20
"""Number of a txnVersion's low bits, for the chunk's number. Higher bits hold the micro-batch's number."""

_ATTEMPTS: Final = 5


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
                    layout = follow_schema(self._table, layout, chunk, history=self._history)
                    ChunkCommit(self._table, layout, chunk).run(Transaction(self._query, version))
                return differences
            except CommitFailedError:
                # Another program has compacted the table, or a task of a killed Spark session still runs.
                if attempt == _ATTEMPTS:
                    raise
                self._table.update_incremental()
        raise AssertionError("unreachable")
