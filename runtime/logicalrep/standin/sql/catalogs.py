"""Rows of the system catalogs that depend on the state of the stand-in server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from logicalrep.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from logicalrep.standin.backend import Backend
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.sql.system_catalogs import ELEMENT_OIDS, FIRST_OID, RELATIONS, SYSTEM_ROWS
from logicalrep.wire import format_lsn

_DATABASE_OID: Final = 5
_SUPERUSER_OID: Final = 10
_HEAP_OID: Final = 2
_BTREE_OID: Final = 403
_DEFAULT_COLLATION: Final = 100
_CATALOG_OID: Final = 11
_PUBLIC_OID: Final = 2200
_FIRST_INDEX_OID: Final = 1 << 31
"""OID of the first index. Sources have no OIDs of indexes, so the catalogs have invented OIDs."""

Row: TypeAlias = Mapping[str, object]
"""Values of a catalog's row, by column name. A missing value is NULL, or empty if the column is NOT NULL."""


class CatalogContext(msgspec.Struct, frozen=True):
    """State of the server and connection that the catalogs show to one query."""

    server: ServerState
    """State of the server."""
    backend: Backend
    """State of the connection that queries the catalogs."""
    publications: Sequence[str]
    """Names of the publications that the catalogs show."""

    @property
    def tables(self) -> Sequence[Relation]:
        """Published tables."""
        return self.server.source.tables


def catalog_rows(name: str, context: CatalogContext) -> Iterator[Row]:
    """Yield the rows of the system catalog `name`.

    The rows that are the same in every database come first, then the rows for the state in `context`.
    """
    yield from SYSTEM_ROWS.get(name, ())
    if name in _ROWS:
        yield from _ROWS[name](context)


def _slots(context: CatalogContext) -> Iterator[Row]:
    for slot in context.server.slots:
        confirmed = format_lsn(slot.confirmed_flush_lsn)
        yield {
            "slot_name": slot.name,
            "plugin": "pgoutput",
            "slot_type": "logical",
            "datoid": _DATABASE_OID,
            "database": slot.database,
            "temporary": slot.temporary,
            "active": slot.active_pid is not None,
            "active_pid": slot.active_pid,
            "catalog_xmin": _FIRST_XID,
            "restart_lsn": None if slot.is_lost else _RESTART_LSN,
            "confirmed_flush_lsn": confirmed,
            "wal_status": "lost" if slot.is_lost else "reserved",
            "invalidation_reason": "wal_removed" if slot.is_lost else None,
            "two_phase": slot.two_phase,
            "conflicting": False,
            "failover": slot.failover,
            "synced": False,
        }


_FIRST_XID: Final = 3

_RESTART_LSN: Final = format_lsn(1)
"""Restart LSN of all slots, before every message, because a stand-in server can send all messages again. The
confirmed flush LSN would be too high: Debezium refuses a slot whose restart LSN is higher than the LSN of the
last change that Debezium has read."""


def _publications(context: CatalogContext) -> Iterator[Row]:
    flags = ("puballtables", "pubinsert", "pubupdate", "pubdelete", "pubtruncate")
    for oid, name in enumerate(context.publications, FIRST_OID):
        yield {
            "oid": oid,
            "pubname": name,
            "pubowner": _SUPERUSER_OID,
            "pubgencols": "n",
            **dict.fromkeys(flags, True),
        }


_ANY_PUBLICATION: Final = "synth"
"""Name shown for the tables while clients have named no publication: they can request any."""


def _publication_tables(context: CatalogContext) -> Iterator[Row]:
    for name in context.publications or (_ANY_PUBLICATION,):
        for table in context.tables:
            columns = [column.name for column in table.columns]
            location = {"schemaname": _namespace(table), "tablename": table.name}
            yield {"pubname": name, **location, "attnames": columns}


def _walsenders(context: CatalogContext) -> Iterator[Row]:
    for backend in context.server.backends.values():
        progress = backend.replication
        if progress is None:
            continue
        confirmed = format_lsn(progress.slot.confirmed_flush_lsn)
        yield {
            "pid": backend.pid,
            "usesysid": _SUPERUSER_OID,
            "usename": backend.user,
            "application_name": backend.settings["application_name"],
            "state": "streaming",
            "sent_lsn": format_lsn(progress.sent_lsn),
            "write_lsn": format_lsn(progress.written_lsn),
            "flush_lsn": confirmed,
            "replay_lsn": confirmed,
            "sync_priority": 0,
            "sync_state": "async",
        }


def _settings(context: CatalogContext) -> Iterator[Row]:
    for name, value in context.backend.settings.catalog_rows().items():
        yield {"name": name, "setting": value}


def _databases(context: CatalogContext) -> Iterator[Row]:
    yield {
        "oid": _DATABASE_OID,
        "datname": context.backend.database,
        "datdba": _SUPERUSER_OID,
        "encoding": 6,
        "datlocprovider": "c",
        "datallowconn": True,
        "datconnlimit": -1,
        "dattablespace": 1663,
        "datcollate": "C",
        "datctype": "C",
    }


def _roles(context: CatalogContext) -> Iterator[Row]:
    rights = [
        "rolsuper",
        "rolinherit",
        "rolcreaterole",
        "rolcreatedb",
        "rolcanlogin",
        "rolreplication",
        "rolbypassrls",
    ]
    role = {"oid": _SUPERUSER_OID, "rolname": context.backend.user, "rolpassword": "********"}
    yield {**role, "rolconnlimit": -1, **dict.fromkeys(rights, True)}


def _namespaces(context: CatalogContext) -> Iterator[Row]:
    for name, oid in _namespace_oids(context).items():
        if oid >= FIRST_OID:
            yield {"oid": oid, "nspname": name, "nspowner": _SUPERUSER_OID}


def _classes(context: CatalogContext) -> Iterator[Row]:
    oids = _namespace_oids(context)
    common = {"relowner": _SUPERUSER_OID, "relpersistence": "p", "relispopulated": True}
    for name, system in RELATIONS.items():
        yield {
            **common,
            "oid": system.oid,
            "relname": name,
            "relnamespace": _CATALOG_OID,
            "relam": _HEAP_OID if system.kind == "r" else 0,
            "relkind": system.kind,
            "relnatts": len(system.columns),
            "relreplident": "n",
        }
    for table in context.tables:
        yield {
            **common,
            "oid": table.oid,
            "relname": table.name,
            "relnamespace": oids[_namespace(table)],
            "relam": _HEAP_OID,
            "relfilenode": table.oid,
            "reltuples": -1.0,
            "relhasindex": bool(_key(table)),
            "relkind": "r",
            "relnatts": len(table.columns),
            "relreplident": table.replica_identity.value,
        }
    for oid, table, key in _indexes(context):
        yield {
            **common,
            "oid": oid,
            "relname": f"{table.name}_pkey",
            "relnamespace": oids[_namespace(table)],
            "relam": _BTREE_OID,
            "relfilenode": oid,
            "relpages": 1,
            "relkind": "i",
            "relnatts": len(key),
            "relreplident": "n",
        }


def _attributes(context: CatalogContext) -> Iterator[Row]:
    for system in RELATIONS.values():
        for number, (name, type_oid) in enumerate(system.columns.items(), 1):
            column = RelationColumn(flags=ColumnFlag(0), name=name, type_oid=abs(type_oid), type_modifier=-1)
            yield _attribute(system.oid, number, column, type_oid < 0)
    for table in context.tables:
        key = _key(table)
        for number, column in enumerate(table.columns, 1):
            yield _attribute(table.oid, number, column, number in key)
    for oid, table, key in _indexes(context):
        for number, attribute in enumerate(key, 1):
            yield _attribute(oid, number, table.columns[attribute - 1], False)


def _attribute(relation: int, number: int, column: RelationColumn, not_null: bool) -> Row:
    kind = _TYPES.get(column.type_oid, {"typlen": -1, "typbyval": False, "typalign": "i", "typstorage": "x"})
    return {
        "attrelid": relation,
        "attname": column.name,
        "atttypid": column.type_oid,
        "attlen": kind["typlen"],
        "attnum": number,
        "atttypmod": column.type_modifier,
        "attndims": int(column.type_oid in ELEMENT_OIDS),
        "attbyval": kind["typbyval"],
        "attalign": kind["typalign"],
        "attstorage": kind["typstorage"],
        "attnotnull": not_null,
        "attislocal": True,
        "attcollation": kind.get("typcollation", 0),
    }


_TYPES: Final = {row["oid"]: row for row in SYSTEM_ROWS["pg_type"]}


def _index_rows(context: CatalogContext) -> Iterator[Row]:
    for oid, table, key in _indexes(context):
        by_index = table.replica_identity is ReplicaIdentity.INDEX
        yield {
            "indexrelid": oid,
            "indrelid": table.oid,
            "indnatts": len(key),
            "indnkeyatts": len(key),
            "indisunique": True,
            "indisprimary": not by_index,
            "indimmediate": True,
            "indisvalid": True,
            "indisready": True,
            "indislive": True,
            "indisreplident": by_index,
            "indkey": key,
            "indcollation": [
                _TYPES.get(table.columns[one - 1].type_oid, {}).get("typcollation", 0) for one in key
            ],
            "indclass": [0] * len(key),
            "indoption": [0] * len(key),
        }


def _constraints(context: CatalogContext) -> Iterator[Row]:
    oids = _namespace_oids(context)
    for oid, table, key in _indexes(context):
        if table.replica_identity is ReplicaIdentity.INDEX:
            continue
        yield {
            "oid": oid + 1,
            "conname": f"{table.name}_pkey",
            "connamespace": oids[_namespace(table)],
            "contype": "p",
            "conenforced": True,
            "convalidated": True,
            "conrelid": table.oid,
            "conindid": oid,
            "confupdtype": " ",
            "confdeltype": " ",
            "confmatchtype": " ",
            "conislocal": True,
            "connoinherit": True,
            "conkey": key,
        }


def _key(table: Relation) -> list[int]:
    """Return the column numbers (from 1) of a table's replica identity index; empty if there is no index."""
    if table.replica_identity not in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX):
        return []
    return [number for number, column in enumerate(table.columns, 1) if column.flags & ColumnFlag.KEY]


def _indexes(context: CatalogContext) -> Iterator[tuple[int, Relation, list[int]]]:
    """Yield (OID of the index, table, column numbers from 1) for each replica identity index."""
    for number, table in enumerate(context.tables):
        if key := _key(table):
            yield _FIRST_INDEX_OID + 2 * number, table, key


def _namespace(table: Relation) -> str:
    return table.namespace or "pg_catalog"


def _namespace_oids(context: CatalogContext) -> dict[str, int]:
    known = {"pg_catalog": _CATALOG_OID, "public": _PUBLIC_OID}
    names = dict.fromkeys(_namespace(table) for table in context.tables)
    others = [name for name in names if name not in known]
    return known | {name: oid for oid, name in enumerate(others, FIRST_OID)}


_ROWS: Final[Mapping[str, Callable[[CatalogContext], Iterable[Row]]]] = {
    "pg_attribute": _attributes,
    "pg_class": _classes,
    "pg_constraint": _constraints,
    "pg_database": _databases,
    "pg_index": _index_rows,
    "pg_namespace": _namespaces,
    "pg_publication": _publications,
    "pg_publication_tables": _publication_tables,
    "pg_replication_slots": _slots,
    "pg_roles": _roles,
    "pg_settings": _settings,
    "pg_stat_replication": _walsenders,
}
"""By catalog, a function that returns the rows which depend on the state of the server."""
