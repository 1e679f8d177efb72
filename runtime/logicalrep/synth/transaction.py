"""Transactions and savepoints of a scenario."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from logicalrep._roles import has_role, is_transactional
from logicalrep.errors import ScenarioError
from logicalrep.messages import LogicalMessage, Message, MessageFlag, TruncateOption
from logicalrep.synth import message_size
from logicalrep.synth.column_types import TypeRegistry
from logicalrep.synth.ddl import alter_definition
from logicalrep.synth.heap_access import CommitEffects, HeapAccess, Undo
from logicalrep.synth.table_definition import Cells
from logicalrep.synth.tables import Row, ScenarioTable
from logicalrep.synth.wal import (
    Invalidation,
    MultiInsert,
    PayloadRecord,
    ReplicationOrigin,
    RowChange,
    TransactionEnd,
    TruncateRecord,
    WriteAheadLog,
    cells_size,
    payload_size,
)
from logicalrep.wire import is_utf8

_MAX_GID_BYTES: Final = 199
"""Maximum length of a gid in bytes (GIDSIZE less the terminating zero byte)."""


class Database(msgspec.Struct, frozen=True, eq=False):
    """State that the transactions of a scenario share."""

    wal: WriteAheadLog
    types: TypeRegistry
    commits: list[CommitEffects] = []
    """The effects of each commit, in commit order."""
    prepared: dict[str, ScenarioTransaction] = {}
    """The prepared transactions by gid."""
    refuse_large: Callable[[Any], None] = lambda _: None
    """Function that raises ScenarioError if a message for a WAL record would be too large."""
    tables: dict[str, ScenarioTable] = {}
    """All tables and partitions, by the name (with schema) that they were created with."""
    renamed: set[ScenarioTable] = set()
    """Tables that transactions have renamed, even if rolled back: their names are no keys of `tables`."""

    def check_size(self, kind: Any, size: int, fields: Mapping[str, Any]) -> None:
        """Refuse a WAL record from which a server cannot build a message; `size` is that of its texts.

        Raises:
            ScenarioError: A message would be too large.
        """
        if size > message_size.MAX_BYTES // 8:  # binary format can be longer than text
            self.refuse_large(kind(lsn=0, end_lsn=0, time=0, **fields))

    def check_table_name(self, name: str, locked: Collection[ScenarioTable] = ()) -> None:
        """Check that no table has this name with schema.

        Args:
            name: The name.
            locked: Tables that the current transaction has locked. Of these, only the current name is in use.
                Of each other table, the name at the last commit is in use too: if an open transaction has
                renamed the table, this transaction may be rolled back.

        Raises:
            ScenarioError: A table has the name.
        """
        for table in {*self.renamed, *filter(None, (self.tables.get(name),))}:
            definitions = (
                [table.definition] if table in locked else [table.definition, table.committed_definition]
            )
            if any(one.full_name == name for one in definitions):
                raise ScenarioError(f"table {name} exists already; choose another name")


class TransactionScope(ABC):
    """A transaction or savepoint. The end of a `with` block commits or releases; an exception rolls back."""

    def __init__(
        self, database: Database, parent: TransactionScope | None, origin: ReplicationOrigin | None
    ) -> None:
        self._database = database
        self._parent = parent
        self._origin = origin
        self._top: TransactionScope = self if parent is None else parent._top
        self._open_savepoint: TransactionScope | None = None
        self._assigned_xid = 0
        self._children: list[int] = []
        self._access: HeapAccess = HeapAccess(self) if parent is None else parent._access
        self._undo: list[Undo] = []
        self.ended: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended:
            return
        if kind is None:
            self._end()
        else:
            self.rollback()

    @property
    def xid(self) -> int:
        """Xid of the transaction or subtransaction, assigned at its first change or when first read."""
        return self._assign_xid()

    def _assign_xid(self) -> int:
        """Return the xid. If there is none yet, assign it (AssignTransactionId).

        A parent without an xid gets its xid first.
        """
        if not self._assigned_xid:
            if self._parent is not None:
                self._parent._assign_xid()
            self._assigned_xid = self._database.wal.next_xid()
        return self._assigned_xid

    def insert(
        self, table: ScenarioTable, values: Mapping[str, Any] | None = None, /, **columns: Any
    ) -> None:
        """Insert a row, with values by column name in `values` and `columns`; missing columns are NULL.

        A row of a partitioned table is stored in the matching partition.

        Raises:
            ScenarioError: The server would refuse the row, or wait for another transaction.
        """
        self._open(table)
        leaf, cells = self._new_row(table, {**(values or {}), **columns})
        self._insert(leaf, cells)

    def copy(self, table: ScenarioTable, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert several rows with one command (COPY).

        The server sends the rows of a table or partition in one message if the protocol version has a message
        that inserts several rows. Otherwise it sends an Insert message for each row.

        Raises:
            ScenarioError: The server would refuse a row, or wait for another transaction. No row is inserted.
        """
        self._open(table)
        inserted: dict[ScenarioTable, list[Cells]] = {}
        first = len(self._undo)
        try:
            for values in rows:
                leaf, cells = self._new_row(table, values)
                self._undo.append(self._access.write_row(leaf, None, cells))
                inserted.setdefault(leaf, []).append(cells)
            for leaf, new in inserted.items():
                self._log(
                    MultiInsert,
                    sum(map(cells_size, new)),
                    definition=leaf.definition,
                    root=leaf.root and leaf.root.definition,
                    rows=tuple(new),
                )
        except ScenarioError:
            self._undo_from(first)
            raise

    def update(self, table: ScenarioTable, where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Update one row. In the stream, a TOASTed value that the update does not set is UNCHANGED.

        Args:
            table: The table.
            where: Column values that identify the row; None takes the key columns from `columns`.
            columns: New values by column name.

        Raises:
            ScenarioError: No row matches, several different rows match, the server would refuse the update,
                or wait for another transaction.
        """
        self._open(table)
        if where is None:
            key = {column.name for key in table.definition.unique_keys[:1] for column in key}
            where = {name: columns.pop(name) for name in key if name in columns}
        leaf, row, old = self._access.find_row(table, where)
        given = leaf.definition.to_texts(columns)
        new = leaf.definition.fill_row(old, given)
        target = table.partition_for(new) if table.partitions else leaf
        leaf.definition.check_replica_identity("update")
        self._access.lock(target)
        self._access.check_keys(target, new, row)
        if target is not leaf:
            self._delete(leaf, row, old)
            self._insert(target, new)
            return
        assigned = frozenset(leaf.definition.column(name).number for name in given)
        self._write_row(leaf, row, old, new, assigned)

    def delete(self, table: ScenarioTable, where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Delete the row that has the values in `where` and `columns`, both by column name.

        Raises:
            ScenarioError: No row matches, several different rows match, the server would refuse the delete,
                or wait for another transaction.
        """
        self._open(table)
        leaf, row, old = self._access.find_row(table, {**(where or {}), **columns})
        leaf.definition.check_replica_identity("delete from")
        self._delete(leaf, row, old)

    def truncate(self, *tables: ScenarioTable, cascade: bool = False, restart_identity: bool = False) -> None:
        """Truncate tables (TRUNCATE). CASCADE and RESTART IDENTITY are only flags of the Truncate message.

        A scenario has no foreign keys, so include the tables that CASCADE would reach.

        Raises:
            ScenarioError: No table is given, or another transaction uses one of the tables.
        """
        self._open(*tables)
        if not tables:
            raise ScenarioError("truncate needs at least one table")
        leaves = [leaf for table in tables for leaf in table.leaves()]
        named = dict.fromkeys(one for table in tables for one in (table, *table.leaves()))
        self._access.lock(*leaves, exclusive=True)
        # A second TRUNCATE of a table in the same transaction only rebuilds the table's indexes, so it
        # invalidates only a table with indexes (heap_truncate_one_rel).
        emptied = [leaf for leaf in leaves if leaf.truncated_in is not self or leaf.definition.unique_keys]
        if emptied:
            self._log(Invalidation, 200, oids=tuple(leaf.definition.oid for leaf in emptied))
        for leaf in leaves:
            self._undo += self._access.truncate(leaf, self)
        options = cascade * TruncateOption.CASCADE | restart_identity * TruncateOption.RESTART_IDENTITY
        definitions = tuple(
            (one.definition, one.root and one.root.definition, bool(one.partitions)) for one in named
        )
        self._log(TruncateRecord, 8 * len(definitions), definitions=definitions, options=options)

    def alter(
        self,
        table: ScenarioTable,
        *,
        add: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        retype: Mapping[str, str] | None = None,
        name: str | None = None,
        replica_identity: str | Sequence[str] | None = None,
    ) -> None:
        """Alter a table (ALTER TABLE). The stream shows this only by a new Relation message.

        Args:
            table: A table without partitions.
            add: Types of new columns by column name; existing rows get NULL.
            drop: Names of columns to drop.
            rename: New column names by old column name.
            retype: New column types by column name; existing values are converted.
            name: New table name without schema; None keeps the name.
            replica_identity: New replica identity, as in `Scenario.table`; None keeps the replica identity.

        Raises:
            ScenarioError: The server would refuse the change, or wait for another transaction.
        """
        self._open(table)
        if table.partitions or table.root:
            raise ScenarioError(
                f"{table.definition.full_name}: cannot alter a partitioned table or a partition in a "
                "scenario; use a table without partitions"
            )
        before, types = table.definition, self._database.types
        after = alter_definition(
            before, types, add or {}, drop, rename or {}, retype or {}, name, replica_identity
        )
        self._access.lock(table, exclusive=True)
        if after == before:
            return
        if after.name != before.name:
            self._database.check_table_name(after.full_name, self._access.tables)
            self._database.renamed.add(table)
        retyped = [column for column in after.columns if column.name in (retype or ())]
        if retyped:
            self._undo += self._access.rewrite_columns(table, retyped)
        table.definition = after
        self._undo.append(lambda: setattr(table, "definition", before))
        self._log(Invalidation, 300, oids=(after.oid,))

    def message(self, prefix: str, content: bytes | str) -> None:
        """Emit a transactional logical message (pg_logical_emit_message); see also `Scenario.message`.

        Raises:
            ScenarioError: The prefix or content is not valid UTF-8, or the prefix contains a zero byte.
        """
        self.send(logical_message(MessageFlag.TRANSACTIONAL, prefix, content))

    def send(self, message: Message) -> None:
        """Emit a message that changes no row, such as a logical message, or one of a new protocol version.

        The message is sent with the LSN of its WAL record and the xids of this transaction. Nothing is
        sent if the protocol version does not have the message.

        Raises:
            ScenarioError: The message has another role, or does not belong to a transaction.
        """
        self._open()
        if not has_role(message, "payload") or not is_transactional(message):
            raise ScenarioError(
                f"{type(message).__name__}: expected a message that changes no row (role payload) and "
                "belongs to a transaction"
            )
        self._log(PayloadRecord, payload_size(message), message=message)

    def savepoint(self) -> Savepoint:
        """Create a savepoint (SAVEPOINT), which `release()` or the end of a `with` block releases.

        Raises:
            ScenarioError: Another savepoint directly inside this transaction or savepoint is open.
        """
        self._open()
        self._open_savepoint = Savepoint(self._database, self, self._origin)
        return self._open_savepoint

    def rollback(self) -> None:
        """Roll back the transaction (ROLLBACK), or roll back to the savepoint (ROLLBACK TO SAVEPOINT)."""
        if self._open_savepoint is not None and not self._open_savepoint.ended:
            self._open_savepoint.rollback()
        self._open()
        if self._assigned_xid:
            self._log_end("abort")
        self._undo_from(0)
        self._close()

    @abstractmethod
    def _end(self) -> None:
        """Commit the transaction or release the savepoint."""

    def _close(self) -> None:
        self.ended = True

    def _open(self, *tables: ScenarioTable) -> None:
        if self.ended:
            raise ScenarioError("the transaction or savepoint has ended; begin another one")
        if self._open_savepoint is not None and not self._open_savepoint.ended:
            raise ScenarioError(
                "a savepoint is open: call the methods of the savepoint, or release it or roll it back first"
            )
        for table in tables:
            if getattr(table, "owner", None) is not self._database:
                raise ScenarioError(
                    f"{table!r} is not a table of this scenario; pass a result of its method `table`"
                )

    def _undo_from(self, first: int) -> None:
        while len(self._undo) > first:
            self._undo.pop()()

    def _new_row(self, table: ScenarioTable, values: Mapping[str, Any]) -> tuple[ScenarioTable, Cells]:
        """Check the keys of a new row; return the table or partition for the row, and the row's cells."""
        cells = table.definition.fill_row((), table.definition.to_texts(values))
        leaf = table.partition_for(cells)
        self._access.lock(leaf)
        self._access.check_keys(leaf, cells)
        return leaf, cells

    # Changes of rows, and the WAL records that the changes write

    def _insert(self, leaf: ScenarioTable, cells: Cells) -> None:
        self._write_row(leaf, None, None, cells)

    def _delete(self, leaf: ScenarioTable, row: Row, old: Cells) -> None:
        self._write_row(leaf, row, old, None)

    def _write_row(
        self,
        leaf: ScenarioTable,
        row: Row | None,
        old: Cells | None,
        new: Cells | None,
        assigned: frozenset[int] = frozenset(),
    ) -> None:
        self._log(
            RowChange,
            cells_size(old) + cells_size(new),
            definition=leaf.definition,
            root=leaf.root and leaf.root.definition,
            old=old,
            new=new,
            assigned=assigned,
        )
        self._undo.append(self._access.write_row(leaf, row, new))

    def _log(self, kind: Any, size: int, **fields: Any) -> None:
        fields |= {"xid": self.xid, "top": self._top.xid, "origin": self._origin}
        self._database.check_size(kind, size, fields)
        self._database.wal.write(kind, size, **fields)

    def _log_end(self, kind: str, **fields: Any) -> TransactionEnd:
        return self._database.wal.write(
            TransactionEnd,
            32,
            xid=self._assigned_xid,
            top=self._top.xid,
            origin=self._origin,
            kind=kind,
            children=tuple(self._children),
            **fields,
        )


class Savepoint(TransactionScope):
    """A subtransaction: the operations after a savepoint."""

    def _end(self) -> None:
        self.release()

    def release(self) -> None:
        """Release the savepoint (RELEASE SAVEPOINT); its changes stay in the enclosing transaction."""
        self._open()
        parent = self._parent
        assert parent is not None
        if self._assigned_xid:
            parent._children += [self._assigned_xid, *self._children]
        parent._undo += self._undo
        for table in self._access.tables:
            if table.truncated_in is self:
                table.truncated_in = parent
        self.ended = True


class ScenarioTransaction(TransactionScope):
    """A transaction of a scenario. Several transactions may be open at a time."""

    def commit(self) -> None:
        """Commit the transaction (COMMIT)."""
        self._open()
        if self._assigned_xid:
            self._database.commits.append(self._access.commit(self._log_end("commit")))
        self._close()

    def prepare(self, gid: str) -> None:
        """Prepare the transaction (PREPARE TRANSACTION); `Scenario.commit_prepared` can commit it.

        Raises:
            ScenarioError: The gid is in use or invalid.
        """
        self._open()
        if not gid or "\0" in gid or not is_utf8(gid) or len(gid.encode()) > _MAX_GID_BYTES:
            raise ScenarioError(
                f"gid must have 1 to {_MAX_GID_BYTES} bytes of UTF-8 without zero bytes, not {gid!r}"
            )
        if gid in self._database.prepared:
            raise ScenarioError(f"transaction identifier {gid!r} is already in use")
        self._assign_xid()  # even if the transaction is empty (PrepareTransaction)
        self._database.prepared[gid] = self
        self.prepared = self._log_end("prepare", gid=gid)
        self.ended = True

    def finish_prepared(self, kind: str) -> None:
        """Commit or roll back this transaction; `kind` is `commit_prepared` or `rollback_prepared`."""
        prepare = self.prepared
        record = self._log_end(
            kind, gid=prepare.gid, prepare_time=prepare.time, prepare_end_lsn=prepare.end_lsn
        )
        if kind == "commit_prepared":
            self._database.commits.append(self._access.commit(record))
        else:
            self._undo_from(0)
        self._close()

    def _end(self) -> None:
        self.commit()

    def _close(self) -> None:
        self.ended = True
        self._access.release()


def logical_message(flags: int, prefix: str, content: bytes | str) -> LogicalMessage:
    """Return a logical message with the LSN 0.

    Raises:
        ScenarioError: The prefix or content is not valid UTF-8, or the prefix contains a zero byte.
    """
    if "\0" in prefix or not is_utf8(prefix) or (isinstance(content, str) and not is_utf8(content)):
        raise ScenarioError(
            "a logical message needs UTF-8 text, and a UTF-8 prefix without zero bytes; its prefix is "
            f"{prefix!r}"
        )
    raw = content.encode() if isinstance(content, str) else bytes(content)
    return LogicalMessage(flags=MessageFlag(flags), lsn=0, prefix=prefix, content=raw)
