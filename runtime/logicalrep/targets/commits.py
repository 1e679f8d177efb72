"""The metadata in which a table's commits describe their changes, in each table format.

If logicalrep adds or removes data files in a commit, the metadata of the commit contain the position of the
table after the commit. If the commit applies changes, its metadata also contain the commit LSN of the first
change and the last commit time. A commit that changes rows, and has no position in its metadata,
was made by another program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets.protocol import NOTHING, ChangeRange, Position, State, Version

KEYS: Final = ("logicalrep.commit_lsn", "logicalrep.position", "logicalrep.row")
"""Keys in the metadata of a commit; the values are the three numbers of a `Position`."""

_FIRST_LSN: Final = "logicalrep.first_commit_lsn"
"""Key in the metadata of a commit; the value is the commit LSN of its first change."""

_COMMIT_TIME: Final = "logicalrep.commit_time"
"""Key in the metadata of a commit; the value is `ChangeRange.commit_time`. There is no key for None."""


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
        changes: The changes that the commit applies; None if it applies none, and the position is unchanged.
    """
    metadata = dict(zip(KEYS, map(str, position), strict=True))
    if changes is not None:
        metadata[_FIRST_LSN] = str(changes.first_lsn)
        if changes.commit_time is not None:
            metadata[_COMMIT_TIME] = str(changes.commit_time)
    return metadata


def foreign_change(commits: Iterable[Commit]) -> str:
    """Return how another program has changed a table's rows since the last commit of changes.

    Args:
        commits: The commits of the table, newest first.

    Returns:
        A clause with the operation and its version; an empty string if no other program has changed rows.
    """
    for commit in commits:
        position = commit.position
        if position is None and commit.changes_rows():
            return f"another program has changed rows: {commit.operation} in version {commit.version}"
        if position is not None and position != NOTHING:
            return ""
    return ""


def version_before(commits: Iterable[Commit], newest: int, place: Location, lsn: int) -> Version:
    """Return the newest version of a table that contains only changes with commit LSNs lower than `lsn`.

    Args:
        commits: The commits of the table, newest first.
        newest: Number of the newest version.
        place: Location of the table.
        lsn: The LSN.

    Raises:
        ReplicaError: The commits do not contain the position of that version.
    """
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
            "Apply new changes with `logicalrep replicate`, then repeat this command"
        )
    return Version(number, applied)


def read_states(commits: Iterable[Commit], reached: int) -> Iterator[State]:
    """Yield the states of a table, newest first. A state is the rows between two commits of changes.

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
                time = commit.metadata.get(_COMMIT_TIME)
                yield State(commit.version, position.commit_lsn, until, None if time is None else int(time))
            until, last = int(commit.metadata[_FIRST_LSN]), position
        if commit.version == 0:
            yield State(None, -1, until, None)
