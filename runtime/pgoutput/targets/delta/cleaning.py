"""Remove files that a Delta table does not need any more, so that frequent commits do not fill its folder."""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from typing import Final

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError

_RETENTION: Final = "delta.deletedFileRetentionDuration"

RETENTION: Final[dict[str, str | None]] = {
    _RETENTION: "interval 2 hours",
    "delta.logRetentionDuration": "interval 1 day",
    "delta.checkpointInterval": "10",
}
"""Properties of a new Delta table: how long its log keeps the names of replaced data files, and commits.

Commits are removed from the log if a checkpoint contains them, which delta-rs writes with each hundredth
commit.
"""

_HOURS: Final = 1
"""Number of hours after which replaced data files are removed.

Less than in `RETENTION`: a checkpoint forgets the names of files before they could be removed otherwise.
"""

_UNUSED_HOURS: Final = 24
"""Number of hours after which files are removed without a commit: a younger file may be part of the next."""

_COMMITS: Final = 100
"""Number of commits after which files are removed."""

NO_CLEANING: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""Properties of a commit that removes no old commits: for this, delta-rs lists the whole log."""


def remove_old_files(table: DeltaTable) -> None:
    """Remove data files that were replaced long ago, and old commits from the log, if many commits were made.

    If a user has set another retention time, it is respected. Errors are ignored: the table is complete, and
    a later commit tries again.
    """
    if table.version() % _COMMITS:
        return
    hours = _HOURS if _has_our_retention(table) else None
    with suppress(DeltaError, OSError):
        if table.vacuum(hours, enforce_retention_duration=False):  # a dry run, which makes no commit
            table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        table.cleanup_metadata()


def remove_unused_files(table: DeltaTable, names: Container[str]) -> int:
    """Remove data files that were replaced a day ago, and data files of that age that no commit has added.

    A writer that is killed before its commit leaves such files. If a user has set another retention time,
    nothing is removed.

    Args:
        table: The Delta table.
        names: Names of the files in the table's folder.

    Returns:
        Number of removed files.

    Raises:
        DeltaError: A concurrent commit has changed the table.
        OSError: A file cannot be removed.
    """
    if not _has_our_retention(table):
        return 0
    # A dry run makes no commit. It also returns files that are gone already, as long as the log names them.
    found = table.vacuum(_UNUSED_HOURS, enforce_retention_duration=False, full=True)
    removed = sum(name in names for name in found)
    if removed:
        table.vacuum(
            _UNUSED_HOURS,
            dry_run=False,
            enforce_retention_duration=False,
            post_commithook_properties=NO_CLEANING,
            full=True,
        )
    return removed


def _has_our_retention(table: DeltaTable) -> bool:
    return bool(table.metadata().configuration.get(_RETENTION) == RETENTION[_RETENTION])
