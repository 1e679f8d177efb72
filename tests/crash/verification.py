"""Changes of a replica that `logicalrep verify` must find, and its verdicts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException

from logicalrep.replica import replica_tables
from tests.crash.shapes import QUIET
from tests.replica.tables import open_table, read_table
from tests.targets.formats import iceberg_table

Verdict: TypeAlias = dict[str, Any]
"""A line that `logicalrep verify --json` prints: the result of one table."""

CHANGED_ROWS: Final = 100
"""Largest number of ids whose rows in the replica one call of `change_rows` changes."""


def change_rows(target: Path, random: Random) -> dict[str, set[str]]:
    """Change or delete random rows of the replica's quiet tables, which no writer changes.

    If the replica replaces the rows of a table meanwhile, because the recorder has copied the table anew,
    only the rows that are changed afterwards count.

    Returns:
        The ids of the changed rows, by qualified name of the table; empty if a quiet table is not there yet.
    """
    places = {one.name: one.place for one in replica_tables(target).values()}
    if not set(QUIET) <= places.keys():
        return {}
    ids = [(name, number) for name in QUIET for number in _ids(places[name])]
    changed: dict[str, set[str]] = {}
    versions: dict[str, int] = {}
    for name, number in random.sample(ids, min(CHANGED_ROWS, len(ids))):
        value = None if random.random() < 0.4 else random.choice(["'changed'", "''"])
        while (version := _change_row(places[name], f"id = {number}", value)) is None:
            pass
        if version != versions.get(name, version - 1) + 1:
            del changed[f"public.{name}"]
        versions[name] = version
        changed.setdefault(f"public.{name}", set()).add(str(number))
    return changed


def _change_row(place: str, condition: str, value: str | None) -> int | None:
    """Set the column `big` of the rows that match a condition to an SQL value; delete the rows if it is None.

    Returns:
        The version of the table that has the change; None after a conflict with another commit.
    """
    if not (Path(place) / "_delta_log").exists():
        return _delete_from_iceberg(place, condition)
    table = DeltaTable(place)
    try:
        if value is None:
            table.delete(condition)
        else:
            table.update({"big": value}, predicate=condition)
    except CommitFailedError:
        return None
    return table.version()


def _delete_from_iceberg(place: str, condition: str) -> int | None:
    """Delete a row of an Iceberg table; return its new version, or None after a conflict."""
    try:
        iceberg_table(Path(place)).delete(condition)
    except CommitFailedException:
        return None
    return open_table(place).version


def _ids(place: str) -> list[int]:
    return sorted(set(read_table(place)["id"].to_pylist()))


def read_verdicts(output: str) -> list[Verdict]:
    """Return the verdicts in the output of `logicalrep verify --json`."""
    return [msgspec.json.decode(line) for line in output.splitlines() if line.startswith("{")]


def found_ids(verdict: Verdict) -> set[str]:
    """Return the ids of the rows that a verdict reports as different."""
    return {row["key"]["id"] for row in verdict["differences"]}


def is_replaced(verdict: Verdict) -> bool:
    """Return whether a snapshot of all rows is probably pending: more changes are pending than rows exist."""
    return bool(verdict["pending"] > verdict["rows"])


def row_keys(verdict: Verdict) -> list[tuple[str, ...]]:
    """Return the keys of the rows that a verdict reports as different.

    The keys of tables without a key are NULL and all values of the row; then the recorder copies all rows.
    """
    return [tuple(str(value) for value in row["key"].values()) for row in verdict["differences"]]
