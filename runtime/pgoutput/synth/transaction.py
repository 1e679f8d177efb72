"""What is done in a transaction of a scenario."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from pgoutput.errors import ScenarioError
from pgoutput.messages import TruncateOption
from pgoutput.synth.access import Access, Undo
from pgoutput.synth.ddl import altered
from pgoutput.synth.ledger import Ledger
from pgoutput.synth.shapes import Cells
from pgoutput.synth.tables import Row, ScenarioTable
from pgoutput.synth.wal import Emission, Ending, Invalidation, Origin, RowChange, Truncation
from pgoutput.wire import is_utf8

_GID_BYTES: Final = 199
"""That a gid has at most (GIDSIZE, less its zero byte)."""


class Work(ABC):
    """A transaction, or a part of it behind a savepoint.

    Leaving its `with` block ends it as it should end; an exception rolls it back.
    """

    def __init__(self, ledger: Ledger[Transaction], parent: Work | None, origin: Origin | None) -> None:
        self._ledger = ledger
        self._parent = parent
        self._origin = origin
        self._top: Work = self if parent is None else parent._top
        self._inner: Work | None = None
        self._assigned_xid = 0
        self._children: list[int] = []
        self._access: Access = Access(ledger, self) if parent is None else parent._access
        self._undo: list[Undo] = []
        self.ended = False

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
        """Its transaction id; a (sub)transaction gets it when it changes something first."""
        if not self._assigned_xid:
            if self._parent is not None:
                assert self._parent.xid  # parents come first (AssignTransactionId)
            self._assigned_xid = self._ledger.log.next_xid()
        return self._assigned_xid

    def insert(
        self, table: ScenarioTable, values: Mapping[str, Any] | None = None, /, **columns: Any
    ) -> None:
        """Insert a row.

        Args:
            table: The table; of a partitioned one, the row goes to the partition that wants it.
            values: Values by column name; columns that are not named become NULL.
            columns: The same, where the names are Python's.

        Raises:
            ScenarioError: The server would refuse it, or wait for another transaction.
        """
        self._open(table)
        cells = table.shape.filled((), table.shape.texts({**(values or {}), **columns}))
        leaf = table.partition_for(cells)
        self._access.use(leaf)
        self._undo.append(self._access.claim_keys(leaf, cells))
        self._insert(leaf, cells)

    def update(self, table: ScenarioTable, where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Update the one row that matches.

        Args:
            table: The table.
            where: Values of the row that is meant. Without it, the columns of the key say which it is.
            columns: The new values; the other columns stay as they are, and are not sent where they are
                stored out of line.

        Raises:
            ScenarioError: As `insert`; or no row matches, or several different ones.
        """
        self._open(table)
        if where is None:
            key = {column.name for key in table.shape.keys[:1] for column in key}
            where = {name: columns.pop(name) for name in key if name in columns}
        leaf, row, old = self._access.find(table, where)
        given = leaf.shape.texts(columns)
        new = leaf.shape.filled(old, given)
        target = table.partition_for(new) if table.partitions else leaf
        leaf.shape.check_identity("update")
        self._access.use(target)
        self._undo.append(self._access.claim_keys(target, new, row))
        if target is not leaf:
            self._delete(leaf, row, old)
            self._insert(target, new)
            return
        self._undo.append(self._access.set(leaf, row, new))
        self._write_row(leaf, old, new, frozenset(leaf.shape.column(name).number for name in given))

    def delete(self, table: ScenarioTable, where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Delete the one row that has these values.

        Raises:
            ScenarioError: As `update`.
        """
        self._open(table)
        leaf, row, old = self._access.find(table, {**(where or {}), **columns})
        leaf.shape.check_identity("delete from")
        self._delete(leaf, row, old)

    def truncate(self, *tables: ScenarioTable, cascade: bool = False, restart_identity: bool = False) -> None:
        """TRUNCATE. Which tables CASCADE reaches, a scenario does not know: name them.

        Raises:
            ScenarioError: No table is named, or another transaction uses one.
        """
        self._open(*tables)
        if not tables:
            raise ScenarioError("truncate: name a table")
        leaves = [leaf for table in tables for leaf in table.leaves()]
        named = dict.fromkeys(one for table in tables for one in (table, *table.leaves()))
        self._access.lock(*leaves)
        # What has new files already is emptied in place; only indexes are made anew (heap_truncate_one_rel).
        told = [leaf for leaf in leaves if leaf.truncated_in is not self or leaf.shape.keys]
        if told:
            self._log(Invalidation, 200, oids=tuple(leaf.shape.oid for leaf in told))
        for leaf in leaves:
            self._undo.append(self._access.truncate(leaf, self))
        options = cascade * TruncateOption.CASCADE | restart_identity * TruncateOption.RESTART_IDENTITY
        shapes = tuple((one.shape, one.root and one.root.shape, bool(one.partitions)) for one in named)
        self._log(Truncation, 8 * len(shapes), shapes=shapes, options=options)

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
        """ALTER TABLE. The server sends nothing of it but the Relation, when the table is used next.

        Args:
            table: The table.
            add: Types of new columns, by name; they are NULL in rows that are there.
            drop: Names of columns to drop.
            rename: New names, by old.
            retype: New types, by name; values that are there are written as the new type has them.
            name: The new name of the table itself, without schema.
            replica_identity: As in `Scenario.table`.

        Raises:
            ScenarioError: The server would refuse it, or wait for another transaction.
        """
        self._open(table)
        if table.partitions or table.root:
            raise ScenarioError(f"{table.shape.full_name}: partitioned tables are not altered in a scenario")
        before, types = table.shape, self._ledger.types
        after = altered(before, types, add or {}, drop, rename or {}, retype or {}, name, replica_identity)
        self._access.lock(table)
        if after == before:
            return
        rewritten = [column for column in after.columns if column.name in (retype or ())]
        if rewritten:
            self._undo.append(self._access.rewrite(table, rewritten))
        table.shape = after
        self._undo.append(lambda: setattr(table, "shape", before))
        self._log(Invalidation, 300, oids=(after.oid,))

    def message(self, prefix: str, content: bytes | str) -> None:
        """pg_logical_emit_message, transactional. One that is not: `Scenario.message`."""
        self._open()
        raw = content_bytes(prefix, content)
        self._log(Emission, len(raw) + len(prefix), transactional=True, prefix=prefix, content=raw)

    def savepoint(self) -> Savepoint:
        """SAVEPOINT; leaving its `with` block is RELEASE, as `release()`; its `rollback()` is ROLLBACK TO.

        Raises:
            ScenarioError: Another one is open.
        """
        self._open()
        self._inner = Savepoint(self._ledger, self, self._origin)
        return self._inner

    def rollback(self) -> None:
        """Undo what was done here."""
        if self._inner is not None and not self._inner.ended:
            self._inner.rollback()
        self._open()
        if self._assigned_xid:
            self._log_end("abort")
        self._undo_all()
        self._close()

    @abstractmethod
    def _end(self) -> None:
        """End it as it should end."""

    def _close(self) -> None:
        self.ended = True

    def _open(self, *tables: ScenarioTable) -> None:
        if self.ended:
            raise ScenarioError("the transaction or savepoint has ended: nothing more can be done in it")
        if self._inner is not None and not self._inner.ended:
            raise ScenarioError("a savepoint is open: go on with it, or end it first")
        for table in tables:
            if getattr(table, "owner", None) is not self._ledger:
                raise ScenarioError(f"{table!r} is no table of this scenario: give what Scenario.table gave")

    def _undo_all(self) -> None:
        for undo in reversed(self._undo):
            undo()

    # Records

    def _insert(self, leaf: ScenarioTable, cells: Cells) -> None:
        self._undo.append(self._access.add(leaf, cells))
        self._write_row(leaf, None, cells, frozenset())

    def _delete(self, leaf: ScenarioTable, row: Row, old: Cells) -> None:
        self._undo.append(self._access.set(leaf, row, None))
        self._write_row(leaf, old, None, frozenset())

    def _write_row(
        self, leaf: ScenarioTable, old: Cells | None, new: Cells | None, assigned: frozenset[int]
    ) -> None:
        size = sum(len(text) for cells in (old, new) for text in cells or () if text is not None)
        self._log(
            RowChange,
            size,
            shape=leaf.shape,
            root=leaf.root and leaf.root.shape,
            old=old,
            new=new,
            assigned=assigned,
        )

    def _log(self, kind: Any, size: int, **fields: Any) -> None:
        self._ledger.log.write(kind, size, xid=self.xid, top=self._top.xid, origin=self._origin, **fields)

    def _log_end(self, kind: str, **fields: Any) -> Ending:
        return self._ledger.log.write(
            Ending,
            32,
            xid=self._assigned_xid,
            top=self._top.xid,
            origin=self._origin,
            kind=kind,
            children=tuple(self._children),
            **fields,
        )


class Savepoint(Work):
    """What is done behind a savepoint."""

    def _end(self) -> None:
        self.release()

    def release(self) -> None:
        """RELEASE SAVEPOINT: what was done here belongs to what is around it."""
        self._open()
        parent = self._parent
        assert parent is not None
        if self._assigned_xid:
            parent._children += [self._assigned_xid, *self._children]
        parent._undo += self._undo
        for table in self._ledger.used(self._top):
            if table.truncated_in is self:
                table.truncated_in = parent
        self.ended = True


class Transaction(Work):
    """A transaction; a context manager that commits it, or rolls it back if there is an exception.

    Several may be open at a time.
    """

    def commit(self) -> None:
        """COMMIT."""
        self._open()
        if self._assigned_xid:
            self._ledger.committed(self, self._log_end("commit"))
        self._close()

    def prepare(self, gid: str) -> None:
        """PREPARE TRANSACTION; `Scenario.commit_prepared` or `rollback_prepared` ends it.

        Raises:
            ScenarioError: The gid is in use, or is none.
        """
        self._open()
        if not gid or "\0" in gid or not is_utf8(gid) or len(gid.encode()) > _GID_BYTES:
            raise ScenarioError(f"a gid has 1 to {_GID_BYTES} bytes of UTF-8, and no zero byte among them")
        assert self.xid  # it has one, though it may have done nothing (PrepareTransaction)
        self._ledger.park(gid, self)
        self.prepared = self._log_end("prepare", gid=gid)
        self.ended = True

    def finish_prepared(self, kind: str) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED, for the scenario."""
        one = self.prepared
        told = {"gid": one.gid, "prepare_time": one.time, "prepare_end_lsn": one.end_lsn}
        record = self._log_end(kind, **told)
        if kind == "commit_prepared":
            self._ledger.committed(self, record)
        else:
            self._undo_all()
        self._close()

    def _end(self) -> None:
        self.commit()

    def _close(self) -> None:
        self.ended = True
        self._ledger.release(self)


def content_bytes(prefix: str, content: bytes | str) -> bytes:
    """The content of a logical message.

    Raises:
        ScenarioError: It, or the prefix, cannot be sent.
    """
    if "\0" in prefix or not is_utf8(prefix) or (isinstance(content, str) and not is_utf8(content)):
        raise ScenarioError("a message's prefix and text are UTF-8, and a prefix has no zero byte")
    return content.encode() if isinstance(content, str) else bytes(content)
