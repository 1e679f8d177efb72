"""Format a `pgoutput.synth.programs.Program` as Python code that can be copied into a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pgoutput.jsonlines import to_json
from pgoutput.synth import Scenario, programs
from pgoutput.synth.programs import Program, Step, TableDefinition


def format_program(program: Program, options: Mapping[str, Any]) -> str:
    """Return Python code that creates a `Scenario` with the options `options`, and runs the program in it."""
    arguments = _format_non_defaults(options, Scenario.__init__.__kwdefaults__)
    lines = ["from pgoutput.synth import Scenario", "", f"db = Scenario({arguments.removeprefix(', ')})"]
    if any(isinstance(step, programs.Payload) for step in program.steps):
        lines.insert(0, "from pgoutput.jsonlines import from_json")
    lines += [f"db.enum({name!r})" for name in program.enums]
    lines += [f"db.domain({name!r}, {base!r})" for name, base in program.domains.items()]
    lines += map(_format_table, program.tables)
    formatter = _StepFormatter()
    for step in program.steps:
        lines += formatter.statements(step)
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
    """Return Python code such as `, streaming='on'` for the arguments that differ from their defaults."""
    defaults = defaults or {}
    return _format_arguments({name: value for name, value in arguments.items() if value != defaults[name]})


def _format_arguments(arguments: Mapping[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in arguments.items())


class _StepFormatter:
    """Formats the steps of a program as Python code, with a variable for each transaction and savepoint."""

    def __init__(self) -> None:
        self._variables = 0
        self._open: dict[int, list[str]] = {}

    def statements(self, step: Step) -> Iterator[str]:
        """Yield the Python statements of a step."""
        connection = step.connection
        match step:
            case programs.Begin(_, origin, lsn):
                arguments = "" if origin is None else f"origin={origin!r}, origin_lsn={lsn}"
                self._open[connection] = [self._new("tx")]
                yield f"{self._open[connection][0]} = db.transaction({arguments})"
            case programs.Savepoint():
                outer, inner = self._open[connection][-1], self._new("point")
                self._open[connection].append(inner)
                yield f"{inner} = {outer}.savepoint()"
            case programs.EndSavepoint(_, release):
                yield f"{self._open[connection].pop()}.{'release' if release else 'rollback'}()"
            case programs.End(_, commit):
                yield f"{self._open.pop(connection)[0]}.{'commit' if commit else 'rollback'}()"
            case programs.Prepare(_, gid):
                yield f"{self._open.pop(connection)[0]}.prepare({gid!r})"
            case programs.EndPrepared(_, gid, commit):
                yield f"db.{'commit' if commit else 'rollback'}_prepared({gid!r})"
            case programs.Emit(_, False, prefix, content):
                yield f"db.message({prefix!r}, {content!r})"
            case _:
                yield f"{self._open[connection][-1]}.{_format_call(step)}"

    def _new(self, kind: str) -> str:
        self._variables += 1
        return f"{kind}{self._variables}"


def _format_call(step: Step) -> str:
    match step:
        case programs.Insert(_, table, values):
            return f"insert({_variable(table)}{_format_arguments(values)})"
        case programs.Copy(_, table, rows):
            return f"copy({_variable(table)}, {list(rows)!r})"
        case programs.Update(_, table, where, values):
            return f"update({_variable(table)}, {where!r}{_format_arguments(values)})"
        case programs.Delete(_, table, where):
            return f"delete({_variable(table)}, {where!r})"
        case programs.Truncate(_, tables, cascade, restart):
            options = {"cascade": cascade, "restart_identity": restart}
            arguments = _format_non_defaults(options, dict.fromkeys(options, False))
            return f"truncate({', '.join(map(_variable, tables))}{arguments})"
        case programs.Alter(_, table, changes):
            return f"alter({_variable(table)}{_format_arguments(changes)})"
        case programs.Emit(_, _, prefix, content):
            return f"message({prefix!r}, {content!r})"
        case programs.Payload(_, message):
            return f"payload(from_json({to_json(message)!r}))"
    raise TypeError(f"{step!r} is not a step of a program")
