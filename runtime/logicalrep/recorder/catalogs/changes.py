"""Changes of publications and tables between two readings of the catalogs.

The stream does not report that a publication was altered, that a table was added to a publication, or that a
column was dropped and added again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

import msgspec
from psycopg import sql

from logicalrep.errors import ChangesLost
from logicalrep.recorder.catalogs.alterations import Alterations
from logicalrep.recorder.catalogs.catalog import Catalog, sent_namespace
from logicalrep.recorder.catalogs.column_changes import renamed_columns
from logicalrep.recorder.catalogs.incomplete_tables import incomplete_table, lasting_reasons
from logicalrep.recorder.catalogs.pending_tables import PendingTable
from logicalrep.recorder.catalogs.publication_changes import altered_publications, republished_tables
from logicalrep.recorder.catalogs.queries import existing_relations, wal_insert_end
from logicalrep.recorder.client import Connection
from logicalrep.recording import GoneTable, IncompleteTable, PublicationChange, RenamedTable
from logicalrep.wire import format_lsn, timestamp_now


class PublicationRecreated(ChangesLost):
    """A publication was dropped and created again; the stream lacks changes made while it did not exist."""


class CatalogChanges(msgspec.Struct, frozen=True):
    """Differences between two readings of the catalogs."""

    publications: tuple[PublicationChange, ...]
    """Publications that were altered, with texts that describe the changes."""
    incomplete: tuple[IncompleteTable, ...]
    """Tables that became incomplete between the two readings of the catalogs."""
    gone: tuple[GoneTable, ...] = ()
    """Tables that were dropped since the earlier reading, or are now published only through their root."""
    pending: tuple[PendingTable, ...] = ()
    """Tables that may have become incomplete between the two readings of the catalogs."""
    renamed: tuple[RenamedTable, ...] = ()
    """Tables whose name or schema differs between the two readings."""


def check_publication_oids(before: Catalog, after: Catalog) -> None:
    """Check that no publication was dropped and created again between two readings of the catalogs.

    Raises:
        PublicationRecreated: A publication has another OID in `after` than in `before`.
    """
    known = {one.name: one for one in before.publications}
    for one in after.publications:
        if (old := known.get(one.name)) is not None and old.oid != one.oid:
            raise PublicationRecreated(
                f"the publication {sql.Identifier(one.name).as_string()} was dropped and created anew, or "
                f"another was renamed to it, after {format_lsn(before.lsn)} (its OID was {old.oid} and is "
                f"{one.oid}): changes that were made meanwhile are not in the stream. Record anew from a new "
                "slot and in another folder"
            )


def compare_catalogs(
    before: Catalog, after: Catalog, connection: Connection, copied: Container[int] = ()
) -> CatalogChanges:
    """Return the differences between two readings of the catalogs.

    Args:
        before: The catalogs as read earlier.
        after: The catalogs as read just now.
        connection: Connection to the server, to check whether newly published tables are empty.
        copied: OIDs of tables whose rows a snapshot has copied since `before` was read.
    """
    time, since = timestamp_now(), f"after {format_lsn(before.lsn)}"
    alterations = Alterations(before, after, connection)
    republished = republished_tables(before, after)
    reasons = alterations.reasons | republished
    for oid, table in after.tables.items():
        is_new = oid not in before.tables and oid not in copied
        if is_new and not alterations.is_complete_since_published(table):
            reasons[oid] = f"published {since}: earlier rows are missing"
    gone = {oid: table for oid, table in before.tables.items() if oid not in after.tables}
    tables = after.tables | gone
    for oid in existing_relations(connection, [*gone]):
        del gone[oid]
        reasons[oid] = f"not published any more {since}"
    lasting = lasting_reasons(before)
    for oid, text in lasting_reasons(after).items():
        if text != lasting.get(oid):
            reasons.setdefault(oid, "")
    # An alteration may be later than `after.lsn`, and a copy of rows as of `after.lsn` may lack its effect.
    # Therefore incomplete and pending tables get a later LSN.
    pending = {oid: one for oid, one in alterations.pending.items() if oid not in reasons}
    lsn = wal_insert_end(connection) if reasons or pending else after.lsn
    return CatalogChanges(
        tuple(
            PublicationChange(
                publication=name, after_lsn=before.lsn, before_lsn=after.lsn, time=time, changes=tuple(texts)
            )
            for name, texts in altered_publications(before, after).items()
        ),
        tuple(
            incomplete_table(tables[oid], after, reason, lsn=lsn, altered=oid in alterations.reasons)
            for oid, reason in reasons.items()
        ),
        tuple(
            GoneTable(
                oid=oid,
                namespace=sent_namespace(table.namespace),
                name=table.name,
                after_lsn=before.lsn,
                time=time,
            )
            for oid, table in gone.items()
        )
        + _own_partitions(before, after, time, republished),
        tuple(
            PendingTable(
                table=incomplete_table(after.tables[oid], after, reason, lsn=lsn, altered=True),
                descriptions=descriptions,
                truncated_by=xid,
            )
            for oid, found in pending.items()
            for reason, descriptions, xid in found
        ),
        renamed_tables(
            after,
            {oid: table.sent_name for oid, table in before.tables.items()},
            # The event trigger describes them in the stream.
            {} if after.ddl_events else _renamed_columns(before, after),
        ),
    )


def renamed_tables(
    catalog: Catalog,
    names: Mapping[int, tuple[str, str]],
    columns: Mapping[int, tuple[tuple[str, str], ...]] = {},
) -> tuple[RenamedTable, ...]:
    """Return the tables of `names`, a mapping from OIDs to schemas and names, that have other names now.

    `columns` has the renamed columns of tables.
    """
    named = {oid: catalog.tables[oid].sent_name for oid in names if oid in catalog.tables}
    return tuple(
        RenamedTable(oid=oid, namespace=namespace, name=name, lsn=catalog.lsn, columns=columns.get(oid, ()))
        for oid, (namespace, name) in named.items()
        if names[oid] != (namespace, name) or columns.get(oid)
    )


def _renamed_columns(before: Catalog, after: Catalog) -> dict[int, tuple[tuple[str, str], ...]]:
    known = {oid: before.tables[oid] for oid in before.tables.keys() & after.tables.keys()}
    return {oid: renamed_columns(old, after.tables[oid]) for oid, old in known.items()}


def _own_partitions(
    before: Catalog, after: Catalog, time: int, republished: Collection[int]
) -> tuple[GoneTable, ...]:
    """Return partitions of published roots that may have been published by themselves for a time.

    That time is between the two readings. Such a partition was attached, or the publication of its root was
    altered. The stream may have messages from that time, which name the partition itself.

    Args:
        before: The catalogs as read earlier.
        after: The catalogs as read later.
        time: Time at which `after` was read, in microseconds since 2000-01-01 00:00 UTC.
        republished: OIDs of the tables whose published changes differ between `before` and `after`.
    """
    links = {oid: one.path for table in before.tables.values() for oid, one in table.storages.items()}
    found = {
        oid: storage.name.partition(".")
        for table in after.tables.values()
        for oid, storage in table.storages.items()
        if oid not in before.tables.keys() | after.tables.keys()
        and (
            table.oid in republished
            or (links.get(oid) != storage.path and not all(link.endswith("+") for link in storage.links))
        )
    }
    return tuple(
        GoneTable(oid=oid, namespace=schema, name=name, after_lsn=before.lsn, time=time, is_dropped=False)
        for oid, (schema, _, name) in found.items()
    )
