"""Programs: sequences of database operations as data, which can run in a scenario and on a real server.

`generate_program` generates random programs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from logicalrep.synth.scenario import Scenario
from logicalrep.synth.tables import ScenarioTable
from logicalrep.synth.transaction import TransactionScope

Values: TypeAlias = dict[str, str | None]
"""Column values in text format, by column name; None is NULL."""


class TableDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a table in a program. The fields are the arguments of `Scenario.table`."""

    name: str
    columns: dict[str, str]
    replica_identity: str | tuple[str, ...] = "default"
    published: bool = True
    column_list: tuple[str, ...] | None = None
    where: tuple[str, str, str] | None = None
    partition_by: str | None = None
    partitions: dict[str, tuple[str, ...]] | None = None
    generated: dict[str, str] | None = None


class Step(msgspec.Struct, frozen=True):
    """A database operation on one connection, as a method call.

    `Step(0, "insert", ("s.t",), (values,))` inserts a row with the values `values` into the table `s.t`, in
    the transaction of connection 0.
    """

    connection: int
    """Number of the connection that executes the operation."""
    method: str
    """Method of the innermost `TransactionScope` of the connection, such as `insert`. With the prefix `db.`:
    method of the scenario, `db.transaction`, `db.commit_prepared`, `db.rollback_prepared` or `db.message`."""
    tables: tuple[str, ...] = ()
    """Names (`TableDefinition.name`) of the tables that are the first arguments of the method."""
    arguments: tuple[Any, ...] = ()
    """The other positional arguments of the method, such as `Values`."""
    options: dict[str, Any] = {}
    """The keyword arguments of the method."""


class Program(msgspec.Struct, frozen=True):
    """A sequence of database operations, and the types and tables that the operations use."""

    enums: tuple[str, ...]
    """Names of the enum types, with their schemas."""
    domains: dict[str, str]
    """Base types of the domains, by name of the domain."""
    tables: tuple[TableDefinition, ...]
    steps: tuple[Step, ...]


class ProgramRunner:
    """Creates the types and tables of a program in an empty scenario, and runs the program's steps there.

    Attributes:
        tables: Tables of the scenario, by `TableDefinition.name`.
        open: A list for each connection with an open transaction, by connection number: the transaction, then
            its open savepoints from outer to inner.
        prepared: Connection number of each prepared transaction, by global identifier.
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
        connection, scopes = step.connection, self.open.get(step.connection, [])
        target: Any = self.scenario if step.method.startswith("db.") else scopes[-1]
        tables = (self.tables[name] for name in step.tables)
        result = getattr(target, step.method.removeprefix("db."))(*tables, *step.arguments, **step.options)
        match step:
            case Step(method="db.transaction" | "savepoint"):
                self.open[connection] = [*scopes, result]
            case Step(method="db.commit_prepared" | "db.rollback_prepared", arguments=(gid,)):
                del self.prepared[gid]
            case Step(method="prepare", arguments=(gid,)):
                self.prepared[gid] = connection
                del self.open[connection]
            case Step(method="commit" | "release" | "rollback"):
                scopes.pop()
                if not scopes:
                    del self.open[connection]
            case Step(method="alter", tables=(table,), options=changes):
                declared = self._declared[table]
                declared |= changes.get("add", {}) | changes.get("retype", {})
                declared |= {new: declared[old] for old, new in changes.get("rename", {}).items()}


def run_program(scenario: Scenario, program: Program) -> None:
    """Run all steps of a program in an empty scenario.

    Raises:
        ScenarioError: The scenario rejects a step.
    """
    runner = ProgramRunner(scenario, program)
    for step in program.steps:
        runner.run_step(step)
