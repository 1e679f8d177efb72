"""Changes of partitions and table files that remove or add rows without a message in the stream.

If partitions are published through their root, the server sends changes of their rows as changes of the root.
It does not send that a partition is attached, detached, dropped or truncated by itself. Changes of a table
while it is unlogged are never sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logicalrep.recorder.catalogs.catalog import CatalogTable

SET_LOGGED: Final = "rewritten by ALTER TABLE (SET UNLOGGED and SET LOGGED may have hidden changes)"
REWRITTEN: Final = "rewritten, perhaps by ALTER TABLE (SET UNLOGGED and SET LOGGED may have hidden changes)"
REPACKED: Final = "rewritten by REPACK (CONCURRENTLY)"
"""Reason that matters only for columns that were altered: they explain other rewrites too."""
TRUNCATED: Final = "truncated or rewritten"
MOVED: Final = "perhaps part of another partitioned table for a time"


def altered_storages(
    old: CatalogTable,
    new: CatalogTable,
    is_empty: Callable[[int], bool],
    has_old_row: Callable[[int], bool],
    *,
    sends_truncate: bool,
) -> dict[str, list[str]]:
    """Return the names of the partitions whose rows changed without being sent, by reason.

    The name "" means the table itself, if it is not partitioned. A reason is a text, such as `attached`. If a
    table or partition has a new file (relfilenode), the reason is one of these:

    - `SET_LOGGED`: ALTER TABLE has rewritten it for certain.
    - `REWRITTEN`: ALTER TABLE may have rewritten it.
    - `REPACKED`: REPACK (CONCURRENTLY) has rewritten it last.
    - `TRUNCATED`: TRUNCATE may have emptied it. ALTER TABLE may have rewritten it, if it has no TOAST table.

    Args:
        old: The table as read earlier.
        new: The table as read later.
        is_empty: Returns whether a table, given by its OID, has no rows and no writer.
        has_old_row: Returns whether a table has a row that was written before `old` was read, which proves
            that it was neither truncated nor rewritten by ALTER TABLE.
        sends_truncate: Whether the server sends the TRUNCATE of the table.
    """
    known = {link for one in old.storages.values() for link in one.path}
    reasons: dict[str, list[str]] = {}

    def reason(oid: int) -> str:
        was, now = old.storages.get(oid), new.storages.get(oid)
        if now is None:
            return "dropped or detached"
        if was is None:
            is_complete = all(link in known or link.endswith("+") for link in now.links)
            return "" if now.file == oid and (is_complete or is_empty(oid)) else "attached"
        if was.path != now.path:
            return "detached and attached again"
        if was.kind != now.kind:
            return "unlogged for a time"
        if now.identifies_rows and not was.identifies_rows:
            return "without the replica identity of the table for a time"
        if was.file == now.file or (now.is_truncated and sends_truncate and oid == new.oid):
            return ""
        if was.toast and now.toast:  # only ALTER TABLE gives the table another TOAST table
            if was.toast != now.toast:
                return REPACKED if now.is_repacked and was.sequences == now.sequences else SET_LOGGED
            return "" if (oid == new.oid and sends_truncate) or has_old_row(oid) else TRUNCATED
        if has_old_row(oid):
            return ""
        return REWRITTEN if oid == new.oid and sends_truncate else TRUNCATED

    for oid in sorted(old.storages.keys() | new.storages.keys()):
        if text := reason(oid):
            one = new.storages.get(oid) or old.storages[oid]
            reasons.setdefault(text, []).append("" if oid == new.oid else one.name)
    return reasons


def truncating_transaction(
    new: CatalogTable, reasons: dict[str, list[str]], has_row_of: Callable[[int, str], bool]
) -> int | None:
    """Return the xid of the transaction that has truncated a table or all its partitions; None if not proven.

    The catalogs do not prove that TRUNCATE has named the table itself; only a Truncate in the stream does.

    Args:
        new: The table as read later.
        reasons: Result of `altered_storages`.
        has_row_of: Returns whether a table, given by its OID, has rows of a transaction, given by its xid. A
            rewrite after TRUNCATE in the same transaction would have written such rows.
    """
    if not new.is_root:
        (one,) = new.storages.values()
        is_last = [*reasons] == [REWRITTEN] and not has_row_of(new.oid, one.row_version)
        return int(one.row_version) if is_last else None
    partitions = [one for oid, one in new.storages.items() if oid != new.oid]
    xids = {one.row_version for one in partitions}
    is_proven = [*reasons] == [TRUNCATED] and len(reasons[TRUNCATED]) == len(partitions) and len(xids) == 1
    return int(xids.pop()) if is_proven and all(one.is_truncated for one in partitions) else None
