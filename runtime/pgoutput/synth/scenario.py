"""Databases that exist in a test only: what is done in them, and what a server would send of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.messages import Message, PrimaryKeepalive, Streaming, XLogData
from pgoutput.stream import StreamDecoder
from pgoutput.synth.ddl import identified, made_columns, published_as
from pgoutput.synth.ledger import Ledger
from pgoutput.synth.literals import to_text
from pgoutput.synth.options import StreamOptions
from pgoutput.synth.reorder import ReorderBuffer
from pgoutput.synth.shapes import Shape
from pgoutput.synth.tables import ScenarioTable
from pgoutput.synth.transaction import Transaction, content_bytes
from pgoutput.synth.truth import Committed, TableRow, history, rows_of
from pgoutput.synth.types import split_name
from pgoutput.synth.wal import Emission, Idle, Origin
from pgoutput.versions import LATEST_RELEASED

_LONGEST_WAIT: Final = 31_536_000.0

WORK_MEM: Final = 64 << 10
"""The least `logical_decoding_work_mem` that servers take, in bytes."""


class Scenario:
    """A database that a test makes up, and the streams that a server would send of it.

    The database has a publication of all its tables. What no server would do (a second row with the same key,
    a row that another transaction holds) is a ScenarioError, at once.

    Attributes:
        options: What `stream` sends unless it is told otherwise.
        tables: The tables that were made, by full name as it was then; partitions too.
        log: What was done, as records of a write-ahead log.

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
        ValueError: The protocol version does not have an option, or the work memory is negative.
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
        if logical_decoding_work_mem < 0:
            raise ValueError(f"logical_decoding_work_mem is 0 or more bytes, not {logical_decoding_work_mem}")
        self.options = StreamOptions(
            proto_version=proto_version,
            streaming=streaming,
            two_phase=two_phase,
            binary=binary,
            messages=messages,
            origin=origin,
        )
        self.publish_via_partition_root = publish_via_partition_root
        self.logical_decoding_work_mem = logical_decoding_work_mem
        self.tables: dict[str, ScenarioTable] = {}
        self._ledger: Ledger[Transaction] = Ledger(seed)
        self.log, self._types = self._ledger.log, self._ledger.types

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
    ) -> ScenarioTable:
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
        made = made_columns({**(columns or {}), **named}, self._types)
        shape = Shape(self._new_oid(name), namespace, local, made, published=published, width=len(made))
        shape = identified(shape, replica_identity)
        shape = published_as(shape, column_list, where)
        if partitions or partition_by is not None:
            return self._partitioned(shape, partition_by, partitions or {})
        return self._add(ScenarioTable(shape))

    def enum(self, name: str) -> None:
        """CREATE TYPE … AS ENUM: columns can have it by its full name, and arrays of it with `[]`."""
        self._types.make_enum(name)

    def domain(self, name: str, base: str) -> None:
        """CREATE DOMAIN: columns can have it by its full name."""
        self._types.make_domain(name, base)

    # What is done

    def transaction(self, *, origin: str | None = None, origin_lsn: int = 0) -> Transaction:
        """BEGIN. Several transactions may be open at a time.

        Args:
            origin: The node that it is replicated from, if it is.
            origin_lsn: Of its commit there.
        """
        return Transaction(self._ledger, None, None if origin is None else Origin(origin, origin_lsn))

    def commit_prepared(self, gid: str) -> None:
        """COMMIT PREPARED.

        Raises:
            ScenarioError: Nothing is prepared under this gid.
        """
        self._ledger.unpark(gid).finish_prepared("commit_prepared")

    def rollback_prepared(self, gid: str) -> None:
        """ROLLBACK PREPARED.

        Raises:
            ScenarioError: Nothing is prepared under this gid.
        """
        self._ledger.unpark(gid).finish_prepared("rollback_prepared")

    def message(self, prefix: str, content: bytes | str) -> None:
        """pg_logical_emit_message, not transactional: it is sent at once."""
        raw = content_bytes(prefix, content)
        self.log.write(
            Emission, len(raw) + len(prefix), xid=0, top=0, transactional=False, prefix=prefix, content=raw
        )

    def wait(self, seconds: float = 1.0) -> None:
        """Nothing happens for a while; a walsender that has sent all sends a keepalive then."""
        if not 0 <= seconds <= _LONGEST_WAIT:
            raise ScenarioError(f"wait takes from 0 seconds to a year, not {seconds}")
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

    def rows(self, table: ScenarioTable) -> list[TableRow]:
        """What is committed in a table, in the order in which it was inserted."""
        return rows_of(table)

    def history(self) -> Iterator[Committed]:
        """All tables after each commit, in the order of the commits."""
        return history(self.tables.values(), self._ledger.commits)

    # Tables

    def _new_oid(self, name: str) -> int:
        if name in self.tables or any(table.shape.full_name == name for table in self.tables.values()):
            raise ScenarioError(f"there is a table {name} already, or was one")
        return self.log.next_oid()

    def _add(self, table: ScenarioTable) -> ScenarioTable:
        table.owner = self._ledger
        self.tables[table.shape.full_name] = table
        return table

    def _partitioned(
        self, shape: Shape, by: str | None, partitions: Mapping[str, Sequence[Any]]
    ) -> ScenarioTable:
        if by is None:
            raise ScenarioError("partitions: say by which column, with partition_by")
        if not partitions:
            raise ScenarioError("partition_by: say the partitions and their values, with partitions")
        if shape.where is not None or shape.column_list is not None:
            raise ScenarioError("a partitioned table has neither where nor column_list in a scenario")
        root, column = self._add(ScenarioTable(shape)), shape.column(by)
        for name, values in partitions.items():
            full = f"{shape.namespace}.{name}"
            part = msgspec.structs.replace(shape, oid=self._new_oid(full), name=name)
            leaf = self._add(ScenarioTable(part, root))
            root.partition(column, leaf, [to_text(value, column.type) for value in values])
        return root
