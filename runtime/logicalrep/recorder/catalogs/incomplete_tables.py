"""Incomplete tables: the recording lacks rows or changes of them, or the server does not send all changes."""

from __future__ import annotations

from logicalrep.recorder.catalogs.catalog import Catalog, CatalogTable, sent_namespace
from logicalrep.recorder.catalogs.queries import is_empty
from logicalrep.recorder.client import Connection
from logicalrep.recording import IncompleteTable
from logicalrep.wire import format_lsn


def tables_with_earlier_rows(catalog: Catalog, connection: Connection) -> tuple[IncompleteTable, ...]:
    """Return the tables that are incomplete because a recording begins without a snapshot.

    A published table is incomplete if it has rows already: the recording lacks these rows.

    Args:
        catalog: The catalogs, read after the slot's consistent point.
        connection: Connection to the server.
    """
    reason = f"recorded without a snapshot: rows from before {format_lsn(catalog.lsn)} are missing"
    found = [
        incomplete_table(table, catalog, "" if is_empty(connection, table.oid) else reason)
        for table in catalog.tables.values()
    ]
    return tuple(one for one in found if one.reason)


def tables_to_copy(catalog: Catalog, lsn: int) -> tuple[IncompleteTable, ...]:
    """Return each published table as incomplete, because the first snapshot has begun and is unfinished.

    Args:
        catalog: The catalogs.
        lsn: Consistent point of the slot, and LSN of the snapshot.
    """
    reason = f"snapshot unfinished: rows from before {format_lsn(lsn)} are missing"
    return tuple(incomplete_table(table, catalog, reason, lsn=lsn) for table in catalog.tables.values())


def tables_without_all_changes(catalog: Catalog) -> tuple[IncompleteTable, ...]:
    """Return the published tables of which the server never sends all changes (see `lasting_reasons`)."""
    return tuple(incomplete_table(catalog.tables[oid], catalog, "") for oid in lasting_reasons(catalog))


def incomplete_table(
    table: CatalogTable, catalog: Catalog, lost: str, *, lsn: int | None = None, altered: bool = False
) -> IncompleteTable:
    """Return an `IncompleteTable`, which tells why a table is incomplete.

    Args:
        table: The table.
        catalog: The catalogs that contain the table.
        lost: Text that tells which rows or changes are missing; empty if only changes are missing that the
            server never sends (see `lasting_reasons`).
        lsn: End of the server's WAL when the missing changes were noticed; None for the LSN of `catalog`.
        altered: Whether existing rows were altered without being sent.
    """
    return IncompleteTable(
        oid=table.oid,
        namespace=sent_namespace(table.namespace),
        name=table.name,
        lsn=catalog.lsn if lsn is None else lsn,
        lost=lost,
        lasting=lasting_reasons(catalog).get(table.oid, ""),
        altered=altered,
    )


def lasting_reasons(catalog: Catalog) -> dict[int, str]:
    """Return a text about the changes that the server never sends, by OID of each table with such changes.

    An unsent TRUNCATE is not included: the catalogs show it, and the rows are then copied.
    """
    reasons = {}
    for oid, table in catalog.tables.items():
        texts = []
        if unsent := catalog.unsent_operations(table):
            texts.append(f"its {' and '.join(unsent)} are not published")
        storages = sorted(table.storages.values(), key=lambda one: one.name)
        if unlogged := ", ".join(one.name for one in storages if one.kind != "p"):
            texts.append(f"changes of unlogged or foreign partitions are not sent ({unlogged})")
        if unidentified := ", ".join(one.name for one in storages if not one.identifies_rows):
            texts.append(
                f"old values of partitions lack the columns of its replica identity ({unidentified})"
            )
        if texts:
            reasons[oid] = "; ".join(texts)
    return reasons
