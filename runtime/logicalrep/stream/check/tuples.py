"""Rules about the new, old and key tuples of changes, and about the size of messages."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep._changes import wrong_width
from logicalrep._roles import ROW_FIELDS, field_name, getters, tuples
from logicalrep._rules import Breach
from logicalrep._text import qualified_name
from logicalrep.messages import UNCHANGED, Message, ReplicaIdentity
from logicalrep.stream.check import samples as s
from logicalrep.stream.check.model import rule
from logicalrep.stream.check.options import HEADER_BYTES, CheckOptions
from logicalrep.stream.check.state import CheckedStream, KnownRelation

_OIDS: Final = getters("relation")
_KEYS: Final = getters("key")
_OLDS: Final = getters("old")


def _wrong_column_count(state: CheckedStream, message: Message) -> Breach | None:
    kind = type(message)
    known = state.relation_for(_OIDS[kind](message))
    if known is None:
        return None
    for name, is_list in ROW_FIELDS[kind]:
        value = getattr(message, name)
        if value is not None and (is_list or len(value) != known.width):
            break
    else:  # the usual case: return before the slower search for the tuple
        return None
    if (wrong := wrong_width(message, known.relation)) is None:
        return None
    path, text = wrong
    return f"{path}.count", text


def _too_large(state: CheckedStream, message: Message) -> Breach | None:
    if (size := state.size + HEADER_BYTES) < (limit := state.options.max_bytes):
        return None
    return "tag", f"the message with its header has {size} bytes; a server builds less than {limit}"


def _unpartitioned_relation(state: CheckedStream, message: Message) -> KnownRelation | None:
    """Return the relation of a change, or None if the relation is unknown or may be a partitioned table.

    A partition's changes may be sent with the OID of its partitioned table. Their old values then follow the
    replica identity of the partition, which may differ from the replica identity in the table's Relation
    message.
    """
    known = state.relation_for(_OIDS[type(message)](message))
    return None if known is None or known.partitioned else known


def _unchanged_in_old(state: CheckedStream, message: Message) -> Breach | None:
    kind = type(message)
    for meaning, values in (("key", _KEYS), ("old", _OLDS)):
        cells = values[kind](message)
        if cells is not None and UNCHANGED in cells:
            path = f"{field_name(kind, meaning)}[{cells.index(UNCHANGED)}]"
            return path, "old values are always sent, even if TOASTed"
    return None


def _value_outside_key(state: CheckedStream, message: Message) -> Breach | None:
    key = _KEYS[type(message)](message)
    if key is None or (known := _unpartitioned_relation(state, message)) is None:
        return None
    for i in known.others:
        if i < len(key) and key[i] is not None:
            column = known.relation.columns[i].name
            return f"key[{i}]", f"{column!r} is not part of the replica identity, so it must be NULL"
    return None


def _key_null(state: CheckedStream, message: Message) -> Breach | None:
    key = _KEYS[type(message)](message)
    if key is None or None not in key or (known := _unpartitioned_relation(state, message)) is None:
        return None
    for i in known.keys:
        if i < len(key) and key[i] is None:
            column = known.relation.columns[i].name
            return f"key[{i}]", f"{column!r} is part of the replica identity, so it must not be NULL"
    return None


def _wrong_tuple_for_identity(state: CheckedStream, message: Message) -> Breach | None:
    known = state.relation_for(_OIDS[type(message)](message))
    if known is None:
        return None
    full = known.relation.replica_identity == ReplicaIdentity.FULL
    if _KEYS[type(message)](message) is not None and full:
        return "key.tag", "the relation has REPLICA IDENTITY FULL, so an old tuple is sent, not a key"
    if _OLDS[type(message)](message) is not None and not full:
        return (
            "old.tag",
            "an old tuple is sent only with REPLICA IDENTITY FULL, which the relation does not have",
        )
    return None


def _missing_identity(state: CheckedStream, message: Message) -> Breach | None:
    if (known := _unpartitioned_relation(state, message)) is None:
        return None
    relation = known.relation
    if relation.replica_identity == ReplicaIdentity.FULL or known.keys:
        return None
    name = qualified_name(relation.namespace, relation.name)
    return "relation_oid", f"{name} has no replica identity, so its rows cannot be updated or deleted"


def _old_missing(state: CheckedStream, message: Message) -> Breach | None:
    if _OLDS[type(message)](message) is not None or _KEYS[type(message)](message) is not None:
        return None
    known = _unpartitioned_relation(state, message)
    if known is None or known.relation.replica_identity != ReplicaIdentity.FULL:
        return None
    return "new.tag", "the relation has REPLICA IDENTITY FULL, but the old tuple is missing"


def _unrequested_binary(state: CheckedStream, message: Message) -> Breach | None:
    for field, cells in tuples(message):
        if bytes in map(type, cells):
            i = [type(cell) for cell in cells].index(bytes)
            return f"{field}[{i}].tag", "the option `binary` was not requested"
    return None


_NOTHING: Final = replace(
    s.RELATION,
    replica_identity=ReplicaIdentity.NOTHING,
    columns=tuple(
        m.RelationColumn(flags=m.ColumnFlag(0), name=c.name, type_oid=c.type_oid, type_modifier=-1)
        for c in s.COLUMNS
    ),
)

RULES: Final = (
    rule(
        "column-count",
        check=_wrong_column_count,
        illegal=s.transaction(s.RELATION, m.Insert(relation_oid=s.OID, new=("1",))),
    ),
    rule(
        "old-complete",
        check=_unchanged_in_old,
        legal=s.transaction(s.RELATION, m.Update(relation_oid=s.OID, new=("1", UNCHANGED), key=("0", None))),
        illegal=s.transaction(s.FULL, m.Delete(relation_oid=s.OID, old=("1", UNCHANGED))),
    ),
    rule(
        "key-only",
        check=_value_outside_key,
        legal=s.transaction(s.RELATION, s.DELETE),
        illegal=s.transaction(s.RELATION, m.Delete(relation_oid=s.OID, key=("1", "x"))),
    ),
    rule(
        "key-complete",
        check=_key_null,
        legal=s.transaction(s.RELATION, s.DELETE),
        illegal=s.transaction(s.RELATION, m.Delete(relation_oid=s.OID, key=(None, None))),
    ),
    rule(
        "replica-identity",
        check=_wrong_tuple_for_identity,
        legal=s.transaction(s.FULL, m.Delete(relation_oid=s.OID, old=("1", "x"))),
        illegal=s.transaction(s.RELATION, m.Delete(relation_oid=s.OID, old=("1", "x"))),
    ),
    rule(
        "replica-identity-needed",
        check=_missing_identity,
        legal=s.transaction(s.RELATION, s.DELETE),
        illegal=s.transaction(_NOTHING, m.Update(relation_oid=s.OID, new=("1", "x"))),
    ),
    rule(
        "old-row-needed",
        check=_old_missing,
        legal=s.transaction(s.FULL, m.Update(relation_oid=s.OID, new=("1", "y"), old=("1", "x"))),
        illegal=s.transaction(s.FULL, m.Update(relation_oid=s.OID, new=("1", "y"))),
    ),
    rule(
        "message-size",
        check=_too_large,
        options=CheckOptions(max_bytes=1_000),
        illegal=s.transaction(s.RELATION, m.Insert(relation_oid=s.OID, new=("1", "x" * 1_000))),
    ),
    rule(
        "binary-off",
        check=_unrequested_binary,
        options=CheckOptions(binary=False),
        illegal=s.transaction(s.RELATION, m.Insert(relation_oid=s.OID, new=(b"\0\0\0\1", "x"))),
    ),
)
