"""The cells of the grid: which statements each of them runs, and when."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import yaml

TABLE: Final[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("forms.yaml").read_text())

STATES: Final = "known", "new", "unpublished"
PLACES: Final = "alone", "before", "between", "after"
AXES: Final[dict[str, tuple[str, ...]]] = {
    "mode": ("running", "stopped", "restart", "copying"),
    "undo": ("none", "savepoint", "undone", "rollback"),
    "kind": ("plain", "root", "leaf"),
    "follow": ("now", "late", "never"),
    "size": ("small", "streamed", "prepared"),
    "key": ("no", "yes"),
    "trigger": ("no", "yes"),
}
"""The axes that are crossed by all pairs, with their values; the first value is the usual one."""

TOGETHER: Final = " && "
APART: Final = " || "
"""Between the forms of a pair in the name of a cell: in one transaction, or in two."""
BULK: Final = (
    "INSERT INTO grid.bulk SELECT g, repeat('x', 400) FROM generate_series(1, 400) g; DELETE FROM grid.bulk"
)
"""Changes of more than logical_decoding_work_mem, after which a transaction is streamed."""


class Form(msgspec.Struct, frozen=True):
    """A row of the table: the statements of one form, and the words about it."""

    name: str
    sql: str
    words: frozenset[str]

    def option(self, name: str, default: str = "") -> str:
        return next((one.partition("=")[2] for one in self.words if one.startswith(name + "=")), default)

    @property
    def column(self) -> str:
        return self.option("col", "n")

    @property
    def title(self) -> str:
        """The statements with the name of the column, which no other form has."""
        return self.sql.replace("{col}", self.column)

    def runs_on(self, version: int) -> bool:
        return int(self.option("since", "0")) <= version


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield name, SQL and words of each row; without SQL, the words are the reason for that."""
    for line in TABLE["forms"].splitlines():
        if line.strip() and not line.startswith("#"):
            name, sql, words, *_ = [part.strip() for part in line.split("|")] + [""]
            yield name, sql, words


@cache
def forms() -> list[Form]:
    """Return all forms that have cells."""
    return [Form(name, sql, frozenset(words.split())) for name, sql, words in rows() if sql]


class Cell(msgspec.Struct, frozen=True):
    """One case: forms, the state of the table, the place of the forms, and a value of each other axis."""

    forms: tuple[Form, ...]
    state: str
    place: str
    apart: bool
    """Whether each form has a transaction of its own."""
    axes: dict[str, str]
    binary: bool = False
    """Whether `record --binary` and `replicate` run instead of `sync`."""

    @property
    def name(self) -> str:
        """The name by which a cell is run again."""
        usual = {axis: values[0] for axis, values in AXES.items()}
        words = [f"{axis}={value}" for axis, value in self.axes.items() if value != usual[axis]]
        sql = (APART if self.apart else TOGETHER).join(form.title for form in self.forms)
        return " / ".join([sql, self.state, self.place, *words, *(["binary"] if self.binary else [])])

    @classmethod
    def parse(cls, name: str) -> Cell:
        """Return the cell with a name."""
        sql, state, place, *words = name.split(" / ")
        titles = {form.title: form for form in forms()}
        chosen = tuple(titles[one] for one in sql.replace(APART, TOGETHER).split(TOGETHER))
        axes = {axis: values[0] for axis, values in AXES.items()}
        axes |= {axis: value for axis, _, value in (word.partition("=") for word in words) if value}
        return cls(chosen, state, place, APART in sql, axes, binary="binary" in words)

    @property
    def has_own_publication(self) -> bool:
        return self.state == "unpublished" or any("{p}" in form.sql for form in self.forms)

    @property
    def environment(self) -> str:
        """The cells of an environment share a database and a `sync`."""
        if self.is_unsafe:
            return self.name
        if self.binary:
            return "binary" + ("+tables" if self.has_own_publication else "")
        publication = "tables" if self.has_own_publication else "all"
        return publication + ("+trigger" if self.axes["trigger"] == "yes" else "")

    @property
    def is_unsafe(self) -> bool:
        return any("unsafe" in form.words for form in self.forms)

    @property
    def is_quiet(self) -> bool:
        """Whether a copy or a mark is a fault: the table was known, and all rows follow from earlier ones."""
        allowed = {"quiet"} if len(self.forms) > 1 else {"quiet", "lone"}
        harmless = self.axes["undo"] in ("undone", "rollback") or all(
            one.words & allowed for one in self.forms
        )
        return harmless and self.state == "known" and self.axes["mode"] != "copying"

    @property
    def in_block(self) -> bool:
        return not any("alone" in form.words for form in self.forms)


class Script(msgspec.Struct, frozen=True):
    """What a cell runs; each text is one transaction, or one statement outside of a transaction block."""

    prepare: list[str]
    """Before the recorder knows the table."""
    run: list[str]
    follow: list[str]


def script(cell: Cell, schema: str) -> Script:
    """Return the statements of a cell in a schema."""
    kind, undo, size = cell.axes["kind"], cell.axes["undo"], cell.axes["size"]
    column = cell.forms[0].column
    partition_key = [] if kind == "plain" else ["k"]
    key = dict.fromkeys(["id", *partition_key, *([column] if cell.axes["key"] == "yes" else [])])
    names = {
        "{s}": schema,
        "{x}": f"{schema}_x",
        "{p}": f"{schema}_p",
        "{t}": f"{schema}.p1" if kind == "leaf" else f"{schema}.t",
        "{key}": ", ".join(key),
    }

    def fill(text: str) -> str:
        for name, value in names.items():
            text = text.replace(name, value)
        return text

    fixture = TABLE["fixture"] + ("" if kind == "plain" else " " + TABLE["partitioned"])
    needs = [TABLE["setups"][one] for form in cell.forms for one in form.option("needs").split(",") if one]
    setup = "; ".join([fixture, *dict.fromkeys(needs)])
    change = "SELECT grid.change('{s}')"
    join = "SELECT grid.publish('{s}')"
    steps: list[str] = []
    renamed: dict[str, str] = {}
    for form in cell.forms:
        step = form.title.replace("{n}", str(len(steps) or ""))
        for name, value in renamed.items():
            step = step.replace(name, value)
        steps.append(step)
        renamed |= {f"{{{name[0]}}}": form.option(name) for name in ("table", "schema") if form.option(name)}
    if undo in ("savepoint", "undone"):
        end = "RELEASE a" if undo == "savepoint" else "ROLLBACK TO a"
        steps = [f"SAVEPOINT a; {one}; {end}" for one in steps]
    second = steps[-1]
    if cell.state == "unpublished":
        steps.insert(1 if cell.place in ("alone", "before") else 0, join)
    if cell.place == "between" and len(cell.forms) > 1:
        steps = [one for step in steps for one in (step, change)][:-1]
    elif cell.place in ("before", "between"):
        steps.append(change)
    if cell.place in ("after", "between") and cell.state != "new":
        steps.insert(0, change)
    if size == "streamed":
        steps.insert(0, BULK)
    prepare = [setup, TABLE["rows"]]
    if cell.state == "new":
        steps = [setup, *([] if cell.place == "before" else [TABLE["rows"]]), *steps]
        prepare = []
    elif cell.has_own_publication:
        tables = "" if cell.state == "unpublished" else " FOR TABLE {s}.t"
        prepare.insert(1, "CREATE PUBLICATION {p}" + tables + " WITH (publish_via_partition_root)")
        if any("{p}" in one for one in needs):  # it adds a table to the publication
            prepare[:2] = [TABLE["fixture"], prepare[1], *needs]
    if cell.has_own_publication and cell.state == "new":
        prepare = ["CREATE PUBLICATION {p}"]
        steps.insert(1, join)
    cut = steps.index(second) if cell.apart else 0
    transactions = [part for part in (steps[:cut], steps[cut:]) if part]
    run = [one for steps in transactions for one in _transaction(steps, cell, schema)]
    return Script(
        [fill(one) for one in prepare],
        [fill(one) for one in run],
        [] if cell.axes["follow"] == "never" else [fill(change)],
    )


def _transaction(steps: Sequence[str], cell: Cell, schema: str) -> list[str]:
    """Return the texts to send for one transaction."""
    undo, size = cell.axes["undo"], cell.axes["size"]
    if not cell.in_block:
        return [one for step in steps for one in step.split("; ")]
    end = "ROLLBACK" if undo == "rollback" else "COMMIT"
    text = "; ".join(["BEGIN", *steps])
    if size == "prepared":
        return [f"{text}; PREPARE TRANSACTION '{schema}'", f"{end} PREPARED '{schema}'"]
    return [f"{text}; {end}"]


def all_pairs(axes: dict[str, tuple[str, ...]], random: Random) -> list[dict[str, str]]:
    """Return combinations of values in which each pair of values of two axes is found; greedily few."""
    pairs = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(axes, 2)
        for x in axes[a]
        for y in axes[b]
    }
    found = []
    while pairs:
        tries = [
            _extend(dict(random.choice(sorted(map(sorted, pairs)))), axes, pairs, random) for _ in range(30)
        ]
        best = max(tries, key=lambda row: len(_covered(row, pairs)))
        pairs -= _covered(best, pairs)
        found.append({axis: best[axis] for axis in axes})
    return found


def _extend(
    row: dict[str, str], axes: dict[str, tuple[str, ...]], pairs: set[Any], random: Random
) -> dict[str, str]:
    for axis in random.sample([*axes], len(axes)):
        if axis not in row:
            values = random.sample(axes[axis], len(axes[axis]))
            row[axis] = max(values, key=lambda value: len(_covered(row | {axis: value}, pairs)))
    return row


def _covered(row: dict[str, str], pairs: set[Any]) -> set[Any]:
    return {frozenset(one) for one in itertools.combinations(row.items(), 2)} & pairs


def core(version: int) -> list[Cell]:
    """Return the cells that `make test` runs: forms on a new and on a known table, of one environment."""
    usual = {axis: values[0] for axis, values in AXES.items()}
    made = [
        _possible((form,), state, place, False, usual)
        for form in forms()
        if form.words & {"pair", "core"} and form.runs_on(version)
        for state, place in (("new", "after"), ("known", "alone"))
    ]
    return [cell for cell in made if cell.environment == "all"]


def cells(version: int, seed: int = 0) -> list[Cell]:
    """Return the cells of the grid for a server's version."""
    random = Random(seed)
    values = all_pairs(AXES, random)
    usual = {axis: values[0] for axis, values in AXES.items()}
    places = list(itertools.product(STATES, PLACES))
    known = [form for form in forms() if form.runs_on(version)]
    made = []
    for form in known:
        for number in range(max(len(places), len(values))):
            state, place = places[number % len(places)]
            made.append(_possible((form,), state, place, False, values[number % len(values)]))
        if "unsafe" not in form.words:
            made.append(
                msgspec.structs.replace(_possible((form,), "known", "between", False, usual), binary=True)
            )
        random.shuffle(values)
    paired = [form for form in known if "pair" in form.words]
    for (first, second), apart in itertools.product(itertools.permutations(paired, 2), (False, True)):
        if not first.words | second.words >= {"plain", "root"}:
            axes = random.choice(values) | {"undo": random.choice(("none", "savepoint"))}
            made.append(
                _possible((first, second), random.choice(STATES[:2]), random.choice(PLACES), apart, axes)
            )
    return [*{cell.name: cell for cell in made}.values()]


def _possible(forms: tuple[Form, ...], state: str, place: str, apart: bool, axes: dict[str, str]) -> Cell:
    """Return a cell whose axes have values that are possible with its forms."""
    axes = dict(axes)
    words = {word for form in forms for word in form.words}
    if "plain" in words or (axes["kind"] == "root" and "stored" in words):
        axes["kind"] = "plain"
    elif "root" in words or (axes["kind"] == "leaf" and "whole" in words):
        axes["kind"] = "root"
    if "alone" in words:
        state, place = ("known" if state == "new" else state), "alone"
        axes |= {"undo": "none", "size": "small"}
    if "unsafe" in words:
        state, place = "known", "alone"
        axes = {axis: values[0] for axis, values in AXES.items()}
    if apart:
        axes |= {"size": "small"}
        axes["undo"] = "none" if axes["undo"] == "rollback" else axes["undo"]
    if state == "new":
        axes["undo"] = "none" if axes["undo"] == "rollback" else axes["undo"]
        axes["mode"] = "running" if axes["mode"] == "copying" else axes["mode"]
    return Cell(forms, state, place, apart, axes)


def names() -> Iterator[str]:
    """Yield all names that have a row, or a reason why they have none."""
    yield from (name for name, _, _ in rows())
    for text in TABLE["not_applicable"].values():
        for one in text.split(","):
            verbs, _, rest = one.strip().partition(" ")
            yield from (f"{verb} {rest}".strip() for verb in verbs.split("|"))
