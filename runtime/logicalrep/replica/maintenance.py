"""Maintain the Delta tables of a replica, also those that have no new changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from logicalrep.apply import write_again
from logicalrep.errors import LogicalrepError
from logicalrep.recording import PathOrUri, locate
from logicalrep.targets import find_table, registered_oids

_LOG: Final = logging.getLogger(__name__)

_SECONDS: Final = 3600.0
"""Seconds between two calls of `maintain_tables`."""


def maintain_tables(target: PathOrUri) -> int:
    """Remove data files that the tables of a target do not need; rewrite files with many deleted rows.

    A data file is rewritten without its deleted rows if they are more than a twentieth of its rows. Each
    rewritten file is one commit. The query that writes to the target may run at the same time: if both commit
    at once, one of them repeats its commit.

    Replaced files are removed after a day, and so are files that a killed query has written and not
    committed. A longer retention time that a user has set is respected. The query itself removes the replaced
    files of a table only at every twentieth commit, so never of a table without new changes. A table that
    cannot be maintained is left for the next call.

    Args:
        target: The folder that holds the replica, as a path or URI.

    Returns:
        Number of removed files.

    Raises:
        ReplicaError: The target cannot be read.
    """
    return sum(_maintain_each(target))


def _maintain_each(target: PathOrUri) -> Iterator[int]:
    """Maintain one table after the other; yield for each table the number of removed files."""
    folder = locate(target)
    for oid in sorted(registered_oids(folder)):
        removed = 0
        try:
            if (table := find_table(folder, oid)) is not None:
                removed = table.remove_unused()
                write_again(table)
        except (LogicalrepError, OSError, pa.ArrowException) as error:  # for example a full disk
            _LOG.info("the table with OID %s of %s is left for the next maintenance: %s", oid, folder, error)
        yield removed


class Maintenance:
    """A thread that maintains the tables of a target each hour; a context manager that ends the thread.

    The exit waits until the table in progress is maintained. The remaining tables are skipped.

    Args:
        target: The folder that holds the replica, as a path or URI.
    """

    def __init__(self, target: PathOrUri) -> None:
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def __enter__(self) -> Maintenance:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                for _ in _maintain_each(self._target):
                    if self._stop.is_set():
                        return
            except (LogicalrepError, OSError) as error:
                _LOG.warning(
                    "the tables of the target were not maintained; the next try is in an hour: %s", error
                )
            if self._stop.wait(_SECONDS):
                return
