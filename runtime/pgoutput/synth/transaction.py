"""What is done in a transaction of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from pgoutput.errors import ScenarioError
from pgoutput.messages import TruncateOption
from pgoutput.synth.ddl import altered
from pgoutput.synth.ledger import Ledger
from pgoutput.synth.literals import to_text
from pgoutput.synth.tables import Cells, Column, Row, Shape, Table, cell
from pgoutput.synth.wal import Emission, Ending, Invalidation, Origin, RowChange, Truncation

_GID_BYTES: Final = 199
"""That a gid has at most (GIDSIZE, less its zero byte)."""


class Work:
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
        self._undo: list[Callable[[], None]] = []
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

    def insert(self, table: Table, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Insert a row.

        Args:
            table: The table; of a partitioned one, the row goes to the partition that wants it.
            values: Values by column name; columns that are not named become NULL.
            columns: The same, where the names are Python's.

        Raises:
            ScenarioError: The server would refuse it, or wait for another transaction.
        """
        given = self._texts(table.shape, {**(values or {}), **columns})
        cells = self._cells(table.shape, (), given)
        self._insert(table.partition_for(cells), cells)

    def update(self, table: Table, where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Update the one row that matches.

        Args:
            table: The table.
            where: Values of the row that is meant. Without it, the columns of the key say which it is.
            columns: The new values; the other columns stay as they are, and are not sent where they are
                stored out of line.

        Raises:
            ScenarioError: As `insert`; or no row matches, or several different ones.
        """
        if where is None:
            key = {column.name for key in table.shape.keys[:1] for column in key}
            where = {name: columns.pop(name) for name in key if name in columns}
        leaf, row, old = self._find(table, where)
        given = self._texts(leaf.shape, columns)
        new = self._cells(leaf.shape, old, given)
        target = table.partition_for(new) if table.partitions else leaf
        if target is not leaf:
            self._use(target)
            self._claim_keys(target, new, None)
            self._delete(leaf, row, old)
            self._insert(target, new)
            return
        self._need_identity(leaf, "update")
        self._claim_keys(leaf, new, row)
        self._set(leaf, row, new)
        self._write_row(leaf, old, new, frozenset(leaf.shape.column(name).number for name in given))

    def delete(self, table: Table, where: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Delete the one row that has these values.

        Raises:
            ScenarioError: As `update`.
        """
        self._delete(*self._find(table, {**(where or {}), **columns}))

    def truncate(self, *tables: Table, cascade: bool = False, restart_identity: bool = False) -> None:
        """TRUNCATE. Which tables CASCADE reaches, a scenario does not know: name them.

        Raises:
            ScenarioError: No table is named, or another transaction uses one.
        """
        if not tables:
            raise ScenarioError("truncate: name a table")
        leaves = [leaf for table in tables for leaf in table.leaves()]
        named = dict.fromkeys(one for table in tables for one in (table, *table.leaves()))
        self._lock(*leaves)
        # What has new files already is emptied in place; only indexes are made anew (heap_truncate_one_rel).
        told = [leaf for leaf in leaves if leaf.truncated_in is not self or leaf.shape.keys]
        if told:
            self._log(Invalidation, 200, oids=tuple(leaf.shape.oid for leaf in told))
        for leaf in leaves:
            self._truncated(leaf)
            for row in list(leaf.rows.values()):
                if row.seen_by(self._top) is not None:
                    self._set(leaf, row, None)
        options = cascade * TruncateOption.CASCADE | restart_identity * TruncateOption.RESTART_IDENTITY
        shapes = tuple((one.shape, one.root and one.root.shape, bool(one.partitions)) for one in named)
        self._log(Truncation, 8 * len(shapes), shapes=shapes, options=options)

    def alter(
        self,
        table: Table,
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
        if table.partitions or table.root:
            raise ScenarioError(f"{table.shape.full_name}: partitioned tables are not altered in a scenario")
        before, types = table.shape, self._ledger.types
        after = altered(before, types, add or {}, drop, rename or {}, retype or {}, name, replica_identity)
        self._lock(table)
        if after == before:
            return
        rewritten = [column for column in after.columns if column.name in (retype or ())]
        rows = [(row, self._rewritten(row, rewritten)) for row in table.rows.values()] if rewritten else []
        for row, cells in rows:
            if cells is not None:
                self._set(table, row, cells)
        table.shape = after
        self._undo.append(lambda: setattr(table, "shape", before))
        self._log(Invalidation, 300, oids=(after.oid,))

    def message(self, prefix: str, content: bytes | str) -> None:
        """pg_logical_emit_message, transactional. One that is not: `Scenario.message`."""
        self._begin_change()
        raw = content.encode() if isinstance(content, str) else bytes(content)
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
        for undo in reversed(self._undo):
            undo()
        self._close()

    def _end(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        self.ended = True

    def _open(self) -> None:
        if self.ended:
            raise ScenarioError("the transaction or savepoint has ended: nothing more can be done in it")
        if self._inner is not None and not self._inner.ended:
            raise ScenarioError("a savepoint is open: go on with it, or end it first")

    def _begin_change(self) -> None:
        self._open()
        assert self.xid

    # Rows

    def _insert(self, leaf: Table, cells: Cells) -> None:
        self._use(leaf)
        self._claim_keys(leaf, cells, None)
        row = leaf.add(cells, self._top)
        self._undo.append(lambda: self._restore(leaf, row, None, self._top))
        self._ledger.touch(self._top, leaf, row)
        self._write_row(leaf, None, cells, frozenset())

    def _delete(self, leaf: Table, row: Row, old: Cells) -> None:
        self._need_identity(leaf, "delete from")
        self._set(leaf, row, None)
        self._write_row(leaf, old, None, frozenset())

    def _set(self, leaf: Table, row: Row, cells: Cells | None) -> None:
        before, writer = row.current, row.writer
        self._undo.append(lambda: self._restore(leaf, row, before, writer))
        row.current, row.writer = cells, self._top
        leaf.index(row)
        self._ledger.touch(self._top, leaf, row)

    @staticmethod
    def _restore(leaf: Table, row: Row, cells: Cells | None, writer: object) -> None:
        row.current, row.writer = cells, writer
        leaf.index(row)

    def _rewritten(self, row: Row, columns: Sequence[Column]) -> Cells | None:
        """The row with values as the new types have them; None if the transaction does not see it."""
        seen = row.seen_by(self._top)
        if seen is None:
            return None
        cells = list(seen)
        for column in columns:
            if column.number < len(cells):
                cells[column.number] = to_text(cells[column.number], column.type)
        return tuple(cells)

    def _truncated(self, leaf: Table) -> None:
        before, leaf.truncated_in = leaf.truncated_in, self
        self._undo.append(lambda: setattr(leaf, "truncated_in", before))

    def _find(self, table: Table, where: Mapping[str, Any]) -> tuple[Table, Row, Cells]:
        if not where:
            raise ScenarioError(
                f"{table.shape.full_name}: say which row, by the values of its key or in `where`"
            )
        found: list[tuple[Table, Row, Cells]] = []
        for leaf in table.leaves():
            self._use(leaf)
            wanted = {leaf.shape.column(name): text for name, text in self._texts(leaf.shape, where).items()}
            found.extend((leaf, row, seen) for row, seen in self._matching(leaf, wanted))
        if not found:
            raise ScenarioError(f"{table.shape.full_name} has no row with {dict(where)}")
        if any(seen != found[0][2] for _, _, seen in found):
            raise ScenarioError(f"{table.shape.full_name} has {len(found)} rows with {dict(where)}: name one")
        leaf, row, seen = found[0]
        if row.writer not in (None, self._top):
            raise ScenarioError(
                f"{leaf.shape.full_name}: another transaction has changed the row with {dict(where)} and has "
                "not ended: a server would wait for it"
            )
        return leaf, row, seen

    def _matching(self, leaf: Table, wanted: Mapping[Column, str | None]) -> Iterator[tuple[Row, Cells]]:
        key = next((key for key in leaf.shape.keys if all(column in wanted for column in key)), None)
        rows = list(leaf.rows.values()) if key is None else leaf.find(key, tuple(wanted[c] for c in key))
        for row in rows:
            seen = row.seen_by(self._top)
            if seen is not None and all(cell(seen, column) == text for column, text in wanted.items()):
                yield row, seen

    def _claim_keys(self, leaf: Table, cells: Cells, itself: Row | None) -> None:
        claimed = []
        for key in leaf.shape.keys:
            values = tuple(cell(cells, column) for column in key)
            shown = ", ".join(f"{column.name}={value}" for column, value in zip(key, values, strict=True))
            if None in values:
                raise ScenarioError(f"{leaf.shape.full_name}: NULL in the key ({shown})")
            others = {row.writer for row in leaf.find(key, values)} | {leaf.claims.get((key, values))}
            if others - {None, self._top}:
                raise ScenarioError(
                    f"{leaf.shape.full_name}: another transaction that has not ended has changed a row with "
                    f"{shown}: a server would wait for it"
                )
            seen = (row.seen_by(self._top) for row in leaf.find(key, values) if row is not itself)
            if any(cells is not None and _has(cells, key, values) for cells in seen):
                raise ScenarioError(f"{leaf.shape.full_name} has a row with {shown} already")
            claimed.append((key, values))
        new = set(claimed) - leaf.claims.keys()
        self._undo.append(lambda: leaf.unclaim(new))
        leaf.claims |= dict.fromkeys(claimed, self._top)

    @staticmethod
    def _need_identity(leaf: Table, verb: str) -> None:
        """CheckCmdReplicaIdentity."""
        shape = leaf.shape
        if not shape.published:
            return
        identity = {column.name for column in shape.columns if column.number in shape.identity}
        wrong = ""
        if not identity:
            wrong = "it has no replica identity and publishes updates and deletes: give it a key"
        elif shape.column_list is not None and not identity <= shape.column_list:
            wrong = "its column list does not cover the replica identity"
        elif shape.where is not None and shape.where.column.name not in identity:
            wrong = "its row filter has a column that is not part of the replica identity"
        if wrong:
            raise ScenarioError(f"cannot {verb} table {shape.full_name}: {wrong}")

    def _texts(self, shape: Shape, values: Mapping[str, Any]) -> dict[str, str | None]:
        texts = {}
        for name, value in values.items():
            column = shape.column(name)
            try:
                texts[name] = to_text(value, column.type)
            except ScenarioError as error:
                raise ScenarioError(f"{shape.full_name}.{name}: {error}") from None
        return texts

    @staticmethod
    def _cells(shape: Shape, old: Cells, given: Mapping[str, str | None]) -> Cells:
        cells = [*old, *(None,) * (shape.width - len(old))]
        for name, text in given.items():
            cells[shape.column(name).number] = text
        return tuple(cells)

    # Locks and records

    def _use(self, table: Table) -> None:
        """As ROW EXCLUSIVE: nobody else may have it for himself."""
        self._open()
        if table.locked_by not in (None, self._top):
            raise ScenarioError(
                f"{table.shape.full_name}: another transaction has truncated or altered it and has not "
                "ended: a server would wait for it"
            )
        table.users.add(self._top)
        self._ledger.use(self._top, table)

    def _lock(self, *tables: Table) -> None:
        """As ACCESS EXCLUSIVE, but to the end of the transaction even where a savepoint is rolled back."""
        for table in tables:
            self._use(table)
            if table.users != {self._top}:
                raise ScenarioError(
                    f"{table.shape.full_name}: another transaction that has not ended has changed it: a "
                    "server would wait for it"
                )
        for table in tables:
            table.locked_by = self._top

    def _write_row(self, leaf: Table, old: Cells | None, new: Cells | None, assigned: frozenset[int]) -> None:
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
        if not gid or "\0" in gid or len(gid.encode()) > _GID_BYTES:
            raise ScenarioError(f"a gid has 1 to {_GID_BYTES} bytes, and no zero byte among them")
        self._begin_change()
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
            for undo in reversed(self._undo):
                undo()
        self._close()

    def _end(self) -> None:
        self.commit()

    def _close(self) -> None:
        self.ended = True
        self._ledger.release(self)


def _has(cells: Cells, key: tuple[Column, ...], values: Cells) -> bool:
    return tuple(cell(cells, column) for column in key) == values
