"""How far each version of a Delta table has applied the changes of its relation, from the table's log.

Each commit of changes stores commit LSN and position of its last change in its metadata (`commitInfo`).
Commits that only alter columns, and commits of other programs, store neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location
from pgoutput.replica.chunks import Chunk

LOG_FOLDER: Final = "_delta_log"
"""Name of the folder with the log of a Delta table."""

_KEYS: Final = ("pgoutput.commit_lsn", "pgoutput.position", "pgoutput.row")
"""Keys in the metadata of a commit, with the numbers of the last change that it applies."""


class Applied(NamedTuple):
    """The last change that was applied to a Delta table; changes sort by these numbers."""

    commit_lsn: int
    position: int
    row: int
    """Index of the change, from 0, among the changes of its message."""


NOTHING: Final = Applied(-1, -1, -1)
"""The value for a Delta table without changes."""


class Version(NamedTuple):
    """A version of a Delta table."""

    number: int
    applied: Applied
    """The last change that the version contains."""


def changes_metadata(chunk: Chunk) -> dict[str, str]:
    """Return the metadata of the commit that applies the changes of a chunk."""
    return applied_metadata(last_change(chunk))


def last_change(chunk: Chunk) -> Applied:
    """Return the last change of a chunk."""
    return Applied(**chunk.changes["sequence"][-1].as_py())


def applied_metadata(last: Applied) -> dict[str, str]:
    """Return the metadata of the commit that applies all changes up to the last one."""
    return {key: str(number) for key, number in zip(_KEYS, last, strict=True)}


def version_before(table: Location, newest: int, lsn: int = 1 << 64) -> Version:
    """Return the newest version of a Delta table without changes of a commit LSN of at least `lsn`.

    Args:
        table: Path or URI of the Delta table.
        newest: The newest version of the table.
        lsn: The LSN; greater than all LSNs if left out.

    Raises:
        ReplicaError: The log does not say how far the table has applied the changes.
    """
    number = newest
    applied: Applied | None = None
    for commit in _commits(table, newest):
        if int(commit.metadata.get(_KEYS[0], -1)) >= lsn:
            number, applied = commit.version - 1, None
        elif applied is None and _KEYS[-1] in commit.metadata:
            applied = Applied(*(int(commit.metadata[key]) for key in _KEYS))
        elif applied is None and commit.txn:
            break  # made by a pgoutput that did not store the position
        elif applied is None and commit.version == 0:
            applied = NOTHING
    if applied is None:
        raise ReplicaError(
            f"{table}: the log of the Delta table does not say up to which LSN changes were applied. "
            "The next changes that `pgoutput replicate` applies to the table add it to the log"
        )
    return Version(number, applied)


class _Commit(NamedTuple):
    version: int
    metadata: dict[str, Any]
    """The `commitInfo` of the commit."""
    txn: dict[str, Any]
    """The transaction identifier, if a query of pgoutput has applied changes in the commit."""


def _commits(table: Location, newest: int) -> Iterator[_Commit]:
    """Yield the commits of a Delta table that its log still has, newest first."""
    for version in range(newest, -1, -1):
        content = (table / LOG_FOLDER / f"{version:020}.json").content()
        if content is None:
            return
        actions: dict[str, Any] = {}
        for line in content.splitlines():
            if not line.startswith((b'{"add"', b'{"remove"')):  # there may be many
                actions |= msgspec.json.decode(line)
        yield _Commit(version, actions.get("commitInfo", {}), actions.get("txn", {}))
