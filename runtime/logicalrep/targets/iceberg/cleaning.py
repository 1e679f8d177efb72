"""Expire snapshots of an Iceberg table, and remove the files that no snapshot needs.

pyiceberg (0.12) removes expired snapshots from the metadata, but leaves the files that only they contain.

Section of the Iceberg specification: "Snapshot Retention Policy".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

_AGE: Final = "history.expire.max-snapshot-age-ms"

PROPERTIES: Final = {
    "format-version": "2",
    _AGE: str(3_600_000),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of a new table: how long snapshots are kept, and how many metadata files."""

_DEFAULT_AGE: Final = 432_000_000
_MAX_SNAPSHOTS: Final = 100
"""Maximum number of snapshots to keep: each commit writes all of them to the metadata."""
_COMMITS: Final = 20
"""Number of commits from one expiration of snapshots to the next."""


def expired(metadata: TableMetadata, history: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots that the next commit expires, the newest first.

    Args:
        metadata: The metadata of the table. If it has branches or tags, no snapshot is expired.
        history: The current snapshot and its ancestors.
    """
    if not history or history[0].sequence_number is None or (history[0].sequence_number + 1) % _COMMITS:
        return []
    if metadata.refs.keys() - {"main"}:
        return []
    oldest = time.time() * 1000 - int(metadata.properties.get(_AGE) or _DEFAULT_AGE)
    has_our_age = metadata.properties.get(_AGE) == PROPERTIES[_AGE]
    for number in range(1, len(history)):  # by order, not by time: the clock may have gone back
        if history[number - 1].timestamp_ms < oldest or (has_our_age and number >= _MAX_SNAPSHOTS):
            return list(history[number:])
    return []


def unneeded_files(io: FileIO, gone: Sequence[Snapshot], kept: Snapshot) -> Iterator[str]:
    """Yield the URIs of the files that only expired snapshots contain.

    Args:
        io: Reads the files of the table.
        gone: The expired snapshots, the newest first; each is the parent of the one before it.
        kept: The oldest snapshot that is kept; its parent is the first of `gone`.
    """
    child, manifests = kept, {one.manifest_path: one for one in kept.manifests(io)}
    for snapshot in gone:
        for one in manifests.values():
            if one.added_snapshot_id == child.snapshot_id and one.deleted_files_count:
                for entry in one.fetch_manifest_entry(io, discard_deleted=False):
                    if entry.status == ManifestEntryStatus.DELETED:
                        yield entry.data_file.file_path
        older = {one.manifest_path: one for one in snapshot.manifests(io)}
        yield from older.keys() - manifests.keys()
        yield snapshot.manifest_list
        child, manifests = snapshot, older


def needed_files(io: FileIO, metadata: TableMetadata) -> set[str]:
    """Return the URIs of all files that a metadata file refers to, directly or through other files."""
    snapshots = metadata.snapshots
    manifests = {one.manifest_path: one for snapshot in snapshots for one in snapshot.manifests(io)}
    entries = (entry for one in manifests.values() for entry in one.fetch_manifest_entry(io))
    return {
        *(log.metadata_file for log in metadata.metadata_log),
        *(one.statistics_path for one in metadata.statistics),
        *(snapshot.manifest_list for snapshot in snapshots),
        *manifests,
        *(entry.data_file.file_path for entry in entries),
    }
