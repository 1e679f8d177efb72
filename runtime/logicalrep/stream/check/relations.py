"""Rules about the columns of Relation messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep._rules import Breach
from logicalrep.messages import ColumnFlag, ReplicaIdentity
from logicalrep.stream.check import samples as s
from logicalrep.stream.check.model import rule
from logicalrep.stream.check.state import CheckedStream

_FIRST_USER_TYPE_OID: Final = 10_000
"""First OID of types that are not built in (FirstGenbkiObjectId). Built-in types need no Type message."""

_MAX_NAME_BYTES: Final = 63
"""Maximum length of a name, in bytes (NAMEDATALEN less the zero byte)."""
_MAX_COLUMNS: Final = 1600
"""Maximum number of columns of a relation (MaxHeapAttributeNumber)."""


def _first_duplicate(items: Sequence[object]) -> int:
    """Return the index of the first item that equals an earlier item. The items must contain a duplicate."""
    seen = set()
    for i, item in enumerate(items):
        if item in seen:
            return i
        seen.add(item)
    raise ValueError(f"expected a list with a repeated item, found {items!r}")


def _types_missing(state: CheckedStream, message: Any) -> Breach | None:
    expected = [c.type_oid for c in message.columns if c.type_oid >= _FIRST_USER_TYPE_OID]
    if expected == state.pending_types:
        return None
    missing = Counter(expected) - Counter(state.pending_types)
    for i, column in enumerate(message.columns):
        if column.type_oid in missing:
            return (
                f"columns[{i}].type_oid",
                f"no Type message for {column.type_oid} directly precedes this message",
            )
    extra = Counter(state.pending_types) - Counter(expected)
    if extra:
        return "tag", f"the preceding Type message for {next(iter(extra))} belongs to none of the columns"
    return "tag", "the preceding Type messages are not in column order"


def _wrong_key_flags(state: CheckedStream, message: Any) -> Breach | None:
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


def _bad_name(state: CheckedStream, message: Any) -> Breach | None:
    if not message.name:
        return "name", "the relation has no name"
    names = [column.name for column in message.columns]
    if len(set(names)) == len(names) and "" not in names:
        return None
    if "" in names:
        return f"columns[{names.index('')}].name", "the column has no name"
    i = _first_duplicate(names)
    return f"columns[{i}].name", f"two columns have the name {names[i]!r}"


def _long_name(state: CheckedStream, message: Any) -> Breach | None:
    columns = getattr(message, "columns", ())
    named = [(f"columns[{i}].name", column.name) for i, column in enumerate(columns)]
    for path, name in (("namespace", message.namespace), ("name", message.name), *named):
        if len(name) * 4 > _MAX_NAME_BYTES and len(name.encode(errors="surrogateescape")) > _MAX_NAME_BYTES:
            return path, f"names have at most {_MAX_NAME_BYTES} bytes"
    return None


def _too_many_columns(state: CheckedStream, message: Any) -> Breach | None:
    if len(message.columns) <= _MAX_COLUMNS:
        return None
    return "columns.count", f"tables can have at most {_MAX_COLUMNS} columns, not {len(message.columns)}"


def _system_schema(state: CheckedStream, message: Any) -> Breach | None:
    if message.namespace not in ("", "pg_catalog"):
        return None
    return "namespace", "no relation of pg_catalog is published"


def _invalid_oid(state: CheckedStream, message: Any) -> Breach | None:
    if not message.oid:
        return "oid", "no relation has the OID 0"
    for i, column in enumerate(message.columns):
        if not column.type_oid:
            return f"columns[{i}].type_oid", "no type has the OID 0"
    return None


_DUPLICATE_NAMES: Final = replace(s.RELATION, columns=(s.COLUMNS[0], s.COLUMNS[0]))
_FULL_WITHOUT_KEY_FLAGS: Final = replace(s.RELATION, replica_identity=ReplicaIdentity.FULL)
_WIDE: Final = tuple(replace(s.COLUMNS[0], name=f"c{i}") for i in range(_MAX_COLUMNS + 1))
_OID_ZERO: Final = replace(s.RELATION, oid=0)

RULES: Final = (
    rule(
        "type-before-relation",
        check=_types_missing,
        legal=s.transaction(s.MOOD, s.RELATION_WITH_MOOD, s.INSERT),
        illegal=s.transaction(s.RELATION_WITH_MOOD, s.INSERT),
    ),
    rule(
        "key-flags",
        check=_wrong_key_flags,
        legal=s.transaction(s.FULL, s.INSERT),
        illegal=s.transaction(_FULL_WITHOUT_KEY_FLAGS, s.INSERT),
    ),
    rule("names", check=_bad_name, illegal=s.transaction(_DUPLICATE_NAMES, s.INSERT)),
    rule(
        "name-length",
        check=_long_name,
        legal=s.transaction(replace(s.RELATION, name="\u00e9" * 31), s.INSERT),
        illegal=s.transaction(replace(s.RELATION, name="\u00e9" * 32), s.INSERT),
    ),
    rule(
        "column-limit",
        check=_too_many_columns,
        legal=s.transaction(
            replace(s.RELATION, columns=_WIDE[:-1]), m.Insert(relation_oid=s.OID, new=("1",) * _MAX_COLUMNS)
        ),
        illegal=s.transaction(
            replace(s.RELATION, columns=_WIDE), m.Insert(relation_oid=s.OID, new=("1",) * len(_WIDE))
        ),
    ),
    rule(
        "user-schema",
        check=_system_schema,
        illegal=s.transaction(replace(s.RELATION, namespace=""), s.INSERT),
    ),
    rule(
        "oid-valid",
        check=_invalid_oid,
        illegal=s.transaction(_OID_ZERO, m.Insert(relation_oid=0, new=("1", "x"))),
    ),
)
