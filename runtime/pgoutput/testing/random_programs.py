"""Generate random programs: table definitions, and database operations that a scenario accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.messages import ReplicaIdentity
from pgoutput.synth import FIRST_WITH_ROW_FILTERS, Scenario, ScenarioTable
from pgoutput.testing import programs
from pgoutput.testing.programs import Program, ProgramRunner, Step, TableDefinition, Values

SCHEMA: Final = "s"
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
    "numeric": ("0", "3.14159265358979323846264338327950288", "-1e3"),
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
_CONNECTIONS: Final = (0, 1, 2)
_MAX_TABLES: Final = 3
_MAX_COLUMNS: Final = 4
"""Maximum number of random non-key columns of a table."""
_MAX_STEPS: Final = 60
"""Maximum number of random steps of a program, not counting the final steps that end open transactions."""


def generate_program(random: Random, scenario: Scenario) -> Program:
    """Generate a random program step by step, run each step in the scenario, and return the program.

    Steps that the scenario rejects are left out. Smaller numbers and earlier options of `random` give
    simpler programs, so that Hypothesis shrinks to simple programs.

    Args:
        random: Source of the random decisions.
        scenario: An empty scenario.
    """
    tables = tuple(_tables(random, scenario))
    program = Program((ENUM,), {DOMAIN: "int4"}, tables, ())
    runner = ProgramRunner(scenario, program)
    steps: list[Step] = []

    def run(step: Step) -> None:
        try:
            runner.run_step(step)
        except ScenarioError:
            return
        steps.append(step)

    for number in range(_MAX_STEPS):
        if number and random.randint(0, _MAX_STEPS) == 0:
            break
        run(_step(random, runner, number))
    for connection in tuple(runner.open):
        while len(runner.open[connection]) > 1:
            run(programs.EndSavepoint(connection, True))
        run(programs.End(connection, random.randint(0, 3) < 3))
    for gid, connection in tuple(runner.prepared.items()):
        run(programs.EndPrepared(connection, gid, random.randint(0, 3) < 3))
    return msgspec.structs.replace(program, steps=tuple(steps))


def _tables(random: Random, scenario: Scenario) -> Iterator[TableDefinition]:
    kinds = [kind for kind in _TABLE_KINDS if scenario.server >= _FIRST_SERVERS.get(kind, 0)]
    for number in range(_MAX_TABLES):
        if number and random.randint(0, _MAX_TABLES) == 0:
            return
        name = f"{SCHEMA}.t{number}"
        yield random.choice(kinds)(random, name)


def _columns(random: Random) -> dict[str, str]:
    columns: dict[str, str] = {}
    while len(columns) < _MAX_COLUMNS and random.randint(0, _MAX_COLUMNS):
        columns[f"c{len(columns)}"] = random.choice(tuple(_VALUES))
    return columns


def _keyed(random: Random, name: str) -> TableDefinition:
    key = {"id": random.choice(_KEYS)}
    if random.randint(0, 3) == 3:
        key["part"] = "int2 key"
    columns = key | _columns(random) if random.randint(0, 3) < 3 else _columns(random) | key
    identity = random.choice(("default", "default", "full", "nothing"))
    return TableDefinition(name=name, columns=columns, replica_identity=identity)


def _keyless(random: Random, name: str) -> TableDefinition:
    columns = {"id": "int4"} | _columns(random)
    return TableDefinition(
        name=name, columns=columns, replica_identity=random.choice(("full", "full", "default"))
    )


def _indexed(random: Random, name: str) -> TableDefinition:
    columns = {"id": "int8 key", "u": "text", "v": "int4"} | _columns(random)
    return TableDefinition(name=name, columns=columns, replica_identity=random.choice((("u",), ("u", "v"))))


def _filtered(random: Random, name: str) -> TableDefinition:
    columns = {"id": "int4 key"} | _columns(random)
    where = ("id", random.choice(("=", "<>", "<", "<=", ">", ">=")), random.choice(("0", "1", "42")))
    return TableDefinition(
        name=name, columns=columns, where=where, replica_identity=random.choice(("default", "full"))
    )


def _with_column_list(random: Random, name: str) -> TableDefinition:
    columns = {"id": "int4 key", "hidden": "text"} | _columns(random)
    return TableDefinition(name=name, columns=columns, column_list=tuple(c for c in columns if c != "hidden"))


def _unpublished(random: Random, name: str) -> TableDefinition:
    return TableDefinition(name=name, columns={"id": "int4 key"} | _columns(random), published=False)


def _partitioned(random: Random, name: str) -> TableDefinition:
    local = name.partition(".")[2]
    return TableDefinition(
        name=name,
        columns={"id": "int4 key", "region": "text key"} | _columns(random),
        replica_identity=random.choice(("default", "full")),
        partition_by="region",
        partitions={f"{local}_eu": ("eu",), f"{local}_us": ("us", "ca")},
    )


_TABLE_KINDS: Final = (
    _keyed,
    _keyed,
    _keyed,
    _keyless,
    _indexed,
    _filtered,
    _with_column_list,
    _unpublished,
    _partitioned,
)
_FIRST_SERVERS: Final = {_filtered: FIRST_WITH_ROW_FILTERS, _with_column_list: FIRST_WITH_ROW_FILTERS}
"""First major version of PostgreSQL that can publish a kind of table, by function; others: all versions."""


def _step(random: Random, runner: ProgramRunner, number: int) -> Step:
    connection = random.choice(_CONNECTIONS)
    if connection not in runner.open:
        idle = [gid for gid, connection in runner.prepared.items() if connection not in runner.open]
        if idle and random.randint(0, 1):
            gid = random.choice(idle)
            return programs.EndPrepared(runner.prepared[gid], gid, random.randint(0, 2) < 2)
        if random.randint(0, 9) == 9:
            return programs.Emit(connection, False, "outside", "now")
        if random.randint(0, 5) == 5:
            return programs.Begin(connection, f"node_{connection}", random.randint(1, 1 << 40))
        return programs.Begin(connection)
    return random.choice(_TRANSACTION_STEPS)(random, runner, connection, number)


def _insert(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    name, table = _table(random, runner)
    values: Values = {}
    for column in table.definition.columns:
        values[column.name] = _value(random, runner, name, column.name, column.primary or column.name in "uv")
    return programs.Insert(connection, name, values)


def _update(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    name, table = _table(random, runner)
    where = _where(random, runner, connection, table)
    columns = [column for column in table.definition.columns if random.randint(0, 2) == 2]
    values = {c.name: _value(random, runner, name, c.name, c.primary or c.name in "uv") for c in columns}
    if not values:
        column = table.definition.columns[-1]
        values = {column.name: _value(random, runner, name, column.name, column.primary)}
    return programs.Update(connection, name, where, values)


def _delete(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    name, table = _table(random, runner)
    return programs.Delete(connection, name, _where(random, runner, connection, table))


def _truncate(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    names = {_table(random, runner)[0] for _ in range(random.randint(1, 2))}
    return programs.Truncate(
        connection, tuple(sorted(names)), bool(random.randint(0, 1)), bool(random.randint(0, 1))
    )


def _alter(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    name, table = _table(random, runner)
    plain = [c.name for c in table.definition.columns if not c.primary and c.name not in ("id", "u", "v")]
    is_full = table.definition.replica_identity == ReplicaIdentity.FULL
    changes: dict[str, Any] = {"add": {f"n{number}": random.choice(tuple(_VALUES))}}
    if plain:
        column = random.choice(plain)
        retyped = _WIDER_TYPES.get(runner.declared(name, column))
        changes = random.choice(
            (
                changes,
                {"drop": [column]},
                {"rename": {column: f"r{number}"}},
                {"retype": {column: retyped}} if retyped else changes,
                {"replica_identity": "default" if is_full else "full"},
                {"name": f"t{number}x"},
            )
        )
    return programs.Alter(connection, name, changes)


def _emit(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    return programs.Emit(connection, random.randint(0, 3) < 3, random.choice(("", "prefix é")), "content")


def _savepoint(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    return programs.Savepoint(connection)


def _end(random: Random, runner: ProgramRunner, connection: int, number: int) -> Step:
    if len(runner.open[connection]) > 1:
        return programs.EndSavepoint(connection, random.randint(0, 1) == 0)
    if random.randint(0, 3) == 3:
        return programs.Prepare(connection, f"gid {number}")
    return programs.End(connection, random.randint(0, 3) < 3)


_TRANSACTION_STEPS: Final[tuple[Callable[[Random, ProgramRunner, int, int], Step], ...]] = (
    *(_insert,) * 8,
    *(_update,) * 6,
    *(_delete,) * 3,
    *(_end,) * 5,
    _truncate,
    _alter,
    _alter,
    _emit,
    _savepoint,
    _savepoint,
)
"""Functions that generate a step inside a transaction. A function is listed several times to be chosen more
often."""


def _table(random: Random, runner: ProgramRunner) -> tuple[str, ScenarioTable]:
    return random.choice(tuple(runner.tables.items()))


def _where(random: Random, runner: ProgramRunner, connection: int, table: ScenarioTable) -> Values:
    """Return the key values of a random row of a table, by column name; empty if no row is visible."""
    leaves = list(table.leaves())
    work = runner.open[connection][0]
    visible = [
        (leaf, cells)
        for leaf in leaves
        for row in leaf.rows.values()
        if (cells := row.visible_to(work)) is not None
    ]
    if not visible:
        return {}
    leaf, cells = random.choice(visible)
    names = {column.name for key in leaf.definition.unique_keys[:1] for column in key} or {"id"}
    return {c.name: cells[c.number] for c in leaf.definition.columns if c.name in names}


def _value(random: Random, runner: ProgramRunner, table: str, column: str, not_null: bool) -> str | None:
    declared = runner.declared(table, column)
    if column == "region":
        return random.choice(("eu", "us", "ca"))
    if not_null:
        if declared == "text" and random.randint(0, 4) == 4:
            return random.choice(_LONG_KEYS)
        return random.choice(_KEY_VALUES[declared])
    return random.choice((None, *_VALUES[declared]))


_KEY_VALUES: Final = {
    "int2": ("0", "1"),
    "int4": ("0", "1", "2", "41", "42", "43"),
    "int8": ("0", "1", "2", "3", "4"),
    "text": ("a", "b", "c", "d"),
    "uuid": tuple(f"00000000-0000-0000-0000-00000000000{i}" for i in range(5)),
}
