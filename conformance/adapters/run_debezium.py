"""Run Debezium's embedded engine, through pydbzengine, on the test vectors that are whole streams.

A stand-in server sends the stream. A logical message at its end tells the handler to stop the engine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from base64 import b64decode
from collections import deque
from itertools import zip_longest
from pathlib import Path
from threading import Thread
from typing import Any

import pydbzengine
from loop import serve_streams, version_1_text

from logicalrep import v1
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.messages import LogicalMessage, MessageFlag, Relation, XLogData
from logicalrep.standin import PluginOptions, RecordedSource, StandIn

END = LogicalMessage(flags=MessageFlag(0), lsn=1 << 62, prefix="end of the vector", content=b"")
HEADER = Header(1, {"publication_names": '"p"', "messages": "true"}, server_version="18.4")
OPTIONS = PluginOptions(proto_version=1, publication_names=("p",), messages=True)
UNCHANGED = "__debezium_unavailable_value"
BYTEA_OID = 17
# Debezium writes geometric types and money as text that is not PostgreSQL's, such as (0.0,0.0) for (0,0).
REWRITTEN_OIDS = {601, 602, 603, 604, 628, 718, 790}
SPECIAL_NUMBERS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}
NUMERIC_OID = 1700
PROPERTIES = {
    "name": "vectors",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "topic.prefix": "vectors",
    "database.hostname": "127.0.0.1",
    "database.user": "postgres",
    "database.dbname": "postgres",
    "plugin.name": "pgoutput",
    "publication.name": "p",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
    "provide.transaction.metadata": "true",
    "include.unknown.datatypes": "true",
    "decimal.handling.mode": "string",
    "errors.max.retries": "0",
}


class Handler(pydbzengine.BasePythonChangeHandler):
    """Handler that keeps the events, and stops the engine after the last one."""

    def __init__(self) -> None:
        self.changes: deque[Any] = deque()
        self.committed: list[str] = []
        self.engine: Any = None
        self.ended = False

    def handleJsonBatch(self, records: list[Any]) -> None:
        """Keep changes and logical messages with the schemas of their columns, and the ids of commits."""
        for record in records:
            event = json.loads(str(record.value()))
            value = event["payload"]
            if "status" in value:
                self.committed += [value["id"]] if value["status"] == "END" else []
            elif (value.get("message") or {}).get("prefix") == END.prefix:
                self.ended = True
                Thread(target=self.engine.close).start()
            else:
                schemas = {field["field"]: field.get("fields") for field in event["schema"]["fields"]}
                self.changes.append((value, schemas.get("after")))


def decoded(request: dict[str, Any]) -> dict[str, Any]:
    """Return messages and transactions as Debezium decodes them.

    An event has the LSN of its message, because the stand-in server gives each change an LSN of its own.
    """
    lines = [
        encode_record("data", data) for data in (*map(bytes.fromhex, request["messages"]), v1.encode(END))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stream.jsonl")
        path.write_bytes(encode_header(HEADER) + b"".join(lines))
        source = RecordedSource(path)
        with StandIn(source) as server:
            handler = read(server.port)
        sent = [one for one in source.start(OPTIONS, 0) if isinstance(one, XLogData)][:-1]
    if not handler.ended:
        return {"error": {"text": "the engine has stopped"}}
    relations: dict[tuple[str, str], Relation] = {}
    answers = [answer(one.wal_start, one.data, handler.changes, relations) for one in sent]
    if handler.changes:
        return {"error": {"text": f"{handler.changes[0][0]} is not where its message is"}}
    return {
        "messages": answers,
        "transactions": [{"xid": int(one.split(":")[0])} for one in handler.committed],
    }


def read(port: int) -> Handler:
    """Run an engine until the end of the stream, or until it fails."""
    handler = Handler()
    properties = PROPERTIES | {"database.port": str(port), "slot.name": "vectors"}
    handler.engine = pydbzengine.DebeziumJsonEngine(properties, handler, jvm_opts=["-Xms64m", "-Xmx512m"])
    try:
        handler.engine.run()
    except Exception as error:
        if not handler.ended:  # closing the engine interrupts its last batch
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return handler


def answer(lsn: int, data: bytes, changes: deque[Any], relations: dict[tuple[str, str], Relation]) -> Any:
    """Return a message as its events describe it; {} for a message without events, such as Relation.

    Args:
        lsn: LSN of the message.
        data: The message.
        changes: Events that belong to no earlier message; those of this message are removed.
        relations: Last Relation message of each table, by schema and name; updated.
    """
    if data[:1] == b"R":
        relation = v1.decode(data)
        relations[relation.namespace, relation.name] = relation
    if data[:1] not in (b"I", b"U", b"D", b"T", b"M"):
        return {}
    events = []
    while changes and changes[0][0]["source"]["lsn"] == lsn:
        events.append(changes.popleft())
    operations = "".join(event["op"] for event, _ in events)
    if operations == "m":
        message = events[0][0]["message"]
        content = {"binary": b64decode(message["content"]).hex()}
        return {"type": "LogicalMessage", "prefix": message["prefix"], "content": content}
    if operations and set(operations) == {"t"}:
        return {"type": "Truncate", "relation_oids": [relation_of(one, relations).oid for one, _ in events]}
    # An update of the key is a deletion and an insertion.
    kind = {"c": "Insert", "u": "Update", "d": "Delete", "dc": "Update"}.get(operations)
    if kind is None:
        return {"type": operations}
    result: dict[str, Any] = {"type": kind, "relation_oid": relation_of(events[0][0], relations).oid}
    before: list[Any] = []
    if kind != "Insert" and events[0][0]["before"]:
        # An event does not say whether `before` is a key or an old row.
        before = result["key" if data[5:6] == b"K" else "old"] = cells(*events[0], "before", relations)
    if kind != "Delete":
        # Debezium replaces an unchanged value in `after` by that in `before`: equal values are not compared.
        after = cells(*events[-1], "after", relations)
        result["new"] = [
            {} if old is not None and old == new else new for old, new in zip_longest(before, after)
        ]
    return result


def relation_of(event: Any, relations: dict[tuple[str, str], Relation]) -> Relation:
    """Return the last Relation message of the table of an event."""
    return relations[event["source"]["schema"], event["source"]["table"]]


def cells(event: Any, schema: Any, name: str, relations: dict[tuple[str, str], Relation]) -> list[Any]:
    """Return the values of a row as text."""
    oids = {column.name: column.type_oid for column in relation_of(event, relations).columns}
    return [cell(event[name][field["field"]], field, oids.get(field["field"])) for field in schema]


def cell(value: Any, field: Any, type_oid: int | None) -> Any:
    """Return a value as text; {} if Debezium has converted it to another form than PostgreSQL's text."""
    if value is None:
        return None
    if "name" in field or type_oid in REWRITTEN_OIDS:
        return {}
    match field["type"]:
        case "string" if type_oid == NUMERIC_OID:
            return SPECIAL_NUMBERS.get(value, value)
        case "string":
            return {"unchanged": True} if value == UNCHANGED else value
        case "bytes":  # bytea, or the text of a type that Debezium does not know
            content = b64decode(value)
            if content == UNCHANGED.encode():
                return {"unchanged": True}
            return f"\\x{content.hex()}" if type_oid == BYTEA_OID else content.decode()
        case "boolean":
            return "t" if value else "f"
        case "int16" | "int32" | "int64":
            return str(value)
    return {}


def claims(request: dict[str, Any]) -> str | None:
    """Return why Debezium does not decode a request, or None. Debezium needs the stream of a connection."""
    if request["id"].split("/")[1] not in ("stream", "capture"):
        return "not a whole stream"
    return version_1_text(request, messages=True)


if __name__ == "__main__":
    # The engine logs to standard output, and to the working directory.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.chdir(Path(pydbzengine.__file__).parent)
    serve_streams(decoded, claims)
