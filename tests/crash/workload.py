"""A workload with every kind of change that a stream can have. The writers reconnect after restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Event
from typing import Final, LiteralString

import psycopg

from tests.crash import publisher
from tests.crash.publisher import Publisher
from tests.crash.recorder import PUBLICATION
from tests.crash.writers import Connection, Writers

WRITERS: Final = 3
ACCOUNTS: Final = 300

SCHEMAS_SINCE: Final = 15
"""First server version with FOR TABLES IN SCHEMA. On older servers, writers add each new table by name."""

SCHEMA: Final[tuple[LiteralString, ...]] = (
    "CREATE DOMAIN positive AS int8 CHECK (VALUE > 0)",
    # Rows are only inserted, with unique ids and without a key, which would hide duplicates.
    "CREATE TABLE ledger (id int8, pad text)",
    "CREATE TABLE accounts (id int PRIMARY KEY, note text, amount numeric, big text)",
    "ALTER TABLE accounts ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE audit (id int, b text)",
    "ALTER TABLE audit REPLICA IDENTITY FULL",
    'CREATE TABLE scratch (id positive PRIMARY KEY, "odd "" name" text)',
    "CREATE TABLE shapes (id int PRIMARY KEY, n int)",
)

BIG_TEXT: Final = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 150))"


def prepare(connection: Connection, version: int, rows: int) -> None:
    """Create the tables of the workload with some rows, and the publications of the tables."""
    publisher.prepare(connection)
    for statement in SCHEMA:
        connection.execute(statement)
    tables = (
        "TABLES IN SCHEMA public"
        if version >= SCHEMAS_SINCE
        else "TABLE ledger, accounts, audit, scratch, shapes"
    )
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR {tables}")
    connection.execute(
        "INSERT INTO ledger SELECT g, E'from\\tthe \\\\ beginning\\n' FROM generate_series(1, %s) g", [rows]
    )
    connection.execute(
        f"INSERT INTO accounts SELECT g, 'first', g / 7.0, {BIG_TEXT} FROM generate_series(1, {ACCOUNTS}) g"
    )
    connection.execute("INSERT INTO audit SELECT g % 50, NULL FROM generate_series(1, 500) g")
    connection.execute("INSERT INTO scratch SELECT g, NULL FROM generate_series(1, 500) g")
    connection.execute("INSERT INTO shapes SELECT g, g FROM generate_series(1, 50) g")


class Workload(Writers):
    """Threads that write to a server; a context manager whose exit ends threads and prepared transactions.

    Attributes:
        altering: An event that is set after the slot was created, to allow changes of schemas. If a server
            creates a slot during TRUNCATE or ALTER TABLE, it may be unable to decode later changes (18.4:
            "could not map filenumber … to relation OID", at every attempt).

    Args:
        dsn: DSN of the server.
        version: Major version of the server.
        seed: Seed of the writers' decisions. The time of each decision depends on the speed of the machine.
        retyping: Whether columns are changed from int4 to int8 and back. The stream does not report that
            existing rows then have another binary format.
        pause: Seconds that each writer waits after a step, in addition to its own pauses.
    """

    def __init__(
        self, dsn: str, version: int, seed: int, *, retyping: bool = True, pause: float = 0.0
    ) -> None:
        self.altering = Event()
        self._architect = Architect(version, Random(f"{seed} architect"), self.altering, retyping)
        self._publisher = Publisher(version, Random(f"{seed} publisher"), self.altering)
        numbers = range(1, WRITERS + 1)
        writers = [Writer(number, version, Random(f"{seed} {number}")) for number in numbers]
        super().__init__(dsn, [*writers, self._architect, self._publisher], pause)

    @property
    def altered(self) -> dict[str, list[str]]:
        """Alterations of a table's publication, or "created" for a new table, by qualified table name."""
        return self._publisher.altered | {table: ["created"] for table in self._architect.added}


class Writer:
    """A writer that runs transactions without schema changes; some rows are changed by no other writer."""

    def __init__(self, number: int, version: int, random: Random) -> None:
        self.steps = 0
        self._number = number
        self._version = version
        self._random = random
        self._last_id = number * 10**10
        self._actions: dict[Callable[[Connection], None], int] = {
            self._small: 40,
            self._savepoints: 15,
            self._rolled_back: 5,
            self._prepared: 8,
            self._big: 8,
        }

    def step(self, connection: Connection) -> None:
        """Run one or several random transactions."""
        (action,) = self._random.choices(list(self._actions), list(self._actions.values()))
        action(connection)
        self.steps += 1
        time.sleep(self._random.uniform(0, 0.02))

    def settle(self, connection: Connection) -> None:
        """Commit or roll back the prepared transactions that this writer has left."""
        left = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", [f"{self._number} %"]
        )
        for (gid,) in left.fetchall():
            self._finish(connection, gid)

    def _small(self, connection: Connection) -> None:
        with connection.transaction():
            self._ledger(connection, self._random.randint(1, 3))
            for _ in range(self._random.randint(0, 3)):
                self._change(connection)

    def _savepoints(self, connection: Connection) -> None:
        with connection.transaction():
            for _ in range(self._random.randint(1, 4)):
                with _savepoint(connection, self._random.random() < 0.5):
                    self._ledger(connection, 2)
                    self._change(connection)
                    with _savepoint(connection, self._random.random() < 0.3):
                        self._ledger(connection, 1)
            self._ledger(connection, 1)

    def _rolled_back(self, connection: Connection) -> None:
        with connection.transaction(force_rollback=True):
            self._ledger(connection, self._random.choice([1, 300]))
            self._change(connection)

    def _prepared(self, connection: Connection) -> None:
        connection.execute("BEGIN")
        self._ledger(connection, self._random.choice([1, 5, 800]))
        self._change(connection)
        gid = self._prepare(connection)
        for _ in range(self._random.randint(0, 3)):
            with connection.transaction():
                self._ledger(connection, 1)
        time.sleep(self._random.choice([0, 0, 0.3]))
        self._finish(connection, gid)

    def _big(self, connection: Connection) -> None:
        """Write thousands of rows in one transaction, in steps between which other connections write."""
        connection.execute("BEGIN")
        for _ in range(self._random.randint(8, 25)):
            with _savepoint(connection, self._random.random() < 0.2):
                self._ledger(connection, self._random.randint(50, 400))
                self._change(connection)
            time.sleep(self._random.uniform(0, 0.02))
        match self._random.choices(["COMMIT", "ROLLBACK", "PREPARE"], [70, 15, 15])[0]:
            case "PREPARE":
                gid = self._prepare(connection)
                with connection.transaction():
                    self._ledger(connection, 1)
                self._finish(connection, gid)
            case "COMMIT":
                connection.execute("COMMIT")
            case _:
                connection.execute("ROLLBACK")

    def _prepare(self, connection: Connection) -> str:
        gid = f"{self._number} {self._last_id}"
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
        return gid

    def _finish(self, connection: Connection, gid: str) -> None:
        verb = self._random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        connection.execute(f"{verb} PREPARED '{gid}'")

    def _ledger(self, connection: Connection, rows: int) -> None:
        first, self._last_id = self._last_id + 1, self._last_id + rows
        connection.execute(
            "INSERT INTO ledger SELECT g, 'row ' || g FROM generate_series(%s::int8, %s::int8) g",
            [first, self._last_id],
        )

    def _change(self, connection: Connection) -> None:
        """Change a row that no other writer changes, or add rows that other writers may delete."""
        account = self._random.randrange(self._number, ACCOUNTS, WRITERS)
        execute = connection.execute
        match self._random.randint(0, 7):
            case 0 | 1:  # the TOASTed text does not change
                execute(
                    "UPDATE accounts SET note = %s, amount = amount + 0.01 WHERE id = %s",
                    [str(self._last_id), account],
                )
            case 2:
                execute(f"UPDATE accounts SET big = {BIG_TEXT} WHERE id = %s", [account])
            case 3:
                execute("DELETE FROM accounts WHERE id = %s", [account])
            case 4:
                execute(
                    f"INSERT INTO accounts VALUES (%s, 'again', 'NaN', {BIG_TEXT}) ON CONFLICT DO NOTHING",
                    [account],
                )
            case 5:  # duplicate rows
                execute("INSERT INTO audit SELECT %s, 'b' FROM generate_series(1, 3)", [self._number])
            case 6:
                execute(
                    "DELETE FROM audit WHERE ctid = (SELECT min(ctid) FROM audit WHERE id = %s)"
                    if self._version >= 14
                    else "DELETE FROM audit WHERE ctid = (SELECT ctid FROM audit WHERE id = %s LIMIT 1)",
                    [self._number],
                )
            case _:
                if self._version >= 14:
                    execute("SELECT pg_logical_emit_message(%s, 'crash', 'm')", [self._random.random() < 0.5])


class Architect:
    """A writer that creates, alters and truncates tables, and runs the SQL command CHECKPOINT."""

    def __init__(self, version: int, random: Random, altering: Event, retyping: bool) -> None:
        self.steps = 0
        self.added: set[str] = set()
        self._retyping = retyping
        self._version = version
        self._random = random
        self._altering = altering
        self._columns = 0
        self._tables = 0
        self._last_id = 1000

    def settle(self, connection: Connection) -> None:
        """Do nothing: this writer leaves no prepared transactions."""

    def step(self, connection: Connection) -> None:
        """Run a random transaction, schema change, truncate or checkpoint."""
        action = self._random.choices(
            [self._reshape, self._rewrite, self._truncate, self._create, self._checkpoint],
            [40, 5 * self._retyping, 20, 3, 5],
        )[0]
        if self._altering.is_set():
            action(connection)
            self.steps += 1
        time.sleep(self._random.uniform(0.05, 0.3))

    def _reshape(self, connection: Connection) -> None:
        """Add and drop columns in one transaction, which may be streamed, and may be rolled back."""
        columns = self._shape(connection)
        self._columns += 1
        new = f"c{self._columns}"
        type_ = self._random.choice(["text", "numeric", "int8", "positive"])
        with connection.transaction(force_rollback=self._random.random() < 0.3):
            self._insert(connection, self._random.choice([1, 300]))
            connection.execute(f"ALTER TABLE shapes ADD {new} {type_}")
            for old in columns[1:]:
                if self._random.random() < 0.3:
                    connection.execute(f"ALTER TABLE shapes DROP {old}")
            connection.execute(
                f"INSERT INTO shapes (id, {new}) SELECT g, g FROM generate_series(%s::int, %s::int) g",
                [self._last_id + 1, self._last_id + 100],
            )
            self._last_id += 100
            if self._random.random() < 0.3:
                identity = self._random.choice(["DEFAULT", "FULL"])
                connection.execute(f"ALTER TABLE shapes REPLICA IDENTITY {identity}")
            connection.execute(
                f"UPDATE shapes SET {new} = id WHERE id %% 50 = %s", [self._random.randrange(50)]
            )
            connection.execute("DELETE FROM shapes WHERE id %% 7 = %s", [self._random.randrange(7)])

    def _rewrite(self, connection: Connection) -> None:
        with suppress(psycopg.errors.UndefinedColumn):
            type_ = self._random.choice(["int4", "int8"])
            connection.execute(f"ALTER TABLE shapes ALTER n TYPE {type_}")

    def _truncate(self, connection: Connection) -> None:
        with connection.transaction(force_rollback=self._random.random() < 0.2):
            self._scratch(connection, 50)
            if self._version >= 11 and self._random.random() < 0.5:
                connection.execute("TRUNCATE scratch")
            self._scratch(connection, self._random.choice([5, 300]))

    def _create(self, connection: Connection) -> None:
        self._tables += 1
        connection.execute(f"CREATE TABLE more_{self._tables} (id int PRIMARY KEY, a text)")
        # The recorder lists the new table as incomplete: it might be an old table with rows, moved here.
        self.added.add(f"public.more_{self._tables}")
        if self._version < SCHEMAS_SINCE:
            connection.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE more_{self._tables}")
        connection.execute(f"INSERT INTO more_{self._tables} SELECT g, g FROM generate_series(1, 10) g")

    def _checkpoint(self, connection: Connection) -> None:
        connection.execute("CHECKPOINT")

    def _shape(self, connection: Connection) -> list[str]:
        rows = connection.execute(
            "SELECT attname::text FROM pg_attribute"
            " WHERE attrelid = 'shapes'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return [name for (name,) in rows.fetchall()]

    def _insert(self, connection: Connection, rows: int) -> None:
        connection.execute(
            "INSERT INTO shapes (id) SELECT g FROM generate_series(%s::int, %s::int) g",
            [self._last_id + 1, self._last_id + rows],
        )
        self._last_id += rows

    def _scratch(self, connection: Connection, rows: int) -> None:
        connection.execute(
            "INSERT INTO scratch SELECT g, 'row' FROM generate_series(%s::int8, %s::int8) g",
            [self._last_id + 1, self._last_id + rows],
        )
        self._last_id += rows


@contextmanager
def _savepoint(connection: Connection, rolled_back: bool) -> Iterator[None]:
    with connection.transaction(force_rollback=rolled_back):
        yield
