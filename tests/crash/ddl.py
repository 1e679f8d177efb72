"""A random program of DDL, publication changes and kills; each table that differs must be reported.

`python -m tests.crash.ddl --minutes 20 --version 14 --seed 1`. The server's tables are compared with the
Delta tables by the program's own SELECT, not by `logicalrep verify`. A table that differs must be reported by
the recorder (as incomplete), by `replica_tables` and by `logicalrep verify`. False reports are counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import psycopg
from deltalake import DeltaTable

from logicalrep.errors import LogicalrepError
from logicalrep.recording import list_segments, read_metadata
from logicalrep.replica import Dropped, replica_table, replica_tables, replicate
from logicalrep.verification import verify_tables
from tests.recorder.lab import Lab
from tests.replica.tables import row_texts
from tests.server import WHEEL_VERSION, Server

SCHEMAS: Final = "public", "s", "other"
"""Schemas of the tables. On servers that can do so, the schema `s` is published as a whole."""

ROOTS_SINCE: Final = 13
"""First major version that publishes partitions through their root."""
TRUNCATE_SINCE: Final = 11
"""First major version that sends TRUNCATE."""
SCHEMAS_SINCE: Final = 15
"""First major version with `FOR TABLES IN SCHEMA`."""

PUBLISHED_PLAIN: Final = """
    WITH published AS (
        SELECT c.oid, pubname FROM pg_publication_tables
        JOIN pg_namespace n ON nspname = schemaname
        JOIN pg_class c ON relnamespace = n.oid AND relname = tablename
    )
    SELECT DISTINCT oid::int8, oid::regclass::text FROM published p"""
"""SQL query for OID and name of the published tables, for servers without publish_via_partition_root."""
PUBLISHED: Final = f"""{PUBLISHED_PLAIN} WHERE NOT EXISTS (
        SELECT FROM pg_partition_ancestors(p.oid) above JOIN published root ON root.oid = above
        JOIN pg_publication r ON r.pubname = root.pubname WHERE pubviaroot AND above <> p.oid)
"""
"""SQL query for OID and name of the published tables, without partitions that are published as their root."""
COLUMNS: Final = """
    SELECT attname FROM pg_attribute WHERE attrelid = {0} AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class Outcome(msgspec.Struct):
    """Counts of what a random program has done, and the differences that it has found."""

    statements: int = 0
    """Number of DDL statements that the server has accepted."""
    harmless: int = 0
    """Number of accepted statements, also changes of rows, in rounds whose statements lose no changes."""
    compared: int = 0
    """Number of comparisons of a table."""
    different: int = 0
    """Number of comparisons that found a difference, reported or not."""
    silent: list[str] = msgspec.field(default_factory=list)
    """Descriptions of the differences that recorder, replica or `logicalrep verify` did not report."""
    alarms: list[str] = msgspec.field(default_factory=list)
    """False reports: tables that became incomplete in rounds of harmless statements, with the reasons."""


class Program:
    """A random program on one database, its recording and its replica.

    Args:
        random: Source of all choices.
        lab: The database.
        target: Folder of the replica.
    """

    def __init__(self, random: Random, lab: Lab, target: Path) -> None:
        self.random, self.lab, self.target = random, lab, target
        self.outcome = Outcome()
        self.log: list[str] = []
        """The statements since the last comparison."""
        self.difference: dict[int, str] = {}
        """For each compared table, by OID: the rows that only the server has, or only the replica."""
        self._number = 0
        self._dropped: Dropped = random.choice(["keep", "archive", "drop"])
        self._incomplete: set[tuple[int, str]] = set()
        """OIDs of the tables that were incomplete at the last comparison, with the reasons."""
        self._is_harmless = False
        self._touched: set[int] = set()
        """OIDs of the tables into which the last call of `touch` has inserted a row."""

    def prepare(self) -> None:
        """Create schemas, types, tables and publications."""
        self.lab.run("CREATE SCHEMA s", "CREATE SCHEMA other")
        self.lab.run("CREATE TYPE mood AS ENUM ('m0', 'happy')", "CREATE TYPE pair AS (x mood, y int)")
        for _ in range(8):
            self.create_table()
        via_root = " WITH (publish_via_partition_root)" if self.lab.version >= ROOTS_SINCE else ""
        if self.random.random() < 0.4:
            self.lab.run(f"CREATE PUBLICATION p FOR ALL TABLES{via_root}")
        else:
            names = [name for name in self.tables() if self.random.random() < 0.8] or self.tables()
            self.lab.run(f"CREATE PUBLICATION p FOR TABLE {', '.join(names)}{via_root}")
        schemas = " FOR TABLES IN SCHEMA s" if self.lab.version >= SCHEMAS_SINCE else ""
        self.lab.run(f"CREATE PUBLICATION q{schemas}{via_root}")
        self.log.clear()

    # What the statements are about

    def tables(self, kinds: str = "rp") -> list[str]:
        """Return the names of tables that are no partitions; `kinds` are values of pg_class.relkind."""
        listed = ", ".join(f"'{kind}'" for kind in kinds)
        rows = self.lab.rows(
            f"SELECT oid::regclass::text FROM pg_class WHERE relkind IN ({listed}) AND NOT relispartition "
            "AND relnamespace::regnamespace::text IN ('public', 's', 'other') ORDER BY oid"
        )
        return [name for (name,) in rows]

    def partition(self) -> tuple[str, str, str]:
        """Return a random partition, its parent table, and its bounds; empty texts if there is none."""
        rows = self.lab.rows(
            "SELECT c.oid::regclass::text, inhparent::regclass::text, pg_get_expr(relpartbound, c.oid) "
            "FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE relispartition "
            "AND c.relkind IN ('r', 'p') ORDER BY c.oid"
        )
        name, parent, bounds = self.random.choice(rows) if rows else ("", "", "")
        return name, parent, bounds

    def partitions(self) -> list[str]:
        """Return the names of the partitions that store rows (are not partitioned themselves)."""
        rows = self.lab.rows(
            "SELECT oid::regclass::text FROM pg_class WHERE relispartition AND relkind = 'r'"
        )
        return [name for (name,) in rows]

    def table(self, kinds: str = "rp") -> str:
        return self.random.choice(self.tables(kinds) or ["missing"])

    def column(self, table: str) -> str:
        """Return the name of a random column of a table, other than the key `id`."""
        rows = self.lab.rows(COLUMNS.format(f"'{table}'::regclass")) if table != "missing" else []
        return str(self.random.choice([name for (name,) in rows if name != "id"] or ["missing"]))

    def new(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}{self._number}"

    # Statements

    def run(self, *statements: str) -> None:
        """Run statements of DDL; the server may refuse them."""
        for statement in statements:
            with suppress(psycopg.Error):
                self.lab.run(statement)
                self.log.append(statement)
                self.outcome.statements += 1
                self.outcome.harmless += self._is_harmless

    def change_rows(self) -> None:
        """Insert, update or delete random rows of a random table."""
        name, random = self.table(), self.random
        first, last = random.randint(0, 39), random.randint(0, 39)
        column = self.column(name)
        statement = random.choice(
            [
                f"INSERT INTO {name} (id) SELECT g FROM generate_series({first}, {last}) g "
                f"ON CONFLICT DO NOTHING",
                f"UPDATE {name} SET {column} = DEFAULT WHERE id BETWEEN {first} AND {first + 5}",
                f"UPDATE {name} SET {column} = '{random.randint(0, 99)}' WHERE id % 7 = {first % 7}",
                f"UPDATE {name} SET id = id + 40 WHERE id = {first}",
                f"DELETE FROM {name} WHERE id BETWEEN {first} AND {first + 2}",
            ]
        )
        with suppress(psycopg.Error):
            self.lab.run(statement)
            self.log.append(statement)
            self.outcome.harmless += self._is_harmless

    def create_table(self) -> None:
        name = f"{self.random.choice(SCHEMAS[:2])}.{self.new('t')}"
        columns = "id int PRIMARY KEY"
        for type_ in self.random.sample(["text", "text", "int", "varchar(9)", "mood", "pair"], 3):
            value = {"mood": "'happy'", "pair": "'(happy,1)'", "int": "7"}.get(type_, "'some'")
            columns += f", {self.new('c')} {type_} DEFAULT {value}"
        if self.random.random() < 0.6 or self.lab.version < ROOTS_SINCE:
            self.run(f"CREATE TABLE {name} ({columns})")
        else:
            self.run(
                f"CREATE TABLE {name} ({columns}) PARTITION BY RANGE (id)",
                f"CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES FROM (0) TO (10)",
                f"CREATE TABLE {name}_b PARTITION OF {name} FOR VALUES FROM (10) TO (40) "
                "PARTITION BY RANGE (id)",
                f"CREATE TABLE {name}_ba PARTITION OF {name}_b FOR VALUES FROM (10) TO (20)",
                f"CREATE TABLE {name}_bb PARTITION OF {name}_b DEFAULT",
            )
        if self.random.random() < 0.8:
            self.run(f"INSERT INTO {name} (id) SELECT g FROM generate_series(5, 25) g")

    def drop_table(self) -> None:
        name = self.table()
        self.run(f"DROP TABLE {name}")
        if self.random.random() < 0.5:
            self.run(
                f"CREATE TABLE {name} (id int PRIMARY KEY, c0 text)", f"INSERT INTO {name} VALUES (1, 'new')"
            )

    def alter_column(self) -> None:
        name, random = self.table(), self.random
        column, new = self.column(name), self.new("c")
        back = random.random() < 0.5
        forms = [
            [f"ADD {new} int"],
            [f"ADD {new} int DEFAULT 5"],
            [f"ADD {new} text DEFAULT md5(random()::text)"],
            [f"DROP {column}"],
            [f"DROP {column}, ADD {column} text DEFAULT 'again'"],
            [f"ADD {new} int", f"DROP {new}", f"ADD {new} int"],
            [f"RENAME {column} TO {new}", f"ALTER {new} SET STATISTICS 9", f"RENAME {new} TO {column}"],
            [f"RENAME {column} TO {new}", *([f"RENAME {new} TO {column}"] if back else [])],
            [f"ALTER {column} TYPE varchar(3) USING left({column}::text, 3)"],
            [f"ALTER {column} TYPE text"],
            [f"ALTER {column} TYPE text USING upper({column}::text)"],
            [f"ALTER {column} SET DEFAULT NULL"],
            [f"ALTER {column} SET NOT NULL", f"ALTER {column} DROP NOT NULL"],
            [f"ALTER {column} SET STATISTICS 9"],
        ]
        for one in random.choice(forms):
            self.run(f"ALTER TABLE {name} {one}")
            if random.random() < 0.3:
                self.change_rows()

    def alter_table(self) -> None:
        name = self.table("r")
        bare = name.partition(".")[2] or name
        schema = self.random.choice(SCHEMAS)
        forms = [
            [f"ALTER TABLE {name} SET UNLOGGED", f"DELETE FROM {name} WHERE id < 9",
             f"ALTER TABLE {name} SET LOGGED"],
            [f"ALTER TABLE {name} SET SCHEMA {schema}"],
            [f"ALTER TABLE {name} SET SCHEMA other", f"DELETE FROM other.{bare} WHERE id > 20",
             f"ALTER TABLE other.{bare} SET SCHEMA s"],
            [f"ALTER TABLE {name} RENAME TO {self.new('t')}"],
            [f"ALTER TABLE {name} REPLICA IDENTITY {self.random.choice(['FULL', 'DEFAULT', 'NOTHING'])}"],
            [f"TRUNCATE {name}"],
            [f"VACUUM FULL {name}"],
            [f"CREATE INDEX ON {name} (id)", f"ANALYZE {name}"],
            [f"ALTER TABLE {name} SET (fillfactor = 80)"],
            [f"COMMENT ON TABLE {name} IS 'x'", f"GRANT SELECT ON {name} TO PUBLIC"],
        ]  # fmt: skip
        statements = self.random.choice(forms)
        if len(statements) == 3 and self.random.random() < 0.3:
            statements = [f"BEGIN; {'; '.join(statements)}; COMMIT"]
        self.run(*statements)
        with suppress(psycopg.Error):
            self.lab.run("ROLLBACK")

    def alter_partition(self) -> None:
        name, parent, bounds = self.partition()
        new = f"{self.random.choice(SCHEMAS)}.{self.new('p')}"
        low = self.random.randrange(40, 80, 5)
        if not name:
            return
        forms = [
            [f"TRUNCATE {name}"],
            [f"TRUNCATE {', '.join(self.partitions())}"],
            [f"TRUNCATE {parent}; INSERT INTO {parent} (id) VALUES (3), (30); TRUNCATE {name}"],
            [f"DROP TABLE {name}"],
            [f"ALTER TABLE {parent} DETACH PARTITION {name}"],
            [f"CREATE TABLE {new} (LIKE {parent} INCLUDING ALL)",
             f"ALTER TABLE {parent} ATTACH PARTITION {new} FOR VALUES FROM ({low}) TO ({low + 5})",
             f"INSERT INTO {parent} (id) VALUES ({low}), ({low + 1})",
             f"ALTER TABLE {parent} DETACH PARTITION {new}"],
            [f"ALTER TABLE {parent} DETACH PARTITION {name}", f"DELETE FROM {name} WHERE id % 2 = 0",
             f"ALTER TABLE {parent} ATTACH PARTITION {name} {bounds}"],
            [f"CREATE TABLE {new} (LIKE {parent} INCLUDING ALL)",
             f"INSERT INTO {new} (id) VALUES ({low}), ({low + 1})",
             f"ALTER TABLE {parent} ATTACH PARTITION {new} FOR VALUES FROM ({low}) TO ({low + 5})"],
            [f"CREATE TABLE {new} PARTITION OF {parent} FOR VALUES FROM ({low}) TO ({low + 5})",
             f"INSERT INTO {parent} (id) VALUES ({low}), ({low + 2})"],
            [f"ALTER TABLE {name} SET UNLOGGED", f"UPDATE {parent} SET id = id + 1 WHERE id = 9",
             f"ALTER TABLE {name} SET LOGGED"],
            [f"VACUUM FULL {name}"],
        ]  # fmt: skip
        self.run(*self.random.choice(forms))

    def alter_type(self) -> None:
        labels = self.lab.rows("SELECT enumlabel FROM pg_enum ORDER BY oid")
        attributes = self.lab.rows(COLUMNS.format("(SELECT typrelid FROM pg_type WHERE typname = 'pair')"))
        (label,), (attribute,) = self.random.choice(labels), self.random.choice(attributes)
        self.run(
            self.random.choice(
                [
                    f"ALTER TYPE mood RENAME VALUE '{label}' TO '{self.new('m')}'",
                    f"ALTER TYPE mood ADD VALUE '{self.new('m')}'",
                    f"ALTER TYPE pair RENAME ATTRIBUTE {attribute} TO {self.new('a')}",
                    f"ALTER TYPE pair ADD ATTRIBUTE {self.new('a')} int",
                ]
            )
        )

    def alter_publication(self) -> None:
        publication, name = self.random.choice("pq"), self.table()
        forms = [
            [f"ALTER PUBLICATION {publication} ADD TABLE {name}"],
            [f"ALTER PUBLICATION {publication} DROP TABLE {name}"],
            [f"ALTER PUBLICATION {publication} DROP TABLE {name}", f"DELETE FROM {name} WHERE id < 12",
             f"ALTER PUBLICATION {publication} ADD TABLE {name}"],
            [f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"],
            [f"ALTER PUBLICATION {publication} SET (publish = 'insert')"],
            [f"ALTER PUBLICATION {publication} SET (publish = 'insert')", f"DELETE FROM {name} WHERE id < 12",
             f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"],
            [f"ALTER PUBLICATION {publication} ADD TABLES IN SCHEMA other"],
            [f"ALTER PUBLICATION {publication} DROP TABLES IN SCHEMA other"],
        ]  # fmt: skip
        if self.lab.version >= ROOTS_SINCE:
            value = self.random.choice(["true", "false"])
            # Before PostgreSQL 15, the server heeds the publication that it reads first, if two differ.
            altered = [publication] if self.lab.version >= SCHEMAS_SINCE else ["p", "q"]
            forms.append(
                [f"ALTER PUBLICATION {n} SET (publish_via_partition_root = {value})" for n in altered]
            )
        self.run(*self.random.choice(forms))

    def do_no_harm(self) -> None:
        """Run random DDL that loses no changes: afterwards, no table may become incomplete."""
        name, new = self.table(), self.new("c")
        column, part = self.column(name), self.partition()[0]
        forms = [
            [f"ALTER TABLE {name} ADD {new} int"],
            [f"ALTER TABLE {name} DROP {column}"],
            [f"ALTER TABLE {name} ALTER {column} SET DEFAULT NULL"],
            [f"ALTER TABLE {name} ALTER {column} {one} NOT NULL" for one in ("SET", "DROP")],
            [f"ALTER TABLE {name} ALTER {column} SET STATISTICS 9"],
            [f"ALTER TABLE {name} ALTER {column} SET STORAGE EXTERNAL"],
            [f"ALTER TABLE {self.table('r')} REPLICA IDENTITY {self.random.choice(['FULL', 'DEFAULT'])}"],
            [f"ALTER TABLE {name} RENAME TO {self.new('t')}"],
            [f"ALTER TABLE {name} SET (fillfactor = 80)"],
            [f"ALTER TABLE {name} ADD CHECK (id < 1000)"],
            [f"TRUNCATE {name}"] if self.lab.version >= TRUNCATE_SINCE else [],
            [f"VACUUM FULL {name}"],
            [f"VACUUM FULL {part}"] if part else [],
            [f"CLUSTER {self.table('r')} USING missing"],
            [f"CREATE INDEX ON {name} (id)", f"REINDEX TABLE {name}", f"ANALYZE {name}"],
            [f"COMMENT ON TABLE {name} IS 'x'", f"GRANT SELECT ON {name} TO PUBLIC"],
            [f"CREATE TABLE other.{self.new('t')} (id int PRIMARY KEY)"],
            [f"ALTER TYPE mood ADD VALUE '{self.new('m')}'"],
            ["CREATE PUBLICATION third", "DROP PUBLICATION third"],
        ]  # fmt: skip
        self.run(*self.random.choice(forms))

    def step(self) -> None:
        """Run a random statement; in a harmless round, one that loses no changes."""
        if self._is_harmless:
            self.random.choice([self.change_rows, self.do_no_harm])()
            return
        choices: dict[Callable[[], None], int] = {
            self.change_rows: 12,
            self.create_table: 1,
            self.drop_table: 1,
            self.alter_column: 4,
            self.alter_table: 4,
            self.alter_partition: 4,
            self.alter_type: 1,
            self.alter_publication: 2,
        }
        (choice,) = self.random.choices(list(choices), list(choices.values()))
        choice()

    # Rounds

    def round(self) -> None:
        """Run statements while recorder and replica run, are killed or are stopped; then compare."""
        self.log.clear()
        heals = self.random.random() < 0.5
        self._is_harmless = self.random.random() < 0.4
        for _ in range(self.random.randint(1, 3)):
            with self.recorder(heals=heals) as process:
                for _ in range(self.random.randint(1, 8)):
                    self.step()
                    time.sleep(self.random.choice([0, 0, 0, 0.2, 1]))
                if self.random.random() < 0.5:
                    process.kill()
            for _ in range(self.random.choice([0, 0, 3])):
                self.step()
        self.touch()
        self.lab.record("p", "q", snapshot=heals)
        if self.random.random() < 0.5:
            self.kill_replica()
        self.replicate()
        self.compare()

    def recorder(self, *, heals: bool) -> subprocess.Popen[bytes]:
        """Start a recorder process; the end of a `with` block terminates it if it still runs.

        Args:
            heals: Whether the recorder copies the rows of incomplete tables (--snapshot).
        """
        command = [one for one in self.lab.command() if one != "--publication=p"]
        options = ["--publication=p", "--publication=q", *(["--snapshot"] if heals else [])]
        return _Recorder([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_replica(self) -> None:
        """Run `logicalrep replicate` in a process, and kill it after a short time."""
        places = "--recording", str(self.lab.folder), "--target", str(self.target)
        command = [sys.executable, "-m", "logicalrep.cli", "replicate", *places, "--dropped", self._dropped]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(self.random.uniform(0.5, 2))
            process.kill()

    def replicate(self) -> None:
        replicate(self.lab.folder, self.target, dropped=self._dropped)

    def published(self) -> list[tuple[int, str]]:
        """Return OID and qualified name of each published table."""
        return self.lab.rows(PUBLISHED if self.lab.version >= ROOTS_SINCE else PUBLISHED_PLAIN)

    def touch(self) -> None:
        """Insert a row into each published table, so that the stream describes its latest columns."""
        self._touched = set()
        for oid, name in self.published():
            free = f"SELECT max(g) FROM generate_series(0, 39) g WHERE g NOT IN (SELECT id FROM {name})"
            with suppress(psycopg.Error):
                self.lab.run(f"INSERT INTO {name} (id) {free}")
                self._touched.add(oid)

    def compare(self) -> None:
        """Compare each published table with the replica's; store unreported differences in `outcome`."""
        last = read_metadata(list_segments(self.lab.folder)[-1])
        incomplete = {one.oid: one for one in last.incomplete}
        tables = replica_tables(self.target)
        named = dict(self.published())
        published = {oid: name for oid, name in named.items() if oid in self._touched}
        different = {oid for oid, name in published.items() if not self.is_equal(oid, name)}
        verdicts = {
            one.oid: one
            for one in verify_tables(self.lab.folder, self.target, self.lab.dsn)
            if not one.is_equal
        }
        for oid, table in tables.items():
            exists = self.lab.rows(f"SELECT FROM pg_class WHERE oid = {oid}")
            is_named = table.may_differ or (table.dropped and not exists)
            if oid not in named and not is_named:
                self.miss(oid, table.name, f"it is gone ({bool(exists)}), and nobody says so")
        for oid in published:
            self.outcome.compared += 1
            if oid in different:
                self.outcome.different += 1
                places = (
                    oid in incomplete,
                    oid not in tables or bool(tables[oid].may_differ),
                    oid in verdicts,
                )
                if places != (True, True, True):
                    self.miss(oid, published[oid], f"named by recorder, replica, verify: {places}")
        reasons = {(one.oid, one.lost) for one in last.incomplete if one.lost}
        if self._is_harmless:
            self.outcome.alarms += (
                f"{incomplete[oid].name}: {reason}; {' | '.join(self.log)}"
                for oid, reason in reasons - self._incomplete
            )
        self._incomplete = reasons

    def miss(self, oid: int, name: str, text: str) -> None:
        rows = self.difference.get(oid, "")
        self.outcome.silent.append(f"{name} ({oid}): {text}; {rows[:1000]}; {' | '.join(self.log)}")

    def is_equal(self, oid: int, name: str) -> bool:
        """Return whether the Delta table has the rows of the server's table; store their difference."""
        names = [column for (column,) in self.lab.rows(COLUMNS.format(oid))]
        values = ", ".join(f'"{column}"::text' for column in names)
        expected = Counter(self.lab.rows(f"SELECT {values} FROM {name}"))
        table = replica_table(self.target, oid)
        if table is None or not table.place:
            return not expected
        rows = map(row_texts, DeltaTable(table.place).to_pyarrow_table().to_pylist())
        found = Counter(tuple(row.get(column) for column in names) for row in rows)
        self.difference[oid] = f"server {expected - found}, replica {found - expected}"
        return found == expected


class _Recorder(subprocess.Popen[bytes]):
    """The process of a recorder, which is terminated at the end of a `with` block."""

    def __exit__(self, *exception: object) -> None:
        if self.poll() is None:
            self.terminate()
        super().__exit__(*exception)  # type: ignore[arg-type]


def run_program(random: Random, folder: Path, version: int, rounds: int) -> Outcome:
    """Run `rounds` rounds of a random program on a new server; end early at an unreported difference."""
    with Server(version) as server, Lab(server, folder) as lab:
        program = Program(random, lab, folder / "lake")
        program.prepare()
        lab.record("p", "q", snapshot=True)
        program.replicate()
        for _ in range(rounds):
            program.round()
            if program.outcome.silent:
                break
        return program.outcome


def shown(outcome: Outcome) -> str:
    values = {name: getattr(outcome, name) for name in Outcome.__struct_fields__}
    numbers = (f"{len(one) if isinstance(one, list) else one} {name}" for name, one in values.items())
    texts = (f"\n  {text[:3000]}" for text in [*outcome.alarms, *outcome.silent])
    return ", ".join(numbers) + "".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--version", type=int, default=WHEEL_VERSION)
    arguments = parser.parse_args()
    end, total, seed = time.monotonic() + 60 * arguments.minutes, Outcome(), arguments.seed
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="logicalrep-ddl-") as folder:
            try:
                found = run_program(Random(seed), Path(folder), arguments.version, 6)
            except LogicalrepError as error:
                print(f"seed {seed}: ended: {error}", flush=True)
                found = Outcome()
        print(f"seed {seed}: {shown(found)}", flush=True)
        total = Outcome(*(getattr(total, one) + getattr(found, one) for one in Outcome.__struct_fields__))
        seed += 1
    print(f"in all: {shown(total)}")
    raise SystemExit(bool(total.silent))


if __name__ == "__main__":
    main()
