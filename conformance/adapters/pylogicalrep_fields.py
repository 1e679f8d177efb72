"""The messages of pypgoutput, and of its fork pypgcdc, as JSON."""

from __future__ import annotations

import importlib
from typing import Any

from loop import Decode, lsn, time

KINDS = ("Begin", "Commit", "Relation", "Insert", "Update", "Delete", "Truncate")


def decoder(package: str) -> Decode:
    """Return a function that decodes a message as the reader of the package does; others are ignored."""
    decoders = importlib.import_module(f"{package}.decoders")
    classes = {getattr(decoders, kind).__name__[0].encode(): getattr(decoders, kind) for kind in KINDS}

    def decode(data: bytes) -> dict[str, Any]:
        kind = classes.get(data[:1].decode().encode())
        if kind is None:
            return {}
        message = kind(data)
        return {"type": kind.__name__} | FIELDS[kind.__name__](message)

    return decode


def _relation(message: Any) -> dict[str, Any]:
    return {
        "oid": message.relation_id,
        "namespace": message.namespace,
        "name": message.relation_name,
        "replica_identity": message.replica_identity_setting,
        "columns": [
            {
                "flags": one.part_of_pkey,
                "name": one.name,
                "type_oid": one.type_id,
                "type_modifier": one.atttypmod,
            }
            for one in message.columns
        ],
    }


def _update(message: Any) -> dict[str, Any]:
    tuples: dict[str, Any] = {"key": None, "old": None}
    if message.optional_tuple_identifier:
        tuples[{"K": "key", "O": "old"}[message.optional_tuple_identifier]] = _cells(message.old_tuple)
    return {"relation_oid": message.relation_id, "new": _cells(message.new_tuple)} | tuples


def _delete(message: Any) -> dict[str, Any]:
    name = {"K": "key", "O": "old"}[message.message_type]
    return {"relation_oid": message.relation_id, "key": None, "old": None} | {name: _cells(message.old_tuple)}


def _cells(cells: Any) -> list[Any]:
    forms = {"n": None, "u": {"unchanged": True}}
    return [forms.get(one.col_data_category, one.col_data) for one in cells.column_data]


FIELDS = {
    "Begin": lambda m: {"final_lsn": lsn(m.lsn), "commit_time": time(m.commit_ts), "xid": m.tx_xid},
    "Commit": lambda m: {
        "commit_lsn": lsn(m.lsn_commit),
        "end_lsn": lsn(m.lsn),
        "commit_time": time(m.commit_ts),
    },
    "Relation": _relation,
    "Insert": lambda m: {"relation_oid": m.relation_id, "new": _cells(m.new_tuple)},
    "Update": _update,
    "Delete": _delete,
    "Truncate": lambda m: {"options": m.option_bits, "relation_oids": m.relation_ids},
}
