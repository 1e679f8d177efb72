"""The position of a Delta table: the last change of its relation that the table has applied.

Rows and position change in one commit. The commit stores the three numbers of a `Position` as the versions of
three Delta transaction identifiers. The log never loses the identifiers, and delta-rs and Spark do not change
them. The metadata of the commit (`commitInfo`) contain the position too, so that the position of each version
can be read from the log. The metadata also contain the commit LSN of the first change in the commit, and the
commit time of the last one. A commit that changes rows, and has no position in its metadata, was made by
another program.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable

from logicalrep.recording import Location, sync_path
from logicalrep.targets.commits import KEYS, Commit, commit_metadata
from logicalrep.targets.delta.actions import LOG_FOLDER, commit_file, commit_info, now
from logicalrep.targets.protocol import NOTHING, ChangeRange, Position


def position_actions(position: Position, changes: ChangeRange | None) -> Iterator[dict[str, Any]]:
    """Yield the actions with which a commit of a Delta table stores a position.

    Args:
        position: The position after the commit.
        changes: The changes that the commit applies; None if it applies none, and the position is unchanged.
    """
    yield commit_info("WRITE", {"mode": "Append"}, **commit_metadata(position, changes))
    for key, number in zip(KEYS, position, strict=True) if position != NOTHING else ():
        yield {"txn": {"appId": key, "version": number, "lastUpdated": now()}}


def flush_commit(place: Location, version: int) -> None:
    """Flush the log file of a commit of deltalake to the disk (fsync), if the folder is local.

    Each commit is flushed before the next one is written, and its data files are flushed before the commit.
    After a power failure, the newest commits may be missing, but the remaining commits are complete and have
    no gaps between them.
    """
    if place.is_local:
        sync_path(Path(commit_file(place, version).path))
        sync_path(Path((place / LOG_FOLDER).path))


def flush_folders(place: Location) -> None:
    """Flush the folder of a new Delta table, and the folder that contains it, to the disk (fsync)."""
    for folder in (place, place.parent) if place.is_local else ():
        sync_path(Path(folder.path))


def read_position(place: Location, table: DeltaTable) -> Position:
    """Return the position of a Delta table.

    The position is read from the metadata of the last commit. If they contain no position, delta-rs searches
    the log for the transaction identifiers that also store the position. This takes several times as long.
    """
    for commit in read_commits(place, table.version(), table.version() - 1):
        if commit.position is not None:
            return commit.position
    commit_lsn, position, row = map(table.transaction_version, KEYS)
    if commit_lsn is None or position is None or row is None:
        return NOTHING
    return Position(commit_lsn, position, row)


def read_commits(table: Location, newest: int, before: int = -1) -> Iterator[Commit]:
    """Yield the commits after version `before` that are still in the log of a Delta table, newest first."""
    for version in range(newest, before, -1):
        content = commit_file(table, version).content()
        if content is None:
            return
        lines = content.splitlines()
        info = (line for line in lines if line.startswith(b'{"commitInfo"'))
        metadata = msgspec.json.decode(next(info, b'{"commitInfo":{}}'))["commitInfo"]
        yield Commit(version, metadata, metadata.get("operation", "a commit"), partial(_changes_rows, lines))


def _changes_rows(lines: list[bytes]) -> bool:
    """Return whether actions, given as lines of JSON, change the rows of the table (`dataChange`)."""
    actions = (action for line in lines for action in msgspec.json.decode(line).values())
    return any(action.get("dataChange", False) for action in actions)
