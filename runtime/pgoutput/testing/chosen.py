"""Programs at random: tables of many shapes, and steps that fit what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.messages import ReplicaIdentity
from pgoutput.synth import Scenario, ScenarioTable
from pgoutput.testing import programs
from pgoutput.testing.programs import Choices, Player, Program, Step, TableOf, Values

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
"""Values of each type, as the server writes them."""

LABELS: Final = _VALUES[ENUM]

_KEYS: Final = ("int8 key", "int4 key", "text key", "uuid key")
_LONG_KEYS: Final = (_LONG[:2300], _LONG[300:2600])
"""Key values so long that they are stored out of line, and so short that an index takes them."""

_RETYPES: Final = {"int2": "int4", "int4": "int8", "varchar(8)": "text"}
_SLOTS: Final = (0, 1, 2)
_TABLES: Final = 3
_COLUMNS: Final = 4
"""Besides those of the key."""
_STEPS: Final = 60
"""Steps of a program, at most, and on the average half of them; its transactions are ended behind them."""


def make(choices: Choices, scenario: Scenario) -> Program:
    """Choose a program that the scenario can do, and do it there.

    The least of each choice makes the simplest program, so that Hypothesis finds such.

    Args:
        choices: Decides.
        scenario: Empty as yet.
    """
    tables = tuple(_tables(choices))
    program = Program((ENUM,), {DOMAIN: "int4"}, tables, ())
    player = Player(scenario, program)
    steps: list[Step] = []

    def do(step: Step) -> None:
        try:
            player.do(step)
        except ScenarioError:
            return
        steps.append(step)

    for number in range(_STEPS):
        if number and choices.integer(0, _STEPS) == 0:
            break
        do(_step(choices, player, number))
    for slot in tuple(player.open):
        while len(player.open[slot]) > 1:
            do(programs.EndSavepoint(slot, True))
        do(programs.End(slot, choices.integer(0, 3) < 3))
    for gid, slot in tuple(player.prepared.items()):
        do(programs.EndPrepared(slot, gid, choices.integer(0, 3) < 3))
    return msgspec.structs.replace(program, steps=tuple(steps))


def _tables(choices: Choices) -> Iterator[TableOf]:
    for number in range(_TABLES):
        if number and choices.integer(0, _TABLES) == 0:
            return
        name = f"{SCHEMA}.t{number}"
        yield choices.pick(_SHAPES)(choices, name)


def _columns(choices: Choices) -> dict[str, str]:
    columns: dict[str, str] = {}
    while len(columns) < _COLUMNS and choices.integer(0, _COLUMNS):
        columns[f"c{len(columns)}"] = choices.pick(tuple(_VALUES))
    return columns


def _keyed(choices: Choices, name: str) -> TableOf:
    key = {"id": choices.pick(_KEYS)}
    if choices.integer(0, 3) == 3:
        key["part"] = "int2 key"
    columns = key | _columns(choices) if choices.integer(0, 3) < 3 else _columns(choices) | key
    wanted = choices.pick(("default", "default", "full", "nothing"))
    return TableOf(name=name, columns=columns, replica_identity=wanted)


def _keyless(choices: Choices, name: str) -> TableOf:
    columns = {"id": "int4"} | _columns(choices)
    return TableOf(name=name, columns=columns, replica_identity=choices.pick(("full", "full", "default")))


def _indexed(choices: Choices, name: str) -> TableOf:
    columns = {"id": "int8 key", "u": "text", "v": "int4"} | _columns(choices)
    return TableOf(name=name, columns=columns, replica_identity=choices.pick((("u",), ("u", "v"))))


def _filtered(choices: Choices, name: str) -> TableOf:
    columns = {"id": "int4 key"} | _columns(choices)
    where = ("id", choices.pick(("=", "<>", "<", "<=", ">", ">=")), choices.pick(("0", "1", "42")))
    return TableOf(
        name=name, columns=columns, where=where, replica_identity=choices.pick(("default", "full"))
    )


def _listed(choices: Choices, name: str) -> TableOf:
    columns = {"id": "int4 key", "hidden": "text"} | _columns(choices)
    return TableOf(name=name, columns=columns, column_list=tuple(c for c in columns if c != "hidden"))


def _hidden(choices: Choices, name: str) -> TableOf:
    return TableOf(name=name, columns={"id": "int4 key"} | _columns(choices), published=False)


def _partitioned(choices: Choices, name: str) -> TableOf:
    local = name.partition(".")[2]
    return TableOf(
        name=name,
        columns={"id": "int4 key", "region": "text key"} | _columns(choices),
        replica_identity=choices.pick(("default", "full")),
        partition_by="region",
        partitions={f"{local}_eu": ("eu",), f"{local}_us": ("us", "ca")},
    )


_SHAPES: Final = (_keyed, _keyed, _keyed, _keyless, _indexed, _filtered, _listed, _hidden, _partitioned)


def _step(choices: Choices, player: Player, number: int) -> Step:
    slot = choices.pick(_SLOTS)
    if slot not in player.open:
        idle = [gid for gid, slot in player.prepared.items() if slot not in player.open]
        if idle and choices.integer(0, 1):
            gid = choices.pick(idle)
            return programs.EndPrepared(player.prepared[gid], gid, choices.integer(0, 2) < 2)
        if choices.integer(0, 9) == 9:
            return programs.Emit(slot, False, "outside", "now")
        if choices.integer(0, 5) == 5:
            return programs.Begin(slot, f"node_{slot}", choices.integer(1, 1 << 40))
        return programs.Begin(slot)
    return choices.pick(_INSIDE)(choices, player, slot, number)


def _insert(choices: Choices, player: Player, slot: int, number: int) -> Step:
    name, table = _table(choices, player)
    values: Values = {}
    for column in table.definition.columns:
        values[column.name] = _value(
            choices, player, name, column.name, column.primary or column.name in "uv"
        )
    return programs.Insert(slot, name, values)


def _update(choices: Choices, player: Player, slot: int, number: int) -> Step:
    name, table = _table(choices, player)
    where = _where(choices, player, slot, table)
    columns = [column for column in table.definition.columns if choices.integer(0, 2) == 2]
    values = {c.name: _value(choices, player, name, c.name, c.primary or c.name in "uv") for c in columns}
    if not values:
        column = table.definition.columns[-1]
        values = {column.name: _value(choices, player, name, column.name, column.primary)}
    return programs.Update(slot, name, where, values)


def _delete(choices: Choices, player: Player, slot: int, number: int) -> Step:
    name, table = _table(choices, player)
    return programs.Delete(slot, name, _where(choices, player, slot, table))


def _truncate(choices: Choices, player: Player, slot: int, number: int) -> Step:
    names = {_table(choices, player)[0] for _ in range(choices.integer(1, 2))}
    return programs.Truncate(
        slot, tuple(sorted(names)), bool(choices.integer(0, 1)), bool(choices.integer(0, 1))
    )


def _alter(choices: Choices, player: Player, slot: int, number: int) -> Step:
    name, table = _table(choices, player)
    plain = [c.name for c in table.definition.columns if not c.primary and c.name not in ("id", "u", "v")]
    changes: dict[str, Any] = {"add": {f"n{number}": choices.pick(tuple(_VALUES))}}
    if plain:
        column = choices.pick(plain)
        retyped = _RETYPES.get(player.declared(name, column))
        changes = choices.pick(
            (
                changes,
                {"drop": [column]},
                {"rename": {column: f"r{number}"}},
                {"retype": {column: retyped}} if retyped else changes,
                {"replica_identity": "default" if _is_full(table) else "full"},
                {"name": f"t{number}x"},
            )
        )
    return programs.Alter(slot, name, changes)


def _is_full(table: ScenarioTable) -> bool:
    return table.definition.replica_identity == ReplicaIdentity.FULL


def _emit(choices: Choices, player: Player, slot: int, number: int) -> Step:
    return programs.Emit(slot, choices.integer(0, 3) < 3, choices.pick(("", "prefix é")), "content")


def _savepoint(choices: Choices, player: Player, slot: int, number: int) -> Step:
    return programs.Savepoint(slot)


def _end(choices: Choices, player: Player, slot: int, number: int) -> Step:
    if len(player.open[slot]) > 1:
        return programs.EndSavepoint(slot, choices.integer(0, 1) == 0)
    if choices.integer(0, 3) == 3:
        return programs.Prepare(slot, f"gid {number}")
    return programs.End(slot, choices.integer(0, 3) < 3)


_INSIDE: Final[tuple[Callable[[Choices, Player, int, int], Step], ...]] = (
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
"""What is done in a transaction, each as often as it stands here."""


def _table(choices: Choices, player: Player) -> tuple[str, ScenarioTable]:
    return choices.pick(tuple(player.tables.items()))


def _where(choices: Choices, player: Player, slot: int, table: ScenarioTable) -> Values:
    """A row that the transaction sees, if there is one."""
    leaves = list(table.leaves())
    work = player.open[slot][0]
    seen = [
        (leaf, cells)
        for leaf in leaves
        for row in leaf.rows.values()
        if (cells := row.visible_to(work)) is not None
    ]
    if not seen:
        return {}
    leaf, cells = choices.pick(seen)
    names = {column.name for key in leaf.definition.unique_keys[:1] for column in key} or {"id"}
    return {c.name: cells[c.number] for c in leaf.definition.columns if c.name in names}


def _value(choices: Choices, player: Player, table: str, column: str, needed: bool) -> str | None:
    declared = player.declared(table, column)
    if column == "region":
        return choices.pick(("eu", "us", "ca"))
    if needed:
        if declared == "text" and choices.integer(0, 4) == 4:
            return choices.pick(_LONG_KEYS)
        return choices.pick(_KEY_VALUES[declared])
    return choices.pick((None, *_VALUES[declared]))


_KEY_VALUES: Final = {
    "int2": ("0", "1"),
    "int4": ("0", "1", "2", "41", "42", "43"),
    "int8": ("0", "1", "2", "3", "4"),
    "text": ("a", "b", "c", "d"),
    "uuid": tuple(f"00000000-0000-0000-0000-00000000000{i}" for i in range(5)),
}
