"""Varied transactions of a workload: random steps in a scenario, which sends all kinds and forms of messages.

The scenario decides how each form of message looks. Its transactions change tables of their own. The scenario
runs through all windows of transactions, also those that another process generates, because its tables keep
their rows. At the end of a window no transaction of the scenario is open or prepared.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec
import pyarrow as pa

from pgoutput._build import fitted
from pgoutput._servers import first_server
from pgoutput.messages import XLogData
from pgoutput.stream import StreamDecoder, Transactions, encode_for
from pgoutput.synth.expected_rows import published_rows
from pgoutput.synth.programs import (
    DOMAIN,
    ENUM,
    End,
    Prepare,
    ProgramRunner,
    RandomSteps,
    TableDefinition,
    define_program,
)
from pgoutput.synth.scenario import (
    FIRST_TO_PUBLISH_GENERATED,
    FIRST_WITH_GENERATED_COLUMNS,
    FIRST_WITH_ROW_FILTERS,
    Scenario,
)
from pgoutput.synth.wal import WriteAheadLog
from pgoutput.synth.workload.definition import Workload

_WORK_MEM: Final = 1_000
"""logical_decoding_work_mem of the scenario, in bytes: some transactions are streamed, others are not."""
_SCHEMA: Final = "varied"
_KEYS: Final = 200
"""Number of distinct values of each key column."""

_FULL: Final[dict[str, Any]] = {"replica_identity": "full"}
_NOTHING: Final[dict[str, Any]] = {"replica_identity": "nothing"}
_BY_INDEX: Final[dict[str, Any]] = {"replica_identity": ("u", "v")}
_LISTED: Final[dict[str, Any]] = {"column_list": ("id", "since")}
_FILTERED: Final[dict[str, Any]] = {"where": ("id", "<", str(_KEYS // 2))}
_GENERATED: Final[dict[str, Any]] = {"generated": {"item": "id"}}
_PARTITIONED: Final[dict[str, Any]] = {
    "partition_by": "region",
    "partitions": {"sales_eu": ("eu",), "sales_us": ("us", "ca")},
}
_TABLES: Final[tuple[tuple[int, TableDefinition], ...]] = tuple(
    (first, TableDefinition(name=f"{_SCHEMA}.{name}", columns=columns, **others))
    for first, name, columns, others in (
        (0, "customers", {"id": "int8 key", "name": "text", "mood": ENUM, "moods": f"{ENUM}[]"}, {}),
        (0, "orders", {"id": "uuid key", "line": "int2 key", "at": "timestamptz", "details": "jsonb"}, {}),
        (0, "files", {"id": "text key", "scan": "bytea", "size": "numeric(12,2)"}, {}),
        (0, "accounts", {"id": "int8 key", "u": "text", "v": "int4", "rating": DOMAIN}, _BY_INDEX),
        (0, "prices", {"id": "int4 key", "price": "numeric(12,2)", "rating": DOMAIN}, _FULL),
        (0, "audit", {"id": "int4", "what": "text", "mood": ENUM, "host": "inet"}, _FULL),
        (0, "events", {"id": "int4 key", "kind": "varchar(8)", "day": "date", "tags": "text[]"}, _NOTHING),
        (0, "sales", {"id": "int4 key", "region": "text key", "amount": "numeric"}, _PARTITIONED),
        (0, "private", {"id": "int4 key", "note": "text"}, {"published": False}),
        (FIRST_WITH_GENERATED_COLUMNS, "items", {"id": "int4 key", "price": "float4"}, _GENERATED),
        (
            FIRST_WITH_ROW_FILTERS,
            "members",
            {"id": "text key", "since": "timestamp", "code": "text"},
            _LISTED,
        ),
        (FIRST_WITH_ROW_FILTERS, "readings", {"id": "int4 key", "value": "float8"}, _FILTERED | _FULL),
    )
)
"""Tables of all kinds, each with the first major version of PostgreSQL that can publish it."""

_ALTERATIONS: Final = ("add", "drop", "retype")
"""Kinds of ALTER TABLE after which the stream still determines the rows of the tables."""


class VariedPiece(msgspec.Struct, frozen=True):
    """Consecutive messages of varied transactions."""

    position: int
    """Position of the message before which the messages are sent, not counting varied transactions."""
    messages: list[XLogData]


class VariedTransactions:
    """Makes the varied transactions of a workload, in the order of the stream.

    Args:
        workload: The workload.
    """

    def __init__(self, workload: Workload) -> None:
        server, options = workload.server_major, workload.options
        self._scenario = Scenario(
            server=server,
            **msgspec.structs.asdict(options),
            publish_generated_columns="stored" if server >= FIRST_TO_PUBLISH_GENERATED else "none",
            logical_decoding_work_mem=_WORK_MEM,
            seed=workload.seed,
        )
        program = define_program(tuple(table for first, table in _TABLES if server >= first))
        operations = workload.operations
        if server < first_server("truncate"):  # the stream would not show that the rows are gone
            operations = msgspec.structs.replace(operations, truncate=0)
        self._steps = RandomSteps(
            Random(str(workload.seed)),
            ProgramRunner(self._scenario, program),
            operations,
            keys=_KEYS,
            origins=options.origin == "any",
            alterations=_ALTERATIONS,
        )
        self._buffer = self._scenario.reorder_buffer(options)
        self._version = options.proto_version
        self._decoder = StreamDecoder(
            options.proto_version, streaming=options.streaming, two_phase=options.two_phase
        )
        self._received = Transactions(self._decoder)
        self._columns: dict[int, list[str]] = {}
        """Names of the columns in the Relation message of each table's last committed change, by OID."""
        self.wal: WriteAheadLog = self._scenario.wal
        """The WAL of the varied transactions. Its LSN and time go on with the other transactions."""

    def run(self, count: int) -> list[XLogData]:
        """Run random steps until `count` transactions have ended, and return their messages."""
        while count:
            count -= isinstance(self._steps.run(), End | Prepare)
        return self._sent()

    def end_transactions(self) -> list[XLogData]:
        """End all open and prepared transactions, and return the messages."""
        self._steps.end_transactions()
        return self._sent()

    def described(self) -> tuple[bytes, ...]:
        """Return the encoded Type and Relation messages that the client knows."""
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
