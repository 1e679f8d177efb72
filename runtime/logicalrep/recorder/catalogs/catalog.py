"""A description of a server's catalogs: which tables, columns and rows its publications send at one time.

The stream itself does not describe publications. The recorder reads the catalogs repeatedly, and finds
differences with `compare_catalogs`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

Membership: TypeAlias = tuple[str, str | None, str | None]
"""Entry of a table in a publication: identity, column list (None for all), and row filter (None for none).

The identity contains the OIDs of the catalog rows that name the table, and is only digits if the publication
names the table itself. The identity changes when the table is removed from the publication and added again,
or moved to another schema and back.
"""

NO_MEMBERSHIP: Final = None, None, None
"""Membership of a table that its publication does not name, as in FOR ALL TABLES.

A table that was published while the catalogs were read has this membership too: the queries' snapshot lacks
the table's row in pg_publication_rel, but pg_get_publication_tables reads the newer caches of the server.
"""


ROW_OPERATIONS: Final = {"pubinsert": "inserts", "pubupdate": "updates", "pubdelete": "deletes"}
"""Names of the operations on rows, by the column of pg_publication that says if they are published."""


class Publication(msgspec.Struct, frozen=True):
    """A publication, as its row in pg_publication describes it."""

    name: str
    """Name of the publication."""
    oid: int
    """OID of the publication; a publication that is dropped and created again has another OID."""
    row_version: str
    """xmin of the publication's row in pg_publication; changes whenever the row is updated."""
    settings: dict[str, Any]
    """Values of all pg_publication columns except oid and pubname, by column name (`owner` for pubowner)."""

    @property
    def has_all_tables(self) -> bool:
        """Whether the publication is FOR ALL TABLES."""
        return bool(self.settings["puballtables"])


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of a published table, as its row in pg_attribute describes it."""

    number: int
    """Number of the column (attnum); changes if the column is dropped and added again."""
    row_version: str
    """xmin of the column's row in pg_attribute; changes whenever the row is updated."""
    type_oid: int
    """OID of the column's type."""
    type_modifier: int
    """Type modifier of the column (atttypmod), or -1 for none."""
    origin: Literal["", "missing", "default", "generated"] = ""
    """What may have given values to the rows that existed when the column was added.

    `missing`: the constant that the server returns for these rows (attmissingval). `default`: a default
    or identity, which rewrites the table if it is volatile. `generated`: an expression. Empty: nothing.
    """
    output: int = 0
    """OID of the function that writes values of the type as text (typoutput)."""


Description: TypeAlias = tuple[tuple[str, int, int], ...]
"""The columns of a Relation message: name, OID of the type and type modifier of each."""


def sent_namespace(namespace: str) -> str:
    """Return the schema of a table or type as in Relation and Type messages: empty for pg_catalog."""
    return "" if namespace == "pg_catalog" else namespace


class Storage(msgspec.Struct, frozen=True, array_like=True):
    """A table that stores the rows of a published table: the published table itself, or a partition."""

    name: str
    """Name of the table with its schema."""
    kind: str
    """relpersistence of a plain table, such as `p`; relkind (`f`) of a partition that is a foreign table."""
    file: int
    """relfilenode of the table; equals its OID until the table is rewritten or truncated."""
    toast: int
    """OID of the TOAST table, or 0. Changes if ALTER TABLE rewrites the table, but not with VACUUM FULL or
    TRUNCATE."""
    row_version: str
    """xmin of the table's row in pg_class: the last transaction that has altered or truncated the table."""
    is_truncated: bool
    """Whether the catalogs prove that the current file was created by TRUNCATE, and not by a rewrite."""
    links: tuple[str, ...]
    """The rows of pg_inherits that lead from the published table down to this partition, as `OID:xmin` each.

    A text ends with `+` if its partition was created by CREATE TABLE … PARTITION OF, not attached later.
    A DROP that was rolled back removes the `+`.
    """
    identifies_rows: bool = True
    """Whether old and key tuples contain all columns of the published table's replica identity.

    The server writes the replica identity of the published table into messages, but chooses the columns of
    old and key tuples by the replica identity of the partition (logicalrep_write_delete in proto.c).
    """
    is_repacked: bool = False
    """Whether the catalogs prove that the current TOAST table was created by REPACK (CONCURRENTLY)."""
    sequences: str = ""
    """relfilenodes of the sequences that columns own: since PostgreSQL 15, SET LOGGED rewrites them too."""

    @property
    def path(self) -> tuple[str, ...]:
        """The links without `+`."""
        return tuple(one.rstrip("+") for one in self.links)


class CatalogTable(msgspec.Struct, frozen=True):
    """A published table, as the catalogs describe it."""

    oid: int
    """OID of the table."""
    namespace: str
    """Schema of the table."""
    name: str
    """Name of the table, without its schema."""
    row_version: str
    """xmin of the table's row in pg_class; changes if the table is attached or detached as a partition."""
    greatest_number: int
    """Greatest number (attnum) of the columns that the table has ever had."""
    columns: dict[str, Column]
    """Columns of the table, by column name."""
    memberships: dict[str, Membership]
    """Entry of the table in each publication, by name of the publication.

    Contains only publications that name the table, its schema, or a partitioned table above the table,
    but no publication FOR ALL TABLES.
    """
    publications: tuple[str, ...]
    """Names of all publications that publish the table."""
    storages: dict[int, Storage]
    """The tables that store the rows, by OID: the table itself, or its partitions."""
    undescribed: dict[str, Column] | None = None
    """Columns before the oldest alteration that no Relation message shows yet; None if there is none.

    A replica compares successive Relation messages, and never sees the columns in between.
    """
    above: str = ""
    """The partitioned tables above this table, as `OID:xmin` each; empty if the table is no partition.

    The xmin is that of the oldest row in pg_attribute of the table's columns: ATTACH PARTITION writes all
    these rows anew; an alteration of a column writes only the row of that column anew.
    """

    @property
    def full_name(self) -> str:
        """Name of the table with its schema."""
        return f"{self.namespace}.{self.name}"

    @property
    def sent_name(self) -> tuple[str, str]:
        """Schema and name of the table, as in Relation messages."""
        return sent_namespace(self.namespace), self.name

    @property
    def is_root(self) -> bool:
        """Whether the table is a partitioned table, which is published with the rows of its partitions."""
        return self.oid not in self.storages


class Catalog(msgspec.Struct, frozen=True):
    """The server's catalogs at one time: the recorded publications, and the tables that they send."""

    lsn: int
    """End of the server's WAL just before the catalogs were read."""
    greatest_oid: int
    """Greatest OID of all relations. Relations created later have greater OIDs, until OIDs wrap around."""
    publications: tuple[Publication, ...]
    """The recorded publications."""
    tables: dict[int, CatalogTable]
    """Published tables, by OID."""
    types: dict[int, dict[str, str]]
    """Enum labels and attributes of composite types, by OID of the column type, then by catalog row.

    Contains types of published columns that are not built in. The inner keys are `enum` or `attribute` and
    the identity of a catalog row. Values are label and xmin of the row, or the OID of the attribute's type.
    """
    xid: int = 0
    """Lowest xid of the transactions whose effects these catalogs may lack (txid_snapshot_xmin)."""
    ddl_events: str = ""
    """OID and xmin of the event triggers that describe each ALTER TABLE in the stream.

    Empty if there are no such triggers, or if one is not always enabled. Also empty in a catalog that was
    read while the recorder did not receive logical messages.
    """
    next_xid: int = 0
    """First xid that was not assigned when the catalogs were read (txid_snapshot_xmax)."""
    type_changes: dict[int, int] = {}
    """Youngest xid (32 bits) that may have altered a type in `types`, by OID; without types never altered."""

    @property
    def roots(self) -> set[int]:
        """OIDs of the partitioned tables that are published with the rows of their partitions."""
        return {oid for oid, table in self.tables.items() if table.is_root}

    def sent_columns(self, table: CatalogTable) -> dict[int, tuple[str, int, int]]:
        """Return name, OID of the type and type modifier of each published column of a table, by attnum."""
        columns = sorted(table.columns.items(), key=lambda item: item[1].number)
        return {
            column.number: (name, column.type_oid, column.type_modifier)
            for name, column in columns
            if self.publishes(table, column)
        }

    def publications_of(self, table: CatalogTable) -> list[Publication]:
        """Return the publications that publish a table."""
        return [one for one in self.publications if one.name in table.publications]

    def publishes(self, table: CatalogTable, column: Column) -> bool:
        """Return whether at least one recorded publication publishes a column of a table."""
        for one in self.publications_of(table):
            listed = table.memberships.get(one.name, NO_MEMBERSHIP)[1]
            is_generated = column.origin == "generated" and one.settings.get("pubgencols") != "s"
            if str(column.number) in listed.split() if listed else not is_generated:
                return True
        return False

    def unsent_operations(self, table: CatalogTable) -> list[str]:
        """Return the operations on rows, such as `inserts`, that no publication of the table publishes."""
        settings = [one.settings for one in self.publications_of(table)]
        return [text for column, text in ROW_OPERATIONS.items() if not any(one[column] for one in settings)]

    def sends_truncate(self, table: CatalogTable) -> bool:
        """Return whether the server sends the TRUNCATE of a table."""
        return any(one.settings.get("pubtruncate") for one in self.publications_of(table))
