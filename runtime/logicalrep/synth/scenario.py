"""Scenarios: synthetic databases that a test controls, with the streams that a server would send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, overload

import msgspec

from logicalrep._servers import default_server, newest_version, server_version
from logicalrep.errors import ScenarioError
from logicalrep.messages import AnyMessage, Message, PrimaryKeepalive, Relation, Streaming, XLogData
from logicalrep.synth.column_types import TypeRegistry
from logicalrep.synth.ddl import add_generated_columns, build_columns, with_publication, with_replica_identity
from logicalrep.synth.expected_rows import CommittedState, TableRow, committed_rows, history
from logicalrep.synth.identifiers import check_schema, local_name, qualified, split_qualified_name
from logicalrep.synth.message_size import check_message_size
from logicalrep.synth.options import StreamOptions, require_server
from logicalrep.synth.output_plugin import OutputPlugin
from logicalrep.synth.reorder_buffer import ReorderBuffer
from logicalrep.synth.table_definition import TableDefinition
from logicalrep.synth.tables import ScenarioTable
from logicalrep.synth.text_format import to_text
from logicalrep.synth.transaction import Database, ScenarioTransaction, logical_message
from logicalrep.synth.wal import (
    AnyWalRecord,
    Idle,
    MultiInsert,
    PayloadRecord,
    ReplicationOrigin,
    RowChange,
    WriteAheadLog,
    payload_size,
)
from logicalrep.versions import LATEST_RELEASED

_MAX_WAIT_SECONDS: Final = 31_536_000.0

_FIRST_WITH_PARTITION_ROOT: Final = 13
"""First major version of PostgreSQL with the option publish_via_partition_root of publications."""
FIRST_WITH_GENERATED_COLUMNS: Final = 12
"""First major version of PostgreSQL with stored generated columns."""
FIRST_WITH_ROW_FILTERS: Final = 15
"""First major version of PostgreSQL with row filters and column lists of publications."""
FIRST_TO_PUBLISH_GENERATED: Final = 18
"""First major version of PostgreSQL that can publish generated columns."""

MIN_WORK_MEM: Final = 64 << 10
"""Smallest `logical_decoding_work_mem` that a server accepts, in bytes; the default of scenarios."""


class Scenario:
    """A synthetic database that a test controls, and the streams that a server would send for the database.

    The database has one publication. An operation that no server would accept, such as a duplicate key or a
    row locked by another transaction, raises ScenarioError at once.

    Attributes:
        options: Default options of `stream`.
        tables: All tables and partitions, by name with schema. A later rename does not change this key.
        wal: The simulated write-ahead log.

    Args:
        server: Major version of the PostgreSQL server, such as 13: the scenario sends what this version
            sends. None for 18, or for a later version if `proto_version` needs one.
        proto_version: Protocol version; None for the newest released version that the server speaks.
        streaming: As in `StreamOptions`.
        two_phase: As in `StreamOptions`.
        binary: As in `StreamOptions`.
        messages: As in `StreamOptions`.
        origin: As in `StreamOptions`.
        publish_via_partition_root: Whether changes of partitions are published as changes of their root
            table.
        publish_generated_columns: `stored` publishes the generated columns of tables without column list.
        logical_decoding_work_mem: Memory limit of unsent changes, in bytes. If `streaming` is on and the
            limit is exceeded, the largest transaction is streamed. 0 sends each change in its own stream
            block, like debug_logical_replication_streaming = immediate.
        seed: Seed of LSNs, xids, OIDs and times. Output is deterministic for a given seed and sequence of
            operations.

    Raises:
        ValueError: The protocol version or the server does not support an option, or
            logical_decoding_work_mem is negative.
    """

    def __init__(
        self,
        *,
        server: int | None = None,
        proto_version: int | None = None,
        streaming: Streaming = "off",
        two_phase: bool = False,
        binary: bool = False,
        messages: bool = False,
        origin: Literal["any", "none"] = "any",
        publish_via_partition_root: bool = False,
        publish_generated_columns: Literal["none", "stored"] = "none",
        logical_decoding_work_mem: int = MIN_WORK_MEM,
        seed: int = 0,
    ) -> None:
        if logical_decoding_work_mem < 0:
            raise ValueError(
                f"logical_decoding_work_mem must be 0 bytes or more, not {logical_decoding_work_mem}"
            )
        newest = LATEST_RELEASED if server is None else newest_version(server)
        if proto_version is None:
            proto_version = newest
        self.server: int = default_server(proto_version) if server is None else server
        self.options: StreamOptions = self._requested(
            proto_version=proto_version,
            streaming=streaming,
            two_phase=two_phase,
            binary=binary,
            messages=messages,
            origin=origin,
        )
        if publish_via_partition_root:
            self._need("publish_via_partition_root", _FIRST_WITH_PARTITION_ROOT, ValueError)
        if publish_generated_columns != "none":
            self._need("publish_generated_columns", FIRST_TO_PUBLISH_GENERATED, ValueError)
        self.publish_generated_columns = publish_generated_columns
        self.publish_via_partition_root = publish_via_partition_root
        self.logical_decoding_work_mem = logical_decoding_work_mem
        self.wal: WriteAheadLog = WriteAheadLog(seed)
        self._types = TypeRegistry(self.wal.next_oid)
        self._database = Database(self.wal, self._types, refuse_large=self._refuse_large)
        self.tables: dict[str, ScenarioTable] = self._database.tables

    @property
    def end_lsn(self) -> int:
        """LSN of the end of the write-ahead log."""
        return self.wal.end_lsn

    @property
    def server_version(self) -> str:
        """Version of PostgreSQL that a stand-in server of the scenario reports, such as 18.4."""
        return server_version(self.server)

    @property
    def published(self) -> Sequence[Relation]:
        """Relation messages of the published tables, with their current definitions."""
        via_root = self.publish_via_partition_root
        return tuple(
            table.definition.relation_message()
            for table in self.tables.values()
            if table.definition.published and (table.root is None if via_root else not table.partitions)
        )

    def _refuse_large(self, record: RowChange | MultiInsert | PayloadRecord) -> None:
        def check(_: int, message: Message) -> None:
            check_message_size(message, self.options.proto_version)

        plugin = OutputPlugin(self.options, self.publish_via_partition_root, self.server, check)
        if isinstance(record, PayloadRecord):
            plugin.payload(record, streamed=False)
        else:
            for change in record.split() if isinstance(record, MultiInsert) else (record,):
                plugin.change(change, streamed=False)

    def _need(self, what: str, first: int, error: type[Exception] = ScenarioError) -> None:
        if self.server < first:
            raise error(f"PostgreSQL {self.server} has no {what}; use PostgreSQL {first} or later")

    def _requested(self, **options: Any) -> StreamOptions:
        require_server(self.server, options)
        return StreamOptions(**options)

    # Tables and types

    def table(
        self,
        name: str,
        columns: Mapping[str, str] | None = None,
        /,
        *,
        replica_identity: str | Sequence[str] = "default",
        published: bool = True,
        column_list: Sequence[str] | None = None,
        where: tuple[str, str, Any] | None = None,
        partition_by: str | None = None,
        partitions: Mapping[str, Sequence[Any]] | None = None,
        generated: Mapping[str, str] | None = None,
        **named: str,
    ) -> ScenarioTable:
        """Create a table (CREATE TABLE), and add it to the publication unless `published` is false.

        Args:
            name: Schema and table name as in SQL, such as `public.orders` or `public."Kunden"`. A name with
                upper-case letters needs quotes. Names of columns are taken as they are, without quotes.
            columns: Column types by column name. A type followed by `key` marks a primary key column: `int8
                key`, `text`.
            replica_identity: `default`, `full` or `nothing`, or the columns of a unique index as a list.
            published: Whether the table is part of the publication.
            column_list: Names of the published columns; None publishes all columns.
            where: Row filter of the publication as (column, operator, value); operators: = <> < <= > >=.
                None publishes all rows.
            partition_by: Column whose values select the partition (PARTITION BY LIST), or None.
            partitions: Column values of each partition, by partition name without schema.
            generated: Stored generated columns: the column to copy, by name of the generated column.
            named: More column types, as keyword arguments named like the columns.

        Raises:
            ScenarioError: The server would refuse the table.
        """
        if (column_list, where) != (None, None):
            self._need("row filters and column lists", FIRST_WITH_ROW_FILTERS)
        if generated:
            self._need("generated columns", FIRST_WITH_GENERATED_COLUMNS)
        if set(generated or ()).intersection(column_list or ()):
            self._need("generated columns in column lists", FIRST_TO_PUBLISH_GENERATED)
        namespace, local = split_qualified_name(name)
        check_schema(namespace, local)
        built = build_columns({**(columns or {}), **named}, self._types)
        definition = TableDefinition(
            self._next_table_oid(qualified(namespace, local)),
            namespace,
            local,
            built,
            published=published,
            publishes_generated=self.publish_generated_columns == "stored",
            attribute_count=len(built),
        )
        definition = add_generated_columns(definition, generated or {})
        definition = with_replica_identity(definition, replica_identity)
        definition = with_publication(definition, column_list, where)
        if partitions or partition_by is not None:
            return self._create_partitioned(definition, partition_by, partitions or {})
        return self._register(ScenarioTable(definition, self._database))

    def enum(self, name: str) -> None:
        """Create an enum type (CREATE TYPE … AS ENUM), for columns of the type `name` or `name[]`."""
        self._types.create_enum(name)

    def domain(self, name: str, base: str) -> None:
        """Create a domain (CREATE DOMAIN) over the type `base`, for columns of the type `name`."""
        self._types.create_domain(name, base)

    # Transactions

    def transaction(self, *, origin: str | None = None, origin_lsn: int = 0) -> ScenarioTransaction:
        """Begin a transaction (BEGIN).

        Args:
            origin: Name of the replication origin of a replicated transaction; None for a local transaction.
            origin_lsn: LSN of the transaction's commit on the replication origin.
        """
        replicated = None if origin is None else ReplicationOrigin(origin, origin_lsn)
        return ScenarioTransaction(self._database, None, replicated)

    def commit_prepared(self, gid: str) -> None:
        """Commit a prepared transaction (COMMIT PREPARED).

        Raises:
            ScenarioError: No transaction is prepared with this gid.
        """
        self._finish_prepared(gid, "commit_prepared")

    def rollback_prepared(self, gid: str) -> None:
        """Roll back a prepared transaction (ROLLBACK PREPARED).

        Raises:
            ScenarioError: No transaction is prepared with this gid.
        """
        self._finish_prepared(gid, "rollback_prepared")

    def _finish_prepared(self, gid: str, kind: str) -> None:
        if gid not in self._database.prepared:
            raise ScenarioError(f"prepared transaction with identifier {gid!r} does not exist")
        self._database.prepared.pop(gid).finish_prepared(kind)

    def message(self, prefix: str, content: bytes | str) -> None:
        """Emit a non-transactional logical message (pg_logical_emit_message).

        Raises:
            ScenarioError: The prefix or content is not valid UTF-8, or the prefix contains a zero byte.
        """
        message = logical_message(0, prefix, content)
        fields = {"xid": 0, "top": 0, "message": message}
        self._database.check_size(PayloadRecord, payload_size(message), fields)
        self.wal.write(PayloadRecord, payload_size(message), **fields)

    def wait(self, seconds: float = 1.0) -> None:
        """Advance the time by up to one year, without changes. The walsender then sends a keepalive.

        Raises:
            ScenarioError: The duration is negative or longer than a year.
        """
        if not 0 <= seconds <= _MAX_WAIT_SECONDS:
            raise ScenarioError(f"seconds must be between 0 and one year, not {seconds}")
        self.wal.time += round(seconds * 1_000_000)
        self.wal.write(Idle, 0, xid=0, top=0)

    def take_records(self) -> list[AnyWalRecord]:
        """Return all WAL records; delete them, and the commits that `history` yields, from the scenario."""
        records, self.wal.records = self.wal.records, []
        self._database.commits.clear()
        return records

    # Streams

    def stream(self, *, after_lsn: int = 0, **options: Any) -> Iterator[XLogData | PrimaryKeepalive]:
        """Yield the envelopes that a walsender would send for the scenario.

        Args:
            after_lsn: Acknowledged LSN. Transactions that ended at or before this LSN are not sent.
            options: Stream options (fields of `StreamOptions`) that override `Scenario.options`.

        Raises:
            ValueError: The protocol version or the server does not support an option.
            ScenarioError: A value cannot be converted to binary format.
        """
        stream_options = self._requested(**msgspec.structs.asdict(self.options) | options)
        buffer = self.reorder_buffer(stream_options, after_lsn)
        end_lsn = self.end_lsn  # read first: another thread may write records that are not sent
        for record in self.wal.records:
            yield from buffer.decode(record)
        yield PrimaryKeepalive(wal_end=end_lsn, send_time=self.wal.time, reply_requested=False)

    def reorder_buffer(self, options: StreamOptions, after_lsn: int = 0) -> ReorderBuffer:
        """Return a new `ReorderBuffer`, which decodes the WAL records of the scenario for one client."""
        work_mem, via_root = self.logical_decoding_work_mem, self.publish_via_partition_root
        return ReorderBuffer(options, work_mem, via_root, after_lsn, self.server)

    def messages(self, *, after_lsn: int = 0, **options: Any) -> Iterator[AnyMessage]:
        """Yield the decoded messages of `stream`, with the same arguments and errors."""
        stream_options = msgspec.structs.replace(self.options, **options)
        decoder = stream_options.decoder()
        for sent in self.stream(after_lsn=after_lsn, **options):
            if isinstance(sent, XLogData):
                yield decoder.decode(sent.data)

    # Expected rows

    @overload
    def rows(self, table: ScenarioTable) -> list[TableRow]: ...

    @overload
    def rows(self, table: None = None) -> dict[str, list[TableRow]]: ...

    def rows(self, table: ScenarioTable | None = None) -> list[TableRow] | dict[str, list[TableRow]]:
        """Return the committed rows of a table in insertion order; if partitioned, partition by partition.

        Without a table, return the rows of all tables and partitions that store rows, by name with schema.
        """
        if table is not None:
            return committed_rows(table)
        leaves = [one for one in self.tables.values() if not one.partitions]
        return {one.committed_definition.full_name: committed_rows(one) for one in leaves}

    def history(self) -> Iterator[CommittedState]:
        """Yield the expected rows of all tables after each commit, in commit order.

        The rows of a table are computed when they are read. `rows` returns the present state faster.
        """
        return history(self.tables.values(), self._database.commits)

    # Creation of tables

    def _next_table_oid(self, name: str) -> int:
        self._database.check_table_name(name)
        if name in self.tables:
            raise ScenarioError(
                f"table {name} was renamed, but its old name stays reserved; choose another name"
            )
        return self.wal.next_oid()

    def _register(self, table: ScenarioTable) -> ScenarioTable:
        self.tables[table.definition.full_name] = table
        return table

    def _create_partitioned(
        self, definition: TableDefinition, by: str | None, partitions: Mapping[str, Sequence[Any]]
    ) -> ScenarioTable:
        if by is None:
            raise ScenarioError(
                f"{definition.full_name}: partitions needs partition_by, the partitioning column"
            )
        if not partitions:
            raise ScenarioError(
                f"{definition.full_name}: partition_by needs partitions, with the values of each partition"
            )
        if definition.where is not None or definition.column_list is not None:
            raise ScenarioError(
                f"{definition.full_name}: partitioned tables do not support `where` and `column_list`"
            )
        root, column = self._register(ScenarioTable(definition, self._database)), definition.column(by)
        for name, values in partitions.items():
            name = local_name(name, "partition")
            full = qualified(definition.namespace, name)
            part = msgspec.structs.replace(definition, oid=self._next_table_oid(full), name=name)
            leaf = self._register(ScenarioTable(part, self._database, root))
            root.attach_partition(column, leaf, [to_text(value, column.type) for value in values])
        return root
