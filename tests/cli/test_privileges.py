"""The role of docs/howto/prepare.md suffices, and an error prints the statement for what it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from logicalrep.recorder import Connected, TableComplete
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import Server

PAGE: Final = Path(__file__).parents[2] / "docs/howto/prepare.md"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    """A database without privileges for everybody, with a table of `app`, after the page's script."""
    with Lab(server, tmp_path) as lab:
        lab.run("CREATE ROLE app", f"GRANT CREATE ON DATABASE {lab.name} TO app")
        lab.run(f"REVOKE ALL ON DATABASE {lab.name} FROM PUBLIC", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
        lab.run("GRANT ALL ON SCHEMA public TO app", "SET ROLE app")
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "RESET ROLE")
        (script,) = re.findall(r"```sql\n(CREATE ROLE.*?)```", PAGE.read_text(), re.DOTALL)
        lab.run(*script.replace("DATABASE shop", f"DATABASE {lab.name}").strip().split("\n"))
        yield lab
        lab.run("DROP PUBLICATION shop", "DROP OWNED BY replicator")
        lab.run("DROP OWNED BY app", "DROP ROLE app", "DROP ROLE replicator")


def dsn(lab: Lab) -> str:
    return lab.dsn.replace("user=postgres", "user=replicator")


def test_the_script_suffices(lab: Lab, run: Run, tmp_path: Path) -> None:
    """Also for the event trigger of a superuser, and for a table that is created later."""
    lab.run(run("install-ddl-events", "--sql").out)
    with lab.recording("shop", dsn=dsn(lab), snapshot=True, strict=True) as recording:
        recording.wait(Connected)
        lab.run("SET ROLE app", "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (2)")
        lab.run("ALTER TABLE t ADD v text DEFAULT 'x'", "INSERT INTO t VALUES (3)", "RESET ROLE")
        done = run("snapshot", "--recording", lab.folder, "--table", "public.t")
        assert (done.code, recording.wait(TableComplete).table) == (0, "public.t")
        place = "--recording", lab.folder, "--target", tmp_path / "lake"
        wait_until(lambda: run("replicate", *place).code == 0)
        verified = run("verify", *place, "--dsn", dsn(lab), "--json")
        assert (verified.code, verified.out.count('"equal"')) == (0, 2), verified.out + verified.err
    assert run("install-ddl-events", "--dsn", dsn(lab)).err.endswith(
        "as a superuser or as a role that may create event triggers\n"
    )


@pytest.mark.parametrize(
    ("revoke", "grant"),
    [
        ("ALTER ROLE replicator NOLOGIN", "ALTER ROLE replicator LOGIN"),
        ("ALTER ROLE replicator NOREPLICATION", "ALTER ROLE replicator REPLICATION"),
        ("REVOKE CONNECT ON DATABASE {} FROM replicator", "GRANT CONNECT ON DATABASE {} TO replicator"),
        ("REVOKE USAGE ON SCHEMA public FROM replicator", "GRANT USAGE ON SCHEMA public TO replicator"),
        ("REVOKE SELECT ON t FROM replicator", "GRANT SELECT ON public.t TO replicator"),
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER ROLE replicator BYPASSRLS"),
    ],
)
def test_an_error_prints_the_missing_statement(
    lab: Lab, run: Run, tmp_path: Path, revoke: str, grant: str
) -> None:
    options = "--dsn", dsn(lab), "--slot", lab.slot, "--publication", "shop", "--recording", lab.folder
    place = "--recording", lab.folder, "--target", tmp_path / "lake"
    revoke, grant = revoke.format(lab.name), grant.format(f'"{lab.name}"')
    lab.run(revoke)
    refused = run("record", *options, "--snapshot", "--until=now")
    assert (refused.code, refused.err.count("\n")) == (3, 1)
    assert grant in refused.err.replace('"replicator"', "replicator")
    lab.run(grant)
    assert run("record", *options, "--snapshot", "--until=now").code == 0
    assert run("replicate", *place).code == 0
    lab.run(revoke, "ALTER ROLE replicator NOBYPASSRLS")
    refused = run("verify", *place, "--dsn", dsn(lab))
    assert refused.code in (1, 3)
    assert grant in (refused.out + refused.err).replace('"replicator"', "replicator")
