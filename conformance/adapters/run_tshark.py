"""Run tshark's dissector on a captured TCP connection for each request.

Times are one hour early in tshark 4.6.9. They are compared only in the vectors that test a time, because
nearly all vectors have one. In the vector that tests a field, a field that tshark does not show is null.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from threading import Thread
from typing import Any

from loop import lsn, serve_streams, time

from logicalrep import _protocols
from logicalrep._layout import Field

LAYOUTS = {
    message.name: {field.name: field for field in message.members}
    for message in _protocols.ALL_VERSIONS.messages
}
SHOWN = """
Begin: logical.lsn=final_lsn logical.commit_ts=commit_time xid=xid
Message: xid=xid logical.message.flags=flags logical.message.lsn=lsn logical.message.prefix=prefix
    logical.message.content=content
Commit: logical.lsn_commit=commit_lsn logical.lsn_transaction=end_lsn logical.commit_ts=commit_time
Origin: logical.lsn_origin=origin_lsn logical.origin_name=name
Relation: xid=xid relation_oid=oid namespace=namespace relation=name logical.replica_identity=replica_identity
Column: logical.column_flags=flags logical.column_name=name logical.column_oid=type_oid
    logical.type_modifier=type_modifier
Type: xid=xid oid.type=oid namespace=namespace custom_type_name=name
Insert: xid=xid relation_oid=relation_oid
Update: xid=xid relation_oid=relation_oid
Delete: xid=xid relation_oid=relation_oid
Truncate: xid=xid logical.truncate_flags=options
Begin Prepare: logical.prepare.lsn=prepare_lsn logical.prepare.lsn_end=end_lsn logical.prepare.ts=prepare_time
    xid=xid logical.prepare.gid=gid
Prepare: logical.prepare.lsn=prepare_lsn logical.prepare.lsn_end=end_lsn logical.prepare.ts=prepare_time
    xid=xid logical.prepare.gid=gid
Commit Prepared: logical.prepare.lsn=commit_lsn logical.prepare.lsn_end=end_lsn
    logical.prepare.commit_ts=commit_time xid=xid logical.prepare.gid=gid
Rollback Prepared: logical.prepare.lsn_end=prepare_end_lsn logical.prepare.rollback_lsn_end=rollback_end_lsn
    logical.prepare.ts=prepare_time logical.prepare.rollback_ts=rollback_time xid=xid logical.prepare.gid=gid
Stream Start: xid=xid logical.stream.first_segment=first_stream_segment
Stream Stop:
Stream Commit: xid=xid logical.lsn_commit=commit_lsn logical.lsn_transaction=end_lsn
    logical.prepare.commit_ts=commit_time
Stream Abort: xid=xid xid_subtransaction=subxid logical.lsn_abort=abort_lsn logical.stream.abort_ts=abort_time
Stream Prepare: logical.prepare.lsn=prepare_lsn logical.prepare.lsn_end=end_lsn
    logical.prepare.ts=prepare_time xid=xid logical.prepare.gid=gid
"""
"""The fields of each message: tshark's name without `pgsql.`, and that of the vectors."""
FIELDS = {
    (words := one.split(":"))[0]: dict(pair.split("=") for pair in words[1].split())
    for one in SHOWN.strip().replace("\n    ", " ").split("\n")
}
TUPLES = {"Key": "key", "Old tuple": "old", "New tuple": "new"}

END_PORT, NEXT_PORT = 40_001, 40_002
"""UDP ports of two packets behind a request: tshark ends the line of a packet when it shows the next."""
SEGMENT_BYTES = 60_000
COMMAND = ("tshark", "-r", "-", "-l", "-n", "-T", "json", "-J", "pgsql udp _ws.malformed")
SHOW = "pgsql or _ws.malformed or udp"
STARTUP = struct.pack(">I", 3 << 16) + b"user\0u\0replication\0database\0\0"
ENVELOPE = b"w" + bytes(24)

Tree = list[tuple[str, Any]]
"""A JSON object whose keys may repeat."""


class Tshark:
    """A process of tshark that dissects one connection after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "-Y", SHOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._input.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1))
        self._clients = count(0x0A000000)

    def dissect(self, request: dict[str, Any]) -> Iterator[Tree]:
        """Yield the layers of the packets of a connection with the messages of a request."""
        version, streaming = request["version"], request["options"]["streaming"]
        start = f"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '{version}', streaming '{streaming}')"
        connection = [
            (False, struct.pack(">I", 4 + len(STARTUP)) + STARTUP),
            (True, framed(b"R", bytes(4)) + framed(b"Z", b"I")),
            (False, framed(b"Q", start.encode() + b"\0")),
            (True, framed(b"W", bytes(3))),
            *((True, framed(b"d", ENVELOPE + bytes.fromhex(one))) for one in request["messages"]),
        ]
        client, sent, packets = next(self._clients), [1, 1], []
        for from_server, data in connection:
            ports, ends = (5432, 40_000), (1, client)
            for first in range(0, len(data), SEGMENT_BYTES):
                part = data[first : first + SEGMENT_BYTES]
                numbers = sent if from_server else sent[::-1]
                step = 1 if from_server else -1
                header = struct.pack(">HHIIBBHHH", *ports[::step], *numbers, 5 << 4, 0x18, 65_535, 0, 0)
                packets.append(packet(6, *ends[::step], header + part))
                sent[not from_server] += len(part)
        for port in (END_PORT, NEXT_PORT):
            packets.append(packet(17, 1, client, struct.pack(">HHHH", port, port, 8, 0)))
        # tshark stops reading while its output is not read.
        Thread(target=self._write, args=(b"".join(packets),)).start()
        return self._read()

    def _write(self, data: bytes) -> None:
        self._input.write(data)
        self._input.flush()

    def _read(self) -> Iterator[Tree]:
        """Yield the layers of the packets up to that which ends a request."""
        lines: list[bytes] = []
        for line in self._output:
            if line.startswith(b"  {"):
                lines = []
            lines.append(line)
            if line.startswith(b"  }"):
                shown: Tree = json.loads(b"".join(lines).rstrip(b",\n"), object_pairs_hook=list)
                layers = dict(dict(shown)["_source"])["layers"]
                port = dict(dict(layers).get("udp", ())).get("udp.dstport")
                if port == str(END_PORT):
                    return
                if port is None:
                    yield layers
        raise SystemExit("tshark has ended")


def framed(tag: bytes, data: bytes) -> bytes:
    """Return a message of the frontend/backend protocol."""
    return tag + struct.pack(">I", 4 + len(data)) + data


def packet(protocol: int, source: int, target: int, data: bytes) -> bytes:
    """Return a packet of IP between two addresses, as a record of a pcap file."""
    header = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(data), 0, 0, 64, protocol, 0, source, target)
    frame = bytes(12) + b"\x08\0" + header + data
    return struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame


def decoded(request: dict[str, Any]) -> dict[str, Any]:
    """Return the messages that tshark shows, up to one that it calls malformed."""
    name, _, field = request["id"].partition("=")[0].rpartition("/")
    tested = name.rpartition("/")[2], field
    messages: list[dict[str, Any]] = []
    for layers in map(dict, list(TSHARK.dissect(request))):
        shown = dict(layers.get("pgsql", ()))
        if shown.get("pgsql.type") != "Copy data":
            continue
        copied = dict(shown.get("XLogData", ()))
        kind = copied.get("pgsql.logical.msg_type")
        if "_ws.malformed" in layers or kind not in FIELDS:
            return {"messages": messages, "error": {"text": f"malformed {kind}"}}
        messages.append(message(kind, copied[kind] or [], tested))
    return {"messages": messages}


def message(kind: str, shown: Tree, tested: tuple[str, str]) -> dict[str, Any]:
    """Return a message as JSON, from the fields that tshark shows."""
    name = "LogicalMessage" if kind == "Message" else kind.replace(" ", "")
    result: dict[str, Any] = {"type": name} | fields(kind, LAYOUTS[name], shown)
    for key, inner in shown:
        if key in TUPLES:
            result[TUPLES[key]] = [cell(dict(one)) for title, one in inner if title.startswith("Column ")]
        elif key.startswith("Columns: "):
            layout = {field.name: field for field in LAYOUTS[name]["columns"].fields}
            result["columns"] = [
                fields("Column", layout, one) for title, one in inner if isinstance(one, list)
            ]
        elif key.startswith("Relation Oids: "):
            result["relation_oids"] = [int(oid) for _, oid in inner]
    left_out = {one for one in result if one.endswith("_time") and (name, one) != tested}
    missing = {tested[1]: None} if tested[0] == name and tested[1] in LAYOUTS[name] else {}
    return missing | {one: found for one, found in result.items() if one not in left_out}


def fields(kind: str, layout: dict[str, Field], shown: Tree) -> dict[str, Any]:
    """Return the fields of a message or column by the names of the vectors."""
    names = FIELDS[kind]
    pairs = ((names.get(key.removeprefix("pgsql.")), text) for key, text in shown)
    return {name: value(layout[name], text) for name, text in pairs if name is not None}


def value(field: Field, text: str) -> Any:
    """Return a value as the vectors write it."""
    if field.type == "timestamp":
        try:
            return time(datetime.fromisoformat(text))
        except ValueError:  # beyond the year 9999
            return text
    if field.kind == "bytes":
        return {"binary": text.encode().hex()}
    if field.kind == "string":
        return text
    number = int(text, 0)
    if field.kind == "enum":
        return chr(number)
    if field.kind == "bool":
        return bool(number)
    return lsn(number) if field.type == "lsn" else number


def cell(shown: dict[str, str]) -> Any:
    """Return a cell of a tuple."""
    match shown["pgsql.tuple_type"]:
        case "NULL":
            return None
        case "Unchanged TOASTed":
            return {"unchanged": True}
        case "Binary":
            return {"binary": shown.get("pgsql.val.data", "").replace(":", "")}
    return shown.get("pgsql.val.text_data", "")


def claims(request: dict[str, Any]) -> str | None:
    """Return why the adapter does not run a request, or None."""
    return "streaming replication protocol" if request["version"] is None else None


if __name__ == "__main__":
    TSHARK = Tshark()
    serve_streams(decoded, claims)
