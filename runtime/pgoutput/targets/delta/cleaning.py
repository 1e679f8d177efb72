"""Remove files that a Delta table does not need any more, so that frequent commits do not fill its folder."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from deltalake import DeltaTable

_RETENTION: Final = "delta.deletedFileRetentionDuration"

CHECKPOINTS: Final = "delta.checkpointInterval"
"""Property of a Delta table: number of commits after which a checkpoint is written."""

PROPERTIES: Final[dict[str, str | None]] = {
    _RETENTION: "interval 2 hours",
    "delta.logRetentionDuration": "interval 1 hour",
    CHECKPOINTS: "10",
}
"""Properties of a new Delta table: how long its log keeps the names of replaced data files, and commits.

Commits are removed from the log if a checkpoint contains them. Checkpoints are as frequent as Spark makes
them (delta-rs: each hundredth commit), because whoever opens the table reads all commits after the last one.
"""

_HOURS: Final = 1
"""Number of hours after which replaced data files are removed.

Less than in `PROPERTIES`: a checkpoint forgets the names of files before they could be removed otherwise.
"""

_UNUSED_HOURS: Final = 24
"""Number of hours after which files are removed without a commit: a younger file may be part of the next."""

_COMMITS: Final = 20
"""Number of commits after which files are removed."""


def is_due(version: int) -> bool:
    """Return whether old files are removed after the commit of a version: after each twentieth."""
    return version % _COMMITS == 0


def old_files(table: DeltaTable, names: Container[str]) -> list[str]:
    """Return the data files of a Delta table that were replaced long ago; remove old commits from its log.

    If a user has set another retention time, it is respected.

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
    """Return data files that were replaced a day ago, and data files of that age that no commit has added.

    A writer that is killed before its commit leaves such files. A longer retention time that a user has set
    is respected.

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
    """Return what VACUUM would remove. VACUUM itself makes two commits; removing the files needs none."""
    found = table.vacuum(hours, enforce_retention_duration=False, full=full)
    # The log also names files that are gone already. delta-rs (1.6) takes files with vectors for unused.
    return [name for name in found if name in names and not name.endswith(".bin")]


def _has_our_retention(table: DeltaTable) -> bool:
    return bool(table.metadata().configuration.get(_RETENTION) == PROPERTIES[_RETENTION])
