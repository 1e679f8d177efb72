"""Format a `logicalrep.synth.programs.Program` as Python code that can be copied into a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from logicalrep.jsonlines import to_json
from logicalrep.messages import Message
from logicalrep.synth import Scenario
from logicalrep.synth.programs import Program, Step, TableDefinition


def format_program(program: Program, options: Mapping[str, Any]) -> str:
    """Return Python code that creates a `Scenario` with the options `options` and runs the program."""
    arguments = _format_non_defaults(options, Scenario.__init__.__kwdefaults__)
    lines = ["from logicalrep.synth import Scenario", "", f"db = Scenario({arguments.removeprefix(', ')})"]
    if any(step.method == "send" for step in program.steps):
        lines.insert(0, "from logicalrep.jsonlines import from_json")
    lines += [f"db.enum({name!r})" for name in program.enums]
    lines += [f"db.domain({name!r}, {base!r})" for name, base in program.domains.items()]
    lines += map(_format_table, program.tables)
    formatter = _StepFormatter()
    lines += map(formatter.statement, program.steps)
    return "\n".join((*lines, ""))


def _format_table(table: TableDefinition) -> str:
    fields = msgspec.structs.asdict(table)
    name, columns = fields.pop("name"), fields.pop("columns")
    arguments = _format_non_defaults(fields, Scenario.table.__kwdefaults__)
    return f"{_variable(name)} = db.table({name!r}, {columns!r}{arguments})"


def _variable(name: str) -> str:
    """Return the name of the Python variable for a table: the table name without the schema."""
    return name.rpartition(".")[2]


def _format_non_defaults(arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> str:
    """Return the arguments that differ from their defaults as Python code, such as `, streaming='on'`."""
    defaults = defaults or {}
    return "".join(f", {name}={value!r}" for name, value in arguments.items() if value != defaults[name])


def _argument(value: Any) -> str:
    return f"from_json({to_json(value)!r})" if isinstance(value, Message) else repr(value)


class _StepFormatter:
    """Formats the steps of a program as Python code, with a variable for each transaction and savepoint."""

    def __init__(self) -> None:
        self._variables = 0
        self._open: dict[int, list[str]] = {}

    def statement(self, step: Step) -> str:
        """Return the Python statement of a step."""
        scopes = self._open.setdefault(step.connection, [])
        target = "" if step.method.startswith("db.") else f"{scopes[-1]}."
        arguments = [*map(_variable, step.tables), *map(_argument, step.arguments)]
        arguments += [f"{name}={value!r}" for name, value in step.options.items()]
        call = f"{target}{step.method}({', '.join(arguments)})"
        if step.method in ("commit", "prepare", "release", "rollback"):
            scopes.pop()
        elif step.method in ("db.transaction", "savepoint"):
            self._variables += 1
            scopes.append(f"{'point' if scopes else 'tx'}{self._variables}")
            return f"{scopes[-1]} = {call}"
        return call
