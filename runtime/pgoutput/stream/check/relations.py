"""Rules about Relation and Type messages, and about changes that require an earlier Relation message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from pgoutput import messages as m
from pgoutput._changes import missing_relation
from pgoutput._roles import CHANGES, CLOSERS, OPENERS, classes, field_name, getters, meaning_of
from pgoutput.messages import ColumnFlag, Message, RelationColumn, ReplicaIdentity
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.state import StreamState

_FIRST_USER_TYPE_OID: Final = 10_000
"""First OID of types that are not built in (FirstGenbkiObjectId). Built-in types need no Type message."""

_OIDS: Final = getters("relation")


def _changed_relations(message: Message) -> Sequence[tuple[str, int]]:
    """Return (path of the field, OID) for each relation that a row change or Truncate names."""
    kind = type(message)
    if (name := field_name(kind, "relation")) is not None:
        return ((name, getattr(message, name)),)
    if (name := field_name(kind, "relations")) is not None:
        return [(f"{name}[{i}]", oid) for i, oid in enumerate(getattr(message, name))]
    return ()


def _relation_missing(state: StreamState, message: Message) -> Breach | None:
    if _OIDS[type(message)](message) in state.relations:  # the usual case, as fast as it can be
        return None
    streamed = None if state.open is None else state.open.streamed
    for path, oid in _changed_relations(message):
        if oid in state.relations or oid in state.ignored_oids:
            continue
        if streamed is None or oid not in streamed.relations:
            return path, missing_relation(oid)
    return None


def _relation_missing_in_block(state: StreamState, message: Message) -> Breach | None:
    if state.open is None or (streamed := state.open.streamed) is None:
        return None
    for path, oid in _changed_relations(message):
        if oid not in streamed.relations and oid in state.relations and oid not in state.ignored_oids:
            return path, f"no block of transaction {streamed.xid} had the Relation message of the OID {oid}"
    return None


def _truncate_empty(state: StreamState, message: Message) -> Breach | None:
    if meaning_of(message, "relations"):
        return None
    return f"{field_name(type(message), 'relations')}.count", "no relation is listed"


def _truncate_duplicate(state: StreamState, message: Message) -> Breach | None:
    oids = meaning_of(message, "relations")
    if len(set(oids)) == len(oids):
        return None
    i = _first_duplicate(oids)
    return f"{field_name(type(message), 'relations')}[{i}]", f"the relation {oids[i]} is listed twice"


def _first_duplicate(items: Sequence[object]) -> int:
    """Return the index of the first item that equals an earlier item. The items must contain a duplicate."""
    seen = set()
    for i, item in enumerate(items):
        if item in seen:
            return i
        seen.add(item)
    raise ValueError("no item is repeated")


def _types_missing(state: StreamState, message: Any) -> Breach | None:
    expected = [c.type_oid for c in message.columns if c.type_oid >= _FIRST_USER_TYPE_OID]
    if expected == state.pending_types:
        return None
    missing = Counter(expected) - Counter(state.pending_types)
    for i, column in enumerate(message.columns):
        if column.type_oid in missing:
            return (
                f"columns[{i}].type_oid",
                f"the Type message for {column.type_oid} does not directly precede",
            )
    extra = Counter(state.pending_types) - Counter(expected)
    if extra:
        return "tag", f"the preceding Type message for {next(iter(extra))} belongs to none of the columns"
    return "tag", "the preceding Type messages are not in column order"


def _type_without_relation(state: StreamState, message: Message) -> Breach | None:
    if not state.pending_types:
        return None
    return "tag", f"the Relation for the Type message of {state.pending_types[-1]} does not follow"


def _type_built_in(state: StreamState, message: Any) -> Breach | None:
    if message.oid >= _FIRST_USER_TYPE_OID:
        return None
    return "oid", f"type {message.oid} is built in and has no Type message"


def _wrong_key_flags(state: StreamState, message: Any) -> Breach | None:
    identity = message.replica_identity
    expected = {ReplicaIdentity.FULL: ColumnFlag.KEY, ReplicaIdentity.NOTHING: 0}.get(identity)
    if expected is None:
        return None
    for i, column in enumerate(message.columns):
        if column.flags != expected:
            every = "every" if expected else "no"
            return (
                f"columns[{i}].flags",
                f"with REPLICA IDENTITY {identity.name} {every} column is flagged as key",
            )
    return None


def _bad_name(state: StreamState, message: Any) -> Breach | None:
    if not message.name:
        return "name", "the relation has no name"
    names = [column.name for column in message.columns]
    if len(set(names)) == len(names) and "" not in names:
        return None
    if "" in names:
        return f"columns[{names.index('')}].name", "the column has no name"
    i = _first_duplicate(names)
    return f"columns[{i}].name", f"two columns have the name {names[i]!r}"


def _invalid_oid(state: StreamState, message: Any) -> Breach | None:
    if not message.oid:
        return "oid", "no relation has the OID 0"
    for i, column in enumerate(message.columns):
        if not column.type_oid:
            return f"columns[{i}].type_oid", "no type has the OID 0"
    return None


_ROWS: Final = classes("insert", "update", "delete")
_MOOD: Final = m.Type(20_000, "public", "mood")
_RELATION_WITH_MOOD: Final = m.Relation(
    s.OID, "public", "t", ReplicaIdentity.DEFAULT, (s.COLUMNS[0], RelationColumn(0, "note", 20_000, -1))
)
_DUPLICATE_NAMES: Final = m.Relation(
    s.OID, "public", "t", ReplicaIdentity.DEFAULT, (s.COLUMNS[0], s.COLUMNS[0])
)
_FULL_WITHOUT_KEY_FLAGS: Final = m.Relation(s.OID, "public", "t", ReplicaIdentity.FULL, s.COLUMNS)
_OID_ZERO: Final = m.Relation(0, "public", "t", ReplicaIdentity.DEFAULT, s.COLUMNS)
_OTHERS: Final = classes(*OPENERS, *CLOSERS, *CHANGES, "payload", "origin")

RULES: Final = (
    Rule(
        name="relation-before-use",
        doc="A change refers to a relation whose Relation message was sent before.",
        source="maybe_send_schema",
        on=_ROWS,
        check=_relation_missing,
        legal=s.transaction(s.RELATION, s.INSERT, s.DELETE),
        illegal=s.transaction(s.INSERT, s.DELETE),
    ),
    Rule(
        name="relation-before-truncate",
        doc="A Truncate lists relations whose Relation messages were sent before.",
        source="pgoutput_truncate",
        on=classes("truncate"),
        check=_relation_missing,
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, (s.OID, s.OID + 1))),
    ),
    Rule(
        name="relation-in-block",
        doc="A relation changed in a stream block was described in blocks of the same transaction, and "
        "again after a rollback of one of its savepoints, because other transactions may roll back or "
        "be applied by another process.",
        source="maybe_send_schema (get_schema_sent_in_streamed_txn), cleanup_rel_sync_cache",
        on=_ROWS,
        check=_relation_missing_in_block,
        in_blocks=True,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.FIRST, s.STREAMED, s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="truncate-in-block",
        doc="A relation truncated in a stream block was described in blocks of the same transaction.",
        source="pgoutput_truncate, maybe_send_schema",
        on=classes("truncate"),
        check=_relation_missing_in_block,
        in_blocks=True,
        legal=(s.FIRST, s.STREAMED_RELATION, m.Truncate(0, (s.OID,), xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(
            *s.transaction(s.RELATION, s.INSERT),
            s.FIRST,
            m.Truncate(0, (s.OID,), xid=s.TOP),
            s.STOP,
            s.STREAM_COMMIT,
        ),
    ),
    Rule(
        name="truncate-something",
        doc="A Truncate lists at least one relation.",
        source="pgoutput_truncate (nrelids > 0)",
        on=classes("truncate"),
        check=_truncate_empty,
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, ())),
    ),
    Rule(
        name="truncate-once",
        doc="A Truncate lists each relation once.",
        source="ExecuteTruncateGuts",
        on=classes("truncate"),
        check=_truncate_duplicate,
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, (s.OID, s.OID))),
    ),
    Rule(
        name="type-before-relation",
        doc="A Relation is directly preceded by one Type message per column whose type is not built in "
        "(OID 10000 or higher), in column order, and by no other Type.",
        source="send_relation_and_attrs",
        on=classes("relation"),
        check=_types_missing,
        legal=s.transaction(_MOOD, _RELATION_WITH_MOOD, s.INSERT),
        illegal=s.transaction(_RELATION_WITH_MOOD, s.INSERT),
    ),
    Rule(
        name="type-for-relation",
        doc="A Type message is followed by the Relation it belongs to.",
        source="send_relation_and_attrs",
        on=_OTHERS,
        check=_type_without_relation,
        legal=s.transaction(_MOOD, _RELATION_WITH_MOOD, s.INSERT),
        illegal=s.transaction(s.RELATION, _MOOD, s.INSERT),
    ),
    Rule(
        name="type-built-in",
        doc="Built-in types (OID below 10000) have no Type message.",
        source="send_relation_and_attrs (FirstGenbkiObjectId)",
        on=classes("type"),
        check=_type_built_in,
        legal=s.transaction(_MOOD, _RELATION_WITH_MOOD, s.INSERT),
        illegal=(s.BEGIN, m.Type(25, "", "text")),
    ),
    Rule(
        name="key-flags",
        doc="With REPLICA IDENTITY FULL all columns are flagged as key; with NOTHING none is.",
        source="logicalrep_write_attrs",
        on=classes("relation"),
        check=_wrong_key_flags,
        legal=s.transaction(s.FULL, s.INSERT),
        illegal=s.transaction(_FULL_WITHOUT_KEY_FLAGS, s.INSERT),
    ),
    Rule(
        name="names",
        doc="Relations and columns have names, and column names are unique within a relation.",
        source="logicalrep_write_attrs, CheckAttributeNamesTypes",
        on=classes("relation"),
        check=_bad_name,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(_DUPLICATE_NAMES, s.INSERT),
    ),
    Rule(
        name="oid-valid",
        doc="The OIDs of relations and types are not 0.",
        source="GetNewOidWithIndex (InvalidOid)",
        on=classes("relation"),
        check=_invalid_oid,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(_OID_ZERO, m.Insert(0, ("1", "x"))),
    ),
)
