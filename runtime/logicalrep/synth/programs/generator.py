"""Generate random programs: table definitions, and database operations that a scenario accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

from logicalrep.errors import ScenarioError
from logicalrep.messages import Message, ReplicaIdentity
from logicalrep.synth.programs.definition import Program, ProgramRunner, Step, TableDefinition, Values
from logicalrep.synth.scenario import FIRST_WITH_GENERATED_COLUMNS, FIRST_WITH_ROW_FILTERS, Scenario
from logicalrep.synth.table_definition import Column
from logicalrep.synth.tables import ScenarioTable

SCHEMA: Final = "app"
"""Schema of the types of random programs."""
ENUM, DOMAIN = f"{SCHEMA}.mood", f"{SCHEMA}.posint"

_LONG = "".join(chr(65 + i * 7919 % 26) for i in range(2600))

_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "int2": ("0", "-7", "32767"),
    "int4": ("0", "1", "-2147483648", "42"),
    "int8": ("0", "9223372036854775807", "-3"),
    "text": ("", "a", "Ünïcode ✓", "tab\tand\nline", "NULL", _LONG, _LONG[::-1]),
    "varchar(8)": ("", "x", "12345678"),
    "char(5)": ("ab   ", "12345"),
    "numeric(12,2)": ("0.00", "9.50", "-1234567890.12", "NaN"),
    "numeric": ("0", "3.14159265358979323846264338327950288", "-1000"),
    "bool": ("t", "f"),
    "bytea": ("\\x", "\\x00ff10", "\\x" + "0badc0de" * 700),
    "uuid": ("00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "date": ("2024-02-29", "0001-01-01", "infinity"),
    "timestamp": ("2024-01-01 00:00:00", "1999-12-31 23:59:59.999999"),
    "timestamptz": ("2024-01-01 00:00:00+00", "infinity"),
    "float8": ("0", "0.1", "-1e+300", "NaN", "Infinity"),
    "float4": ("1.5", "-0", "3.4028235e+38"),
    "json": ('{"a": 1}', "[1,  2]", "null"),
    "jsonb": ('{"a": 1, "b": [true, null]}', '"x"'),
    "int4[]": ("{}", "{1,2,NULL}", "{{1,2},{3,4}}"),
    "text[]": ('{a,"b c",NULL,"NULL",""}', "{}"),
    "inet": ("192.168.0.1", "10.0.0.0/8", "::1"),
    "interval": ("1 day", "-00:00:01", "1 year 2 mons"),
    ENUM: ("sad", "ok", "happy"),
    f"{ENUM}[]": ("{sad,ok}", "{}"),
    DOMAIN: ("1", "77"),
}
"""Values in text format for random rows, by declared column type."""

LABELS: Final = _VALUES[ENUM]

_KEYS: Final = ("int8 key", "int4 key", "text key", "uuid key")
_LONG_KEYS: Final = (_LONG[:2300], _LONG[300:2600])
"""Key values that are long enough to be stored out of line and short enough for an index."""

_WIDER_TYPES: Final = {"int2": "int4", "int4": "int8", "varchar(8)": "text"}
ALTERATIONS: Final = ("add", "drop", "rename", "retype", "replica_identity", "name")
"""Kinds of ALTER TABLE: the keyword arguments of `TransactionScope.alter`."""

_MANY_COLUMNS: Final = 8
"""Number of non-key columns from which on the alteration `add` drops a column instead."""
_MAX_ATTRIBUTES: Final = 60
"""Number of columns, including dropped columns (rows keep them), above which no column is added."""
_CONNECTIONS: Final = (0, 1, 2)
_MAX_TABLES: Final = 3
_MAX_COLUMNS: Final = 4
_MAX_COPIED_ROWS: Final = 3
_MAX_ROWS: Final = 400
"""Number of rows of a table above which a step deletes a row instead of inserting one."""
_MAX_STEPS: Final = 60


def generate_program(random: Random, scenario: Scenario, payloads: Sequence[Message] = ()) -> Program:
    """Generate a random program step by step, run each step in the scenario, and return the program.

    Steps that the scenario rejects are left out. The program is simpler if `random` returns smaller numbers
    and earlier items of lists. Hypothesis therefore shrinks to simple programs.

    Args:
        random: Source of the random decisions.
        scenario: An empty scenario.
        payloads: Messages with the role `payload` in the spec (application data); a step may emit one.
    """
    kinds = [
        kind for kind in _TABLE_KINDS for _ in range(kind.weight) if scenario.server >= kind.first_server
    ]
    tables: list[TableDefinition] = []
    while len(tables) < _MAX_TABLES and not (tables and random.randint(0, _MAX_TABLES) == 0):
        name = f"{SCHEMA}.t{len(tables)}"
        tables.append(random.choice(kinds).define(random, name, _random_columns(random)))
    program = _program(tables)
    steps = RandomSteps(random, ProgramRunner(scenario, program), payloads=payloads)
    for number in range(_MAX_STEPS):
        if number and random.randint(0, _MAX_STEPS) == 0:
            break
        steps.run()
    steps.end_transactions()
    return msgspec.structs.replace(program, steps=tuple(steps.done))


def program_of_all_kinds(random: Random, server: int) -> Program:
    """Return a program without steps that has one table of each kind in `_TABLE_KINDS`.

    The tables together have columns of all types. Kinds that need a later server than `server`, a major
    version of PostgreSQL, are left out.
    """
    types = list(_VALUES)
    kinds = [kind for kind in _TABLE_KINDS if server >= kind.first_server]
    return _program(
        kind.define(
            random, f"varied.{kind.name}", {f"c{i}": one for i, one in enumerate(types[number :: len(kinds)])}
        )
        for number, kind in enumerate(kinds)
    )


def _program(tables: Iterable[TableDefinition]) -> Program:
    return Program((ENUM,), {DOMAIN: "int4"}, tuple(tables), ())


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """Relative frequencies of the operations inside random transactions: integers from 0 up.

    `end` ends the transaction or its innermost savepoint, `emit` emits a logical message, `copy` inserts
    several rows with one command, and `payload` emits another message with the role `payload` in the spec.
    """

    insert: int = 8
    update: int = 6
    delete: int = 3
    end: int = 5
    truncate: int = 1
    alter: int = 2
    emit: int = 1
    savepoint: int = 2
    copy: int = 2
    payload: int = 2


class RandomSteps:
    """Runs random steps in a scenario; `done` are the steps that the scenario has accepted.

    Args:
        random: Source of the random decisions.
        runner: Runs the steps; its program has tables, but no steps.
        operations: Relative frequencies of the operations inside transactions.
        keys: Number of distinct values of each key column.
        origins: Whether some transactions have a replication origin.
        alterations: The kinds of ALTER TABLE: names in `ALTERATIONS`.
        payloads: Messages with the role `payload` in the spec (application data); a step may emit one.
    """

    def __init__(
        self,
        random: Random,
        runner: ProgramRunner,
        operations: Operations | None = None,
        *,
        keys: int = 5,
        origins: bool = True,
        alterations: Sequence[str] = ALTERATIONS,
        payloads: Sequence[Message] = (),
    ) -> None:
        self.runner = runner
        self.done: list[Step] = []
        self._random = random
        weights = msgspec.structs.asdict(operations or Operations()) | ({} if payloads else {"payload": 0})
        self._operations = [getattr(self, f"_{name}") for name in weights for _ in range(weights[name])]
        self._keys = keys
        self._origins = origins
        self._alterations = alterations
        self._payloads = payloads
        self._number = 0

    def run(self) -> None:
        """Run a random step. A step that the scenario rejects has no effect."""
        self._number += 1
        self._run(self._step())

    def end_transactions(self) -> None:
        """Run the steps that end all open and prepared transactions."""
        for connection in tuple(self.runner.open):
            while len(self.runner.open[connection]) > 1:
                self._run(Step(connection, "release"))
            self._run(self._end(connection, prepares=False))
        for gid in tuple(self.runner.prepared):
            self._run(self._end_prepared(gid))

    def _run(self, step: Step) -> None:
        with suppress(ScenarioError):
            self.runner.run_step(step)
            self.done.append(step)

    def _step(self) -> Step:
        random, runner = self._random, self.runner
        connection = random.choice(_CONNECTIONS)
        if connection in runner.open:
            step: Step = random.choice(self._operations)(connection)
            return step
        idle = [gid for gid, connection in runner.prepared.items() if connection not in runner.open]
        if idle and random.randint(0, 1):
            return self._end_prepared(random.choice(idle))
        if random.randint(0, 9) == 9:
            return Step(connection, "db.message", (), ("outside", "now"))
        if self._origins and random.randint(0, 5) == 5:
            origin = {"origin": f"node_{connection}", "origin_lsn": random.randint(1, 1 << 40)}
            return Step(connection, "db.transaction", options=origin)
        return Step(connection, "db.transaction")

    def _end_prepared(self, gid: str) -> Step:
        method = "db.commit_prepared" if self._random.randint(0, 3) < 3 else "db.rollback_prepared"
        return Step(self.runner.prepared[gid], method, (), (gid,))

    # Operations inside a transaction

    def _insert(self, connection: int) -> Step:
        name, table = self._table()
        if sum(len(leaf.rows) for leaf in table.leaves()) > _MAX_ROWS:
            return self._delete(connection)
        return Step(connection, "insert", (name,), (self._values(name, _given_columns(table)),))

    def _copy(self, connection: int) -> Step:
        name, table = self._table()
        columns = _given_columns(table)
        rows = tuple(self._values(name, columns) for _ in range(self._random.randint(1, _MAX_COPIED_ROWS)))
        return Step(connection, "copy", (name,), (rows,))

    def _update(self, connection: int) -> Step:
        name, table = self._table()
        where, columns = self._where(connection, table), _given_columns(table)
        chosen = [column for column in columns if self._random.randint(0, 2) == 2]
        return Step(connection, "update", (name,), (where,), self._values(name, chosen or columns[-1:]))

    def _delete(self, connection: int) -> Step:
        name, table = self._table()
        return Step(connection, "delete", (name,), (self._where(connection, table),))

    def _truncate(self, connection: int) -> Step:
        names = {self._table()[0] for _ in range(self._random.randint(1, 2))}
        options = {name: True for name in ("cascade", "restart_identity") if self._random.randint(0, 1)}
        return Step(connection, "truncate", tuple(sorted(names)), options=options)

    def _alter(self, connection: int) -> Step:
        name, table = self._table()
        plain = [c.name for c in _given_columns(table) if not c.primary and c.name not in ("id", "u", "v")]
        is_full = table.definition.replica_identity == ReplicaIdentity.FULL
        changes: dict[str, Any] = {"add": {f"n{self._number}": self._random.choice(tuple(_VALUES))}}
        if table.definition.attribute_count > _MAX_ATTRIBUTES:
            changes = {}
        if plain:
            column = self._random.choice(plain)
            retyped = _WIDER_TYPES.get(self.runner.declared(name, column))
            possible: dict[str, dict[str, Any]] = {
                "add": changes if len(plain) < _MANY_COLUMNS else {"drop": [column]},
                "drop": {"drop": [column]},
                "rename": {"rename": {column: f"r{self._number}"}},
                "retype": {"retype": {column: retyped}} if retyped else changes,
                "replica_identity": {"replica_identity": "default" if is_full else "full"},
                "name": {"name": f"t{self._number}x"},
            }
            changes = possible[self._random.choice(self._alterations)]
        return Step(connection, "alter", (name,), options=changes)

    def _emit(self, connection: int) -> Step:
        prefix = self._random.choice(("", "prefix é"))
        method = "message" if self._random.randint(0, 3) < 3 else "db.message"
        return Step(connection, method, (), (prefix, "content"))

    def _payload(self, connection: int) -> Step:
        return Step(connection, "send", (), (self._random.choice(self._payloads),))

    def _savepoint(self, connection: int) -> Step:
        return Step(connection, "savepoint")

    def _end(self, connection: int, *, prepares: bool = True) -> Step:
        """Return a step that ends the innermost savepoint, or the transaction if no savepoint is open.

        The step may be `prepare` only if `prepares` is true.
        """
        if len(self.runner.open[connection]) > 1:
            return Step(connection, "release" if self._random.randint(0, 1) == 0 else "rollback")
        if prepares and self._random.randint(0, 3) == 3:
            return Step(connection, "prepare", (), (f"gid {self._number}",))
        return Step(connection, "commit" if self._random.randint(0, 3) < 3 else "rollback")

    # Tables and values

    def _table(self) -> tuple[str, ScenarioTable]:
        return self._random.choice(tuple(self.runner.tables.items()))

    def _where(self, connection: int, table: ScenarioTable) -> Values:
        """Return the key values of a random row of a table, by column name; empty if no row is visible."""
        work = self.runner.open[connection][0]
        visible = [
            (leaf, cells)
            for leaf in table.leaves()
            for row in leaf.rows.values()
            if (cells := row.visible_to(work)) is not None
        ]
        if not visible:
            return {}
        leaf, cells = self._random.choice(visible)
        names = {column.name for key in leaf.definition.unique_keys[:1] for column in key} or {"id"}
        return {c.name: cells[c.number] for c in leaf.definition.columns if c.name in names}

    def _values(self, table: str, columns: Iterable[Column]) -> Values:
        return {column.name: self._value(table, column) for column in columns}

    def _value(self, table: str, column: Column) -> str | None:
        declared = self.runner.declared(table, column.name)
        if column.name == "region":
            return self._random.choice(("eu", "us", "ca"))
        if not (column.primary or column.name in ("u", "v")):
            return self._random.choice((None, *_VALUES[declared]))
        if declared == "text" and self._random.randint(0, 4) == 4:
            return self._random.choice(_LONG_KEYS)
        number = self._random.randint(0, self._keys - 1)
        return _KEY_VALUES.get(declared, "{}").format(number)


def _given_columns(table: ScenarioTable) -> list[Column]:
    """Return the columns of a table that are not generated."""
    return [column for column in table.definition.columns if column.source is None]


_KEY_VALUES: Final = {"text": "key {}", "uuid": "00000000-0000-0000-0000-{:012}"}
"""Formats of key values, by declared type; keys of other types are plain numbers."""


def _random_columns(random: Random) -> dict[str, str]:
    columns: dict[str, str] = {}
    while len(columns) < _MAX_COLUMNS and random.randint(0, _MAX_COLUMNS):
        columns[f"c{len(columns)}"] = random.choice(tuple(_VALUES))
    return columns


class _TableKind(msgspec.Struct, frozen=True):
    """A kind of table: possible types of its first columns, and possible options of `Scenario.table`."""

    name: str
    columns: Mapping[str, Sequence[str]]
    options: Mapping[str, Sequence[Any]] = {}
    weight: int = 1
    """Relative frequency of the kind."""
    first_server: int = 0
    """First major version of PostgreSQL that can publish such tables."""

    def define(self, random: Random, name: str, others: dict[str, str]) -> TableDefinition:
        """Return a random table of the kind. `others` are further columns: declarations by column name."""
        columns = {column: random.choice(types) for column, types in self.columns.items()} | others
        options = {option: random.choice(values) for option, values in self.options.items()}
        if "hidden" in columns:
            options["column_list"] = tuple(column for column in columns if column != "hidden")
        if "partition_by" in options:
            local = name.partition(".")[2]
            options["partitions"] = {f"{local}_eu": ("eu",), f"{local}_us": ("us", "ca")}
        return TableDefinition(name=name, columns=columns, **options)


_INT4_KEY: Final = {"id": ("int4 key",)}
_IDENTITIES: Final = ("default", "default", "full", "nothing")
_FILTERS: Final = [
    ("id", operator, value) for operator in ("=", "<>", "<", "<=", ">", ">=") for value in "013"
]
_TABLE_KINDS: Final = (
    _TableKind("keyed", {"id": _KEYS}, {"replica_identity": _IDENTITIES}, weight=2),
    _TableKind("lines", {"id": _KEYS, "part": ("int2 key",)}, {"replica_identity": _IDENTITIES}),
    _TableKind("keyless", {"id": ("int4",)}, {"replica_identity": ("full", "full", "default")}),
    _TableKind(
        "indexed",
        {"id": ("int8 key",), "u": ("text",), "v": ("int4",)},
        {"replica_identity": (("u",), ("u", "v"))},
    ),
    _TableKind("unpublished", _INT4_KEY, {"published": (False,)}),
    _TableKind(
        "partitioned",
        _INT4_KEY | {"region": ("text key",)},
        {"partition_by": ("region",), "replica_identity": ("default", "full")},
    ),
    _TableKind(
        "generated", _INT4_KEY, {"generated": ({"g": "id"}, {"z": "id"})}, 1, FIRST_WITH_GENERATED_COLUMNS
    ),
    _TableKind(
        "filtered",
        _INT4_KEY,
        {"where": _FILTERS, "replica_identity": ("default", "full")},
        first_server=FIRST_WITH_ROW_FILTERS,
    ),
    _TableKind("listed", _INT4_KEY | {"hidden": ("text",)}, first_server=FIRST_WITH_ROW_FILTERS),
)
