"""Apply the changes of one relation in parts, which several processes merge at the same time.

The changes of a micro-batch are divided by key, so that all changes of a key are in one part. `fold_part`
writes to new data files the rows that a part adds. It returns these files, and the rows that the part
removes. Data files that lose rows and get no deletion vector have to be replaced: `plan_rewrites` and
`rewrite_files` write their remaining rows to new data files. `commit_parts` commits all parts at once.

Until the commit, the new data files belong to no version of the Delta table. If changes cannot be applied in
parts, nothing is committed, and `apply_changes` has to apply the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np

from logicalrep._arrays import NO_NUMBERS, Numbers
from logicalrep._text import one_line
from logicalrep.apply.batch import TableResult, Updates, must_switch, skip_applied
from logicalrep.apply.chunks import MAX_ROWS, Chunk, split_changes
from logicalrep.apply.data_files import SMALL_FILE_BYTES, DataFiles, PendingFiles, add_rows, rewritten_files
from logicalrep.apply.rows import ChunkWriter
from logicalrep.apply.schema import changed_properties, read_layout
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets import (
    FILE_BYTES,
    NOTHING,
    RECORDING,
    ChangeRange,
    DataFile,
    Position,
    Table,
    find_table,
    open_version,
)
from logicalrep.views import RelationChanges

_ROW_NUMBER: Final = "<u4"


class PartsError(Exception):
    """The changes of a relation cannot be applied in parts; `apply_changes` has to apply them."""


class TableVersion(msgspec.Struct, frozen=True):
    """The version of a table to which several tasks apply changes, one task for each part."""

    place: str
    """Path or URI of the Delta table."""
    version: int

    def open(self) -> Table:
        """Return the table at this version."""
        return open_version(self.place, self.version)


class Part(msgspec.Struct, frozen=True):
    """The result of `fold_part`: the rows that one part of a relation's changes adds and removes."""

    oid: int
    namespace: str
    name: str
    keys: tuple[str, ...]
    """Names of the columns of the relation's replica identity."""
    changes: dict[str, int] = {}
    """Number of changes, by operation such as "Insert"."""
    range: ChangeRange = ChangeRange(0, NOTHING, None)
    """First commit LSN, last position and last commit time of the changes."""
    added: tuple[DataFile, ...] = ()
    """New data files, which are not committed yet."""
    removed: dict[str, bytes] = {}
    """Rows to remove from data files, by path: ascending row numbers as little-endian 32-bit integers."""
    refusal: str = ""
    """Why the changes of the relation cannot be applied in parts; empty if they can be."""


class Rewrite(msgspec.Struct, frozen=True):
    """Data files of a Delta table whose remaining rows have to be written to new data files."""

    oid: int
    table: TableVersion
    files: tuple[DataFile, ...]
    removed: dict[str, bytes]
    """Rows to leave out of the new data files, as in `Part`."""


class Rewritten(msgspec.Struct, frozen=True):
    """The new data files that replace those of a `Rewrite`."""

    oid: int
    added: tuple[DataFile, ...] = ()
    error: str = ""
    """Why the files could not be written; empty if they were written."""


def find_version(
    target: Location, oid: int, recording: str, known: Position = NOTHING, updates: Updates | None = None
) -> TableVersion | None:
    """Return the version of a relation's Delta table, if changes can be applied to it in parts.

    Args:
        target: The folder that holds the replica.
        oid: OID of the relation.
        recording: UUID of the recording.
        known: A position that the table has reached before. A table behind this position is an older copy.
        updates: How commits of the table have to remove rows; None for either way.

    Returns:
        The version. None if `apply_changes` has to be used: there is no table; or the table belongs to
        another recording, is behind `known`, was changed by another program, or removes rows in another way
        than `updates` says.

    Raises:
        ReplicaError: The target cannot be read, or the table is gone.
    """
    table = find_table(target, oid)
    if table is None or must_switch(table, updates):
        return None
    if table.properties.get(RECORDING, "") != recording or table.position < known or table.foreign_change():
        return None
    return TableVersion(table.place.place, table.version)


def fold_part(
    changes: Iterable[RelationChanges], version: TableVersion, max_rows: int = MAX_ROWS
) -> Part | None:
    """Write to new data files the rows that one part of a relation's changes adds.

    Changes up to the position of the table are skipped; the result is None if all changes are skipped.

    `Part.refusal` says why only `apply_changes` can apply the changes: they contain a truncate, a schema
    change or an update that moves a row to another key, they do not match the rows, the key changes, or no
    column or each column of the relation belongs to its key. An error while a chunk is merged is not raised,
    but is a refusal too: it occurs again in `apply_changes`.

    Args:
        changes: The changes of the part, sorted by `sequence`.
        version: The Delta table.
        max_rows: Maximum number of changes that are merged at a time.
    """
    counts: Counter[str] = Counter()
    ranges: list[ChangeRange] = []
    files: PendingFiles | None = None
    result: Part | None = None
    try:
        position = version.open().position
    except Exception:  # the same error occurs again below
        position = NOTHING
    for chunk in split_changes(skip_applied(changes, position), max_rows):
        result = Part(chunk.oid, chunk.namespace, chunk.name, chunk.keys)
        try:
            if files is None:
                table = version.open()
                layout, files, keys = read_layout(table, version.place), PendingFiles(table), chunk.keys
            if chunk.truncates or chunk.is_alteration or chunk.replaced_by is not None:
                raise _refusal(chunk, "they contain a truncate or ALTER TABLE")
            if not 0 < len(chunk.keys) < len(chunk.columns) or chunk.keys != keys:
                raise _refusal(
                    chunk,
                    "no column or each column of the relation belongs to its key, or the key has changed",
                )
            if chunk.columns != layout.columns or changed_properties(table, files, layout, chunk)[0]:
                raise _refusal(chunk, "they change columns or properties of the table")
            writer = ChunkWriter(files, layout, chunk)
            if writer.moves_keys:
                raise _refusal(chunk, "an update moves a row to another key")
            files.change(*writer.fold())
            if writer.unmatched:
                raise _refusal(chunk, "some do not match the rows of the table")
        except Exception as error:
            if files is not None:
                files.discard()
            return msgspec.structs.replace(result, refusal=one_line(error) or type(error).__name__)
        ranges.append(chunk.range)
        counts += chunk.counts
    if files is None or result is None:
        return None
    removed = {path: numbers.astype(_ROW_NUMBER).tobytes() for path, numbers in files.removed.items()}
    return msgspec.structs.replace(
        result,
        changes=dict(counts),
        range=ChangeRange.join(ranges),
        added=tuple(files.added),
        removed=removed,
    )


def _refusal(chunk: Chunk, reason: str) -> PartsError:
    return PartsError(f"{chunk.namespace}.{chunk.name}: only `apply_changes` can apply the changes: {reason}")


def plan_rewrites(oid: int, version: TableVersion, parts: Sequence[Part]) -> list[Rewrite]:
    """Return which data files to rewrite: files that lose rows, and small files if there are too many.

    `rewritten_files` chooses the files. They are divided among about as many rewrites as there are parts,
    unless the new files would be too small or too large.

    Raises:
        PartsError: The parts cannot be committed together.
    """
    refusals = [part.refusal for part in parts if part.refusal]
    if refusals:
        raise PartsError(refusals[0])
    if len({(part.namespace, part.name, part.keys) for part in parts}) > 1:
        raise PartsError(
            f"relation with OID {oid}: only `apply_changes` can apply the changes: "
            "two parts have different names or keys of the relation"
        )
    table, removed = version.open(), _removed_rows(parts)
    files = [*DataFiles(table), *(file for part in parts for file in part.added)]
    rewritten = rewritten_files(table, files, removed)
    share = sum(file.size for file in rewritten) // len(parts)
    most = min(max(share, SMALL_FILE_BYTES), FILE_BYTES)
    rewrites: list[Rewrite] = []
    size = most
    for file in rewritten:
        if size + file.size > most:
            rewrites.append(Rewrite(oid, version, (), {}))
            size = 0
        size += file.size
        rows = {file.path: removed.get(file.path, NO_NUMBERS).astype(_ROW_NUMBER).tobytes()}
        last = rewrites[-1]
        rewrites[-1] = Rewrite(oid, version, (*last.files, file), last.removed | rows)
    return rewrites


def _removed_rows(parts: Sequence[Part]) -> dict[str, Numbers]:
    """Return the row numbers that any part removes, in ascending order, by path of the data file."""
    removed: dict[str, Numbers] = {}
    for part in parts:
        add_rows(removed, {path: _row_numbers(numbers) for path, numbers in part.removed.items()})
    return removed


def rewrite_files(rewrite: Rewrite) -> Rewritten:
    """Write the remaining rows of data files to new data files; return an error as part of the result."""
    try:
        files = DataFiles(rewrite.table.open())
        rows = (
            batch
            for file in rewrite.files
            for batch in files.read_except(file, _row_numbers(rewrite.removed[file.path]))
        )
        return Rewritten(rewrite.oid, tuple(files.write(rows)))
    except Exception as error:  # `apply_changes` raises it again
        return Rewritten(rewrite.oid, error=one_line(error) or type(error).__name__)


def _row_numbers(numbers: bytes) -> Numbers:
    return np.frombuffer(numbers, _ROW_NUMBER).astype(np.int64)


def commit_parts(
    version: TableVersion,
    parts: Sequence[Part],
    rewrites: Sequence[Rewrite],
    rewritten: Sequence[Rewritten],
) -> TableResult:
    """Commit all parts of a relation's changes at once.

    Args:
        version: The Delta table.
        parts: All parts of the changes, as `fold_part` returned them.
        rewrites: What `plan_rewrites` returned for these parts.
        rewritten: The results of `rewrite_files` for all `rewrites`, in any order.

    Raises:
        PartsError: A rewrite has failed.
        ConflictError: A concurrent commit has changed the table.
    """
    if errors := [one.error for one in rewritten if one.error]:
        raise PartsError(errors[0])
    table = version.open()
    replaced = {file.path: file for one in rewrites for file in one.files}
    new = [file for part in parts for file in part.added]
    added = [file for file in new if file.path not in replaced]
    added += [file for one in rewritten for file in one.added]
    unfinished = {file.path for file in new} & replaced.keys()
    removed = [file for path, file in replaced.items() if path not in unfinished]
    changes = ChangeRange.join(part.range for part in parts)
    deleted = {path: numbers for path, numbers in _removed_rows(parts).items() if path not in replaced}
    table.commit(added, removed, changes, deleted=deleted)
    table.delete(unfinished)
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part.changes)
    first = parts[0]
    return TableResult(
        first.oid,
        first.namespace,
        first.name,
        dict(counts),
        position=changes.last,
        written_again=sum(
            file.rows - file.deleted - len(_row_numbers(rows))
            for one in rewrites
            for file in one.files
            if file.path not in unfinished and (rows := one.removed[file.path])
        ),
    )


def discard_files(version: TableVersion, unused: Iterable[DataFile]) -> None:
    """Delete new data files of parts that were not committed; ignore errors of the table."""
    with suppress(ReplicaError):  # maintenance removes the files later
        version.open().delete(file.path for file in unused)
