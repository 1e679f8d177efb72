"""Databases that exist in a test only: what is done in them, and what a server would send of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.messages import Message, PrimaryKeepalive, Streaming, XLogData
from pgoutput.stream import StreamDecoder
from pgoutput.synth.alter import identified, made_columns
from pgoutput.synth.literals import to_text
from pgoutput.synth.options import Options
from pgoutput.synth.reorder import ReorderBuffer
from pgoutput.synth.tables import Cells, Filter, Row, Shape, Table, cell
from pgoutput.synth.transaction import Transaction
from pgoutput.synth.types import Types, split_name
from pgoutput.synth.wal import Emission, Ending, Idle, Log, Origin
from pgoutput.versions import LATEST_RELEASED

TableRow: TypeAlias = dict[str, str | None]
"""A row as text, by column."""

WORK_MEM = 64 << 10
"""The least `logical_decoding_work_mem` that servers take, in bytes."""


class Committed(msgspec.Struct, frozen=True):
    """The truth behind a commit."""

    xid: int
    gid: str | None
    commit_lsn: int
    end_lsn: int
    commit_time: int
    """Microseconds since 2000-01-01 00:00 UTC."""
    tables: dict[str, list[TableRow]]
    """The rows of every table as they stand now, in the order in which they were inserted."""


class _Commit(msgspec.Struct, frozen=True):
    record: Ending
    rows: list[tuple[Table, int, Cells | None]]
    shapes: dict[Table, Shape]


class Scenario:
    """A database that a test makes up, and the streams that a server would send of it.

    The database has a publication of all its tables. What no server would do (a second row with the same key,
    a row that another transaction holds) is a ScenarioError, at once.

    Attributes:
        options: What `stream` sends unless it is told otherwise.
        tables: The tables that were made, by full name as it was then; partitions too.

    Args:
        proto_version: As START_REPLICATION has it; so are the next five.
        streaming: As there.
        two_phase: As there.
        binary: As there.
        messages: As there.
        origin: As there.
        publish_via_partition_root: Whether the publication sends rows of partitions as those of their root.
        logical_decoding_work_mem: With streaming, changes that are not sent yet may take so many bytes before
            the largest transaction is sent while it is in progress. 0 sends each change in a block of its
            own, as debug_logical_replication_streaming = immediate does.
        seed: Decides LSNs, xids, OIDs and times: the same seed and the same deeds make the same bytes.

    Raises:
        ValueError: The protocol version does not have an option.
    """

    def __init__(
        self,
        *,
        proto_version: int = LATEST_RELEASED,
        streaming: Streaming = "off",
        two_phase: bool = False,
        binary: bool = False,
        messages: bool = False,
        origin: Literal["any", "none"] = "any",
        publish_via_partition_root: bool = False,
        logical_decoding_work_mem: int = WORK_MEM,
        seed: int = 0,
    ) -> None:
        self.options = Options(
            proto_version=proto_version,
            streaming=streaming,
            two_phase=two_phase,
            binary=binary,
            messages=messages,
            origin=origin,
        )
        self.publish_via_partition_root = publish_via_partition_root
        self.logical_decoding_work_mem = logical_decoding_work_mem
        self.tables: dict[str, Table] = {}
        self.log = Log(seed)
        self.types = Types(self.log.next_oid)
        self._touched: dict[object, dict[Row, Table]] = {}
        self._used: dict[object, set[Table]] = {}
        self._prepared: dict[str, Transaction] = {}
        self._commits: list[_Commit] = []

    @property
    def end_lsn(self) -> int:
        """The end of the write-ahead log."""
        return self.log.end_lsn

    # What there is

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
        **named: str,
    ) -> Table:
        """CREATE TABLE.

        Args:
            name: Schema and name: `public.orders`.
            columns: Types by name, with `key` behind those of the primary key: `int8 key`, `text`.
            replica_identity: `default`, `full`, `nothing`, or the columns of a unique index, as a list.
            published: Whether the publication has it.
            column_list: The columns that the publication has of it; None for all.
            where: The publication's row filter: a column, one of = <> < <= > >=, and a value.
            partition_by: The column by whose values the table is partitioned (PARTITION BY LIST).
            partitions: Those values, by name of the partition.
            named: More columns, where the names are Python's.

        Raises:
            ScenarioError: No server would make it.
        """
        namespace, local = split_name(name)
        made = made_columns({**(columns or {}), **named}, self.types)
        shape = Shape(self._new_oid(name), namespace, local, made, published=published, width=len(made))
        shape = identified(shape, replica_identity)
        shape = self._publish(shape, column_list, where)
        if partitions:
            return self._partitioned(shape, partition_by, partitions)
        return self._add(Table(shape))

    def enum(self, name: str) -> None:
        """CREATE TYPE … AS ENUM: columns can have it by its full name, and arrays of it with `[]`."""
        self.types.make_enum(name)

    def domain(self, name: str, base: str) -> None:
        """CREATE DOMAIN: columns can have it by its full name."""
        self.types.make_domain(name, base)

    # What is done

    def transaction(self, *, origin: str | None = None, origin_lsn: int = 0) -> Transaction:
        """BEGIN. Several transactions may be open at a time.

        Args:
            origin: The node that it is replicated from, if it is.
            origin_lsn: Of its commit there.
        """
        return Transaction(self, None, None if origin is None else Origin(origin, origin_lsn))

    def commit_prepared(self, gid: str) -> None:
        """COMMIT PREPARED.

        Raises:
            ScenarioError: Nothing is prepared under this gid.
        """
        self._finish(gid, "commit_prepared")

    def rollback_prepared(self, gid: str) -> None:
        """ROLLBACK PREPARED.

        Raises:
            ScenarioError: Nothing is prepared under this gid.
        """
        self._finish(gid, "rollback_prepared")

    def message(self, prefix: str, content: bytes | str) -> None:
        """pg_logical_emit_message, not transactional: it is sent at once."""
        raw = content.encode() if isinstance(content, str) else bytes(content)
        self.log.write(
            Emission, len(raw) + len(prefix), xid=0, top=0, transactional=False, prefix=prefix, content=raw
        )

    def wait(self, seconds: float = 1.0) -> None:
        """Nothing happens for a while; a walsender that has sent all sends a keepalive then."""
        self.log.wait(seconds)
        self.log.write(Idle, 0, xid=0, top=0)

    # What a server would send

    def stream(self, *, after_lsn: int = 0, **options: Any) -> Iterator[XLogData | PrimaryKeepalive]:
        """What a walsender sends.

        Args:
            after_lsn: What ended up to here was acknowledged, and is not sent again.
            options: Other options than those of the scenario, by the same names.

        Raises:
            ValueError: The protocol version does not have an option.
            ScenarioError: A value has no binary format here.
        """
        asked = msgspec.structs.replace(self.options, **options)
        buffer = ReorderBuffer(
            asked, self.logical_decoding_work_mem, self.publish_via_partition_root, after_lsn
        )
        end_lsn = self.end_lsn  # before: others may write meanwhile, and a keepalive promises that all came
        for record in self.log.records:
            yield from buffer.decode(record)
        yield PrimaryKeepalive(end_lsn, self.log.time, False)

    def messages(self, *, after_lsn: int = 0, **options: Any) -> Iterator[Message]:
        """The messages that `stream` carries, decoded."""
        asked = msgspec.structs.replace(self.options, **options)
        decoder = StreamDecoder(asked.proto_version, streaming=asked.streaming)
        for one in self.stream(after_lsn=after_lsn, **options):
            if isinstance(one, XLogData):
                yield decoder.decode(one.data)

    # The truth

    def rows(self, table: Table) -> list[TableRow]:
        """What is committed in a table, in the order in which it was inserted."""
        return [
            row
            for leaf in table.leaves()
            for row in _named(
                leaf.committed_shape,
                {number: row.committed for number, row in leaf.rows.items() if row.committed is not None},
            )
        ]

    def history(self) -> Iterator[Committed]:
        """All tables after each commit, in the order of the commits."""
        leaves = [table for table in self.tables.values() if not table.partitions]
        rows: dict[Table, dict[int, Cells]] = {table: {} for table in leaves}
        shapes = {table: table.first_shape for table in leaves}
        for commit in self._commits:
            shapes |= commit.shapes
            for table, number, cells in commit.rows:
                if cells is None:
                    rows[table].pop(number, None)
                else:
                    rows[table][number] = cells
            record = commit.record
            yield Committed(
                record.top,
                record.gid,
                record.lsn,
                record.end_lsn,
                record.time,
                {shapes[table].full_name: _named(shapes[table], rows[table]) for table in leaves},
            )

    # For transactions

    def use(self, transaction: object, table: Table) -> None:
        """Note that an open transaction uses a table."""
        self._used.setdefault(transaction, set()).add(table)

    def used(self, transaction: object) -> set[Table]:
        """The tables that an open transaction uses."""
        return self._used.get(transaction, set())

    def touch(self, transaction: object, table: Table, row: Row) -> None:
        """Note that an open transaction has changed a row."""
        self._touched.setdefault(transaction, {})[row] = table

    def committed(self, transaction: object, record: Ending) -> None:
        """Note that a transaction has committed: what it did is the truth now."""
        rows = []
        for row, table in self._touched.get(transaction, {}).items():
            if row.writer is transaction:  # a savepoint that is rolled back lets others have its rows
                row.committed = row.current
                rows.append((table, row.number, row.committed))
        shapes = {}
        for table in self._used.get(transaction, ()):
            table.committed_shape = shapes[table] = table.shape
        self._commits.append(_Commit(record, rows, shapes))

    def release(self, transaction: object) -> None:
        """Let go of all that a transaction holds, when it ends."""
        for row, table in self._touched.pop(transaction, {}).items():
            if row.writer is transaction:
                row.writer = None
                if row.committed is None:
                    del table.rows[row.number]
        for table in self._used.pop(transaction, ()):
            table.users.discard(transaction)
            table.claims = {key: who for key, who in table.claims.items() if who is not transaction}
            if table.locked_by is transaction:
                table.locked_by = table.truncated_in = None

    def park(self, gid: str, transaction: Transaction) -> None:
        """Note that a transaction is prepared.

        Raises:
            ScenarioError: One is under this gid already.
        """
        if gid in self._prepared:
            raise ScenarioError(f"transaction identifier {gid!r} is already in use")
        self._prepared[gid] = transaction

    def _finish(self, gid: str, kind: Literal["commit_prepared", "rollback_prepared"]) -> None:
        if gid not in self._prepared:
            raise ScenarioError(f"prepared transaction with identifier {gid!r} does not exist")
        self._prepared.pop(gid).finish_prepared(kind)

    # Tables

    def _new_oid(self, name: str) -> int:
        if any(table.shape.full_name == name for table in self.tables.values()):
            raise ScenarioError(f"there is a table {name} already")
        return self.log.next_oid()

    def _add(self, table: Table) -> Table:
        self.tables[table.shape.full_name] = table
        return table

    def _publish(
        self, shape: Shape, column_list: Sequence[str] | None, where: tuple[str, str, Any] | None
    ) -> Shape:
        if column_list is not None:
            names = frozenset(shape.column(name).name for name in column_list)
            shape = msgspec.structs.replace(shape, column_list=names)
        if where is not None:
            column = shape.column(where[0])
            value = to_text(where[2], column.type)
            if value is None:
                raise ScenarioError("a row filter compares with a value, not with NULL")
            shape = msgspec.structs.replace(shape, where=Filter.make(column, where[1], value))
        return shape

    def _partitioned(self, shape: Shape, by: str | None, partitions: Mapping[str, Sequence[Any]]) -> Table:
        if by is None:
            raise ScenarioError("partitions: say by which column, with partition_by")
        if shape.where is not None or shape.column_list is not None:
            raise ScenarioError("a partitioned table has neither where nor column_list in a scenario")
        root, column = self._add(Table(shape)), shape.column(by)
        for name, values in partitions.items():
            full = f"{shape.namespace}.{name}"
            part = msgspec.structs.replace(shape, oid=self._new_oid(full), name=name)
            leaf = self._add(Table(part, root))
            root.partition(column, leaf, [to_text(value, column.type) for value in values])
        return root


def _named(shape: Shape, rows: Mapping[int, Cells]) -> list[TableRow]:
    ordered = sorted(rows.items())
    return [{column.name: cell(cells, column) for column in shape.columns} for _, cells in ordered]
