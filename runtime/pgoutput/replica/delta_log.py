"""The position of a Delta table: the last change of its relation that the table has applied.

Rows and position change in one commit. The numbers of the position are the versions of three Delta
transaction identifiers, which the log never loses, and which delta-rs and Spark leave alone. The metadata of
the commit (`commitInfo`) repeats them, so that the log says the position of each version. A fourth identifier
is the version of the table after the commit: a later commit that changes rows was made by another program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, locate
from pgoutput.replica.chunks import Chunk

LOG_FOLDER: Final = "_delta_log"
"""Name of the folder with the log of a Delta table."""

_KEYS: Final = ("pgoutput.commit_lsn", "pgoutput.position", "pgoutput.row")
"""Delta transaction identifiers, and keys in the metadata of a commit, with the numbers of a position."""

_VERSION: Final = "pgoutput.table_version"
"""Delta transaction identifier with the version of the table that the last commit of changes has made."""


class Position(NamedTuple):
    """The last change that was applied to a Delta table; changes sort by these numbers."""

    commit_lsn: int
    position: int
    row: int
    """Index of the change, from 0, among the changes of its message."""


NOTHING: Final = Position(-1, -1, -1)
"""The value for a Delta table without changes."""


class Version(NamedTuple):
    """A version of a Delta table."""

    number: int
    applied: Position
    """The last change that the version contains."""


def last_change(chunk: Chunk) -> Position:
    """Return the position after the last change of a chunk."""
    return Position(**chunk.changes["sequence"][-1].as_py())


def position_metadata(position: Position) -> dict[str, str]:
    """Return the metadata of the commit that brings a table to a position."""
    return {key: str(number) for key, number in zip(_KEYS, position, strict=True)}


def position_transactions(position: Position, version: int) -> list[Transaction]:
    """Return the Delta transaction identifiers of the commit that brings a table to a position.

    Args:
        position: The position.
        version: The version of the table that the commit makes.
    """
    if position == NOTHING:
        return []
    numbers = zip((*_KEYS, _VERSION), (*position, version), strict=True)
    return [Transaction(key, number) for key, number in numbers]


def read_position(table: DeltaTable) -> Position:
    """Return the position of a Delta table."""
    commit_lsn, position, row = map(table.transaction_version, _KEYS)
    if commit_lsn is None or position is None or row is None:
        return NOTHING
    return Position(commit_lsn, position, row)


def is_after(changes: pa.RecordBatch, position: Position) -> pa.BooleanArray:
    """Return for each of some changes, as rows of the view `changes`, whether it follows a position."""
    is_later, is_equal = pa.scalar(False), pa.scalar(True)
    for numbers, number in zip(changes["sequence"].flatten(), position, strict=True):
        is_later = pc.or_(is_later, pc.and_(is_equal, pc.greater(numbers, number)))
        is_equal = pc.and_(is_equal, pc.equal(numbers, number))
    return is_later


def foreign_change(table: DeltaTable) -> str:
    """Return how another program has changed rows of a Delta table since its last commit of changes.

    Commits that leave the rows as they are, such as OPTIMIZE and VACUUM, do not count.

    Returns:
        A clause with the version and its operation; an empty string if no other program has changed rows.
    """
    own = table.transaction_version(_VERSION)
    for commit in _commits(locate(table.table_uri), table.version(), -1 if own is None else own):
        if _KEYS[0] not in commit.metadata and commit.changes_rows():
            operation = commit.metadata.get("operation", "a commit")
            return f"another program has changed rows: {operation} in version {commit.version}"
    return ""


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
    applied: Position | None = None
    for commit in _commits(table, newest):
        if int(commit.metadata.get(_KEYS[0], -1)) >= lsn:
            number, applied = commit.version - 1, None
        elif applied is None and _KEYS[-1] in commit.metadata:
            applied = Position(*(int(commit.metadata[key]) for key in _KEYS))
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
    lines: list[bytes]
    """The actions of the commit, as JSON."""
    metadata: dict[str, Any]
    """The `commitInfo` of the commit."""

    def changes_rows(self) -> bool:
        """Return whether the commit adds or removes data files with other rows than before."""
        actions = (action for line in self.lines for action in msgspec.json.decode(line).values())
        return any(action.get("dataChange", False) for action in actions)


def _commits(table: Location, newest: int, before: int = -1) -> Iterator[_Commit]:
    """Yield the commits of a Delta table after version `before` that its log still has, newest first."""
    for version in range(newest, before, -1):
        content = (table / LOG_FOLDER / f"{version:020}.json").content()
        if content is None:
            return
        lines = content.splitlines()
        info = (line for line in lines if line.startswith(b'{"commitInfo"'))
        metadata = msgspec.json.decode(next(info, b'{"commitInfo":{}}'))["commitInfo"]
        yield _Commit(version, lines, metadata)
