"""Rules of the rows that changes carry."""

from __future__ import annotations

from typing import Final, TypeAlias

from pgoutput import messages as m
from pgoutput.messages import UNCHANGED, ReplicaIdentity, TupleData
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import Known, State

_Old: TypeAlias = m.Update | m.Delete


def _count(state: State, message: m.Insert | m.Update | m.Delete) -> Fault | None:
    known = state.known(message.relation_oid)
    if known is None:
        return None
    for field in _FIELDS[type(message)]:
        cells: TupleData | None = getattr(message, field)
        if cells is not None and len(cells) != known.width:
            relation = known.relation
            name = f"{relation.namespace or 'pg_catalog'}.{relation.name}"
            text = f"{field} has {len(cells)} columns, but {name} has {known.width}"
            return f"{field}.count", text
    return None


def _itself(state: State, message: _Old) -> Known | None:
    """What is known of the relation, if its own replica identity decides which old values come."""
    known = state.known(message.relation_oid)
    return None if known is None or known.partitioned else known


def _unchanged(state: State, message: _Old) -> Fault | None:
    cells, field = (message.key, "key") if message.key is not None else (message.old, "old")
    if cells is None or UNCHANGED not in cells:
        return None
    return f"{field}[{cells.index(UNCHANGED)}]", "old values come always, even where they are large"


def _beside_key(state: State, message: _Old) -> Fault | None:
    key = message.key
    if key is None or (known := _itself(state, message)) is None:
        return None
    for i in known.others:
        if i < len(key) and key[i] is not None:
            column = known.relation.columns[i].name
            return f"key[{i}]", f"{column!r} is not part of the replica identity, so it is NULL here"
    return None


def _key_null(state: State, message: _Old) -> Fault | None:
    key = message.key
    if key is None or None not in key or (known := _itself(state, message)) is None:
        return None
    for i in known.keys:
        if i < len(key) and key[i] is None:
            column = known.relation.columns[i].name
            return f"key[{i}]", f"{column!r} is part of the replica identity, so it is not NULL"
    return None


def _identity(state: State, message: _Old) -> Fault | None:
    known = state.known(message.relation_oid)
    if known is None:
        return None
    full = known.relation.replica_identity == ReplicaIdentity.FULL
    if message.key is not None and full:
        return "key.tag", "the relation has REPLICA IDENTITY FULL, so the whole old row comes, not the key"
    if message.old is not None and not full:
        return (
            "old.tag",
            "the old row comes only with REPLICA IDENTITY FULL, which the relation does not have",
        )
    return None


def _no_identity(state: State, message: _Old) -> Fault | None:
    if (known := _itself(state, message)) is None:
        return None
    relation = known.relation
    if relation.replica_identity == ReplicaIdentity.FULL or known.keys:
        return None
    name = f"{relation.namespace or 'pg_catalog'}.{relation.name}"
    return "relation_oid", f"{name} has no replica identity, so that no row of it can be updated or deleted"


def _old_missing(state: State, message: m.Update) -> Fault | None:
    if message.old is not None or message.key is not None:
        return None
    known = _itself(state, message)
    if known is None or known.relation.replica_identity != ReplicaIdentity.FULL:
        return None
    return "new.tag", "the relation has REPLICA IDENTITY FULL, but the old row is missing"


def _binary(state: State, message: m.Insert | m.Update | m.Delete) -> Fault | None:
    if state.options.binary is not False:
        return None
    for field in _FIELDS[type(message)]:
        cells: TupleData | None = getattr(message, field)
        if cells is not None and bytes in map(type, cells):
            i = [type(cell) for cell in cells].index(bytes)
            return f"{field}[{i}].tag", "the option `binary` was not asked for"
    return None


_FIELDS: Final = {m.Insert: ("new",), m.Update: ("key", "old", "new"), m.Delete: ("key", "old")}
_ROWS: Final = (m.Insert, m.Update, m.Delete)
_OLD: Final = (m.Update, m.Delete)
_TEXT: Final = CheckOptions(binary=False)
_NOTHING: Final = m.Relation(
    s.OID,
    "public",
    "t",
    ReplicaIdentity.NOTHING,
    tuple(m.RelationColumn(0, c.name, c.type_oid, -1) for c in s.COLUMNS),
)

RULES: Final = (
    Rule(
        name="column-count",
        doc="The rows of a change have as many columns as the last Relation message of their relation.",
        source="logicalrep_write_tuple",
        on=_ROWS,
        broken=_count,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(s.RELATION, m.Insert(s.OID, ("1",))),
    ),
    Rule(
        name="old-complete",
        doc="Keys and old rows have no unchanged TOASTed values: they are sent always. (Where a row filter"
        " turns an update into an insert, a new row may have such.)",
        source="ExtractReplicaIdentity (toast_flatten_tuple)",
        on=_OLD,
        broken=_unchanged,
        legal=s.transaction(s.RELATION, m.Update(s.OID, ("1", UNCHANGED), key=("0", None))),
        illegal=s.transaction(s.FULL, m.Delete(s.OID, old=("1", UNCHANGED))),
    ),
    Rule(
        name="key-only",
        doc="A key is as wide as the row, and NULL in the columns that are not part of the replica identity. "
        "(This rule and the next, old-row-needed and replica-identity-needed are not held against a relation "
        "whose Relation came right before another: rows of a partition may be sent as those of its "
        "partitioned table, but have the old values that the partition's replica identity wants.)",
        source="ExtractReplicaIdentity",
        on=_OLD,
        broken=_beside_key,
        legal=s.transaction(s.RELATION, s.DELETE),
        illegal=s.transaction(s.RELATION, m.Delete(s.OID, key=("1", "x"))),
    ),
    Rule(
        name="key-complete",
        doc="The columns of a key are not NULL.",
        source="ExtractReplicaIdentity (Assert !nulls)",
        on=_OLD,
        broken=_key_null,
        legal=s.transaction(s.RELATION, s.DELETE),
        illegal=s.transaction(s.RELATION, m.Delete(s.OID, key=(None, None))),
    ),
    Rule(
        name="replica-identity",
        doc="The old row comes with REPLICA IDENTITY FULL, the key with any other.",
        source="logicalrep_write_update, logicalrep_write_delete",
        on=_OLD,
        broken=_identity,
        legal=s.transaction(s.FULL, m.Delete(s.OID, old=("1", "x"))),
        illegal=s.transaction(s.RELATION, m.Delete(s.OID, old=("1", "x"))),
    ),
    Rule(
        name="replica-identity-needed",
        doc="Rows are updated and deleted only where the relation has a replica identity: a key, or FULL.",
        source="CheckCmdReplicaIdentity",
        on=_OLD,
        broken=_no_identity,
        legal=s.transaction(s.RELATION, s.DELETE),
        illegal=s.transaction(_NOTHING, m.Update(s.OID, ("1", "x"))),
    ),
    Rule(
        name="old-row-needed",
        doc="With REPLICA IDENTITY FULL each update has the old row.",
        source="ExtractReplicaIdentity",
        on=(m.Update,),
        broken=_old_missing,
        legal=s.transaction(s.FULL, m.Update(s.OID, ("1", "y"), old=("1", "x"))),
        illegal=s.transaction(s.FULL, m.Update(s.OID, ("1", "y"))),
    ),
    Rule(
        name="binary-off",
        doc="Values come in binary format only where the option `binary` was asked for.",
        source="logicalrep_write_tuple",
        on=_ROWS,
        broken=_binary,
        options=_TEXT,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(s.RELATION, m.Insert(s.OID, (b"\0\0\0\1", "x"))),
    ),
)
