"""Run PostgreSQL's regression and isolation tests, and those of contrib, beside one `logicalrep sync`.

What the tests print is not compared. The statements at their end that drop tables are left out, so that
tables remain that can be compared.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from tests.shadow.compare import connect
from tests.shadow.follow import EVERYTHING, PUBLISH_EVERYTHING
from tests.shadow.programs import Programs, ShadowedServer, as_user
from tests.shadow.results import Outcome
from tests.shadow.sync import USER, Rules, Sync

CHANGES: Final = re.compile(
    r"(?i)\s*(insert|update|delete|copy|truncate|alter|create|select \* into|commit|rollback)\b"
)
DROPS: Final = re.compile(r"(?i)drop (table|schema)\b")
PERMUTATION: Final = re.compile(r"(?m)^permutation\b[^\n]*(?:\n[ \t]+[^\n]*)*")
PERMUTATIONS: Final = 3
"""How many permutations of an isolation test run."""
FILE_SECONDS: Final = 120
SCHEDULE_SECONDS: Final = 1800

TRAFFIC: Final = {
    "core": "src/test/regress",
    "regress": "src/test/regress/sql",
    "isolation": "src/test/isolation/specs",
    "decoding": "contrib/test_decoding/sql",
    "isolation-decoding": "contrib/test_decoding/specs",
    "contrib": "contrib/*/sql",
}
"""By name, the folders of the tests. `core` runs the server's parallel schedule, with its drops."""


class Piece(NamedTuple):
    """What runs in a schema of its own."""

    schema: str
    path: Path
    text: str


def run_traffic(
    name: str,
    source: Path,
    programs: Programs,
    folder: Path,
    rules: Rules,
    outcome: Outcome,
    *,
    roots: bool,
    events: bool,
) -> None:
    """Run the tests of one entry of `TRAFFIC`; add what becomes of all tables to `outcome`.

    `roots` publishes partitions through their roots, `events` installs the event trigger of logicalrep.
    """
    folder.mkdir(parents=True)
    with ShadowedServer(programs) as server, (folder / "traffic.log").open("wb") as log:
        dsn = f"host={server.folder} port={server.port} user=postgres dbname=regression"
        with server.connect() as connection:
            connection.execute("CREATE DATABASE regression TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
        with connect(dsn) as connection:
            connection.execute(f"{PUBLISH_EVERYTHING} WITH (publish_via_partition_root = {roots})".encode())
        if events:
            subprocess.run(
                [sys.executable, "-m", "logicalrep.cli", "install-ddl-events", "--dsn", dsn], check=True
            )
        sync = Sync(folder / "all", dsn, [EVERYTHING], outcome.results, rules, superuser="postgres")
        try:
            home = server.folder / "home"
            home.mkdir()
            shutil.chown(home, USER)
            environment = programs.environment(home) | {"PGHOST": str(server.folder), "PGPORT": server.port}
            environment |= {
                "PGUSER": "postgres",
                "PG_LIBDIR": str(_library(source, programs, folder)),
                "PG_DLSUFFIX": ".so",
            }
            if name == "core":
                _run_schedule(source / TRAFFIC[name], programs, environment, home, log)
            else:
                for piece in _pieces(name, source, programs):
                    _run_piece(piece, dsn, programs, environment, home, log)
            with connect(dsn) as connection:
                query = b"SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts"
                for (statement,) in connection.execute(query).fetchall():
                    connection.execute(statement)
            sync.check("end")
        finally:
            sync.stop()
            outcome.kills = sync.kills


def _library(source: Path, programs: Programs, folder: Path) -> Path:
    """Compile the C functions of the regression tests; return the folder that has them."""
    library = folder / "library"
    library.mkdir()
    include = programs.config("--includedir-server")
    code = source / "src/test/regress/regress.c"
    with suppress(OSError):  # without a compiler, the statements that need these functions fail
        subprocess.run(
            ["cc", "-O1", "-fPIC", "-shared", f"-I{include}", "-o", library / "regress.so", code], check=False
        )
    for name in ("refint.so", "autoinc.so"):
        with suppress(OSError):
            shutil.copy(Path(programs.config("--pkglibdir")) / name, library)
    return library


def _run_schedule(
    suite: Path, programs: Programs, environment: dict[str, str], home: Path, log: IO[bytes]
) -> None:
    options = {
        "dbname": "regression",
        "inputdir": suite,
        "outputdir": home,
        "bindir": programs.folder,
        "dlpath": environment["PG_LIBDIR"],
        "host": environment["PGHOST"],
        "port": environment["PGPORT"],
        "user": "postgres",
        "max-concurrent-tests": 20,
        "schedule": suite / "parallel_schedule",
    }
    command = [programs.tools / "regress/pg_regress", "--use-existing"]
    given = [f"--{name}={value}" for name, value in options.items()]
    as_user([*command, *given], environment, home, log, seconds=SCHEDULE_SECONDS)


def _run_piece(
    piece: Piece, dsn: str, programs: Programs, environment: dict[str, str], home: Path, log: IO[bytes]
) -> None:
    with connect(dsn) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {piece.schema}".encode())
        connection.execute(f"GRANT ALL ON SCHEMA {piece.schema} TO public".encode())
    log.write(f"--- {piece.schema}: {piece.path.name}\n".encode())
    log.flush()
    path = dict.fromkeys((piece.schema, "public"))
    environment = environment | {
        "PGOPTIONS": f"-c search_path={','.join(path)} -c statement_timeout=60s",
        "PG_ABS_SRCDIR": str(piece.path.parents[1]),
    }
    if piece.path.suffix == ".sql":
        command, folder = (
            [programs.folder / "psql", "-qX", "-d", "regression", "-f", "-"],
            piece.path.parents[1],
        )
    else:
        command, folder = [programs.tools / "isolation/isolationtester", "dbname=regression"], home
    as_user(
        command,
        environment,
        folder,
        log,
        seconds=FILE_SECONDS,
        given=piece.text.encode(errors="surrogateescape"),
    )


def _pieces(name: str, source: Path, programs: Programs) -> Iterator[Piece]:
    """Yield the pieces of all files of one entry of `TRAFFIC`, in the order in which they run."""
    for folder in sorted(source.glob(TRAFFIC[name])):
        module = folder.parent.name
        if name == "contrib":
            control = Path(programs.config("--sharedir")) / "extension" / f"{module}.control"
            if module != "test_decoding" and control.is_file():
                for path in _in_order(folder):
                    yield Piece(
                        _schema(module), path, without_drops(path.read_text(errors="surrogateescape"))
                    )
            continue
        for path in sorted(folder.iterdir(), key=lambda path: (path.stem != "test_setup", path.stem)):
            text = path.read_text(errors="surrogateescape")
            schema = _schema(path.stem)
            if path.suffix == ".sql":
                yield Piece("public" if path.stem == "test_setup" else schema, path, without_drops(text))
            elif path.suffix == ".spec":
                for number, permuted in enumerate(permutations(text)):
                    yield Piece(f"{schema}_{number}", path, permuted)


def _schema(name: str) -> str:
    return "t_" + re.sub(r"\W", "_", name).lower()


def _in_order(folder: Path) -> list[Path]:
    """Return the SQL files of a module of contrib in the order that its Makefile gives."""
    found = re.search(r"(?m)^REGRESS\s*=((?:.*\\\n)*.*)", (folder.parent / "Makefile").read_text())
    names = found[1].replace("\\\n", " ").split() if found else []
    return [path for path in (folder / f"{name}.sql" for name in names) if path.is_file()]


def without_drops(text: str) -> str:
    """Return SQL without the statements at its end that drop tables and schemas."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if CHANGES.match(line)), default=0)
    return (
        "\n".join(line for number, line in enumerate(lines) if number <= last or not DROPS.match(line)) + "\n"
    )


def permutations(spec: str) -> Iterator[str]:
    """Yield isolation tests with one permutation each, some of those of `spec`, and without its teardown."""
    head, session, rest = (
        re.split(r"(?m)^(session\b)", spec, maxsplit=1) if "\nsession" in spec else (spec, "", "")
    )
    head = re.sub(r"(?ms)^teardown\s*\{.*?\}\s*$", "", head)
    found = PERMUTATION.findall(rest) or [""]
    body = head + session + PERMUTATION.sub("", rest)
    count = min(PERMUTATIONS, len(found))
    for number in range(count):
        yield f"{body}\n{found[number * (len(found) - 1) // max(count - 1, 1)]}\n"
