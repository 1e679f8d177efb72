"""System catalogs and views that clients can query: their columns and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pgoutput.catalog import TYPES
from pgoutput.messages import ColumnFlag, Relation
from pgoutput.standin.backend import Backend
from pgoutput.standin.server_state import ServerState
from pgoutput.standin.values import BOOL, INT4, INT8, NAME, OID, PG_LSN, TEXT, XID, SqlValue
from pgoutput.wire import format_lsn

_PUBLIC_OID: Final = 2200
_DATABASE_OID: Final = 5
_SUPERUSER_OID: Final = 10
_PG_CLASS_OID: Final = 1259
_FIRST_OID: Final = 16_384


class CatalogContext(msgspec.Struct, frozen=True):
    """State of the server and connection that the catalogs show to one query."""

    server: ServerState
    """State of the server."""
    backend: Backend
    """State of the connection that queries the catalogs."""
    publications: Sequence[str]
    """Names of the publications to show."""


def _slots(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    for slot in context.server.slots:
        confirmed = format_lsn(slot.confirmed_flush_lsn)
        yield (
            *(slot.name, "pgoutput", "logical", _DATABASE_OID, slot.database, slot.temporary),
            *(slot.active_pid is not None, slot.active_pid, None, None, confirmed, confirmed),
            *("reserved", None, slot.two_phase, None, None, False, None, slot.failover, False),
        )


def _publications(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    for oid, name in enumerate(context.publications, _FIRST_OID):
        yield (oid, name, _SUPERUSER_OID, True, True, True, True, True, False, 1)


def _publication_tables(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    for name in context.publications:
        for table in context.server.source.tables:
            yield name, _namespace(table), table.name


def _walsenders(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    for backend in context.server.backends.values():
        progress = backend.replication
        if progress is None:
            continue
        confirmed = format_lsn(progress.slot.confirmed_flush_lsn)
        sent, written = format_lsn(progress.sent_lsn), format_lsn(progress.written_lsn)
        identity = backend.pid, backend.user, backend.settings["application_name"]
        yield *identity, "streaming", sent, written, confirmed, confirmed, "async"


def _namespaces(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    yield 11, "pg_catalog"
    yield _PUBLIC_OID, "public"
    for name, oid in _namespace_oids(context).items():
        if oid >= _FIRST_OID:
            yield oid, name


def _classes(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    oids = _namespace_oids(context)
    yield _PG_CLASS_OID, "pg_class", 11, "r", "n", 0
    for table in context.server.source.tables:
        yield table.oid, table.name, oids[_namespace(table)], "r", table.replica_identity.value, table.oid


def _attributes(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    none = False, False, "", ""
    for table in context.server.source.tables:
        for number, column in enumerate(table.columns, 1):
            key = bool(column.flags & ColumnFlag.KEY)
            yield table.oid, column.name, column.type_oid, number, column.type_modifier, key, False, 3, *none


def _types(context: CatalogContext) -> Iterator[Sequence[SqlValue]]:
    for builtin in TYPES:
        yield builtin.oid, builtin.name, 11, builtin.array_oid, 0, "b", 0, None
        if builtin.array_oid:
            yield builtin.array_oid, f"_{builtin.name}", 11, 0, builtin.oid, "b", 0, None


def _namespace(table: Relation) -> str:
    return table.namespace or "pg_catalog"


def _namespace_oids(context: CatalogContext) -> dict[str, int]:
    known = {"pg_catalog": 11, "public": _PUBLIC_OID}
    names = dict.fromkeys(_namespace(table) for table in context.server.source.tables)
    others = [name for name in names if name not in known]
    return known | {name: oid for oid, name in enumerate(others, _FIRST_OID)}


_SLOT: Final = {
    "slot_name": NAME,
    "plugin": NAME,
    "slot_type": TEXT,
    "datoid": OID,
    "database": NAME,
    "temporary": BOOL,
    "active": BOOL,
    "active_pid": INT4,
    "xmin": XID,
    "catalog_xmin": XID,
    "restart_lsn": PG_LSN,
    "confirmed_flush_lsn": PG_LSN,
    "wal_status": TEXT,
    "safe_wal_size": INT8,
    "two_phase": BOOL,
    "two_phase_at": PG_LSN,
    "inactive_since": TEXT,
    "conflicting": BOOL,
    "invalidation_reason": TEXT,
    "failover": BOOL,
    "synced": BOOL,
}
_PUBLICATION: Final = {
    "oid": OID,
    "pubname": NAME,
    "pubowner": OID,
    "puballtables": BOOL,
    "pubinsert": BOOL,
    "pubupdate": BOOL,
    "pubdelete": BOOL,
    "pubtruncate": BOOL,
    "pubviaroot": BOOL,
    "xmin": XID,
}
_WALSENDER: Final = {
    "pid": INT4,
    "usename": NAME,
    "application_name": TEXT,
    "state": TEXT,
    "sent_lsn": PG_LSN,
    "write_lsn": PG_LSN,
    "flush_lsn": PG_LSN,
    "replay_lsn": PG_LSN,
    "sync_state": TEXT,
}
_ATTRIBUTE: Final = {
    "attrelid": OID,
    "attname": NAME,
    "atttypid": OID,
    "attnum": 21,
    "atttypmod": INT4,
    "attnotnull": BOOL,
    "attisdropped": BOOL,
    "xmin": XID,
    "atthasdef": BOOL,
    "atthasmissing": BOOL,
    "attidentity": 18,
    "attgenerated": 18,
}
_CLASS: Final = {
    "oid": OID,
    "relname": NAME,
    "relnamespace": OID,
    "relkind": 18,
    "relreplident": 18,
    "relfilenode": OID,
}
_TYPE: Final = {
    "oid": OID,
    "typname": NAME,
    "typnamespace": OID,
    "typarray": OID,
    "typelem": OID,
    "typtype": 18,
    "typbasetype": OID,
    "typdefault": TEXT,
}

CATALOGS: Final[
    Mapping[str, tuple[Mapping[str, int], Callable[[CatalogContext], Iterable[Sequence[SqlValue]]]]]
] = {
    "pg_replication_slots": (_SLOT, _slots),
    "pg_publication": (_PUBLICATION, _publications),
    "pg_publication_tables": ({"pubname": NAME, "schemaname": NAME, "tablename": NAME}, _publication_tables),
    "pg_publication_rel": (
        {"oid": OID, "prpubid": OID, "prrelid": OID, "prqual": TEXT, "prattrs": TEXT},
        lambda context: (),
    ),
    "pg_publication_namespace": ({"oid": OID, "pnpubid": OID, "pnnspid": OID}, lambda context: ()),
    "pg_inherits": ({"xmin": XID, "inhrelid": OID, "inhparent": OID}, lambda context: ()),
    "pg_enum": ({"oid": OID, "enumtypid": OID, "enumlabel": NAME}, lambda context: ()),
    "pg_event_trigger": ({"oid": OID, "xmin": XID, "evtname": NAME, "evtenabled": 18}, lambda context: ()),
    "pg_stat_replication": (_WALSENDER, _walsenders),
    "pg_settings": (
        {"name": TEXT, "setting": TEXT},
        lambda context: context.backend.settings.catalog_rows().items(),
    ),
    "pg_database": (
        {"oid": OID, "datname": NAME, "encoding": INT4, "datallowconn": BOOL},
        lambda context: [(_DATABASE_OID, context.backend.database, 6, True)],
    ),
    "pg_roles": (
        {"oid": OID, "rolname": NAME, "rolsuper": BOOL, "rolreplication": BOOL, "rolcanlogin": BOOL},
        lambda context: [(_SUPERUSER_OID, context.backend.user, True, True, True)],
    ),
    "pg_namespace": ({"oid": OID, "nspname": NAME}, _namespaces),
    "pg_class": (_CLASS, _classes),
    "pg_attribute": (_ATTRIBUTE, _attributes),
    "pg_type": (_TYPE, _types),
}
"""Catalogs by name: the type OIDs of the columns by column name, and a function that returns the rows."""

COLUMN_TYPES: Final = {name: oid for columns, _ in CATALOGS.values() for name, oid in columns.items()}
"""Type OIDs by column name. Columns of the same name have the same type in all catalogs."""


def json_object_of_row(sql: str, alias: str, excluded: frozenset[str]) -> str:
    """Return the SQLite expression for to_jsonb(alias), where the alias names a row of a catalog.

    Args:
        sql: Statement that gives the catalog its alias. If no catalog has the alias, the columns of
            pg_replication_slots are used.
        alias: Alias of the catalog.
        excluded: Names of columns to leave out.
    """
    catalog = re.search(rf"\b(pg_\w+)\s+(?:AS\s+)?{alias}\b", sql, re.IGNORECASE)
    columns, _ = CATALOGS.get(catalog[1].lower() if catalog else "", (_SLOT, None))
    pairs = (_json_pair(alias, *column) for column in columns.items() if column[0] not in excluded)
    return f"json_object({', '.join(pairs)})"


def _json_pair(alias: str, name: str, type_oid: int) -> str:
    value = f"{alias}.{name}"
    return f"'{name}', " + (
        f"json(CASE WHEN {value} THEN 'true' ELSE 'false' END)" if type_oid == BOOL else value
    )
