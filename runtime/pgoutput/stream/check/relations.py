"""Rules of what describes relations, and of the changes that need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pgoutput import messages as m
from pgoutput.messages import ColumnFlag, Message, RelationColumn, ReplicaIdentity
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.state import State

_FIRST_OID_OF_OTHERS: Final = 10_000
"""Types below are built in, and get no Type message (FirstGenbkiObjectId)."""


def _not_there(state: State, oid: int, path: str) -> Fault | None:
    if oid in state.relations or oid in state.excused:
        return None
    work = None if state.open is None else state.open.work
    if work is not None and oid in work.relations:
        return None
    return path, f"no Relation message has come for the OID {oid}"


def _unknown(state: State, message: m.Insert | m.Update | m.Delete) -> Fault | None:
    return _not_there(state, message.relation_oid, "relation_oid")


def _truncated_unknown(state: State, message: m.Truncate) -> Fault | None:
    for i, oid in enumerate(message.relation_oids):
        fault = _not_there(state, oid, f"relation_oids[{i}]")
        if fault is not None:
            return fault
    return None


def _not_in_block(state: State, oid: int, path: str) -> Fault | None:
    work = None if state.open is None else state.open.work
    if work is None or oid in work.relations or oid not in state.relations or oid in state.excused:
        return None
    return path, f"transaction {work.xid} has not had the Relation message of the OID {oid} in its own blocks"


def _unknown_in_block(state: State, message: m.Insert | m.Update | m.Delete) -> Fault | None:
    if state.open is None or state.open.work is None:
        return None
    return _not_in_block(state, message.relation_oid, "relation_oid")


def _truncated_unknown_in_block(state: State, message: m.Truncate) -> Fault | None:
    for i, oid in enumerate(message.relation_oids):
        fault = _not_in_block(state, oid, f"relation_oids[{i}]")
        if fault is not None:
            return fault
    return None


def _truncates_nothing(state: State, message: m.Truncate) -> Fault | None:
    return None if message.relation_oids else ("relation_oids.count", "no relation is truncated")


def _truncates_twice(state: State, message: m.Truncate) -> Fault | None:
    oids = message.relation_oids
    if len(set(oids)) == len(oids):
        return None
    i = _first_repeated(oids)
    return f"relation_oids[{i}]", f"the relation {oids[i]} is listed twice"


def _first_repeated(items: Sequence[object]) -> int:
    """The place of the first one that is there before as well."""
    seen = set()
    for i, item in enumerate(items):
        if item in seen:
            return i
        seen.add(item)
    raise ValueError("none is there twice")


def _types_missing(state: State, message: m.Relation) -> Fault | None:
    wanted = [c.type_oid for c in message.columns if c.type_oid >= _FIRST_OID_OF_OTHERS]
    if wanted == state.types:
        return None
    missing = Counter(wanted) - Counter(state.types)
    for i, column in enumerate(message.columns):
        if column.type_oid in missing:
            return f"columns[{i}].type_oid", f"no Type message for {column.type_oid} stands right before"
    there = Counter(state.types) - Counter(wanted)
    if there:
        return "tag", f"the Type message for {next(iter(there))} right before is for none of its columns"
    return "tag", "the Type messages right before are not in the order of its columns"


def _types_unused(state: State, message: Message) -> Fault | None:
    if not state.types:
        return None
    return "tag", f"the Relation that the Type message for {state.types[-1]} belongs to has not come"


def _built_in(state: State, message: m.Type) -> Fault | None:
    if message.oid >= _FIRST_OID_OF_OTHERS:
        return None
    return "oid", f"the type {message.oid} is built in; no message describes such"


def _key_flags(state: State, message: m.Relation) -> Fault | None:
    identity = message.replica_identity
    wanted = {ReplicaIdentity.FULL: ColumnFlag.KEY, ReplicaIdentity.NOTHING: 0}.get(identity)
    if wanted is None:
        return None
    for i, column in enumerate(message.columns):
        if column.flags != wanted:
            every = "every" if wanted else "no"
            return f"columns[{i}].flags", f"under {identity.name} {every} column is flagged as key"
    return None


def _bad_name(state: State, message: m.Relation) -> Fault | None:
    if not message.name:
        return "name", "a relation has a name"
    names = [column.name for column in message.columns]
    if len(set(names)) == len(names) and "" not in names:
        return None
    if "" in names:
        return f"columns[{names.index('')}].name", "a column has a name"
    i = _first_repeated(names)
    return f"columns[{i}].name", f"two columns have the name {names[i]!r}"


def _invalid_oid(state: State, message: m.Relation) -> Fault | None:
    if not message.oid:
        return "oid", "no relation has the OID 0"
    for i, column in enumerate(message.columns):
        if not column.type_oid:
            return f"columns[{i}].type_oid", "no type has the OID 0"
    return None


_ROWS: Final = (m.Insert, m.Update, m.Delete)
_MOOD: Final = m.Type(20_000, "public", "mood")
_MOODY: Final = m.Relation(
    s.OID, "public", "t", ReplicaIdentity.DEFAULT, (s.COLUMNS[0], RelationColumn(0, "note", 20_000, -1))
)
_NAMELESS: Final = m.Relation(s.OID, "public", "t", ReplicaIdentity.DEFAULT, (s.COLUMNS[0], s.COLUMNS[0]))
_ODD: Final = m.Relation(s.OID, "public", "t", ReplicaIdentity.FULL, s.COLUMNS)
_ZERO: Final = m.Relation(0, "public", "t", ReplicaIdentity.DEFAULT, s.COLUMNS)
_OTHERS: Final = (
    m.Begin,
    m.BeginPrepare,
    m.StreamStart,
    m.StreamStop,
    m.Commit,
    m.Prepare,
    *_ROWS,
    m.Truncate,
    m.LogicalMessage,
    m.Origin,
)

RULES: Final = (
    Rule(
        name="relation-before-use",
        doc="A change touches relations whose Relation message has come.",
        source="maybe_send_schema",
        on=_ROWS,
        broken=_unknown,
        legal=s.transaction(s.RELATION, s.INSERT, s.DELETE),
        illegal=s.transaction(s.INSERT, s.DELETE),
    ),
    Rule(
        name="relation-before-truncate",
        doc="A truncate, too, lists relations whose Relation message has come.",
        source="pgoutput_truncate",
        on=(m.Truncate,),
        broken=_truncated_unknown,
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, (s.OID, s.OID + 1))),
    ),
    Rule(
        name="relation-in-block",
        doc="What a block changes was described in the blocks of that transaction, and again since a "
        "savepoint of it was rolled back: other transactions may be applied elsewhere, or be rolled "
        "back.",
        source="maybe_send_schema (get_schema_sent_in_streamed_txn), cleanup_rel_sync_cache",
        on=_ROWS,
        broken=_unknown_in_block,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.FIRST, s.STREAMED, s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="truncate-in-block",
        doc="So was what a block truncates.",
        source="pgoutput_truncate, maybe_send_schema",
        on=(m.Truncate,),
        broken=_truncated_unknown_in_block,
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
        doc="A truncate lists a relation.",
        source="pgoutput_truncate (nrelids > 0)",
        on=(m.Truncate,),
        broken=_truncates_nothing,
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, ())),
    ),
    Rule(
        name="truncate-once",
        doc="A truncate lists no relation twice.",
        source="ExecuteTruncateGuts",
        on=(m.Truncate,),
        broken=_truncates_twice,
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, (s.OID, s.OID))),
    ),
    Rule(
        name="type-before-relation",
        doc="Right before a Relation stands a Type message for each column whose type is not built in (OID"
        " 10000 and up), in the order of the columns, and no other.",
        source="send_relation_and_attrs",
        on=(m.Relation,),
        broken=_types_missing,
        legal=s.transaction(_MOOD, _MOODY, s.INSERT),
        illegal=s.transaction(_MOODY, s.INSERT),
    ),
    Rule(
        name="type-for-relation",
        doc="Behind a Type message stands the Relation that it belongs to.",
        source="send_relation_and_attrs",
        on=_OTHERS,
        broken=_types_unused,
        legal=s.transaction(_MOOD, _MOODY, s.INSERT),
        illegal=s.transaction(s.RELATION, _MOOD, s.INSERT),
    ),
    Rule(
        name="type-built-in",
        doc="Types that are built in (OID below 10000) are described by no message.",
        source="send_relation_and_attrs (FirstGenbkiObjectId)",
        on=(m.Type,),
        broken=_built_in,
        legal=s.transaction(_MOOD, _MOODY, s.INSERT),
        illegal=(s.BEGIN, m.Type(25, "", "text")),
    ),
    Rule(
        name="key-flags",
        doc="Under REPLICA IDENTITY FULL all columns are flagged as key, under NOTHING none.",
        source="logicalrep_write_attrs",
        on=(m.Relation,),
        broken=_key_flags,
        legal=s.transaction(s.FULL, s.INSERT),
        illegal=s.transaction(_ODD, s.INSERT),
    ),
    Rule(
        name="names",
        doc="Relations and columns have names, and no two columns of a relation have the same.",
        source="logicalrep_write_attrs, CheckAttributeNamesTypes",
        on=(m.Relation,),
        broken=_bad_name,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(_NAMELESS, s.INSERT),
    ),
    Rule(
        name="oid-valid",
        doc="No relation and no type has the OID 0.",
        source="GetNewOidWithIndex (InvalidOid)",
        on=(m.Relation,),
        broken=_invalid_oid,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(_ZERO, m.Insert(0, ("1", "x"))),
    ),
)
