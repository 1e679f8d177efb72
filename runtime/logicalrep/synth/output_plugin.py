"""Model of the output plugin pgoutput: Type and Relation messages, row filters, column lists and tuples.

Follows src/backend/replication/logicalrep/pgoutput.c, callback by callback.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

import msgspec

from logicalrep import catalog, messages
from logicalrep._build import build, builder, fitted, placed
from logicalrep._offsets import layout_of
from logicalrep._roles import with_meanings
from logicalrep._servers import FIRST_WITHOUT_EMPTY, first_server
from logicalrep.errors import ScenarioError
from logicalrep.messages import Cell, Message, TupleData
from logicalrep.synth.options import StreamOptions
from logicalrep.synth.table_definition import Cells, Column, TableDefinition, cell
from logicalrep.synth.wal import (
    MultiInsert,
    PayloadRecord,
    ReplicationOrigin,
    RowChange,
    TransactionEnd,
    TruncateRecord,
)
from logicalrep.values import encode_binary
from logicalrep.wire import UNCHANGED

WriteMessage = Callable[[int, Message], None]
"""Function that sends a message. Arguments: the `wal_start` of the envelope, and the message."""

INVALID_LSN: Final = 0
"""`wal_start` of Type and Relation messages, and of a message that Origin follows (WalSndPrepareWrite with
last_write false)."""


class OutputPlugin:
    """The output plugin pgoutput of one connection: writes the messages for decoded changes.

    In all methods, `streamed` is true if the change is part of a stream block. `via_root` is the option
    publish_via_partition_root of the publication.
    """

    def __init__(self, options: StreamOptions, via_root: bool, server: int, write: WriteMessage) -> None:
        self._options = options
        self._insert, self._update, self._delete = (
            builder(role, options.proto_version) for role in ("insert", "update", "delete")
        )
        self._insert_batch = partial(builder, "insert", options.proto_version, batch=True)
        self._build = partial(build, proto_version=options.proto_version)
        self._via_root = via_root
        self._sends_empty = server < FIRST_WITHOUT_EMPTY
        self._sends_truncate = server >= first_server("truncate")
        self._write = write
        self._unsent_begin: tuple[int, TransactionEnd] | None = None
        """First LSN and end of the current transaction; None after its Begin message (sent_begin_txn)."""
        self._sent_relations: set[int] = set()
        """OIDs of the relations whose Relation message the client has (RelationSyncEntry.schema_sent)."""
        self._sent_relations_in: defaultdict[int, set[int]] = defaultdict(set)
        """By xid of a streamed transaction: OIDs of the relations whose Relation message is in a stream block
        of the transaction (RelationSyncEntry.streamed_txns)."""

    def invalidate(self, oids: Iterable[int]) -> None:
        """Mark the Relation messages of `oids` as not sent (rel_sync_cache_relation_cb)."""
        for sent in (self._sent_relations, *self._sent_relations_in.values()):
            sent.difference_update(oids)

    # Transactions that are sent as a whole

    def begin(self, lsn: int, end: TransactionEnd) -> None:
        """Begin a transaction; its first published change will write Begin (pgoutput_begin_txn)."""
        self._unsent_begin = (lsn, end)

    def commit(self, end: TransactionEnd) -> None:
        """Write Commit; from PostgreSQL 15 on, only if a change was published (pgoutput_commit_txn)."""
        if self._sends_empty:
            self._send_begin()
        if self._unsent_begin is None:
            self.end("commit", end)
        self._unsent_begin = None

    def begin_prepare(self, lsn: int, end: TransactionEnd) -> None:
        """Write a Begin Prepare message, also for a transaction without published changes."""
        self._write_opening(lsn, self._end_message("begin_prepare", end), end.origin)

    def end(self, role: str, end: TransactionEnd) -> None:
        """Write the message that commits, prepares or rolls back a transaction.

        `role` is the role of the message in the spec, such as `prepare` or `commit_prepared`.
        """
        self._write(end.end_lsn, self._end_message(role, end))

    # Streamed transactions

    def stream_start(self, lsn: int, xid: int, first: bool, origin: ReplicationOrigin | None) -> None:
        """Write a Stream Start message, and Origin in the first stream block of a replicated transaction."""
        # The origin's commit LSN is not known while the transaction is in progress.
        sent_origin = msgspec.structs.replace(origin, lsn=0) if origin is not None and first else None
        self._write_opening(lsn, self._build("open_block", xid=xid, first_block=first), sent_origin)

    def stream_stop(self, lsn: int) -> None:
        """Write a Stream Stop message."""
        self._write(lsn, self._build("close_block"))

    def stream_abort(self, end: TransactionEnd, subxid: int) -> None:
        """Write a Stream Abort message for a streamed transaction or one of its subtransactions."""
        tail = {"lsn": end.end_lsn, "time": end.time} if self._options.streaming == "parallel" else {}
        self._write(end.end_lsn, self._build("abort_streamed", xid=end.top, subxid=subxid, **tail))
        self._sent_relations_in.pop(end.top, None)

    def stream_commit(self, end: TransactionEnd) -> None:
        """Write Stream Commit. Later transactions do not repeat the Relation messages of this transaction."""
        self.end("commit_streamed", end)
        self._sent_relations |= self._sent_relations_in.pop(end.top, set())

    # Messages of changes

    def change(self, change: RowChange | MultiInsert, streamed: bool) -> None:
        """Write the messages of a row change or of several inserted rows (pgoutput_change)."""
        definition = change.definition
        if not definition.published:
            return
        oid = change.root.oid if change.root is not None and self._via_root else definition.oid
        message = self._change_message(change, oid, change.xid if streamed else None)
        if message is None:
            return
        self._send_begin()
        self._maybe_send_schema(definition, change.root, change.xid if streamed else None, change.top)
        self._write(change.lsn, message)

    def truncate(self, change: TruncateRecord, streamed: bool) -> None:
        """Write a Truncate message (pgoutput_truncate).

        With publish_via_partition_root the message lists partitioned tables but no partitions, otherwise
        partitions but no partitioned tables.
        """
        xid = change.xid if streamed else None
        oids = []
        for definition, root, is_root in change.definitions if self._sends_truncate else ():
            if definition.published and (not is_root if not self._via_root else root is None):
                self._send_begin()
                self._maybe_send_schema(definition, root, xid, change.top)
                oids.append(definition.oid)
        if oids:
            message = self._build("truncate", options=change.options, relations=tuple(oids), subxid=xid)
            self._write(change.lsn, message)

    def payload(self, record: PayloadRecord, streamed: bool) -> None:
        """Write a message with the role `payload` in the spec, such as a logical message (pgoutput_message).

        The message is left out if the protocol version or the stream options do not include it.
        In a stream block a logical message has the xid of the top-level transaction, even if a subtransaction
        emitted the message.
        """
        message, options = record.message, self._options
        layout = layout_of(type(message), options.proto_version)
        if layout is None or (layout.option == "messages" and not options.messages):
            return
        if record.top:
            self._send_begin()
        sent = with_meanings(message, lsn=record.end_lsn, xid=record.top, subxid=record.xid)
        self._write(
            record.end_lsn,
            placed(sent, options.proto_version, in_stream=streamed, streaming=options.streaming),
        )

    def _send_begin(self) -> None:
        """Write the Begin message of the transaction, unless already sent (pgoutput_send_begin)."""
        if self._unsent_begin is not None:
            (lsn, end), self._unsent_begin = self._unsent_begin, None
            self._write_opening(lsn, self._end_message("begin", end), end.origin)

    def _write_opening(self, lsn: int, message: Message, origin: ReplicationOrigin | None) -> None:
        self._write(lsn if origin is None else INVALID_LSN, message)
        if origin is not None:
            self._write(lsn, self._build("origin", lsn=origin.lsn, name=origin.name))

    def _end_message(self, role: str, end: TransactionEnd) -> Message:
        """Return the message with the role `role` in the spec, such as `commit`.

        Its LSNs, times, xid and gid are those of the WAL record `end`.
        """
        return self._build(
            role,
            xid=end.top,
            gid=end.gid,
            lsn=end.lsn,
            end_lsn=end.end_lsn,
            time=end.time,
            prepare_end_lsn=end.prepare_end_lsn,
            prepare_time=end.prepare_time,
        )

    def _maybe_send_schema(
        self, definition: TableDefinition, root: TableDefinition | None, xid: int | None, top: int
    ) -> None:
        """Write the Type and Relation messages of a table, unless already sent (maybe_send_schema).

        Args:
            definition: The table.
            root: Root table if the table is a partition, otherwise None.
            xid: Xid that the messages contain in a stream block, otherwise None.
            top: Xid of the top-level transaction.
        """
        sent = self._sent_relations if xid is None else self._sent_relations_in[top]
        if definition.oid in sent:
            return
        for described in (root, definition) if root is not None and self._via_root else (definition,):
            for message in (*described.type_messages(), described.relation_message()):
                message = fitted(msgspec.structs.replace(message, xid=xid), self._options.proto_version)
                self._write(INVALID_LSN, message)
        sent.add(definition.oid)

    # Messages and tuples of row changes

    def _change_message(self, change: RowChange | MultiInsert, oid: int, xid: int | None) -> Message | None:
        """Return the message for a row change, or None if the row filter excludes it (pgoutput_row_filter).

        The row filter may turn an update into an insert or a delete, and may exclude rows of a `MultiInsert`.
        """
        definition = change.definition
        if isinstance(change, MultiInsert):
            rows = [self._tuple(definition, row) for row in change.rows if definition.publishes_row(row)]
            return self._insert_batch()(relation=oid, subxid=xid, new=tuple(rows)) if rows else None
        if change.new is None:
            assert change.old is not None
            old = _identity_cells(definition, change.old)
            if not definition.publishes_row(old):
                return None
            return self._delete(relation=oid, subxid=xid, **self._old(definition, old))
        if change.old is None:
            if not definition.publishes_row(change.new):
                return None
            return self._insert(relation=oid, subxid=xid, new=self._tuple(definition, change.new))
        unchanged = _unchanged_toast_columns(change)
        logged = _logged_old_row(change)
        after = definition.publishes_row(change.new)
        before = after if logged is None else definition.publishes_row(logged)
        old_tuple = {} if logged is None else self._old(definition, logged)
        if before and after:
            new = self._tuple(definition, change.new, unchanged)
            return self._update(relation=oid, subxid=xid, new=new, **old_tuple)
        if before:
            return self._delete(relation=oid, subxid=xid, **old_tuple)
        if after:
            assert logged is not None
            # The row filter turns this update into an Insert, which should contain the whole row. A server
            # takes unchanged TOASTed values from the logged old row. Values that this row lacks too are
            # `missing`, and are sent as UNCHANGED.
            missing = {column for column in unchanged if cell(logged, column) is None}
            new = self._tuple(definition, change.new, missing)
            return self._insert(relation=oid, subxid=xid, new=new)
        return None

    def _old(self, definition: TableDefinition, cells: Cells) -> dict[str, Any]:
        full = definition.replica_identity == messages.ReplicaIdentity.FULL
        return {"old" if full else "key": self._tuple(definition, cells)}

    def _tuple(
        self, definition: TableDefinition, cells: Cells, unchanged: Collection[Column] = ()
    ) -> TupleData:
        """Return the published cells of a row, UNCHANGED for `unchanged` columns (logicalrep_write_tuple)."""
        return tuple(
            UNCHANGED if column in unchanged else self._cell(cell(cells, column), column)
            for column in definition.published_columns
        )

    def _cell(self, text: str | None, column: Column) -> Cell:
        if text is None or not self._options.binary:
            return text
        builtin = catalog.BY_OID.get(column.type.base_oid)
        if builtin is not None and builtin.send == "none":
            return text
        try:
            data = encode_binary(text, column.type.base_oid)
        except ValueError as error:
            raise ScenarioError(f"column {column.name} in binary format: {error}") from None
        if column.type.element_oid:  # replace the OID of text by that of the enum: bytes 8 to 11 (array_send)
            data = data[:8] + column.type.element_oid.to_bytes(4, "big") + data[12:]
        return data


def _identity_cells(definition: TableDefinition, cells: Cells) -> Cells:
    """Return the row with NULL in all columns outside the replica identity."""
    identity = definition.identity_columns
    return tuple(text if number in identity else None for number, text in enumerate(cells))


def _unchanged_toast_columns(change: RowChange) -> set[Column]:
    """Return the columns with a TOASTed value that an UPDATE does not set. Such values are not sent."""
    assert change.new is not None
    return {
        column
        for column in change.definition.columns
        if column.number not in change.assigned and column.is_toasted(cell(change.new, column))
    }


def _logged_old_row(change: RowChange) -> Cells | None:
    """Return the old row that the WAL record of an update contains, or None (ExtractReplicaIdentity).

    With REPLICA IDENTITY FULL the record contains the whole row. Otherwise the record contains the columns of
    the replica identity, if the update changed a value in these columns or an old value is TOASTed.
    """
    definition = change.definition
    assert change.old is not None
    assert change.new is not None
    if definition.replica_identity == messages.ReplicaIdentity.FULL:
        return _identity_cells(definition, change.old)
    for column in definition.columns:
        if column.number in definition.identity_columns:
            before, after = cell(change.old, column), cell(change.new, column)
            if before != after or column.is_toasted(before):
                return _identity_cells(definition, change.old)
    return None
