"""Changes of a batch, applied to the tables of a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, PathOrUri, locate
from pgoutput.replica.chunks import MAX_BYTES, MAX_ROWS, Chunk, cut
from pgoutput.replica.differences import Difference
from pgoutput.replica.table import CHUNK_BITS, Replica


class Applied(msgspec.Struct, frozen=True):
    """What a batch did to the table of one relation."""

    oid: int
    namespace: str
    name: str
    changes: dict[str, int]
    """How many changes of each operation were applied; empty if some were not."""
    may_differ: tuple[Difference, ...] = ()
    """Why the table may differ from its source since this batch, and did not before."""
    error: str = ""
    """Why the changes could not all be applied; empty if they were."""


def apply_changes(
    batches: Iterable[pa.RecordBatch],
    target: PathOrUri,
    query: str,
    batch: int,
    *,
    recording: str = "",
    history: bool = False,
    aside: Mapping[int, str] = {},
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Applied]:
    """Apply changes to the tables of a target. A batch that is applied again changes nothing.

    The transactions of each table have the name of the query, and versions that grow. A table that fails is
    left as its last commit has it; the others are not affected.

    Args:
        batches: Rows of `pgoutput.views.CHANGES`; those of a relation together, by `sequence`.
        target: The folder of the tables, as a path or URI.
        query: Who applies the changes: the same for all batches of a target.
        batch: The number of the batch, greater than those before.
        recording: UUID of the recording; empty where the changes come from none.
        history: Whether the versions of rows are kept.
        aside: Relations whose changes are not applied, by OID, and why: the error that they get.
        max_rows: How many changes a commit has at most.
        max_bytes: How many bytes of text it has at most; a larger change is a commit of its own.

    Yields:
        What was done, relation by relation.

    Raises:
        ReplicaError: The target is a URI that pyarrow does not know.
    """
    location = locate(target)
    work: _Work | None = None
    for chunk in cut(batches, max_rows, max_bytes):
        if work is None or chunk.oid != work.oid:
            if work is not None:
                yield work.done()
            work = _Work(
                location, chunk, query, batch, recording, history=history, error=aside.get(chunk.oid)
            )
        work.apply(chunk)
    if work is not None:
        yield work.done()


class _Work:
    """The changes of one relation in a batch, chunk by chunk."""

    def __init__(
        self,
        target: Location,
        chunk: Chunk,
        query: str,
        batch: int,
        recording: str,
        *,
        history: bool,
        error: str | None,
    ) -> None:
        self.oid = chunk.oid
        self._target = target
        self._first = chunk
        self._query = query
        self._batch = batch
        self._recording = recording
        self._history = history
        self._replica: Replica | None = None
        self._number = 0
        self._counts: Counter[str] = Counter()
        self._may_differ: list[Difference] = []
        self._error = error or ""

    def apply(self, chunk: Chunk) -> None:
        """Apply a chunk, unless the table has failed."""
        if self._error:
            return
        name = f"{chunk.namespace}.{chunk.name}"
        try:
            if self._number >> CHUNK_BITS:
                raise ReplicaError(
                    f"{name}: a batch has more than {1 << CHUNK_BITS} commits for it. "
                    "Begin anew, with an empty target and smaller batches"
                )
            if self._replica is None:
                self._replica = Replica(
                    self._target, chunk, self._query, self._recording, history=self._history
                )
            self._may_differ += self._replica.apply(chunk, self._batch << CHUNK_BITS | self._number)
        except ReplicaError as error:
            self._error = one_line(error)
            return
        except (DeltaError, OSError, pa.ArrowException) as error:
            self._error = f"{name}: {one_line(error)}"
            return
        except Exception as error:  # an unknown fault of one table must not stop the others either
            self._error = f"{name}: {type(error).__name__}: {one_line(error)}"
            return
        self._number += 1
        for one in pc.value_counts(chunk.changes["operation"]).to_pylist():
            self._counts[one["values"]] += one["counts"]

    def done(self) -> Applied:
        """Return what was done."""
        first = self._first
        return Applied(
            first.oid,
            first.namespace,
            first.name,
            {} if self._error else dict(self._counts),  # the table gets them again
            tuple(self._may_differ),
            self._error,
        )
