"""Find alterations of tables that change rows without a message: compare two readings of the catalogs."""

from __future__ import annotations

from functools import partial
from typing import Final

from psycopg import sql

from logicalrep.recorder.catalogs.catalog import Catalog, CatalogTable, Description
from logicalrep.recorder.catalogs.column_changes import (
    SET_BACK,
    WITHOUT_ROWS,
    altered_columns,
    altered_types,
    explain_rewrite,
    has_new_column,
    may_be_set_back,
)
from logicalrep.recorder.catalogs.pending_tables import harmless_descriptions
from logicalrep.recorder.catalogs.queries import has_row_from_before, has_row_of, is_empty, is_unaltered
from logicalrep.recorder.catalogs.storage_changes import (
    MOVED,
    REPACKED,
    REWRITTEN,
    SET_LOGGED,
    TRUNCATED,
    altered_storages,
    truncating_transaction,
)
from logicalrep.recorder.client import Connection
from logicalrep.wire import format_lsn

FRESH_ROOTS_SINCE: Final = 150_000
"""First `server_version_num` of servers that, right after ATTACH PARTITION, send changes of the partition as
changes of its new root."""


class Alterations:
    """Comparison of two readings of the catalogs: finds tables whose rows were altered without being sent.

    Attributes:
        reasons: Text that tells what was altered, by OID of each table whose rows were altered without being
            sent.
        pending: List by OID of each table that may be incomplete. Each element has the values for one
            `PendingTable`: text of the reason, `descriptions` and `truncated_by`.

    Args:
        before: The catalogs as read earlier.
        after: The catalogs as read later.
        connection: Connection to the server, to check whether tables are empty.
    """

    def __init__(self, before: Catalog, after: Catalog, connection: Connection) -> None:
        self._before = before
        self._after = after
        self._connection = connection
        self._altered_types = altered_types(before, after)
        self.pending: dict[int, list[tuple[str, tuple[Description, ...], int | None]]] = {}
        self.reasons: dict[int, str] = {}
        for oid, table in after.tables.items():
            if oid in before.tables and (reason := self._reason(before.tables[oid], table)) is not None:
                self.reasons[oid] = reason

    def is_complete_since_published(self, table: CatalogTable) -> bool:
        """Return whether the stream has all rows of a table that was published between the two readings.

        True if the table is empty, or if it was created under a publication FOR ALL TABLES and not altered
        since. (An altered table may have been unlogged at first, or its rows may have got other values.)
        False if a publication of the table was altered between the readings: changes may not have been sent.
        """
        versions = {one.name: one.row_version for one in self._before.publications}
        publications = self._after.publications_of(table)
        if any(versions.get(one.name, one.row_version) != one.row_version for one in publications):
            return False
        is_covered = any(one.has_all_tables and one.name in versions for one in publications)
        is_covered = is_covered and table.oid > self._before.greatest_oid
        is_new = all(
            one.file == oid and all(link.endswith("+") for link in one.links)
            for oid, one in table.storages.items()
        )
        is_truncated = self._after.sends_truncate(table) and all(
            one.is_truncated for oid, one in table.storages.items() if one.file != oid
        )
        if is_covered and not (is_new or is_truncated):
            return False  # rows that were sent may have been removed without a message in the stream
        has_altered_types = any(one.type_oid in self._altered_types for one in table.columns.values())
        if is_covered and is_new and not has_altered_types and is_unaltered(self._connection, table.oid):
            return True
        return is_empty(self._connection, table.oid)

    def _reason(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Return a text that names the columns and partitions whose altered values were not sent, or None."""
        sends_truncate = self._after.sends_truncate(new)
        storages = altered_storages(
            old,
            new,
            self._is_empty_partition,
            partial(has_row_from_before, self._connection, xid=self._before.xid),
            sends_truncate=sends_truncate,
        )
        are_described = bool(self._after.ddl_events) and self._before.ddl_events == self._after.ddl_events
        pending: list[tuple[str, tuple[Description, ...], int | None]] = []
        has_rows = partial(has_row_of, self._connection)
        # An identity of digits only means that a publication names the table itself (see `Membership`). The
        # server then refuses SET UNLOGGED, so that all changes were sent.
        is_named = any(identity.isdecimal() for identity, _, _ in new.memberships.values())
        may_be_sent = sends_truncate and (new.is_root or not is_named)
        xid = truncating_transaction(new, storages, has_rows) if may_be_sent else None
        if xid is not None:
            pending.append((self._text(storages), (), xid))
            storages = {}
        if not are_described and may_be_set_back(old, new):
            harmless = harmless_descriptions(
                self._before.sent_columns(old),
                self._after.sent_columns(new),
                new.greatest_number - old.greatest_number,
            )
            pending.append((self._text({f"columns {SET_BACK}": []}), harmless, None))
        if pending:
            self.pending[new.oid] = pending
        columns = altered_columns(
            old,
            new,
            self._altered_types,
            partial(self._before.publishes, old),
            partial(self._after.publishes, new),
            was_rewritten=not storages.keys().isdisjoint((SET_LOGGED, REWRITTEN, TRUNCATED, REPACKED)),
            are_described=are_described,
        )
        is_through_root = any(one.settings.get("pubviaroot") for one in self._after.publications)
        if is_through_root and old.above and old.above != new.above:
            storages[MOVED] = [""]
        if columns and columns.keys() <= WITHOUT_ROWS and is_empty(self._connection, new.oid):
            columns = {}
        # Do not report that the table was rewritten if the rewrite is explained: if it hides no changes, and
        # sets no values besides those of the reported columns. If a publication names the table, a rewrite
        # that altered columns do not explain matters only if there is a new column: existing rows may have
        # the values of a default that was dropped again.
        if is_named and not new.is_root:
            is_explained = explain_rewrite(old, new) or not has_new_column(old, new)
        else:
            # Other tables and partitions may have been UNLOGGED for a time, in which their changes were not
            # sent. The rewrite is left out only if altered columns explain it and are reported themselves.
            is_explained = explain_rewrite(old, new) and bool(columns)
        for reason in (REWRITTEN, SET_LOGGED, REPACKED) if is_explained else (REPACKED,):
            storages.pop(reason, None)
        if not (storages or columns):
            return None
        return self._text({reason: list(map(_quoted, names)) for reason, names in columns.items()} | storages)

    def _is_empty_partition(self, oid: int) -> bool:
        is_fresh = self._connection.server_version >= FRESH_ROOTS_SINCE
        return is_fresh and is_empty(self._connection, oid)

    def _text(self, named: dict[str, list[str]]) -> str:
        """Return a text that tells what was altered, and after which LSN.

        `named` maps each kind of alteration, such as `renamed`, to the names of columns or partitions.
        """
        texts = [f"{', '.join(names)} {reason}".lstrip() for reason, names in named.items()]
        since = f"after {format_lsn(self._before.lsn)}"
        return f"{'; '.join(texts)} {since}: values of existing rows were not sent"


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()
