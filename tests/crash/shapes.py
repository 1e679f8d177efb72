"""A workload with many tables whose rows are changed and whose columns are added, dropped and retyped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import Random
from threading import Event, Thread
from typing import Final, TypeAlias

import psycopg
from psycopg import sql

from tests.crash.recorder import PUBLICATION

logging.getLogger("psycopg").setLevel(logging.ERROR)

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

WRITERS: Final = 3
ROWS: Final = 20
BIG: Final = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))"

VALUES: Final = {
    "text": "'text ' || id",
    "int4": "id % 1000",
    "int8": "id * 1000000007",
    "numeric(8, 2)": "id % 1000 / 7.0",
    "numeric(12, 4)": "id % 1000 / 7.0",
    "timestamptz": "now()",
    "bool": "id % 2 = 0",
    "text[]": "ARRAY[note, NULL, '']",
    "jsonb": "jsonb_build_object('id', id)",
    "date": "CASE id % 5 WHEN 0 THEN 'infinity' ELSE current_date END",
    "uuid": "md5(id::text)::uuid",
}
"""SQL expressions for the values of an added column, by the column's type."""

WIDER: Final = {"int4": "int8", "numeric(8, 2)": "numeric(12, 4)", "int8": "text", "uuid": "text"}
"""Type to which a column is retyped, by its old type."""


class Tables:
    """Tables, and threads that write to the tables; a context manager whose exit ends the threads.

    Attributes:
        steps: Number of steps that all writers have run; 0 until the context has ended.

    Args:
        dsn: DSN of the server.
        count: Number of tables.
        seed: Seed of the writers' decisions. The time of each decision depends on the speed of the machine.
    """

    def __init__(self, dsn: str, count: int, seed: int) -> None:
        self.steps = 0
        self._dsn = dsn
        self._stop = Event()
        self._failures: list[BaseException] = []
        # Each writer has its own tables, so that writers do not wait for each other.
        self._writers = [
            Writer(range(first, count, WRITERS), Random(f"{seed} {first}")) for first in range(WRITERS)
        ]
        self._threads = [Thread(target=self._run, args=[writer]) for writer in self._writers]

    def create(self) -> None:
        """Create the tables, with some rows, and a publication of all tables."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for writer in self._writers:
                writer.create(connection)
            connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")

    def __enter__(self) -> Tables:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for writer in self._writers:
                writer.settle(connection)
                self.steps += writer.steps

    def _run(self, writer: Writer) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None) as connection:
                while not self._stop.is_set():
                    writer.step(connection)
        except BaseException as failure:
            self._failures.append(failure)


class Writer:
    """A writer that changes the rows and columns of its own tables in random steps."""

    def __init__(self, numbers: range, random: Random) -> None:
        self.steps = 0
        self._random = random
        self._names = [f"t{number:03}" for number in numbers]
        self._full = {name for number, name in zip(numbers, self._names, strict=True) if number % 10 == 9}
        """Names of the tables that have REPLICA IDENTITY FULL and no key."""
        self._columns: dict[str, dict[str, str]] = {name: {} for name in self._names}
        self._last = ROWS
        self._actions: dict[Callable[[Connection, str], None], int] = {
            self._insert: 25,
            self._update: 20,
            self._unchanged: 15,
            self._new_key: 8,
            self._delete: 8,
            self._several: 10,
            self._prepared: 4,
            self._big: 2,
            self._truncate: 1,
            self._add: 3,
            self._drop: 2,
            self._widen: 2,
        }

    def create(self, connection: Connection) -> None:
        """Create the tables that only this writer changes."""
        for name in self._names:
            key = "" if name in self._full else " PRIMARY KEY"
            _run(
                connection, f"CREATE TABLE {name} (id int8{key}, note text, amount numeric(10, 2), big text)"
            )
            _run(connection, f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL")
            if name in self._full:
                _run(connection, f"ALTER TABLE {name} REPLICA IDENTITY FULL")
            _run(
                connection,
                f"INSERT INTO {name} SELECT g, 'first', g, {BIG} FROM generate_series(1, {ROWS}) g",
            )

    def step(self, connection: Connection) -> None:
        """Change one table at random: its rows in one or several transactions, or its columns."""
        (action,) = self._random.choices(list(self._actions), list(self._actions.values()))
        action(connection, self._random.choice(self._names))
        self.steps += 1
        time.sleep(self._random.uniform(0, 0.03))

    def settle(self, connection: Connection) -> None:
        """Insert into each table, so that the stream describes the latest columns of each table."""
        for name in self._names:
            self._insert(connection, name)

    def _insert(self, connection: Connection, name: str) -> None:
        self._last += 1
        number = self._random.randint(1, 5)
        first, self._last = self._last, self._last + number
        _run(
            connection,
            f"INSERT INTO {name} (id, note, amount, big)"
            f" SELECT g, 'new', g % 100, CASE g % 3 WHEN 0 THEN {BIG} END"
            f" FROM generate_series({first}, {self._last}) g",
        )

    def _update(self, connection: Connection, name: str) -> None:
        new = "".join(f", {column} = {VALUES[type_]}" for column, type_ in self._columns[name].items())
        _run(connection, f"UPDATE {name} SET note = 'updated {self.steps}'{new} WHERE {self._some()}")

    def _unchanged(self, connection: Connection, name: str) -> None:
        """Update rows but not their TOASTed values, so that the new tuples have unchanged values."""
        _run(connection, f"UPDATE {name} SET amount = amount + 1 WHERE {self._some()}")

    def _new_key(self, connection: Connection, name: str) -> None:
        _run(connection, f"UPDATE {name} SET id = -id WHERE {self._some()}")

    def _delete(self, connection: Connection, name: str) -> None:
        _run(connection, f"DELETE FROM {name} WHERE {self._some()}")

    def _several(self, connection: Connection, name: str) -> None:
        """Change the same rows several times in one transaction, whose last changes may be rolled back."""
        with connection.transaction():
            self._insert(connection, name)
            self._unchanged(connection, name)
            _run(connection, "SAVEPOINT s")
            self._delete(connection, name)
            self._new_key(connection, name)
            if self._random.random() < 0.5:
                _run(connection, "ROLLBACK TO s")
            self._update(connection, name)

    def _prepared(self, connection: Connection, name: str) -> None:
        gid = f"{name} {self.steps}"
        _run(connection, "BEGIN")
        self._insert(connection, name)
        self._unchanged(connection, name)
        _run(connection, f"PREPARE TRANSACTION '{gid}'")
        if self._random.random() < 0.5:
            self._insert(connection, self._random.choice([one for one in self._names if one != name]))
        _run(connection, f"{self._random.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")

    def _big(self, connection: Connection, name: str) -> None:
        """Run a transaction that is large enough to be streamed while in progress."""
        with connection.transaction():
            self._last += 1_000
            _run(
                connection,
                f"INSERT INTO {name} (id, note) SELECT g, repeat('x', 200)"
                f" FROM generate_series({self._last - 999}, {self._last}) g",
            )
            _run(connection, f"DELETE FROM {name} WHERE id > {self._last - 900} AND id <= {self._last}")

    def _truncate(self, connection: Connection, name: str) -> None:
        _run(connection, f"TRUNCATE {name}")
        self._insert(connection, name)

    def _add(self, connection: Connection, name: str) -> None:
        column, type_ = f"c{self.steps}", self._random.choice(list(VALUES))
        _run(connection, f"ALTER TABLE {name} ADD COLUMN {column} {type_}")
        self._columns[name][column] = type_

    def _drop(self, connection: Connection, name: str) -> None:
        if self._columns[name]:
            column = self._random.choice(list(self._columns[name]))
            _run(connection, f"ALTER TABLE {name} DROP COLUMN {column}")
            del self._columns[name][column]

    def _widen(self, connection: Connection, name: str) -> None:
        for column, type_ in self._columns[name].items():
            if type_ in WIDER:
                wider = WIDER[type_]
                _run(
                    connection,
                    f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {wider} USING {column}::{wider}",
                )
                self._columns[name][column] = wider
                return

    def _some(self) -> str:
        """Return an SQL condition that selects about a seventh of a table's rows."""
        return f"abs(id) % 7 = {self._random.randint(0, 6)}"


def _run(connection: Connection, statement: str) -> None:
    connection.execute(sql.SQL(statement))
