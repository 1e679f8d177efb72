"""A workload with many tables of several shapes, whose rows are changed and whose columns are altered."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from psycopg import sql

from tests.crash.recorder import PUBLICATION
from tests.crash.writers import Connection, Writers

WRITERS: Final = 3
ROWS: Final = 20
BIG: Final = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))"

TYPES: Final = (
    "CREATE DOMAIN label AS text",
    "CREATE DOMAIN price AS numeric(10, 2)",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
)


class Shape(NamedTuple):
    """How a table is created and published. Each table has the columns id, note, amount and big."""

    create: str
    """SQL statements that create the table."""
    published: str = "{name}"
    """The table in ALTER PUBLICATION … ADD TABLE, with column list and row filter."""
    copies: int = 1
    """Number of equal rows that each insert adds."""


_COLUMNS = "note text, amount numeric(10, 2), big text STORAGE EXTERNAL"

SHAPES: Final = (
    Shape(f"CREATE TABLE {{name}} (id int8 PRIMARY KEY, {_COLUMNS})"),
    Shape(f"CREATE TABLE {{name}} (id int8, {_COLUMNS}, PRIMARY KEY (note, id))"),
    Shape(
        f"CREATE TABLE {{name}} (id int8, {_COLUMNS}); ALTER TABLE {{name}} REPLICA IDENTITY FULL", copies=2
    ),
    Shape(
        f"CREATE TABLE {{name}} (id int8 NOT NULL UNIQUE, {_COLUMNS});"
        "ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name}_id_key"
    ),
    Shape(
        f"CREATE TABLE {{name}} (id int8 PRIMARY KEY, {_COLUMNS}) PARTITION BY HASH (id);"
        "CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES WITH (MODULUS 2, REMAINDER 1)"
    ),
    # An update after which a row satisfies the filter is sent as an insert, which lacks unchanged TOASTed
    # values outside of the replica identity.
    Shape(
        f"CREATE TABLE {{name}} (id int8 PRIMARY KEY, {_COLUMNS});ALTER TABLE {{name}} REPLICA IDENTITY FULL",
        "{name} WHERE (id > 0)",
    ),
    Shape(f"CREATE TABLE {{name}} (id int8 PRIMARY KEY, {_COLUMNS})", "{name} (id, note, big)"),
    Shape(
        """CREATE TABLE {name} (
            id int8 PRIMARY KEY, note label, amount price, big text STORAGE EXTERNAL,
            twice int8 GENERATED ALWAYS AS (id * 2) STORED,
            mood mood DEFAULT (enum_range(NULL::mood))[1 + floor(random() * 3)::int],
            number float8 DEFAULT ('{{NaN, -0, Infinity, 1e-300}}'::float8[])[1 + floor(random() * 4)::int],
            bytes bytea DEFAULT decode(md5(random()::text), 'hex'),
            document jsonb DEFAULT jsonb_build_object('a', ARRAY[random()::text, NULL]),
            at timestamptz DEFAULT clock_timestamp(),
            lasts interval DEFAULT make_interval(secs => random() * 1e6),
            range int4range DEFAULT int4range(1, 1 + floor(random() * 9)::int),
            words text[] DEFAULT ARRAY['x', NULL, '']
        )"""
    ),
)
"""Shapes of the tables; a table's number decides its shape."""

QUIET: Final = tuple(f"t{number:03}" for number in range(len(SHAPES)))
"""Names of the tables that no writer changes, one of each shape."""

VALUES: Final = {
    "text": "'text ' || id",
    "integer": "id % 1000",
    "bigint": "id * 1000000007",
    "numeric(8,2)": "id % 1000 / 7.0",
    "numeric(12,4)": "id % 1000 / 7.0",
    "timestamp with time zone": "now()",
    "boolean": "id % 2 = 0",
    "text[]": "ARRAY[note, NULL, '']",
    "jsonb": "jsonb_build_object('id', id)",
    "date": "CASE id % 5 WHEN 0 THEN 'infinity' ELSE current_date END",
    "uuid": "md5(id::text)::uuid",
}
"""SQL expressions for the values of an added column, by the column's type as format_type writes it."""

WIDER: Final = {"integer": "bigint", "numeric(8,2)": "numeric(12,4)", "bigint": "text", "uuid": "text"}
"""Type to which a column is retyped, by its old type."""

DEFAULTS: Final = "integer DEFAULT 5", "text DEFAULT 'default'", "integer DEFAULT (random() * 1000)::int"
"""SQL definitions of added columns that give existing rows a value."""


class Tables(Writers):
    """Tables, and threads that write to the tables; a context manager whose exit ends the threads.

    Attributes:
        names: Names of the tables.
        published: For each table, by name, how ALTER PUBLICATION … ADD TABLE publishes the table.

    Args:
        dsn: DSN of the server.
        count: Number of tables, at least twice as many as there are shapes.
        seed: Seed of the writers' decisions. The time of each decision depends on the speed of the machine.
        unsent: Whether to alter columns also in ways that give existing rows values that are not sent.
        pause: Seconds that each writer waits after a step, in addition to its own pauses.
    """

    def __init__(self, dsn: str, count: int, seed: int, *, unsent: bool, pause: float = 0.0) -> None:
        shapes = {f"t{number:03}": SHAPES[number % len(SHAPES)] for number in range(count)}
        self.names = list(shapes)
        self.published = {name: shape.published.format(name=name) for name, shape in shapes.items()}
        # Each writer has its own tables, so that writers do not wait for each other.
        self._own = [
            Writer(
                number,
                {name: shapes[name] for name in self.names[number::WRITERS]},
                f"{seed} {number}",
                unsent,
            )
            for number in range(WRITERS)
        ]
        super().__init__(dsn, self._own, pause)

    def create(self, connection: Connection, published: list[str]) -> None:
        """Create the tables, with some rows, and a publication of the tables whose names are given."""
        for statement in TYPES:
            _run(connection, statement)
        for writer in self._own:
            writer.create(connection)
        tables = ", ".join(self.published[name] for name in published)
        via_root = "WITH (publish_via_partition_root = true)"
        _run(connection, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {tables} {via_root}")

    def touch(self, connection: Connection) -> None:
        """Insert into each table except the quiet ones, so that the stream describes its latest columns."""
        for writer in self._own:
            writer.touch(connection)


class Writer:
    """A writer that changes the rows and columns of its own tables in random steps."""

    def __init__(self, number: int, shapes: dict[str, Shape], seed: str, unsent: bool) -> None:
        self.steps = 0
        self._number = number
        self._shapes = shapes
        self._names = [name for name in shapes if name not in QUIET]
        self._random = Random(seed)
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
        if unsent:
            self._actions |= {self._add_default: 1, self._rename: 1, self._replace: 1, self._retype: 1}

    def create(self, connection: Connection) -> None:
        """Create the tables that only this writer changes."""
        for name, shape in self._shapes.items():
            for statement in shape.create.format(name=name).split(";"):
                _run(connection, statement)
            self._insert_rows(connection, name, range(1, ROWS + 1))

    def step(self, connection: Connection) -> None:
        """Change one table at random: its rows in one or several transactions, or its columns."""
        self.steps += 1
        (action,) = self._random.choices(list(self._actions), list(self._actions.values()))
        action(connection, self._random.choice(self._names))
        time.sleep(self._random.uniform(0, 0.03))

    def settle(self, connection: Connection) -> None:
        """Commit or roll back the prepared transactions that this writer has left."""
        gids = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", [f"{self._number} %"]
        )
        for (gid,) in gids.fetchall():
            self._finish(connection, gid)

    def touch(self, connection: Connection) -> None:
        """Insert a row into each of the writer's tables except the quiet ones."""
        for name in self._names:
            self._insert(connection, name)

    def _insert(self, connection: Connection, name: str) -> None:
        first, self._last = self._last + 1, self._last + self._random.randint(1, 5)
        self._insert_rows(connection, name, range(first, self._last + 1))

    def _insert_rows(self, connection: Connection, name: str, ids: range) -> None:
        _run(
            connection,
            f"INSERT INTO {name} (id, note, amount, big)"
            f" SELECT g, 'new', g % 100, CASE g % 3 WHEN 0 THEN {BIG} END"
            f" FROM generate_series({ids[0]}, {ids[-1]}) g, generate_series(1, {self._shapes[name].copies})",
        )

    def _update(self, connection: Connection, name: str) -> None:
        columns = self._added_columns(connection, name).items()
        new = "".join(f", {column} = {VALUES[type_]}" for column, type_ in columns)
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
        gid = f"{self._number} {self.steps}"
        _run(connection, "BEGIN")
        self._insert(connection, name)
        self._unchanged(connection, name)
        _run(connection, f"PREPARE TRANSACTION '{gid}'")
        if self._random.random() < 0.5:
            self._insert(connection, self._random.choice(self._names))
        self._finish(connection, gid)

    def _finish(self, connection: Connection, gid: str) -> None:
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
        type_ = self._random.choice(list(VALUES))
        _run(connection, f"ALTER TABLE {name} ADD COLUMN c{self.steps} {type_}")

    def _drop(self, connection: Connection, name: str) -> None:
        if columns := self._added_columns(connection, name):
            _run(connection, f"ALTER TABLE {name} DROP COLUMN {self._random.choice(list(columns))}")

    def _widen(self, connection: Connection, name: str) -> None:
        for column, type_ in self._added_columns(connection, name).items():
            if wider := WIDER.get(type_):
                _run(
                    connection,
                    f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {wider} USING {column}::{wider}",
                )
                return

    def _add_default(self, connection: Connection, name: str) -> None:
        definition = self._random.choice(DEFAULTS)
        _run(connection, f"ALTER TABLE {name} ADD COLUMN c{self.steps} {definition}")

    def _rename(self, connection: Connection, name: str) -> None:
        if columns := self._added_columns(connection, name):
            column = self._random.choice(list(columns))
            _run(connection, f"ALTER TABLE {name} RENAME COLUMN {column} TO c{self.steps}")

    def _replace(self, connection: Connection, name: str) -> None:
        """Drop a column, and add a column with the same name and type."""
        if columns := self._added_columns(connection, name):
            column, type_ = self._random.choice(list(columns.items()))
            _run(connection, f"ALTER TABLE {name} DROP COLUMN {column}, ADD COLUMN {column} {type_}")

    def _retype(self, connection: Connection, name: str) -> None:
        if columns := self._added_columns(connection, name):
            column = self._random.choice(list(columns))
            type_ = self._random.choice(list(VALUES))
            _run(connection, f"ALTER TABLE {name} ALTER COLUMN {column} DROP DEFAULT")
            _run(connection, f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {type_} USING {VALUES[type_]}")

    def _added_columns(self, connection: Connection, name: str) -> dict[str, str]:
        """Return the types of the columns that were added to a table, by column name."""
        columns = connection.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attname ~ '^c\\d' AND NOT attisdropped ORDER BY attnum",
            [name],
        )
        return dict(columns.fetchall())

    def _some(self) -> str:
        """Return an SQL condition that selects about a seventh of a table's rows."""
        return f"abs(id) % 7 = {self._random.randint(0, 6)}"


def _run(connection: Connection, statement: str) -> None:
    connection.execute(sql.SQL(statement))
