"""The catalogs that clients look things up in: their columns, and what stands in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from pgoutput.catalog import TYPES
from pgoutput.messages import ColumnFlag, Relation
from pgoutput.standin.slots import Slot
from pgoutput.standin.source import Source
from pgoutput.standin.sql.settings import Settings
from pgoutput.standin.sql.values import BOOL, INT4, INT8, NAME, OID, PG_LSN, TEXT, XID, Cell
from pgoutput.wire import format_lsn

if TYPE_CHECKING:
    from pgoutput.standin.streaming import WalSender

PUBLIC_OID: Final = 2200
DATABASE_OID: Final = 5
_SUPERUSER_OID: Final = 10
_PG_CLASS_OID: Final = 1259
_FIRST_OID: Final = 16_384


class View(msgspec.Struct, frozen=True):
    """What the catalogs are made from: the state of the stand-in, as one connection sees it."""

    source: Source
    settings: Settings
    slots: Sequence[Slot]
    publications: Sequence[str]
    database: str
    user: str
    senders: Sequence[WalSender]


def _slots(view: View) -> Iterator[Sequence[Cell]]:
    for slot in view.slots:
        confirmed = format_lsn(slot.confirmed_flush_lsn)
        yield (
            *(slot.name, "pgoutput", "logical", DATABASE_OID, slot.database, slot.temporary),
            *(slot.active_pid is not None, slot.active_pid, None, None, confirmed, confirmed),
            *("reserved", None, slot.two_phase, None, None, False, None, slot.failover, False),
        )


def _publications(view: View) -> Iterator[Sequence[Cell]]:
    for oid, name in enumerate(view.publications, _FIRST_OID):
        yield (oid, name, _SUPERUSER_OID, True, True, True, True, True, False, 1)


def _published(view: View) -> Iterator[Sequence[Cell]]:
    for name in view.publications:
        for table in view.source.tables:
            yield name, _namespace(table), table.name


def _senders(view: View) -> Iterator[Sequence[Cell]]:
    for sender in view.senders:
        confirmed = format_lsn(sender.slot.confirmed_flush_lsn)
        sent, written = format_lsn(sender.sent_lsn), format_lsn(sender.written_lsn)
        backend = sender.backend
        who = backend.pid, backend.user, backend.settings["application_name"]
        yield *who, "streaming", sent, written, confirmed, confirmed, "async"


def _namespaces(view: View) -> Iterator[Sequence[Cell]]:
    yield 11, "pg_catalog"
    yield PUBLIC_OID, "public"
    for name, oid in _namespace_oids(view).items():
        if oid >= _FIRST_OID:
            yield oid, name


def _classes(view: View) -> Iterator[Sequence[Cell]]:
    oids = _namespace_oids(view)
    yield _PG_CLASS_OID, "pg_class", 11, "r", "n", 0
    for table in view.source.tables:
        yield table.oid, table.name, oids[_namespace(table)], "r", table.replica_identity.value, table.oid


def _attributes(view: View) -> Iterator[Sequence[Cell]]:
    for table in view.source.tables:
        for number, column in enumerate(table.columns, 1):
            key = bool(column.flags & ColumnFlag.KEY)
            yield table.oid, column.name, column.type_oid, number, column.type_modifier, key, False, 3


def _types(view: View) -> Iterator[Sequence[Cell]]:
    for one in TYPES:
        yield one.oid, one.name, 11, one.array_oid, 0, "b", 0
        if one.array_oid:
            yield one.array_oid, f"_{one.name}", 11, 0, one.oid, "b", 0


def _namespace(table: Relation) -> str:
    return table.namespace or "pg_catalog"


def _namespace_oids(view: View) -> dict[str, int]:
    known = {"pg_catalog": 11, "public": PUBLIC_OID}
    names = dict.fromkeys(_namespace(table) for table in view.source.tables)
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
_SENDER: Final = {
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
}

CATALOGS: Final[Mapping[str, tuple[Mapping[str, int], Callable[[View], Iterable[Sequence[Cell]]]]]] = {
    "pg_replication_slots": (_SLOT, _slots),
    "pg_publication": (_PUBLICATION, _publications),
    "pg_publication_tables": ({"pubname": NAME, "schemaname": NAME, "tablename": NAME}, _published),
    "pg_publication_rel": (
        {"oid": OID, "prpubid": OID, "prrelid": OID, "prqual": TEXT, "prattrs": TEXT},
        lambda view: (),
    ),
    "pg_publication_namespace": ({"oid": OID, "pnpubid": OID, "pnnspid": OID}, lambda view: ()),
    "pg_inherits": ({"xmin": XID, "inhrelid": OID, "inhparent": OID}, lambda view: ()),
    "pg_enum": ({"oid": OID, "enumtypid": OID, "enumlabel": NAME}, lambda view: ()),
    "pg_stat_replication": (_SENDER, _senders),
    "pg_settings": ({"name": TEXT, "setting": TEXT}, lambda view: view.settings.rows().items()),
    "pg_database": (
        {"oid": OID, "datname": NAME, "encoding": INT4, "datallowconn": BOOL},
        lambda view: [(DATABASE_OID, view.database, 6, True)],
    ),
    "pg_roles": (
        {"oid": OID, "rolname": NAME, "rolsuper": BOOL, "rolreplication": BOOL, "rolcanlogin": BOOL},
        lambda view: [(_SUPERUSER_OID, view.user, True, True, True)],
    ),
    "pg_namespace": ({"oid": OID, "nspname": NAME}, _namespaces),
    "pg_class": (_CLASS, _classes),
    "pg_attribute": (_ATTRIBUTE, _attributes),
    "pg_type": (_TYPE, _types),
}
"""The catalogs by name: the types of their columns, and their rows."""

COLUMN_TYPES: Final = {name: oid for columns, _ in CATALOGS.values() for name, oid in columns.items()}
"""The types of the columns, which have one type under one name."""


def row_as_json(sql: str, alias: str, without: frozenset[str]) -> str:
    """Return to_jsonb(s) in SQLite's words, for a row of a catalog.

    Args:
        sql: The statement, in which the catalog has the alias.
        alias: The alias; of a slot if the statement does not say of what.
        without: Columns that are left out.
    """
    found = re.search(rf"\b(pg_\w+)\s+(?:AS\s+)?{alias}\b", sql, re.IGNORECASE)
    columns, _ = CATALOGS.get(found[1].lower() if found else "", (_SLOT, None))
    pairs = (_as_json(alias, *column) for column in columns.items() if column[0] not in without)
    return f"json_object({', '.join(pairs)})"


def _as_json(alias: str, name: str, type_oid: int) -> str:
    value = f"{alias}.{name}"
    return f"'{name}', " + (
        f"json(CASE WHEN {value} THEN 'true' ELSE 'false' END)" if type_oid == BOOL else value
    )
