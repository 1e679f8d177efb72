"""Changes of a replica that `pgoutput verify` must find, and its verdicts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import msgspec
from deltalake import DeltaTable

from pgoutput.replica import replica_tables
from tests.crash.shapes import QUIET

Verdict: TypeAlias = dict[str, Any]
"""A line that `pgoutput verify --json` prints: the result of one table."""

CHANGED_ROWS: Final = 100
"""Number of ids whose rows in the replica are changed at once."""


def change_rows(target: Path, random: Random) -> dict[str, set[str]]:
    """Change or delete random rows of quiet tables of a replica.

    Returns:
        The ids of the changed rows, by qualified name of the table; empty if a table is not complete yet.
    """
    places = {one.name: one.place for one in replica_tables(target).values()}
    if not set(QUIET) <= places.keys():
        return {}
    ids = [(name, number) for name in QUIET for number in _ids(places[name])]
    changed: dict[str, set[str]] = {}
    for name, number in random.sample(ids, min(CHANGED_ROWS, len(ids))):
        table, condition = DeltaTable(places[name]), f"id = {number}"
        if random.random() < 0.4:
            table.delete(condition)
        else:
            table.update({"big": random.choice(["'changed'", "''"])}, predicate=condition)
        changed.setdefault(f"public.{name}", set()).add(str(number))
    return changed


def _ids(place: str) -> list[int]:
    return sorted(set(DeltaTable(place).to_pyarrow_table(columns=["id"])["id"].to_pylist()))


def read_verdicts(output: str) -> list[Verdict]:
    """Return the verdicts in the output of `pgoutput verify --json`."""
    return [msgspec.json.decode(line) for line in output.splitlines() if line.startswith("{")]


def found_ids(verdict: Verdict) -> set[str]:
    """Return the ids of the rows that a verdict reports as different."""
    return {row["key"]["id"] for row in verdict["differences"]}
