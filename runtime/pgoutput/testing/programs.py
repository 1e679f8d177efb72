"""Programs: what is done in a database, as data, so that it can be done in a scenario and on a server alike.

`make` chooses one, step by step, and leaves out what a scenario refuses. Whatever chooses (Hypothesis, or
random numbers) is a `Choices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from pgoutput import synth
from pgoutput.synth import Scenario, ScenarioTable, Transaction, TransactionScope

T = TypeVar("T")

Values: TypeAlias = dict[str, str | None]
"""Column values as text."""


class Choices(Protocol):
    """Where decisions come from."""

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""

    def integer(self, least: int, most: int) -> int:
        """A number; both bounds are included."""


class TableOf(msgspec.Struct, frozen=True, kw_only=True):
    """A table, as `Scenario.table` takes it."""

    name: str
    columns: dict[str, str]
    replica_identity: str | tuple[str, ...] = "default"
    published: bool = True
    column_list: tuple[str, ...] | None = None
    where: tuple[str, str, str] | None = None
    partition_by: str | None = None
    partitions: dict[str, tuple[str, ...]] | None = None


class Step(msgspec.Struct, frozen=True):
    """Something that is done; `slot` is the connection that does it."""

    slot: int


class Begin(Step, frozen=True):
    """BEGIN."""

    origin: str | None = None
    origin_lsn: int = 0


class End(Step, frozen=True):
    """COMMIT or ROLLBACK."""

    commit: bool


class Savepoint(Step, frozen=True):
    """SAVEPOINT."""


class EndSavepoint(Step, frozen=True):
    """RELEASE, or ROLLBACK TO and RELEASE."""

    release: bool


class Prepare(Step, frozen=True):
    """PREPARE TRANSACTION."""

    gid: str


class EndPrepared(Step, frozen=True):
    """COMMIT PREPARED or ROLLBACK PREPARED, in the connection that prepared it."""

    gid: str
    commit: bool


class Insert(Step, frozen=True):
    """INSERT of one row."""

    table: str
    values: Values


class Update(Step, frozen=True):
    """UPDATE of one row."""

    table: str
    where: Values
    values: Values


class Delete(Step, frozen=True):
    """DELETE of one row."""

    table: str
    where: Values


class Truncate(Step, frozen=True):
    """TRUNCATE."""

    tables: tuple[str, ...]
    cascade: bool
    restart_identity: bool


class Alter(Step, frozen=True):
    """ALTER TABLE; the changes are the arguments of `TransactionScope.alter`."""

    table: str
    changes: dict[str, Any]


class Emit(Step, frozen=True):
    """pg_logical_emit_message."""

    transactional: bool
    prefix: str
    content: str


class Program(msgspec.Struct, frozen=True):
    """Types and tables, and what is done with them."""

    enums: tuple[str, ...]
    domains: dict[str, str]
    tables: tuple[TableOf, ...]
    steps: tuple[Step, ...]


class Player:
    """Does a program's steps in a scenario.

    Attributes:
        scenario: Where.
        tables: Its tables, by the name that the program has for them.
        open: The innermost open transaction or savepoint of each slot, and those around it.
        prepared: The slots of the transactions that are prepared, by gid.
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
            given = {
                name: value for name, value in msgspec.structs.asdict(table).items() if value is not None
            }
            made = scenario.table(given.pop("name"), given.pop("columns"), **given)
            self.tables[table.name] = made

    def declared(self, table: str, column: str) -> str:
        """The type of a column, as it was declared last; without `key`."""
        return self._declared[table][column].removesuffix(" key")

    def do(self, step: Step) -> None:
        """Do a step.

        Raises:
            ScenarioError: It cannot be done; nothing has been.
        """
        match step:
            case Begin(slot, origin, lsn):
                self.open[slot] = [self.scenario.transaction(origin=origin, origin_lsn=lsn)]
            case End(slot, commit):
                transaction = self._transaction(slot)
                transaction.commit() if commit else transaction.rollback()
                del self.open[slot]
            case Savepoint(slot):
                self.open[slot].append(self.open[slot][-1].savepoint())
            case EndSavepoint(slot, release):
                point = self.open[slot].pop()
                assert isinstance(point, synth.Savepoint)
                point.release() if release else point.rollback()
            case Prepare(slot, gid):
                self._transaction(slot).prepare(gid)
                self.prepared[gid] = slot
                del self.open[slot]
            case EndPrepared(_, gid, commit):
                end = self.scenario.commit_prepared if commit else self.scenario.rollback_prepared
                end(gid)
                del self.prepared[gid]
            case Insert(slot, table, values):
                self.open[slot][-1].insert(self.tables[table], values)
            case Update(slot, table, where, values):
                self.open[slot][-1].update(self.tables[table], where, **values)
            case Delete(slot, table, where):
                self.open[slot][-1].delete(self.tables[table], where)
            case Truncate(slot, tables, cascade, restart):
                named = [self.tables[table] for table in tables]
                self.open[slot][-1].truncate(*named, cascade=cascade, restart_identity=restart)
            case Alter(slot, table, changes):
                self.open[slot][-1].alter(self.tables[table], **changes)
                declared = self._declared[table]
                declared |= changes.get("add", {}) | changes.get("retype", {})
                for old, new in changes.get("rename", {}).items():
                    declared[new] = declared[old]
            case Emit(slot, True, prefix, content):
                self.open[slot][-1].message(prefix, content)
            case Emit(_, False, prefix, content):
                self.scenario.message(prefix, content)
            case _:
                raise TypeError(f"{step!r} is no step")

    def _transaction(self, slot: int) -> Transaction:
        transaction = self.open[slot][0]
        assert isinstance(transaction, Transaction)
        return transaction


def play(scenario: Scenario, program: Program) -> None:
    """Do a whole program."""
    player = Player(scenario, program)
    for step in program.steps:
        player.do(step)
