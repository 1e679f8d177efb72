"""Apply changes to the Delta tables of a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._text import one_line
from logicalrep.apply.chunks import MAX_BYTES, MAX_ROWS, Chunk, group_chunks, is_after, split_changes
from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.pending_chunks import PendingChunks
from logicalrep.apply.rows import ChunkWriter, Replacement
from logicalrep.apply.schema import (
    Difference,
    alter_table,
    encode_key,
    follow_schema,
    make_layout,
    read_layout,
    store_foreign_change,
    store_unmatched,
    update_properties,
)
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets import (
    NOTHING,
    ConflictError,
    Position,
    Table,
    check_recording,
    create_table,
    find_table,
    remove_table,
)
from logicalrep.views import RelationChanges

T = TypeVar("T")

Updates: TypeAlias = Literal["vectors", "rewrite"]
"""How commits remove rows: "vectors" marks them in deletion vectors, "rewrite" rewrites their data files."""

_ATTEMPTS: Final = 5


class TableResult(msgspec.Struct, frozen=True):
    """The result of applying changes to the Delta table of one relation."""

    oid: int
    namespace: str
    name: str
    changes: dict[str, int]
    """Number of applied changes, by operation such as "Insert"."""
    may_differ: tuple[Difference, ...] = ()
    """New reasons why the table may differ from its source."""
    error: str = ""
    """Why the changes were not applied to the table, or only in part; empty if all were applied."""
    unmatched: int = 0
    """Number of changes that do not match the rows of the table: an update or delete found no row, or an
    insert found a row with its key. This happens if the server did not send earlier changes of the table."""
    position: Position = NOTHING
    """The last change that the table has applied."""
    written_again: int = 0
    """Number of unchanged rows that were rewritten, because other rows of their data files changed."""
    dropped: str = ""
    """What was done with the Delta table because its relation was dropped on the server; empty otherwise."""
    folder: str = ""
    """Name of the Delta table's folder, if the relation or the folder was renamed; empty otherwise."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report: no error, no changed rows and no new reason in `may_differ`."""
        return not (self.error or self.changes or self.may_differ)


def apply_changes(
    read: Callable[[], Iterator[RelationChanges]],
    target: Location,
    oid: int,
    recording: str,
    *,
    history: bool,
    updates: Updates | None = None,
    known: Position = NOTHING,
    from_snapshot: bool = False,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> TableResult | None:
    """Apply changes of one relation to its Delta table; return what was applied, and the error if any.

    Changes up to the position of the table are skipped, so applying changes again changes nothing. Several
    chunks are one commit where possible. A snapshot that replaces the rows of a table is one commit, whatever
    its size. Without history, a TRUNCATE and the later changes of its transaction are also one commit.

    An error of the table is not raised. It ends the applying, and `error` of the result says what it is. The
    table then keeps the state of its last commit. An error while `read` reads the changes may be raised.

    Args:
        read: Function that returns the changes, sorted by `sequence`. It is called again after a conflict.
        target: The folder that holds the replica.
        oid: OID of the relation.
        recording: UUID of the recording.
        history: Whether to keep all versions of rows (SCD type 2).
        updates: How commits of the table remove rows from now on; None to keep the present way.
        known: A position that the table has reached before. A table behind this position is an older copy,
            which is an error unless the first change begins a snapshot that replaces all rows.
        from_snapshot: Whether to skip all changes before the first snapshot that replaces all rows.
        max_rows: Maximum number of changes in a chunk.
        max_bytes: Maximum size of a chunk's values, in bytes of text. A larger single change is a chunk of
            its own.

    Returns:
        The result; None if the table already contains all changes.
    """
    result: TableResult | None = None
    for _ in range(_ATTEMPTS):
        application = _Application(
            target, oid, recording, history=history, updates=updates, known=known, replaced=from_snapshot
        )
        batches = _from_snapshot(read()) if from_snapshot else read()
        result = _join(result, application.apply(batches, max_rows=max_rows, max_bytes=max_bytes))
        if not application.has_conflict:
            break
    return result


def _join(before: TableResult | None, after: TableResult | None) -> TableResult | None:
    """Return the combined result of two attempts; None stands for an attempt that had nothing to apply."""
    if before is None:
        return after
    if after is None:  # another run has applied the missing changes
        applied = msgspec.structs.replace(before, error="")
        return None if applied.is_empty else applied
    return msgspec.structs.replace(
        after,
        changes=dict(Counter(before.changes) + Counter(after.changes)),
        may_differ=before.may_differ + after.may_differ,
        unmatched=before.unmatched + after.unmatched,
        written_again=before.written_again + after.written_again,
    )


def _from_snapshot(changes: Iterable[RelationChanges]) -> Iterator[RelationChanges]:
    """Yield changes from the first snapshot that replaces all rows of the relation; nothing without one."""
    found = False
    for one in changes:
        if not found:
            begins = pc.and_(pc.equal(one.rows["operation"], "Truncate"), pc.equal(one.rows["xid"], 0))
            first = pc.index(begins, True).as_py()
            if first < 0:
                continue
            found, one = True, one.with_rows(one.rows.slice(first))
        yield one


class _Application:
    """One attempt to apply changes to one table. The arguments are described at `apply_changes`.

    Attributes:
        has_conflict: Whether another commit has changed the table, so that changes have to be applied again.
    """

    def __init__(
        self,
        target: Location,
        oid: int,
        recording: str,
        *,
        history: bool,
        updates: Updates | None,
        known: Position,
        replaced: bool,
    ) -> None:
        self._updates = updates
        self._replaced = replaced
        """Whether the first change begins a snapshot that replaces all rows."""
        self._target, self._oid, self._recording, self._known = target, oid, recording, known
        self._history = history
        self._table: Table | ReplicaError | None = None
        """The table, or the error if it cannot be read; None if no table exists."""
        self._position = NOTHING
        """The position of the table before the run; changes up to it are skipped."""
        self.has_conflict: bool = False
        self._writer: TableWriter | None = None

    def apply(
        self, batches: Iterator[RelationChanges], *, max_rows: int, max_bytes: int
    ) -> TableResult | None:
        """Apply the changes that the table lacks; return None if it lacks none.

        An error of the table ends the applying. It is not raised: `error` of the result has its text.
        """
        changes = split_changes(self._skip_applied(batches), max_rows, max_bytes)
        if (first := next(changes, None)) is None:
            return None
        name = f"{first.namespace}.{first.name}"
        error = ""
        try:
            for commit in group_chunks(chain([first], changes), history=self._history):
                if error := self._attempt(name, partial(self._apply, commit)):
                    break
            if not self.has_conflict:  # commit the chunks before the error
                error = self._attempt(name, self._commit) or error
        finally:  # chunks are left after a conflict, an error of reading, or a stop of the query
            if self._writer is not None:
                self._writer.discard()
        result = TableResult(first.oid, first.namespace, first.name, {}, error=error)
        if self._writer is None:
            return result
        writer = self._writer
        may_differ, unmatched = tuple(writer.may_differ), writer.unmatched
        return msgspec.structs.replace(
            result,
            changes=dict(writer.changes),
            may_differ=may_differ,
            unmatched=unmatched,
            position=writer.position,
            written_again=writer.written_again,
        )

    def _skip_applied(self, batches: Iterator[RelationChanges]) -> Iterator[RelationChanges]:
        try:
            self._table = find_table(self._target, self._oid)
            self._position = NOTHING if self._table is None else self._table.position
        except ReplicaError as error:  # `_apply` raises it
            self._table = error
        return skip_applied(batches, self._position)

    def _attempt(self, name: str, step: Callable[[], None]) -> str:
        """Call `step`; return the text of the error that it raises, or an empty string if it raises none.

        The text does not contain `name`, the name of the relation.
        """
        try:
            step()
        except ReplicaError as failure:
            self.has_conflict = isinstance(failure, ConflictError)
            return one_line(failure).removeprefix(f"{name}: ")
        except (OSError, pa.ArrowException) as failure:
            return one_line(failure)
        except Exception as failure:  # an unexpected error of one table must not stop the other tables
            return f"{type(failure).__name__}: {one_line(failure)}"
        return ""

    def _apply(self, chunks: Iterator[Chunk]) -> None:
        chunk = next(chunks)
        if isinstance(self._table, ReplicaError):
            if self._history or not self._replaced:
                raise self._table
            try:
                self._table = find_table(self._target, self._oid)  # another run may have built it anew
            except ReplicaError:  # the log or the folder is lost
                remove_table(self._target, self._oid)
                self._table = None
        if self._table is None:
            if chunk.is_alteration:
                return  # the relation is not published, or no change of it was applied yet
            self._table = self._create(chunk)
        if self._writer is None:
            check_recording(self._table, self._recording)
            if must_switch(self._table, self._updates):
                self._table.set_deletes_rows(self._updates == "vectors")
            self._writer = TableWriter(
                self._table, chunk, history=self._history, applied=self._position, known=self._known
            )
        self._writer.apply(chain([chunk], chunks))

    def _create(self, chunk: Chunk) -> Table:
        schema = make_layout(chunk.columns, self._target, history=self._history).schema
        key = "" if self._history else encode_key(chunk)
        since = chunk.changes["sequence"][0].as_py()["position"]
        return create_table(
            self._target, self._oid, chunk.namespace, chunk.name, schema, self._recording, key, since
        )

    def _commit(self) -> None:
        if self._writer is not None:
            self._writer.commit()


def must_switch(table: Table, updates: Updates | None) -> bool:
    """Return whether a table must be switched to the way of removing rows that `updates` selects.

    The ways are deletion vectors ("vectors") and rewritten data files ("rewrite"). The result is False if the
    table already removes rows in this way, or if `updates` is None, which keeps the way of the table.
    """
    return updates is not None and table.deletes_rows != (updates == "vectors")


def skip_applied(changes: Iterable[RelationChanges], position: Position) -> Iterator[RelationChanges]:
    """Yield the changes whose `sequence` is after a position; leave out empty batches."""
    for one in changes:
        rows = one.rows
        if rows.num_rows and Position(**rows["sequence"][0].as_py()) <= position:
            rows = rows.filter(is_after(rows, position))
        if rows.num_rows:
            yield one.with_rows(rows)


class TableWriter:
    """A writer that applies the chunks of one relation to its Delta table.

    Args:
        table: The table.
        chunk: The relation's first chunk.
        history: Whether to keep all versions of rows (SCD type 2).
        applied: The position that the table must have before the first chunk.
        known: A position that the table has reached before. A table behind this position is an older copy.

    Attributes:
        changes: Number of committed changes, by operation.
        may_differ: New reasons why the table may differ from its source.
        unmatched: Number of changes that do not match the rows of the table, as in `TableResult`.
        position: Position of the table after the last commit.
        written_again: Number of unchanged rows that were rewritten, as in `TableResult`.

    Raises:
        ReplicaError: The table is behind the known position.
        ConflictError: The table has another position than `applied`.
    """

    def __init__(
        self,
        table: Table,
        chunk: Chunk,
        *,
        history: bool,
        applied: Position,
        known: Position,
    ) -> None:
        self.changes: Counter[str] = Counter()
        self.may_differ: list[Difference] = []
        self.unmatched: int = 0
        self.written_again: int = 0
        self.position: Position = applied
        self._name = f"{chunk.namespace}.{chunk.name}"
        self._history = history
        self._pending: PendingChunks | None = None
        self._table = table
        self._check_position()
        if applied < known and not (chunk.truncates and chunk.is_snapshot):
            raise ReplicaError(
                f"{self._name}: the table was replaced by an older copy while changes were applied. "
                "The next run applies the changes that the copy lacks"
            )
        self._is_checked = False

    def apply(self, chunks: Iterator[Chunk]) -> None:
        """Apply the chunks of one commit. A chunk without truncate or ALTER TABLE may stay uncommitted.

        A later call of `apply`, or `commit`, commits it.

        Args:
            chunks: One chunk; or chunks of one transaction, of which the first begins with a truncate.

        Raises:
            ReplicaError: Rows cannot be found by key, because values of a key column were never sent.
            ConflictError: As in `commit`.
        """
        self._check_position()
        first = next(chunks)
        if not (first.truncates and first.is_snapshot):
            self._note_foreign_change()
        if self._fold(first):
            return
        self.commit()
        if first.truncates and (first.is_snapshot or not self._history):
            self._replace_rows(first, chunks)
        else:
            self._change_rows(first)

    def commit(self) -> None:
        """Commit the chunks that `apply` has written to data files and not committed yet.

        Raises:
            ConflictError: Another commit has changed the table. All changes that the table lacks have to be
                applied again.
        """
        if (pending := self._pending) is not None:
            if not pending.changes:  # `fold` of the first chunk failed
                self.discard()
                return
            version = self._table.version
            if new := store_unmatched(self._table, pending.unmatched):
                self.may_differ += new
                if self._table.version != version + 1:
                    raise ConflictError(
                        f"{self._table.place}: another program has changed the table: apply the changes again"
                    )
            self._pending = None  # `discard` must not delete files that may be committed
            pending.commit(self._table)
            self.changes += pending.counts
            self.position = pending.changes[-1].last
            self.unmatched += len(pending.unmatched)
            self.written_again += pending.written_again

    def discard(self) -> None:
        """Delete the data files of chunks that `apply` has written and not committed."""
        if self._pending is not None:
            self._pending.discard()
            self._pending = None

    def _note_foreign_change(self) -> None:
        """If another program has changed rows, store in a table property that the table may differ."""
        if not self._is_checked:
            self.may_differ += store_foreign_change(self._table)
            self._is_checked = True

    def _fold(self, chunk: Chunk) -> bool:
        """Add a chunk to the uncommitted chunks; return False, and change nothing, if it cannot be added.

        Such a chunk needs a commit of its own. An added chunk is committed at once only if the uncommitted
        chunks then have many new data files.
        """
        if chunk.truncates or chunk.is_alteration or chunk.replaced_by is not None:
            return False
        pending = self._pending or PendingChunks(self._table, self._name)
        if not pending.fits(self._table, chunk):
            return False
        self._pending = pending
        pending.fold(chunk)
        if pending.is_full:
            self.commit()
        return True

    def _change_rows(self, chunk: Chunk) -> None:
        """Apply a chunk to the table in a commit of its own; the chunk may be an ALTER TABLE."""

        def change() -> Sequence[int]:
            self._note_foreign_change()
            layout = read_layout(self._table, self._name)
            self.may_differ += update_properties(self._table, DataFiles(self._table), layout, chunk)
            if chunk.is_alteration:
                alter_table(self._table, layout, chunk, history=self._history)
                return ()
            layout = follow_schema(self._table, layout, chunk, history=self._history)
            self._check_position()
            writer = ChunkWriter(DataFiles(self._table), layout, chunk)
            added, removed = writer.write()
            self.may_differ += store_unmatched(self._table, writer.unmatched)
            self._table.commit(added, removed, chunk.range)
            return writer.unmatched

        self.unmatched += len(self._commit(change))
        self.changes += chunk.counts
        self.position = chunk.range.last

    def _replace_rows(self, first: Chunk, others: Iterator[Chunk]) -> None:
        """Replace all rows of the table by the rows that chunks add, in one commit."""
        old = read_layout(self._table, self._name) if self._history else None
        replacement = Replacement(self._table, old, first)
        counts: Counter[str] = Counter()
        try:
            for chunk in chain([first], others):
                update = partial(update_properties, self._table, replacement.files, replacement.layout, chunk)
                self.may_differ += self._commit(update)
                replacement.add(chunk)
                counts += chunk.counts
        except BaseException:  # for example a full disk, or a stop of the query
            with suppress(Exception):
                replacement.discard()
            raise
        self.may_differ += store_unmatched(self._table, replacement.unmatched)
        self._commit(replacement.commit)
        self.changes += counts
        self.position = replacement.last
        self.unmatched += len(replacement.unmatched)
        self._is_checked = True

    def _commit(self, commit: Callable[[], T]) -> T:
        """Call a function that commits; call it again if another program has committed. Return its result.

        Raises:
            ConflictError: Several attempts failed, or another run has applied changes.
        """
        for attempts_left in reversed(range(_ATTEMPTS)):
            self._check_position()
            try:
                return commit()
            except ConflictError:  # another commit came first, for example of a compaction
                if not attempts_left:
                    raise
                self._table.refresh()
                self._is_checked = False
        raise AssertionError("unreachable: the last attempt returns or raises an error")

    def _check_position(self) -> None:
        if self._table.position != self.position:
            raise ConflictError(
                f"{self._table.place}: another run has applied changes to the table: apply the changes again"
            )
