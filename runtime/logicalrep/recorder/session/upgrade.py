"""Continue a recording after pg_upgrade has upgraded the recorded server.

pg_upgrade keeps the logical slots of PostgreSQL 17 or newer if they have no changes left to send
(check_old_cluster_for_valid_slots in check.c). It also keeps the OIDs and files of tables. The system
identifier, the OIDs of publications and the row versions in the catalogs change, and the WAL begins anew at a
higher LSN.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final

import msgspec

from logicalrep.errors import ChangesLost, RecordingError, ReplicationError
from logicalrep.recorder.catalogs import (
    Catalog,
    CatalogChanges,
    CatalogTable,
    Membership,
    incomplete_table,
    read_catalog,
)
from logicalrep.recorder.client import Connection, Server, Slot, check_slot, find_slot
from logicalrep.recorder.options import Settings
from logicalrep.recorder.storage import Folder
from logicalrep.recording import IncompleteTable, Metadata, Upgrade
from logicalrep.wire import format_lsn, parse_lsn, timestamp_now

_SLOTS_KEPT_SINCE: Final = 17
"""Major version of the first server whose logical slots pg_upgrade keeps."""

_RECORD: Final = struct.Struct("<IIQBB")
"""Head of a WAL record: length, xid, LSN of the preceding record, info, resource manager (XLogRecord)."""

_RECORD_BYTES: Final = 24
"""Least length of a WAL record, in bytes."""

_FILE_HEADER_BYTES: Final = 40
"""Size of the header of a WAL file's first page, in bytes (XLogLongPageHeaderData)."""

_PAGE_HEADER_BYTES: Final = 24
"""Size of the header of any other WAL page, in bytes (XLogPageHeaderData)."""

_SHUTDOWN: Final = (0, 0)
"""Resource manager and kind of a shutdown checkpoint (RM_XLOG_ID, XLOG_CHECKPOINT_SHUTDOWN)."""

_VERSION: Final = re.compile(r"(?<=:)\d+")
"""Pattern for a row version (xmin) in `Storage.links` and `CatalogTable.above`."""

_LSN_TEXT_SINCE: Final = 19
"""Major version of the first server that writes values of type pg_lsn with leading zeros."""

_LSN_TYPES: Final = 3220, 3221
"""OIDs of the type pg_lsn and of its arrays."""

_WAL_SIZES: Final = """\
SELECT (SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'),
    (SELECT setting FROM pg_settings WHERE name = 'wal_block_size')"""

_MEMBERS_SINCE: Final = """\
SELECT oid FROM pg_publication_rel WHERE age(xmin) <= age('{xid}'::xid)
UNION ALL SELECT oid FROM pg_publication_namespace WHERE age(xmin) <= age('{xid}'::xid)"""
"""Query for the OIDs of the rows of pg_publication_rel and pg_publication_namespace written since an xid."""


def continue_after_upgrade(
    connection: Connection,
    catalogs: Connection,
    server: Server,
    folder: Folder,
    settings: Settings,
    stop: Callable[[], bool],
) -> None:
    """Check that `server` is the upgraded recorded server, and save its system identifier in the recording.

    Does nothing if the system identifier is unchanged.

    Args:
        connection: Replication connection to the server.
        catalogs: Connection to the server, for queries of the catalogs.
        server: The server.
        folder: Folder of the recording.
        settings: Settings of the recorder.
        stop: Returns whether to stop.

    Raises:
        ChangesLost: The slot is gone or has lost WAL.
        ReplicationError: The slot does not match the settings, or the server refuses to send its WAL.
        RecordingError: It is not proven that the server continues the recording.
        ConnectionLost: The slot is in use, or the connection was lost.
        Interrupted: `stop` has returned True.
        OSError: A file cannot be written.
    """
    state = folder.saved_state
    if state is None or state.system_identifier == server.system_identifier:
        return
    folder.state_for(settings.slot, state.system_identifier, server.database)
    place = folder.location
    slot = find_slot(connection, settings.slot)
    if slot is None:
        raise ChangesLost(
            f"{place}: the server has no slot {settings.slot} after pg_upgrade, so changes are lost: "
            "record anew in another folder"
        )
    check_slot(slot, server, settings)
    last, before = folder.last_segment(), folder.saved_catalog
    if last is None or before is None:
        raise RecordingError(
            f"{place}: the recording has no segments or no file _published.json, so it cannot be continued "
            "after pg_upgrade: record anew in another folder"
        )
    lsn = parse_lsn(str(slot.confirmed_flush_lsn))
    stored_lsn = folder.stored_lsn(state)
    _check_end(last, server, place=str(place))
    if lsn <= stored_lsn:
        raise _not_proven(
            place,
            f"the slot {settings.slot} is at LSN {format_lsn(lsn)}, expected an LSN after the end of the "
            f"recording at {format_lsn(stored_lsn)}",
        )
    with Connection(connection.pinned_dsn, replication=True, stop=stop) as physical:
        if not begins_with_slot(*read_wal(physical, lsn)):
            raise _not_proven(
                place,
                f"the slot {settings.slot} has moved to LSN {format_lsn(lsn)} since pg_upgrade, so changes "
                "may be lost",
            )
    catalog = read_catalog(catalogs, settings.publications)
    _check_tables(before, catalog, place=str(place))
    folder.save_changes(
        rebased(before, catalog, catalogs, slot),
        CatalogChanges((), _tables_with_other_text(last, catalog, server)),
    )
    upgrade = Upgrade(
        system_identifier=state.system_identifier,
        server_version=last.source.server_version,
        lsn=lsn,
        time=timestamp_now(),
    )
    folder.update(
        system_identifier=server.system_identifier,
        upgrades=(*state.upgrades, upgrade),
        timelines=(),
        acknowledged_lsn=lsn,
    )


def _not_proven(place: object, reason: str) -> RecordingError:
    return RecordingError(
        f"{place}: this server may not be the recorded server after pg_upgrade: {reason}. Correct the DSN, "
        "or record anew in another folder"
    )


def _check_end(last: Metadata, server: Server, *, place: str) -> None:
    """Check that pg_upgrade keeps slots in this upgrade, and that no recorded transaction is still prepared.

    Args:
        last: Metadata of the last segment of the recording.
        server: The server after the upgrade.
        place: Name of the recording in errors.

    Raises:
        RecordingError: A check has failed.
    """
    was = _major_version(last.source.server_version)
    if not _SLOTS_KEPT_SINCE <= was <= server.major_version:
        raise _not_proven(
            place,
            f"pg_upgrade keeps slots only from PostgreSQL {_SLOTS_KEPT_SINCE} or later to the same or a "
            f"later version, but PostgreSQL {was} was recorded, and the server is PostgreSQL "
            f"{server.major_version}",
        )
    if last.prepared:
        raise _not_proven(
            place,
            f"the transaction prepared as {last.prepared[0].gid!r} has no end in the recording, and "
            "pg_upgrade keeps no prepared transactions: the recording lacks changes",
        )


def _check_tables(before: Catalog, after: Catalog, *, place: str) -> None:
    """Check that the published tables are those of the recording, by OID, name and file (relfilenode).

    A dropped table, or a file that was replaced by a rewrite, is no error if at least one table still has its
    recorded file.

    Raises:
        RecordingError: An OID belongs to a table with another name, or no table has its recorded file.
    """
    known = {oid: table for oid, table in before.tables.items() if oid in after.tables}
    for oid, table in known.items():
        if (name := after.tables[oid].full_name) != table.full_name:
            raise _not_proven(
                place, f"the table with OID {oid} is {name}, but {table.full_name} in the recording"
            )
    files = {(part, one.file) for table in known.values() for part, one in table.storages.items()}
    if not any(
        (part, one.file) in files for oid in known for part, one in after.tables[oid].storages.items()
    ):
        raise _not_proven(place, "all published tables have other files (relfilenode) than when recorded")


def begins_with_slot(wal: bytes, page_bytes: int) -> bool:
    """Return whether WAL begins with pg_resetwal's checkpoint, and then has no transaction and no shutdown.

    pg_upgrade creates the slots right after its last run of pg_resetwal, and then stops the server.

    Args:
        wal: WAL of a little-endian server, from the start of a WAL file to the LSN of a slot.
        page_bytes: Size of a WAL page, in bytes (wal_block_size).
    """
    heads = list(_record_heads(wal, page_bytes))
    kinds = [(manager, info & 0xF0) for _, _, info, manager in heads]
    return (
        kinds[:1] == [_SHUTDOWN]
        and heads[0][1] == 0  # no preceding record: only pg_resetwal and initdb write such a record
        and _SHUTDOWN not in kinds[1:]
        and not any(xid for xid, *_ in heads)
    )


def _record_heads(wal: bytes, page_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield four numbers for each WAL record: xid, preceding record's LSN, info, and resource manager."""
    pages = (wal[start : start + page_bytes] for start in range(0, len(wal), page_bytes))
    data = b"".join(page[_PAGE_HEADER_BYTES if n else _FILE_HEADER_BYTES :] for n, page in enumerate(pages))
    offset = 0
    while offset + _RECORD_BYTES <= len(data):
        length, xid, previous, info, manager = _RECORD.unpack_from(data, offset)
        yield xid, previous, info, manager
        offset += (max(length, _RECORD_BYTES) + 7) // 8 * 8


def read_wal(connection: Connection, lsn: int) -> tuple[bytes, int]:
    """Return the WAL from the start of the LSN's WAL file up to the LSN, and the size of a WAL page.

    Args:
        connection: Replication connection, which cannot be used for anything else afterwards.
        lsn: The LSN.
    """
    file_bytes, page_bytes = (int(size) for size in connection.query(_WAL_SIZES)[0])
    start = lsn // file_bytes * file_bytes
    wal = bytearray()
    connection.start_replication(f"START_REPLICATION PHYSICAL {format_lsn(start)}")
    while len(wal) < lsn - start:
        if not connection.more:
            connection.wait()
        wal += b"".join(connection.receive().data.to_pylist())
        if connection.ended:
            raise ReplicationError(
                f"the server has stopped sending WAL at {format_lsn(start + len(wal))}, before the slot's "
                f"LSN {format_lsn(lsn)}: see the server's log"
            )
    return bytes(wal[: lsn - start]), page_bytes


def rebased(before: Catalog, after: Catalog, connection: Connection, slot: Slot) -> Catalog:
    """Return `before` with the OIDs and row versions that pg_upgrade has given to the catalog rows.

    Rows that were written after the upgrade are left as in `before`, so that `compare_catalogs` finds them.

    Args:
        before: The catalogs as last read before the upgrade.
        after: The catalogs as read after the upgrade.
        connection: Connection to the server.
        slot: The slot as pg_upgrade has left it: its catalog_xmin is the first xid after the upgrade.
    """
    first_xid = int(str(slot.catalog_xmin))
    added = {int(oid) for (oid,) in connection.query(_MEMBERS_SINCE.format(xid=first_xid))}

    def is_restored(row_version: str) -> bool:
        return (int(row_version) - first_xid) % 2**32 >= 2**31

    publications = {one.name: one for one in before.publications}
    return msgspec.structs.replace(
        before,
        publications=tuple(
            msgspec.structs.replace(
                old,
                oid=new.oid if is_restored(new.row_version) else old.oid,
                row_version=new.row_version if is_restored(new.row_version) else old.row_version,
                settings=new.settings | {k: v for k, v in old.settings.items() if k in new.settings},
            )
            for new in after.publications
            if (old := publications.get(new.name)) is not None
        ),
        tables={
            oid: table if new is None else _rebased_table(table, new, is_restored, added)
            for oid, table in before.tables.items()
            for new in [after.tables.get(oid)]
        },
        types={
            root: {
                row: _rebased_label(label, after.types.get(root, {}).get(row, ""), is_restored)
                if row.startswith("enum ")
                else label
                for row, label in labels.items()
            }
            for root, labels in before.types.items()
        },
        ddl_events=after.ddl_events
        if before.ddl_events and all(map(is_restored, after.ddl_events.split()[1::2]))
        else before.ddl_events,
    )


def _rebased_label(before: str, after: str, is_restored: Callable[[str], bool]) -> str:
    """Return `after` if only pg_upgrade has changed the catalog row of an enum label, otherwise `before`.

    `before` and `after` have the form LABEL XMIN, from the row before and after the upgrade. `is_restored`
    returns, given the xmin of a row, whether pg_upgrade has written the row.
    """
    (old, _, _), (new, _, version) = before.rpartition(" "), after.rpartition(" ")
    return after if after and old == new and is_restored(version) else before


def _rebased_table(
    before: CatalogTable, after: CatalogTable, is_restored: Callable[[str], bool], added: set[int]
) -> CatalogTable:
    columns = {
        name: msgspec.structs.replace(column, row_version=new.row_version)
        if (new := after.columns.get(name)) is not None and is_restored(new.row_version)
        else column
        for name, column in before.columns.items()
    }
    memberships = {
        name: (member[0], *old[1:])
        if (member := after.memberships.get(name)) and _is_restored_member(member, is_restored, added)
        else old
        for name, old in before.memberships.items()
    }
    storages = {
        oid: msgspec.structs.replace(one, links=part.links)
        if (part := after.storages.get(oid)) and all(map(is_restored, _VERSION.findall(" ".join(part.links))))
        else one
        for oid, one in before.storages.items()
    }
    above, roots = before.above, [_VERSION.sub("", one.above) for one in (before, after)]
    if roots[0] == roots[1] and all(map(is_restored, _VERSION.findall(after.above))):
        above = after.above
    return msgspec.structs.replace(
        before, columns=columns, memberships=memberships, storages=storages, above=above
    )


def _is_restored_member(member: Membership, is_restored: Callable[[str], bool], added: set[int]) -> bool:
    """Return whether all catalog rows of a `Membership` are as pg_upgrade has written them.

    `is_restored` returns, given the xmin of a catalog row, whether pg_upgrade has written the row. `added`
    has the OIDs of catalog rows that were written after pg_upgrade.
    """
    rows = [re.findall(r"\d+", row) for row in str(member[0]).split(", ")]
    return all(int(oid) not in added and all(map(is_restored, versions)) for oid, *versions in rows)


def _tables_with_other_text(last: Metadata, catalog: Catalog, server: Server) -> tuple[IncompleteTable, ...]:
    """Return the tables with pg_lsn columns as incomplete if the new server writes pg_lsn differently."""
    if not _major_version(last.source.server_version) < _LSN_TEXT_SINCE <= server.major_version:
        return ()
    lost = f"since the upgrade, PostgreSQL {_LSN_TEXT_SINCE} writes values of type pg_lsn in another way"
    return tuple(
        incomplete_table(table, catalog, lost, altered=True)
        for table in catalog.tables.values()
        if any(column.type_oid in _LSN_TYPES for column in table.columns.values())
    )


def _major_version(version: str) -> int:
    """Return the major version of a server's version such as `18.4` or `19rc1`."""
    return int("".join(takewhile(str.isdigit, version)) or 0)
