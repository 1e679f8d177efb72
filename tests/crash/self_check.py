"""Random program for the self-check: rows and tables change at random, and the self-check must find nothing.

`python -m tests.crash.self_check --seconds 1800 --seed 1`

`logicalrep sync` follows a server while rows change, tables are altered, made, dropped, rewritten and
published anew, and savepoints are rolled back. A table in which the self-check finds a difference is a false
alarm, unless `logicalrep verify` finds one too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import psycopg

from tests.server import VERSION, Server

ROWS = {"a": 300, "b": 40_000, "c": 5_000, "d": 20}
CHANGES = (
    "INSERT INTO {0} (v) SELECT g::text FROM generate_series(1, {n}) g",
    "UPDATE {0} SET v = md5(v) WHERE id % {n} = 0",
    "DELETE FROM {0} WHERE id IN (SELECT id FROM {0} ORDER BY random() LIMIT {n})",
    "UPDATE {0} SET id = id + 1000000 WHERE id IN (SELECT id FROM {0} ORDER BY random() LIMIT 5)",
    "BEGIN; INSERT INTO {0} (v) VALUES ('gone'); SAVEPOINT s; DELETE FROM {0}; ROLLBACK TO s; COMMIT",
)
MIGRATIONS = (
    "ALTER TABLE {0} ADD w{n} int",
    "ALTER TABLE {0} ADD w{n} int DEFAULT {n}",
    "ALTER TABLE {0} ALTER v TYPE varchar(90)",
    "ALTER TABLE {0} ALTER v TYPE text",
    "ALTER TABLE {0} DROP IF EXISTS w{n}",
    "VACUUM FULL {0}",
    "TRUNCATE {0}; INSERT INTO {0} (v) SELECT g::text FROM generate_series(1, 200) g",
    "GRANT SELECT ON {0} TO PUBLIC",
    "CREATE TABLE x{n} (id serial PRIMARY KEY, v text)",
    "INSERT INTO x{n} (v) SELECT g::text FROM generate_series(1, 50) g",
    "DROP TABLE IF EXISTS x{n}",
    "ALTER TYPE kind ADD VALUE 'k{n}'",
    "ALTER TABLE {0} RENAME v TO v_old; ALTER TABLE {0} RENAME v_old TO v",
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--migrations", type=float, default=0.02, help="share of migrations")
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder, Server(VERSION) as server, server.connect() as connection:
        connection.execute("CREATE TYPE kind AS ENUM ('k')")
        for name, rows in ROWS.items():
            connection.execute(f"CREATE TABLE {name} (id serial PRIMARY KEY, v text, k kind)".encode())
            fill = f"INSERT INTO {name} (v) SELECT g::text FROM generate_series(1, {rows}) g"
            connection.execute(fill.encode())
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        target, log = Path(folder, "lake"), Path(folder, "log")
        places = [f"--dsn={server.dsn}", f"--target={target}"]
        command = [sys.executable, "-m", "logicalrep.cli", "sync", *places, "--publication=p", "--log=json"]
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as sync:
            try:
                found = change(connection, random, arguments.seconds, arguments.migrations, log)
                report = json.loads((target / "_self_check.json").read_text())
            finally:
                sync.terminate()
        looks = {one["name"]: one.get("refusal", "compared") for one in report["tables"].values()}
        print(f"{looks}; sync ended with {sync.returncode}")
        for line in found:
            print(line)
        return int(bool(found))


def change(
    connection: psycopg.Connection, random: Random, seconds: float, migrations: float, log: Path
) -> list[str]:
    """Run random statements; return the lines of the log in which the self-check has found a difference."""
    end = time.monotonic() + seconds
    counts = [0, 0]
    while time.monotonic() < end:
        is_migration = random.random() < migrations
        counts[is_migration] += 1
        statements = random.choice(MIGRATIONS if is_migration else CHANGES)
        for one in statements.format(random.choice([*ROWS]), n=random.randrange(1, 10)).split(";"):
            try:
                connection.execute(one.encode())
            except psycopg.Error as error:  # such as an unknown table
                print(error.diag.message_primary, flush=True)
        time.sleep(random.random() / 5)
    print(f"{counts[0]:,} changes, {counts[1]:,} migrations")
    time.sleep(30)
    return [line for line in log.read_text().splitlines() if "self-check" in line]


if __name__ == "__main__":
    sys.exit(main())
