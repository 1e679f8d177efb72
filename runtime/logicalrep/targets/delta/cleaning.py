"""Remove files that a Delta table does not need any more, so that frequent commits do not fill its folder."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from deltalake import DeltaTable

_RETENTION: Final = "delta.deletedFileRetentionDuration"

_CHECKPOINTS: Final = "delta.checkpointInterval"
"""Property of a Delta table: number of commits after which a checkpoint is written."""

PROPERTIES: Final[dict[str, str | None]] = {
    _RETENTION: "interval 2 hours",
    "delta.logRetentionDuration": "interval 1 hour",
    _CHECKPOINTS: "10",
}
"""Properties of a new Delta table: how long its log keeps commits and the names of replaced data files.

Commits are removed from the log if a checkpoint contains them. Checkpoints are as frequent as Spark makes
them (delta-rs: each hundredth commit), because opening a table reads all commits after the last checkpoint.
"""

_HOURS: Final = 1
"""Hours after which data files that a commit has replaced are removed.

This is less than the retention in `PROPERTIES`: after that time, checkpoints omit the names of the files, so
that the files would not be found.
"""

_UNUSED_HOURS: Final = 24
"""Age in hours at which files that no commit has added are removed; a running commit may add younger ones."""

COMMITS: Final = 20
"""Number of commits from one removal of old files to the next."""


def is_due(versions: range, interval: int) -> bool:
    """Return whether `versions` contains a multiple of `interval`."""
    return any(version % interval == 0 for version in versions)


def checkpoint_interval(properties: Mapping[str, str]) -> int:
    """Return the number of commits between checkpoints: `delta.checkpointInterval` if valid, otherwise 10."""
    text = properties.get(_CHECKPOINTS, "")
    return (int(text) if text.isdecimal() else 0) or 10


def old_files(table: DeltaTable, names: Container[str]) -> list[str]:
    """Return the names of data files that were replaced over an hour ago; remove old commits from the log.

    If a user has set another `delta.deletedFileRetentionDuration`, this duration applies instead of the hour.
    Old commits are those older than `delta.logRetentionDuration`.

    Args:
        table: The Delta table.
        names: Names of the files in the table's folder.

    Raises:
        DeltaError: The log cannot be read or cleaned.
        OSError: The folder of the log cannot be read.
    """
    table.cleanup_metadata()
    return _unneeded(table, names, _HOURS if _has_our_retention(table) else None, full=False)


def unused_files(table: DeltaTable, names: Container[str]) -> list[str]:
    """Return the names of files that were replaced over a day ago, or are over a day old and in no commit.

    A writer that is killed before its commit leaves files that are in no commit. If a user has set a longer
    `delta.deletedFileRetentionDuration`, this duration applies instead of the day.

    Args:
        table: The Delta table.
        names: Names of the files in the table's folder.

    Raises:
        DeltaError: The table cannot be read.
        OSError: The folder of the table cannot be read.
    """
    found = _unneeded(table, names, _UNUSED_HOURS, full=True)
    if _has_our_retention(table):
        return found
    return [name for name in _unneeded(table, names, None, full=True) if name in found]


def _unneeded(table: DeltaTable, names: Container[str], hours: int | None, *, full: bool) -> list[str]:
    """Return the files that VACUUM would remove. VACUUM itself is not used, because it makes two commits.

    Args:
        table: The Delta table.
        names: Names of the files in the table's folder; no other files are returned.
        hours: Retention time in hours; None uses the table property `delta.deletedFileRetentionDuration`.
        full: Whether to return also files that are in no commit.
    """
    found = table.vacuum(hours, enforce_retention_duration=False, full=full)
    # Leave out files that are gone already, and files of vectors (`.bin`): delta-rs (1.6) takes these for
    # unused even if the table uses them.
    return [name for name in found if name in names and not name.endswith(".bin")]


def _has_our_retention(table: DeltaTable) -> bool:
    return bool(table.metadata().configuration.get(_RETENTION) == PROPERTIES[_RETENTION])
