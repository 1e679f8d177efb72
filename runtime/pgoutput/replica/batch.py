"""Apply the changes of a micro-batch to the Delta tables of a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, PathOrUri, locate
from pgoutput.replica.chunks import MAX_BYTES, MAX_ROWS, Chunk, group_chunks, split_changes
from pgoutput.replica.data_files import DataFiles
from pgoutput.replica.delta_log import changes_metadata, last_change, version_before
from pgoutput.replica.pending_chunks import PendingChunks
from pgoutput.replica.registry import find_table, open_table
from pgoutput.replica.rows import ChunkWriter, Replacement
from pgoutput.replica.schema import (
    Difference,
    alter_table,
    follow_schema,
    make_layout,
    read_layout,
    store_unmatched,
    update_properties,
)
from pgoutput.wire import format_lsn

CHUNK_BITS: Final = 20
"""Number of a txnVersion's low bits, for the commit's number. Higher bits hold the micro-batch's number."""

MAX_COMMITS: Final = (1 << CHUNK_BITS) - 1
"""Maximum number of a micro-batch's commits for one table. Their numbers begin with 0.

As a commit's number, it is that of a commit that applies the whole micro-batch.
"""

T = TypeVar("T")

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
    unmatched: int = 0
    """Number of changes that contradict the rows of the table: an update or delete found no row, or an insert
    found one. Then the table lacks changes that the server did not send."""

    dropped: str = ""
    """What has happened to the table because its relation was dropped on the server; empty if it was not."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened: the relation has no Delta table, and was only altered."""
        return not (self.error or self.changes or self.may_differ)


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
    last commit, and the other tables are not affected. A snapshot that replaces the rows of a table is one
    commit, whatever its size. Without history, so are the changes of a transaction from a TRUNCATE on.

    Args:
        batches: Rows of the view `changes`, grouped by relation and sorted by `sequence`.
        target: The folder of the tables, as a path or URI.
        query: ID of the query that applies the changes, the same for all micro-batches of a target.
        batch: The number of the micro-batch, greater than the numbers of earlier micro-batches.
        recording: UUID of the recording; empty if the changes do not come from a recording.
        history: Whether to keep all versions of rows (SCD type 2).
        failed: Errors of the failed tables, by relation OID. Changes of these relations are not applied.
        max_rows: Maximum number of changes in a chunk.
        max_bytes: Maximum size of a chunk's values, in bytes of text. A larger single change is a chunk of
            its own.

    Yields:
        One result for each relation that the changes belong to, except relations without a Delta table that
        were only altered.

    Raises:
        ReplicaError: The target is a URI that pyarrow does not know.
    """
    location = locate(target)
    for oid, chunks in groupby(split_changes(batches, max_rows, max_bytes), lambda chunk: chunk.oid):
        application = _Application(location, query, batch, recording, history=history, combine=False)
        result = application.apply(chunks, failed.get(oid, ""))
        if not result.is_empty:
            yield result


def apply_repeatedly(
    read: Callable[[], Iterator[Chunk]],
    target: Location,
    query: str,
    batch: int,
    recording: str,
    *,
    history: bool,
    error: str = "",
) -> TableResult:
    """Apply a micro-batch's changes of one relation, several chunks in one commit, until there is an error.

    Args:
        read: Returns the changes, at least one chunk. Called again after a conflict with another commit.
        target: The folder that holds the replica.
        query: ID of the query that applies the changes.
        batch: The number of the micro-batch.
        recording: UUID of the recording; empty if the changes do not come from a recording.
        history: Whether to keep all versions of rows (SCD type 2).
        error: Error of a failed table, to which no changes are applied; empty if it has not failed.
    """
    may_differ: tuple[Difference, ...] = ()
    for combine in (True,) * _ATTEMPTS + (False,):
        application = _Application(target, query, batch, recording, history=history, combine=combine)
        result = application.apply(read(), error)
        may_differ += result.may_differ
        if not application.has_conflict:
            break
    return msgspec.structs.replace(result, may_differ=may_differ)


class _Application:
    """The application of a micro-batch to one table. The arguments are those of `apply_repeatedly`.

    Attributes:
        has_conflict: Whether another commit has changed the table, so that chunks have to be applied again.

    Args:
        combine: Whether to apply several chunks in one commit.
    """

    def __init__(
        self, target: Location, query: str, batch: int, recording: str, *, history: bool, combine: bool
    ) -> None:
        self._target, self._query, self._batch, self._recording = target, query, batch, recording
        self._history = history
        self._combine = combine
        self.has_conflict: bool = False
        self._writer: TableWriter | None = None

    def apply(self, chunks: Iterator[Chunk], error: str) -> TableResult:
        """Apply the chunks until there is an error; `error` is the error of a failed table."""
        first = next(chunks)
        name = f"{first.namespace}.{first.name}"
        counts: Counter[str] = Counter()
        counted = count_changes(chain([first], chunks), counts)
        try:
            for number, commit in group_chunks(counted, history=self._history):
                if error or self.has_conflict:
                    break
                error = self._attempt(name, partial(self._apply, name, number, commit))
            # Chunks before an error are committed too.
            error = self._attempt(name, self._commit) or error
        except BaseException:  # the chunks cannot be read, or the query is stopped
            if self._writer is not None:
                self._writer.discard()
            raise
        applied = {} if error else dict(counts)  # a retry applies and counts the whole batch again
        result = TableResult(first.oid, first.namespace, first.name, applied, error=error)
        if self._writer is None:
            return result
        may_differ, unmatched = tuple(self._writer.may_differ), self._writer.unmatched
        return msgspec.structs.replace(result, may_differ=may_differ, unmatched=unmatched)

    def _attempt(self, name: str, step: Callable[[], None]) -> str:
        """Call a function; return its error as a text, or an empty string."""
        try:
            step()
        except ReplicaError as failure:
            return one_line(failure)
        except (DeltaError, OSError, pa.ArrowException) as failure:
            if self._combine and isinstance(failure, CommitFailedError):
                self.has_conflict = True
                return ""
            return f"{name}: {one_line(failure)}"
        except Exception as failure:  # an unexpected error of one table must not stop the other tables
            return f"{name}: {type(failure).__name__}: {one_line(failure)}"
        return ""

    def _apply(self, name: str, number: int, chunks: Iterator[Chunk]) -> None:
        if number >= MAX_COMMITS:
            raise ReplicaError(
                f"{name}: a batch has more than {MAX_COMMITS} commits for this table. "
                "Begin anew, with an empty target and smaller batches"
            )
        chunk = next(chunks)
        if self._writer is None and chunk.is_alteration and find_table(self._target, chunk.oid) is None:
            return  # the relation is not published, or no change of it was applied yet
        if self._writer is None:
            self._writer = TableWriter(
                self._target,
                chunk,
                self._query,
                self._recording,
                history=self._history,
                combine=self._combine,
            )
        self._writer.apply(chain([chunk], chunks), self._batch << CHUNK_BITS | number)

    def _commit(self) -> None:
        if self._writer is not None:
            self._writer.commit()


def count_changes(chunks: Iterable[Chunk], counts: Counter[str]) -> Iterator[Chunk]:
    """Yield the chunks; add the number of their changes to `counts`, by operation, without alterations."""
    for chunk in chunks:
        operations = [] if chunk.is_alteration else pc.value_counts(chunk.changes["operation"]).to_pylist()
        for count in operations:
            counts[count["values"]] += count["counts"]
        yield chunk


class TableWriter:
    """A writer that applies the chunks of one relation to its Delta table.

    Args:
        target: The folder that holds the replica.
        chunk: The relation's first chunk of changes in the micro-batch. If the table does not exist, it is
            created with the columns of this chunk.
        query: ID of the query that writes. It is the txnAppId of the Delta transaction identifiers.
        recording: UUID of the recording; empty if the changes do not come from a recording.
        history: Whether to keep all versions of rows (SCD type 2).
        combine: Whether to apply successive chunks in one commit where possible. If so, `commit` has to be
            called after the last chunk.

    Attributes:
        may_differ: Reasons why the table may differ from its source, without reasons known before.
        unmatched: Number of changes that contradict the rows of the table, as in `TableResult`.

    Raises:
        ReplicaError: The target cannot be read, or the table's folder contains something other than a Delta
            table.
    """

    def __init__(
        self,
        target: Location,
        chunk: Chunk,
        query: str,
        recording: str = "",
        *,
        history: bool,
        combine: bool = False,
    ) -> None:
        self.may_differ: list[Difference] = []
        self.unmatched: int = 0
        self._history = history
        self._query = query
        self._combine = combine
        self._pending: PendingChunks | None = None
        layout = make_layout(chunk.columns, history=history)
        self._table = open_table(target, chunk, layout.schema, recording)

    def apply(self, chunks: Iterator[Chunk], version: int) -> None:
        """Apply chunks in one commit, unless the table has this or a later txnVersion.

        Args:
            chunks: One chunk, or the chunks of a transaction that begin with a truncate.
            version: The txnVersion of the commit, greater than the txnVersion of the previous commit.

        Raises:
            ReplicaError: A row has to be found by a key column whose value was never sent.
            deltalake.exceptions.CommitFailedError: Several attempts failed because of concurrent commits.
        """
        first = next(chunks)
        if self._has(version):
            if not first.is_alteration:  # its commit does not say which change it applies
                self._check_applied(first)
            return
        if self._combine and self._fold(first, version):
            return
        self.commit()
        if first.truncates and (first.is_snapshot or not self._history):
            self._replace_rows(first, chunks, version)
        else:
            self._change_rows(first, version)

    def commit(self) -> None:
        """Commit the chunks that were folded and not committed yet.

        Raises:
            deltalake.exceptions.CommitFailedError: A concurrent commit has changed the table. The chunks have
                to be applied again.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.may_differ += store_unmatched(self._table, pending.unmatched)
            pending.commit(self._table, Transaction(self._query, pending.version))
            self.unmatched += len(pending.unmatched)

    def discard(self) -> None:
        """Delete the data files of chunks that were folded and not committed."""
        if self._pending is not None:
            self._pending.discard()
            self._pending = None

    def _fold(self, chunk: Chunk, version: int) -> bool:
        """Fold a chunk into data files that are committed later; return False if that is not possible."""
        if chunk.truncates or chunk.is_alteration or chunk.replaced_by is not None:
            return False
        pending = self._pending or PendingChunks(self._table, f"{chunk.namespace}.{chunk.name}")
        if not pending.fits(self._table, chunk):
            return False
        self._pending = pending
        pending.fold(chunk, version)
        if pending.is_full:
            self.commit()
        return True

    def _change_rows(self, chunk: Chunk, version: int) -> None:
        """Apply a chunk to the rows of the table."""

        def change() -> Sequence[int]:
            layout = read_layout(self._table, f"{chunk.namespace}.{chunk.name}")
            files = DataFiles(self._table, layout.schema)
            self.may_differ += update_properties(self._table, files, layout, chunk)
            transaction = Transaction(self._query, version)
            if chunk.is_alteration:
                alter_table(self._table, layout, chunk, transaction, history=self._history)
                return ()
            layout = follow_schema(self._table, layout, chunk, history=self._history)
            files = DataFiles(self._table, layout.schema)
            writer = ChunkWriter(files, layout, chunk)
            added, removed = writer.write()
            self.may_differ += store_unmatched(self._table, writer.unmatched)
            files.commit(added, removed, self._table.schema(), transaction, changes_metadata(chunk))
            return writer.unmatched

        self.unmatched += len(self._commit(change, version) or ())

    def _replace_rows(self, first: Chunk, others: Iterator[Chunk], version: int) -> None:
        """Replace all rows of the table by the rows that chunks add."""
        old = read_layout(self._table, f"{first.namespace}.{first.name}") if self._history else None
        replacement = Replacement(self._table, old, first)
        try:
            for chunk in chain([first], others):
                update = partial(update_properties, self._table, replacement.files, replacement.layout, chunk)
                self.may_differ += self._commit(update, version) or []
                replacement.add(chunk)
        except BaseException:  # no space is left for the rows, or the query is stopped
            with suppress(Exception):
                replacement.discard()
            raise
        self.may_differ += store_unmatched(self._table, replacement.unmatched)
        self._commit(lambda: replacement.commit(Transaction(self._query, version)), version)
        self.unmatched += len(replacement.unmatched)

    def _commit(self, commit: Callable[[], T], version: int) -> T | None:
        """Return the result of a function that commits; call it again after a conflict with another commit.

        If the table has the commit with this txnVersion, do nothing and return None.
        """
        for attempts_left in reversed(range(_ATTEMPTS)):
            if self._has(version):
                return None
            try:
                return commit()
            except CommitFailedError:
                # Another program has compacted the table, or a task of a killed Spark session still runs.
                if not attempts_left:
                    raise
                self._table.update_incremental()
        raise AssertionError("unreachable")

    def _check_applied(self, chunk: Chunk) -> None:
        """Check that the table has applied the changes of a chunk whose commit it has.

        Raises:
            ReplicaError: The checkpoint was replaced by an older one: the same numbers of micro-batches now
                have other changes.
        """
        last, place = last_change(chunk), locate(self._table.table_uri)
        applied = version_before(place, self._table.version()).applied
        if last > applied:
            raise ReplicaError(
                f"{chunk.namespace}.{chunk.name}: the table has applied the changes up to "
                f"{format_lsn(applied.commit_lsn)}, and not those of {format_lsn(last.commit_lsn)} in this "
                "micro-batch, although it has its commit: the checkpoint is older than the "
                "table. Put the newer checkpoint back, or begin anew, with an empty target"
            )

    def _has(self, version: int) -> bool:
        """Return whether the table has the commit with this txnVersion."""
        done = self._table.transaction_version(self._query)
        return done is not None and version <= done
