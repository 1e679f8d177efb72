"""Programs as Python, to be copied into a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pgoutput.synth import Scenario
from pgoutput.testing import programs
from pgoutput.testing.programs import Program, Step, TableOf


def as_python(program: Program, options: Mapping[str, Any]) -> str:
    """Statements that make a `Scenario` with these options, and do the program in it."""
    given = _changed(options, Scenario.__init__.__kwdefaults__)
    lines = ["from pgoutput.synth import Scenario", "", f"db = Scenario({given.removeprefix(', ')})"]
    lines += [f"db.enum({name!r})" for name in program.enums]
    lines += [f"db.domain({name!r}, {base!r})" for name, base in program.domains.items()]
    lines += map(_table, program.tables)
    work = _Names()
    for step in program.steps:
        lines += work.statements(step)
    return "\n".join((*lines, ""))


def _table(table: TableOf) -> str:
    given = msgspec.structs.asdict(table)
    name, columns = given.pop("name"), given.pop("columns")
    changed = _changed(given, Scenario.table.__kwdefaults__)
    return f"{_local(name)} = db.table({name!r}, {columns!r}{changed})"


def _local(name: str) -> str:
    return name.rpartition(".")[2]


def _changed(arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> str:
    usual = defaults or {}
    return _more({name: value for name, value in arguments.items() if value != usual[name]})


def _more(arguments: Mapping[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in arguments.items())


class _Names:
    """The variables of the transactions and savepoints that are open."""

    def __init__(self) -> None:
        self._made = 0
        self._open: dict[int, list[str]] = {}

    def statements(self, step: Step) -> Iterator[str]:
        """A step as Python."""
        slot = step.slot
        match step:
            case programs.Begin(_, origin, lsn):
                given = "" if origin is None else f"origin={origin!r}, origin_lsn={lsn}"
                self._open[slot] = [self._new("tx")]
                yield f"{self._open[slot][0]} = db.transaction({given})"
            case programs.Savepoint():
                outer, inner = self._open[slot][-1], self._new("point")
                self._open[slot].append(inner)
                yield f"{inner} = {outer}.savepoint()"
            case programs.EndSavepoint(_, release):
                yield f"{self._open[slot].pop()}.{'release' if release else 'rollback'}()"
            case programs.End(_, commit):
                yield f"{self._open.pop(slot)[0]}.{'commit' if commit else 'rollback'}()"
            case programs.Prepare(_, gid):
                yield f"{self._open.pop(slot)[0]}.prepare({gid!r})"
            case programs.EndPrepared(_, gid, commit):
                yield f"db.{'commit' if commit else 'rollback'}_prepared({gid!r})"
            case programs.Emit(_, False, prefix, content):
                yield f"db.message({prefix!r}, {content!r})"
            case _:
                yield f"{self._open[slot][-1]}.{_call(step)}"

    def _new(self, kind: str) -> str:
        self._made += 1
        return f"{kind}{self._made}"


def _call(step: Step) -> str:
    match step:
        case programs.Insert(_, table, values):
            return f"insert({_local(table)}{_more(values)})"
        case programs.Update(_, table, where, values):
            return f"update({_local(table)}, {where!r}{_more(values)})"
        case programs.Delete(_, table, where):
            return f"delete({_local(table)}, {where!r})"
        case programs.Truncate(_, tables, cascade, restart):
            asked = {"cascade": cascade, "restart_identity": restart}
            changed = _changed(asked, dict.fromkeys(asked, False))
            return f"truncate({', '.join(map(_local, tables))}{changed})"
        case programs.Alter(_, table, changes):
            return f"alter({_local(table)}{_more(changes)})"
        case programs.Emit(_, _, prefix, content):
            return f"message({prefix!r}, {content!r})"
    raise TypeError(f"{step!r} is no step")
