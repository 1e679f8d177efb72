"""The Iceberg catalogue that has the tables of a target.

A target whose tables are in no named catalogue has a catalogue of its own, an SQLite database in its folder.
Files are flushed to the disk before the catalogue refers to them.

Sections of the Iceberg specification: "Commit Conflict Resolution and Retry", "Metastore Tables".
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import Identifier

from logicalrep.errors import ReplicaError
from logicalrep.recording import Location, sync_path

DATABASE: Final = "_iceberg_catalog.db"
"""Name of the SQLite database in the folder of a target."""

_LOCK_SECONDS: Final = 60
"""Maximum number of seconds that a commit waits for another process to unlock the database."""


def open_catalog(target: Location, name: str) -> Catalog:
    """Return the catalogue with the tables of a target.

    Args:
        target: The folder of the target.
        name: Name of the catalogue in the configuration of pyiceberg; empty for the target's own.

    Raises:
        ReplicaError: The target is not local and has no named catalogue, or the catalogue is not configured.
    """
    if not name and not target.is_local:
        raise ReplicaError(
            f"{target}: the catalogue of Iceberg tables cannot be in an object store. Name a catalogue of "
            "pyiceberg's configuration with `--iceberg`"
        )
    return _load(name, is_local=target.is_local) if name else _own_catalog(os.path.abspath(target.path))


@cache
def _load(name: str, *, is_local: bool) -> Catalog:
    try:
        return load_catalog(name, **(_FLUSHES if is_local else {}))
    except Exception as error:  # an error of the configuration, network or catalogue
        raise ReplicaError(
            f"the Iceberg catalogue {name} cannot be opened: {error}. Check pyiceberg's configuration"
        ) from error


@lru_cache(16)  # each run of `verify` opens one for its copies of tables
def _own_catalog(folder: str) -> Catalog:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return SqlCatalog(
        "logicalrep",
        uri=f"sqlite:///{folder}/{DATABASE}?timeout={_LOCK_SECONDS}",
        warehouse=f"file://{folder}",
        **_FLUSHES,
    )


def create_namespace(catalog: Catalog, table: Identifier) -> None:
    """Create the namespace of a table, and the namespaces that contain it."""
    for length in range(1, len(table)):
        catalog.create_namespace_if_not_exists(table[:length])


class FlushedFiles(PyArrowFileIO):
    """Reads and writes files; a written local file is flushed to the disk (fsync)."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write; when its stream is closed, it is flushed to the disk (fsync)."""
        file = super().new_output(location)
        return _FlushedFile(file.location, file._path, file._filesystem, file._buffer_size)


_FLUSHES: Final = {"py-io-impl": f"{__name__}.{FlushedFiles.__name__}"}
"""Properties of a catalogue whose tables are local."""


class _FlushedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _FlushedStream(FileIO(path, "w" if overwrite else "x"))


class _FlushedStream(BufferedWriter):
    """An output stream that, when closed, flushes its file and the file's folder to the disk."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            path = Path(os.fsdecode(self.name))
            sync_path(path)
            sync_path(path.parent)
