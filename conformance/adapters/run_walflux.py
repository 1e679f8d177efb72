"""Run the decoder of walflux on test vectors."""

from __future__ import annotations

from typing import Any

from loop import lsn, serve, time, version_1_text
from walflux.protocol import UNCHANGED_TOAST, Column, decode_message


def decode(data: bytes) -> dict[str, Any]:
    """Decode a message."""
    kind = type(message := decode_message(data)).__name__.removesuffix("Info")
    return {"type": kind} | FIELDS.get(kind, _change)(message)


def _change(m: Any) -> dict[str, Any]:
    rows = {name: row for name in ("key", "old", "new") if (row := getattr(m, name, None)) is not None}
    return {"relation_oid": m.rel_id} | {name: list(map(_cell, row)) for name, row in rows.items()}


def _cell(value: Any) -> Any:
    return {"unchanged": True} if value is UNCHANGED_TOAST else value


def _relation(m: Any) -> dict[str, Any]:
    json = {"oid": m.rel_id, "namespace": m.namespace, "name": m.name}
    return json | {"replica_identity": m.replica_identity, "columns": list(map(_column, m.columns))}


def _column(c: Column) -> dict[str, Any]:
    return {"flags": int(c.is_key), "name": c.name, "type_oid": c.type_oid, "type_modifier": c.type_mod}


FIELDS = {
    "Begin": lambda m: {"final_lsn": lsn(m.final_lsn), "commit_time": time(m.commit_ts), "xid": m.xid},
    "Commit": lambda m: {
        "commit_lsn": lsn(m.commit_lsn),
        "end_lsn": lsn(m.end_lsn),
        "commit_time": time(m.commit_ts),
    },
    "Relation": _relation,
    "Truncate": lambda m: {"options": m.options, "relation_oids": m.rel_ids},
    "Origin": lambda m: {"origin_lsn": lsn(m.commit_lsn), "name": m.name},
    "Type": lambda m: {"oid": m.type_oid, "namespace": m.namespace, "name": m.name},
}

if __name__ == "__main__":
    serve(lambda request: decode, version_1_text)
