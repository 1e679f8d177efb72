"""Varied transactions of a workload: random operations in a scenario, which sends all kinds of messages.

The scenario builds the messages. Its tables are separate from the other tables of the workload. At the end
of a window, no transaction of the scenario is open or prepared.
"""

from __future__ import annotations

from itertools import chain
from random import Random
from typing import Final

import msgspec
import pyarrow as pa

from logicalrep._build import drawn_messages, fitted
from logicalrep._servers import first_server
from logicalrep.messages import LogicalMessage, XLogData
from logicalrep.stream import Transactions, encode_for
from logicalrep.synth.expected_rows import published_rows
from logicalrep.synth.programs import ProgramRunner, RandomSteps, program_of_all_kinds
from logicalrep.synth.scenario import FIRST_TO_PUBLISH_GENERATED, Scenario
from logicalrep.synth.wal import WriteAheadLog
from logicalrep.synth.workload.definition import Workload

_PAYLOADS: Final = 20
"""Number of different messages of each class with the role `payload` that are sent."""
_WORK_MEM: Final = 1_000
"""logical_decoding_work_mem of the scenario, in bytes: some transactions are streamed, others are not."""
_KEYS: Final = 200
"""Number of distinct values of each key column."""

_ALTERATIONS: Final = ("add", "drop", "retype")
"""Kinds of ALTER TABLE after which the stream still determines the rows of the tables."""


class VariedTransactions:
    """Makes a workload's varied transactions (those with all kinds of messages) in stream order."""

    def __init__(self, workload: Workload) -> None:
        server, options = workload.server_major, workload.options
        self._scenario = Scenario(
            server=server,
            **msgspec.structs.asdict(options),
            publish_generated_columns="stored" if server >= FIRST_TO_PUBLISH_GENERATED else "none",
            logical_decoding_work_mem=_WORK_MEM,
            seed=workload.seed,
        )
        random, drawn = Random(str(workload.seed)), Random(f"payloads {workload.seed}")
        program = program_of_all_kinds(random, server)
        operations = workload.operations
        if server < first_server("truncate"):  # not sent, so clients would keep the rows
            operations = msgspec.structs.replace(operations, truncate=0)
        self._steps = RandomSteps(
            random,
            ProgramRunner(self._scenario, program),
            operations,
            keys=_KEYS,
            origins=options.origin == "any",
            alterations=_ALTERATIONS,
            payloads=[
                one
                for one in chain.from_iterable(
                    drawn_messages("payload", options.proto_version, drawn) for _ in range(_PAYLOADS)
                )
                if not isinstance(one, LogicalMessage)
            ],
        )
        self._buffer = self._scenario.reorder_buffer(options)
        self._version = options.proto_version
        self._decoder = options.decoder()
        self._received = Transactions(self._decoder)
        self._columns: dict[int, list[str]] = {}
        """Names of each table's columns at its last committed change, by OID of the table."""
        self.wal: WriteAheadLog = self._scenario.wal
        """The WAL of the varied transactions. Other transactions also advance its LSN and time."""

    def run(self) -> list[XLogData]:
        """Run random database operations until a transaction has ended, and return all their messages."""
        before = 0
        while len(self._steps.runner.open) >= before:
            before = len(self._steps.runner.open)
            self._steps.run()
        return self._sent()

    def end_transactions(self) -> list[XLogData]:
        """End all open and prepared transactions, and return the messages."""
        self._steps.end_transactions()
        return self._sent()

    def described(self) -> tuple[bytes, ...]:
        """Return the newest Type and Relation messages that the client has received, encoded."""
        known = (*self._decoder.types.values(), *self._decoder.relations.values())
        return tuple(
            encode_for(fitted(msgspec.structs.replace(one, xid=None), self._version), self._version)
            for one in known
        )

    def rows(self) -> dict[str, pa.Table]:
        """Return the rows that a client has, as text, by table name with schema.

        A table has the columns of its last Relation message: the stream does not show later alterations.
        """
        found = {}
        for name, table in self._scenario.tables.items():
            if table.definition.published and not table.partitions:
                columns = self._columns.get(table.definition.oid, ())
                schema = pa.schema([(column, pa.string()) for column in columns])
                found[name] = pa.Table.from_pylist(published_rows(table, columns), schema)
        return found

    def _sent(self) -> list[XLogData]:
        self._steps.done.clear()
        records = self._scenario.take_records()
        sent = [one for record in records for one in self._buffer.decode(record) if isinstance(one, XLogData)]
        for one in sent:
            if (transaction := self._received.feed(self._decoder.decode(one.data))) is not None:
                for relation in (relation for change in transaction.changes for relation in change.relations):
                    self._columns[relation.oid] = [column.name for column in relation.columns]
        return sent
