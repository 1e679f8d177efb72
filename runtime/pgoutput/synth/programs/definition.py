"""Programs: sequences of database operations as data, which can run in a scenario and on a real server.

`generate_program` generates random programs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from pgoutput.messages import Message
from pgoutput.synth import transaction as transactions
from pgoutput.synth.scenario import Scenario
from pgoutput.synth.tables import ScenarioTable
from pgoutput.synth.transaction import Transaction, TransactionScope

Values: TypeAlias = dict[str, str | None]
"""Column values in text format, by column name; None is NULL."""


class TableDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a table in a program: the arguments of `Scenario.table`."""

    name: str
    """Name of the table with its schema."""
    columns: dict[str, str]
    """Column types by column name, with the suffix " key" for columns of the primary key."""
    replica_identity: str | tuple[str, ...] = "default"
    """Replica identity: default, full, nothing, or the columns of a unique index."""
    published: bool = True
    """Whether the publication contains the table."""
    column_list: tuple[str, ...] | None = None
    """Names of the published columns, or None for all columns."""
    where: tuple[str, str, str] | None = None
    """Row filter as column, operator and value, or None to publish all rows."""
    partition_by: str | None = None
    """Name of the partition key column, or None if the table is not partitioned."""
    partitions: dict[str, tuple[str, ...]] | None = None
    """Values of the partition key by name of the partition, or None if the table is not partitioned."""
    generated: dict[str, str] | None = None
    """Stored generated columns: for each one, the column whose value it has; None for no such columns."""


class Step(msgspec.Struct, frozen=True):
    """A step of a program: one database operation on one connection."""

    connection: int
    """Number of the connection that executes the step."""


class Begin(Step, frozen=True):
    """Step that executes BEGIN, with an optional replication origin."""

    origin: str | None = None
    """Name of the replication origin, or None."""
    origin_lsn: int = 0
    """LSN of the transaction's commit on the origin node; 0 without a replication origin."""


class End(Step, frozen=True):
    """Step that executes COMMIT or ROLLBACK."""

    commit: bool
    """True for COMMIT, False for ROLLBACK."""


class Savepoint(Step, frozen=True):
    """Step that executes SAVEPOINT and so begins a subtransaction."""


class EndSavepoint(Step, frozen=True):
    """Step that executes RELEASE SAVEPOINT, or ROLLBACK TO SAVEPOINT and then RELEASE SAVEPOINT."""

    release: bool
    """True to keep the changes of the subtransaction, False to roll back to the savepoint."""


class Prepare(Step, frozen=True):
    """Step that executes PREPARE TRANSACTION."""

    gid: str
    """Global transaction identifier."""


class EndPrepared(Step, frozen=True):
    """Step that commits or rolls back a prepared transaction, on the connection that prepared it."""

    gid: str
    """Global transaction identifier."""
    commit: bool
    """True for COMMIT PREPARED, False for ROLLBACK PREPARED."""


class Insert(Step, frozen=True):
    """Step that inserts one row (INSERT)."""

    table: str
    """Name of the table, as in `TableDefinition.name`."""
    values: Values
    """Values of the row, by column name."""


class Copy(Step, frozen=True):
    """Step that inserts several rows together (COPY)."""

    table: str
    """Name of the table, as in `TableDefinition.name`."""
    rows: tuple[Values, ...]
    """Values of each row, by column name; all rows have values of the same columns."""


class Update(Step, frozen=True):
    """Step that updates one row (UPDATE)."""

    table: str
    """Name of the table, as in `TableDefinition.name`."""
    where: Values
    """Key values that identify the row, by column name."""
    values: Values
    """New values of the changed columns, by column name."""


class Delete(Step, frozen=True):
    """Step that deletes one row (DELETE)."""

    table: str
    """Name of the table, as in `TableDefinition.name`."""
    where: Values
    """Key values that identify the row, by column name."""


class Truncate(Step, frozen=True):
    """Step that executes TRUNCATE for one or more tables."""

    tables: tuple[str, ...]
    """Names of the tables, as in `TableDefinition.name`."""
    cascade: bool
    """Whether the option CASCADE is given."""
    restart_identity: bool
    """Whether the option RESTART IDENTITY is given."""


class Alter(Step, frozen=True):
    """Step that executes ALTER TABLE for one table."""

    table: str
    """Name of the table, as in `TableDefinition.name`."""
    changes: dict[str, Any]
    """Keyword arguments of `pgoutput.synth.TransactionScope.alter`."""


class Emit(Step, frozen=True):
    """Step that writes a logical message (pg_logical_emit_message)."""

    transactional: bool
    """Whether the logical message is part of the transaction."""
    prefix: str
    """Prefix of the logical message."""
    content: str
    """Content of the logical message."""


class Payload(Step, frozen=True):
    """Step that emits a message of the role `payload`. Servers have no statement for it."""

    message: Message
    """The message."""


class Program(msgspec.Struct, frozen=True):
    """A sequence of database operations, and the types and tables that the operations use."""

    enums: tuple[str, ...]
    """Names of the enum types, with their schemas."""
    domains: dict[str, str]
    """Base types of the domains, by name of the domain."""
    tables: tuple[TableDefinition, ...]
    """Definitions of the tables."""
    steps: tuple[Step, ...]
    """Database operations in the order of their execution."""


class ProgramRunner:
    """Runs the steps of a program in a scenario.

    Attributes:
        scenario: The scenario.
        tables: Tables of the scenario, by `TableDefinition.name`.
        open: By connection number: the open transaction, then its open savepoints from outer to inner.
        prepared: Connection number of each prepared transaction, by global identifier.

    Args:
        scenario: An empty scenario, in which the types and tables are created.
        program: The program.
    """

    def __init__(self, scenario: Scenario, program: Program) -> None:
        self.scenario = scenario
        self.open: dict[int, list[TransactionScope]] = {}
        self.prepared: dict[str, int] = {}
        for enum in program.enums:
            scenario.enum(enum)
        for name, base in program.domains.items():
            scenario.domain(name, base)
        self.tables: dict[str, ScenarioTable] = {}
        self._declared = {table.name: dict(table.columns) for table in program.tables}
        for table in program.tables:
            fields = msgspec.structs.asdict(table)
            arguments = {name: value for name, value in fields.items() if value is not None}
            created = scenario.table(arguments.pop("name"), arguments.pop("columns"), **arguments)
            self.tables[table.name] = created

    def declared(self, table: str, column: str) -> str:
        """Return the type of a column as declared or last altered, without the suffix " key"."""
        return self._declared[table][column].removesuffix(" key")

    def run_step(self, step: Step) -> None:
        """Run a step of the program in the scenario.

        Raises:
            ScenarioError: The scenario rejects the step and is unchanged.
        """
        match step:
            case Begin(connection, origin, lsn):
                self.open[connection] = [self.scenario.transaction(origin=origin, origin_lsn=lsn)]
            case End(connection, commit):
                transaction = self._transaction(connection)
                transaction.commit() if commit else transaction.rollback()
                del self.open[connection]
            case Savepoint(connection):
                self.open[connection].append(self.open[connection][-1].savepoint())
            case EndSavepoint(connection, release):
                point = self.open[connection].pop()
                assert isinstance(point, transactions.Savepoint)
                point.release() if release else point.rollback()
            case Prepare(connection, gid):
                self._transaction(connection).prepare(gid)
                self.prepared[gid] = connection
                del self.open[connection]
            case EndPrepared(_, gid, commit):
                end = self.scenario.commit_prepared if commit else self.scenario.rollback_prepared
                end(gid)
                del self.prepared[gid]
            case Insert(connection, table, values):
                self.open[connection][-1].insert(self.tables[table], values)
            case Copy(connection, table, rows):
                self.open[connection][-1].copy(self.tables[table], rows)
            case Update(connection, table, where, values):
                self.open[connection][-1].update(self.tables[table], where, **values)
            case Delete(connection, table, where):
                self.open[connection][-1].delete(self.tables[table], where)
            case Truncate(connection, tables, cascade, restart):
                named = [self.tables[table] for table in tables]
                self.open[connection][-1].truncate(*named, cascade=cascade, restart_identity=restart)
            case Alter(connection, table, changes):
                self.open[connection][-1].alter(self.tables[table], **changes)
                declared = self._declared[table]
                declared |= changes.get("add", {}) | changes.get("retype", {})
                for old, new in changes.get("rename", {}).items():
                    declared[new] = declared[old]
            case Emit(connection, True, prefix, content):
                self.open[connection][-1].message(prefix, content)
            case Emit(_, False, prefix, content):
                self.scenario.message(prefix, content)
            case Payload(connection, message):
                self.open[connection][-1].payload(message)
            case _:
                raise TypeError(f"{step!r} is not a step of a program")

    def _transaction(self, connection: int) -> Transaction:
        transaction = self.open[connection][0]
        assert isinstance(transaction, Transaction)
        return transaction


def run_program(scenario: Scenario, program: Program) -> None:
    """Run all steps of a program in an empty scenario.

    Raises:
        ScenarioError: The scenario rejects a step.
    """
    runner = ProgramRunner(scenario, program)
    for step in program.steps:
        runner.run_step(step)
