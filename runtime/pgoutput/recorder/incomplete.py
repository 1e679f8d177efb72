"""Incomplete tables and changes of publications, saved in the folder of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from pgoutput.errors import RecordingError
from pgoutput.recorder.catalog import Catalog
from pgoutput.recorder.catalog_changes import CatalogChanges
from pgoutput.recorder.folder import Folder
from pgoutput.recording import IncompleteTable


def save_changes(folder: Folder, catalog: Catalog, changes: CatalogChanges) -> None:
    """Write the changes of the catalogs, then the changed catalogs, to the folder of a recording.

    After a crash between the two writes, the next comparison of the catalogs finds the changes again.

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


def incomplete_error(path: Path, incomplete: Iterable[IncompleteTable]) -> RecordingError:
    """Return the error to raise in strict mode for incomplete tables of a recording."""
    tables = "; ".join(f"{one.namespace or 'pg_catalog'}.{one.name}: {one.reason}" for one in incomplete)
    return RecordingError(
        f"{path}: the recording lacks rows of some tables ({tables}): record them anew in another folder "
        "with a snapshot, or go on without --strict"
    )


def _merged(
    known: Iterable[IncompleteTable], found: Iterable[IncompleteTable]
) -> tuple[IncompleteTable, ...]:
    """Return known and newly found incomplete tables, each table once, with its first and latest reason."""
    merged = {one.oid: one for one in known}
    for one in found:
        old = merged.get(one.oid)
        reason = one.reason if old is None else f"{old.reason.partition('; ')[0]}; {one.reason}"
        merged[one.oid] = msgspec.structs.replace(old or one, reason=reason)
    return tuple(merged.values())
