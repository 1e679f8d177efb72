"""The metadata in which a table's commits describe their changes, in each table format.

The metadata of each commit of changes contain the position of its version, and the first commit LSN and the
last commit time of its changes. A commit that changes rows, and has no position in its metadata, was made by
another program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location
from pgoutput.targets.protocol import NOTHING, ChangeRange, Position, State, Version

KEYS: Final = ("pgoutput.commit_lsn", "pgoutput.position", "pgoutput.row")
"""Keys in the metadata of a commit; the values are the three numbers of a `Position`."""

_FIRST_LSN: Final = "pgoutput.first_commit_lsn"
"""Key in the metadata of a commit; the value is the commit LSN of its first change."""

_COMMIT_TIME: Final = "pgoutput.commit_time"
"""Key in the metadata of a commit; the value is the commit time of its last change, as in `ChangeRange`."""


class Commit(NamedTuple):
    """A commit of a table."""

    version: int
    """The version that the commit has made."""
    metadata: Mapping[str, str]
    """Metadata of the commit, by key."""
    operation: str
    """The operation of the commit, as its table format names it."""
    changes_rows: Callable[[], bool]
    """Function that returns whether the commit changes the rows of the table."""

    @property
    def position(self) -> Position | None:
        """The position in the metadata of the commit; None if there is none."""
        if KEYS[-1] not in self.metadata:
            return None
        return Position(*(int(self.metadata[key]) for key in KEYS))


def commit_metadata(position: Position, changes: ChangeRange | None) -> dict[str, str]:
    """Return the metadata in which a commit describes its changes.

    Args:
        position: The position after the commit.
        changes: The changes that the commit applies; None to leave the position where it is.
    """
    metadata = dict(zip(KEYS, map(str, position), strict=True))
    if changes is not None:
        metadata |= {_FIRST_LSN: str(changes.first_lsn), _COMMIT_TIME: str(changes.commit_time)}
    return metadata


def foreign_change(commits: Iterable[Commit]) -> str:
    """Return what `Table.foreign_change` returns, from the table's commits, newest first."""
    for commit in commits:
        position = commit.position
        if position is None and commit.changes_rows():
            return f"another program has changed rows: {commit.operation} in version {commit.version}"
        if position is not None and position != NOTHING:
            return ""
    return ""


def version_before(commits: Iterable[Commit], newest: int, place: Location, lsn: int) -> Version:
    """Return what `Table.version_before` returns; `commits` are the table's commits, newest first."""
    number = newest
    applied: Position | None = None
    for commit in commits:
        position = commit.position
        if position is not None and position.commit_lsn >= lsn:
            number, applied = commit.version - 1, None
        elif applied is None and (position is not None or commit.version == 0):
            applied = position or NOTHING
    if applied is None:
        raise ReplicaError(
            f"{place}: the LSN up to which changes were applied is not in the remaining log of the table. "
            "Apply new changes with `pgoutput replicate`, then repeat this command"
        )
    return Version(number, applied)


def read_states(commits: Iterable[Commit], reached: int) -> Iterator[State]:
    """Yield the states of a table's rows, newest first, as `Table.states` does.

    Args:
        commits: The commits of the table, newest first.
        reached: `State.until` of the newest state. The table has all changes with commit LSNs lower than
            this LSN.
    """
    until, last = reached, NOTHING
    for commit in commits:
        position = commit.position
        if position is not None and _FIRST_LSN in commit.metadata:
            if position != last:
                yield State(commit.version, position.commit_lsn, until, int(commit.metadata[_COMMIT_TIME]))
            until, last = int(commit.metadata[_FIRST_LSN]), position
        if commit.version == 0:
            yield State(None, -1, until, 0)
