"""A workload that alters publications while a recorder records them.

Each table has its own publication, which is altered once. So no later alteration of the same table hides an
alteration that the recorder has missed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from random import Random
from threading import Event
from typing import Final

from tests.crash.writers import Connection

SCHEMA: Final = "moving"
TABLES: Final = 12
PUBLICATIONS: Final = tuple(f"moving_{number}" for number in range(TABLES))
ROWS: Final = 200

ALTERATION_SHARE: Final = 0.03
"""Share of the writer's steps that alter a publication, from 0 to 1."""

PAUSES: Final = 0, 0.05, 0.5, 3
"""Seconds to wait between an alteration and its reversal; one of these values is chosen at random."""

_ALL_OPERATIONS: Final = {10: "insert, update, delete", 11: "insert, update, delete, truncate"}

CHANGES: Final = {
    10: [
        ("DROP TABLE {table}", "ADD TABLE {table}"),
        ("SET (publish = 'insert')", "SET (publish = '{all}')"),
        ("SET (publish = 'update, delete')", "SET (publish = '{all}')"),
    ],
    15: [
        ("SET TABLE {table} WHERE (id % 2 = 0)", "SET TABLE {table}"),
        ("SET TABLE {table} (id, n)", "SET TABLE {table}"),
    ],
}
"""Pairs of an ALTER PUBLICATION clause and its reversal, by the first server version with both clauses."""


def prepare(connection: Connection) -> None:
    """Create the tables, each with some rows and a publication of its own."""
    connection.execute(f"CREATE SCHEMA {SCHEMA}")
    for number, publication in enumerate(PUBLICATIONS):
        table = f"{SCHEMA}.t{number}"
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, a text)")
        connection.execute(f"INSERT INTO {table} SELECT g, g, 'first' FROM generate_series(1, {ROWS}) g")
        connection.execute(f"CREATE PUBLICATION {publication} FOR TABLE {table}")


class Publisher:
    """A writer that changes rows of the module's tables, and alters the publications of the tables.

    Attributes:
        altered: Alterations of a table's publication, each with its time, by qualified name of the table.
        steps: Number of calls of `step`.

    Args:
        version: Major version of the server.
        random: Random numbers that decide what each step does.
        altering: An event that is set when publications may be altered.
    """

    def __init__(self, version: int, random: Random, altering: Event) -> None:
        self.steps = 0
        self.altered: dict[str, list[str]] = {}
        self._random = random
        self._altering = altering
        self._last_id = ROWS
        self._left = random.sample(range(TABLES), TABLES)
        self._all = max((since, names) for since, names in _ALL_OPERATIONS.items() if since <= version)[1]
        self._changes = [change for since, some in CHANGES.items() if since <= version for change in some]

    def settle(self, connection: Connection) -> None:
        """Do nothing: this writer leaves no prepared transactions to end."""

    def step(self, connection: Connection) -> None:
        """Run a transaction, or alter a publication and maybe reverse the alteration."""
        if self._altering.is_set() and self._left and self._random.random() < ALTERATION_SHARE:
            self._alter(connection, self._left.pop())
        elif self._altering.is_set():
            self._change(connection, self._random.randrange(TABLES))
        self.steps += 1
        time.sleep(self._random.uniform(0.02, 0.1))

    def _alter(self, connection: Connection, number: int) -> None:
        clause, reversal = self._random.choice(self._changes)
        self._publish(connection, number, clause)
        self._change(connection, number)
        if self._random.random() < 0.7:
            time.sleep(self._random.choice(PAUSES))
            self._publish(connection, number, reversal)
            self._change(connection, number)

    def _publish(self, connection: Connection, number: int, change: str) -> None:
        table = f"{SCHEMA}.t{number}"
        clause = change.format(table=table, all=self._all)
        self.altered.setdefault(table, []).append(f"{datetime.now(UTC):%H:%M:%S.%f} {clause}")
        connection.execute(f"ALTER PUBLICATION {PUBLICATIONS[number]} {clause}".encode())

    def _change(self, connection: Connection, number: int) -> None:
        table, rest = f"{SCHEMA}.t{number}", self._random.randrange(7)
        with connection.transaction():
            self._last_id += 3
            connection.execute(
                f"INSERT INTO {table} SELECT g, g, 'new'"
                f" FROM generate_series({self._last_id - 2}, {self._last_id}) g"
            )
            connection.execute(f"UPDATE {table} SET n = n + 1 WHERE mod(id, 7) = {rest}")
            connection.execute(f"DELETE FROM {table} WHERE mod(id, 31) = {rest} AND id > {ROWS}")
