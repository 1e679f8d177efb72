"""Incomplete tables and changes of publications, noted in the folder of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from pgoutput.errors import RecordingError
from pgoutput.recorder.catalog import Catalog
from pgoutput.recorder.catalog_changes import CatalogChanges
from pgoutput.recorder.folder import Folder
from pgoutput.recording import Incomplete


def save_changes(folder: Folder, catalog: Catalog, changes: CatalogChanges) -> None:
    """Write the catalogs and their changes to the folder of a recording.

    The changes are written first: after a crash in between, they are found again.

    Raises:
        RecordingError: The folder was moved or removed.
        OSError: A file cannot be written.
    """
    if changes.publications or changes.incomplete:
        folder.update(
            incomplete=lambda state: _merged(state.incomplete, changes.incomplete),
            publication_changes=lambda state: (*state.publication_changes, *changes.publications),
        )
    folder.save_catalog(catalog)


def incomplete_error(path: Path, incomplete: Iterable[Incomplete]) -> RecordingError:
    """Return the error for incomplete tables of a recording in strict mode."""
    tables = "; ".join(f"{one.namespace or 'pg_catalog'}.{one.name}: {one.reason}" for one in incomplete)
    return RecordingError(
        f"{path}: the recording lacks rows of some tables ({tables}): record them anew in another folder "
        "with a snapshot, or go on without --strict"
    )


def _merged(known: Iterable[Incomplete], found: Iterable[Incomplete]) -> tuple[Incomplete, ...]:
    """Return known and found tables, each once, with its first and its last reason."""
    merged = {one.oid: one for one in known}
    for one in found:
        old = merged.get(one.oid)
        reason = one.reason if old is None else f"{old.reason.partition('; ')[0]}; {one.reason}"
        merged[one.oid] = msgspec.structs.replace(old or one, reason=reason)
    return tuple(merged.values())
