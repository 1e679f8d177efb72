"""The position of a Delta table: the last change of its relation that the table has applied.

Rows and position change in one commit. The numbers of the position are the versions of three Delta
transaction identifiers, which the log never loses, and which delta-rs and Spark leave alone. The metadata of
the commit (`commitInfo`) repeats them, so that the log says the position of each version; it also has the
first commit LSN and the last commit time of the commit's changes. A commit that changes rows and names no
position was made by another program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from deltalake import DeltaTable

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, sync_path
from pgoutput.targets.delta.actions import LOG_FOLDER, commit_file, commit_info, now
from pgoutput.targets.protocol import NOTHING, ChangeRange, Position, State, Version

_KEYS: Final = ("pgoutput.commit_lsn", "pgoutput.position", "pgoutput.row")
"""Delta transaction identifiers, and keys in the metadata of a commit, with the numbers of a position."""

_FIRST_LSN: Final = "pgoutput.first_commit_lsn"
"""Key in the metadata of a commit with the commit LSN of its first change."""

_COMMIT_TIME: Final = "pgoutput.commit_time"
"""Key in the metadata of a commit with the commit time of its last change, as in `ChangeRange`."""


def position_actions(position: Position, changes: ChangeRange | None) -> Iterator[dict[str, Any]]:
    """Yield the actions with which a commit of a Delta table names a position.

    Args:
        position: The position after the commit.
        changes: The changes that the commit applies; None to leave the position where it is.
    """
    metadata = dict(zip(_KEYS, map(str, position), strict=True))
    if changes is not None:
        metadata |= {_FIRST_LSN: str(changes.first_lsn), _COMMIT_TIME: str(changes.commit_time)}
    yield commit_info("WRITE", {"mode": "Append"}, **metadata)
    for key, number in zip(_KEYS, position, strict=True) if position != NOTHING else ():
        yield {"txn": {"appId": key, "version": number, "lastUpdated": now()}}


def flush_commit(place: Location, version: int) -> None:
    """Flush the commit of deltalake that has made a version of a Delta table to the disk (fsync).

    A commit of a table in a local folder is flushed before anything follows from it, and the data files that
    it names are flushed before the commit. So after a power failure, the table has all commits up to one of
    them.
    """
    if place.is_local:
        sync_path(Path(commit_file(place, version).path))
        sync_path(Path((place / LOG_FOLDER).path))


def flush_folders(place: Location) -> None:
    """Flush the folder of a new Delta table, and the folder that contains it."""
    for folder in (place, place.parent) if place.is_local else ():
        sync_path(Path(folder.path))


def flush_files(place: Location, paths: Sequence[str]) -> None:
    """Flush new data files of a Delta table to the disk (fsync), if the table is in a local folder."""
    if place.is_local and paths:
        for path in (*paths, ""):
            sync_path(Path(place.path, path))


def read_position(place: Location, table: DeltaTable) -> Position:
    """Return the position of a Delta table.

    The last commit names it if it is ours, and is read in a fraction of the time in which delta-rs searches
    the log for the transaction identifiers.
    """
    for commit in _commits(place, table.version(), table.version() - 1):
        if _KEYS[-1] in commit.metadata:
            return commit.position()
    commit_lsn, position, row = map(table.transaction_version, _KEYS)
    if commit_lsn is None or position is None or row is None:
        return NOTHING
    return Position(commit_lsn, position, row)


def foreign_change(place: Location, table: DeltaTable) -> str:
    """Implement `Table.foreign_change`; OPTIMIZE and VACUUM leave the rows as they are."""
    for commit in _commits(place, table.version()):
        if _KEYS[0] in commit.metadata:
            if commit.position() != NOTHING:
                return ""
        elif commit.changes_rows():
            operation = commit.metadata.get("operation", "a commit")
            return f"another program has changed rows: {operation} in version {commit.version}"
    return ""


def version_before(table: Location, newest: int, lsn: int) -> Version:
    """Implement `Table.version_before`, where `newest` is the newest version of the Delta table."""
    number = newest
    applied: Position | None = None
    for commit in _commits(table, newest):
        if int(commit.metadata.get(_KEYS[0], -1)) >= lsn:
            number, applied = commit.version - 1, None
        elif applied is None and _KEYS[-1] in commit.metadata:
            applied = commit.position()
        elif applied is None and commit.version == 0:
            applied = NOTHING
    if applied is None:
        raise ReplicaError(
            f"{table}: the log of the Delta table does not say up to which LSN changes were applied. "
            "The next changes that `pgoutput replicate` applies to the table add it to the log"
        )
    return Version(number, applied)


def read_states(table: Location, newest: int, reached: int) -> Iterator[State]:
    """Implement `Table.states`, where `newest` is the newest version of the Delta table."""
    until, last = reached, NOTHING
    for commit in _commits(table, newest):
        metadata = commit.metadata
        if _FIRST_LSN in metadata:
            position = commit.position()
            if position != last:
                yield State(commit.version, position.commit_lsn, until, int(metadata[_COMMIT_TIME]))
            until, last = int(metadata[_FIRST_LSN]), position
        if commit.version == 0:
            yield State(None, -1, until, 0)


class _Commit(NamedTuple):
    version: int
    lines: list[bytes]
    """The actions of the commit, as JSON."""
    metadata: dict[str, Any]
    """The `commitInfo` of the commit."""

    def position(self) -> Position:
        """Return the position that the metadata names; they must name one."""
        return Position(*(int(self.metadata[key]) for key in _KEYS))

    def changes_rows(self) -> bool:
        """Return whether the commit adds or removes data files with other rows than before."""
        actions = (action for line in self.lines for action in msgspec.json.decode(line).values())
        return any(action.get("dataChange", False) for action in actions)


def _commits(table: Location, newest: int, before: int = -1) -> Iterator[_Commit]:
    """Yield the commits of a Delta table after version `before` that its log still has, newest first."""
    for version in range(newest, before, -1):
        content = commit_file(table, version).content()
        if content is None:
            return
        lines = content.splitlines()
        info = (line for line in lines if line.startswith(b'{"commitInfo"'))
        metadata = msgspec.json.decode(next(info, b'{"commitInfo":{}}'))["commitInfo"]
        yield _Commit(version, lines, metadata)
