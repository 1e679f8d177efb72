"""Run the decoder of core-cdc on test vectors. Values stay text. Times are in seconds, and not compared."""

from __future__ import annotations

from functools import partial
from typing import Any

from core_cdc.processors.postgres import pgoutput
from loop import lsn, serve, version_1_text

pgoutput._CONVERTERS.clear()


def decode(decoder: pgoutput.PgOutputDecoder, data: bytes) -> dict[str, Any]:
    """Decode a message. Only its bytes tell whether `old` is a key or an old row."""
    message: Any = decoder.decode(data)
    message = getattr(message, "current", message)  # of a SchemaChange
    kind = type(message).__name__
    if kind == "Unsupported":
        return {}
    if kind in FIELDS:
        return {"type": kind} | FIELDS[kind](message)
    json = {"type": kind, "relation_oid": message.relation_id}
    names = [one.name for one in decoder.get_relation(message.relation_id).columns]
    for name, key in (("old", "key" if data[5:6] == b"K" else "old"), ("new", "new")):
        if (row := getattr(message, name, None)) is not None:
            json[key] = [row.get(one, {"unchanged": True}) for one in names]
    return json


def _relation(m: Any) -> dict[str, Any]:
    namespace = "" if m.schema == "pg_catalog" else m.schema  # the decoder replaces an empty name
    json = {"oid": m.relation_id, "namespace": namespace, "name": m.table}
    return json | {"replica_identity": m.replica_identity, "columns": list(map(_column, m.columns))}


def _column(c: pgoutput.Column) -> dict[str, Any]:
    return {"flags": int(c.is_key), "name": c.name, "type_oid": c.type_oid, "type_modifier": c.type_modifier}


FIELDS = {
    "Begin": lambda m: {"final_lsn": lsn(m.final_lsn), "xid": m.xid},
    "Commit": lambda m: {"commit_lsn": lsn(m.commit_lsn), "end_lsn": lsn(m.end_lsn)},
    "Relation": _relation,
    "Truncate": lambda m: {"relation_oids": m.relation_ids},
}

if __name__ == "__main__":
    serve(lambda request: partial(decode, pgoutput.PgOutputDecoder()), version_1_text)
