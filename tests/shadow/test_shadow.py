"""The harness that runs PostgreSQL's tests: parsing, comparison with a real server, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from logicalrep.replica import replica_tables
from tests.server import Server
from tests.shadow import report, sync as sync_module
from tests.shadow.follow import read_tap
from tests.shadow.results import Outcome, Result, load, save, save_names
from tests.shadow.statements import Statement, change, parse
from tests.shadow.sync import Rules, Sync
from tests.shadow.traffic import permutations, without_drops

STATEMENTS = {
    "CREATE SUBSCRIPTION Sub CONNECTION 'host=/t dbname=''a b''' PUBLICATION P1, \"P 2\" WITH (binary);": (
        Statement("create", "sub", "host=/t dbname='a b'", ("p1", "P 2")),
    ),
    "CREATE SUBSCRIPTION s CONNECTION 'x=1;y' PUBLICATION p": (Statement("create", "s", "x=1;y", ("p",)),),
    "CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p WITH (connect = false)": (),
    "ALTER SUBSCRIPTION s SET PUBLICATION a, b WITH (refresh = false); SELECT 1": (
        Statement("set", "s", publications=("a", "b")),
    ),
    "ALTER SUBSCRIPTION s ADD PUBLICATION a": (Statement("add", "s", publications=("a",)),),
    "ALTER SUBSCRIPTION s DROP PUBLICATION a": (Statement("remove", "s", publications=("a",)),),
    "ALTER SUBSCRIPTION s RENAME TO T": (Statement("rename", "s", new_name="t"),),
    "ALTER SUBSCRIPTION s DISABLE; DROP SUBSCRIPTION IF EXISTS s;": (Statement("drop", "s"),),
}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_statements_about_subscriptions(sql: str) -> None:
    assert tuple(parse(sql)) == STATEMENTS[sql]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM t; DROP TABLE a,\n  b; COMMIT", "DROP TABLE a, b"),
        ("ALTER PUBLICATION p SET TABLE t", "ALTER PUBLICATION p SET TABLE t"),
        ("drop schema s cascade", "drop schema s cascade"),
        ("CREATE PUBLICATION p; ALTER TABLE t DROP COLUMN a", ""),
    ],
)
def test_statements_that_end_a_comparison(sql: str, expected: str) -> None:
    assert change(sql) == expected


@pytest.mark.parametrize(
    ("log", "code", "expected"),
    [
        ("ok 1 - a\n# ok 5\nok 2 - b\n1..2\n", 0, ("2 ok", "")),
        ("ok 1 - a\nnot ok 2 - b\n1..2\n", 1, ("1 ok, 1 not ok, exit code 1", "")),
        ("1..0 # SKIP ICU not supported by this build\n", 0, ("", "ICU not supported by this build")),
        ("Can't locate IPC/Run.pm\n", 2, ("0 ok, exit code 2", "")),
    ],
)
def test_output_of_a_tap_test(log: str, code: int, expected: tuple[str, str]) -> None:
    assert read_tap(log, code) == expected


def test_traffic_keeps_its_tables() -> None:
    sql = "CREATE TABLE t ();\nDROP TABLE t;\nCREATE TABLE t (a int);\nDELETE FROM t;\nDROP TABLE t;\n"
    assert without_drops(sql) == sql.removesuffix("DROP TABLE t;\n")


def test_permutations_of_an_isolation_test() -> None:
    head = "setup { CREATE TABLE t (); }\nteardown\n{\n DROP TABLE t;\n}\n"
    session = "session s\nstep a { SELECT 1; }\nteardown { COMMIT; }\n"
    specs = list(permutations(head + session + "permutation a\n  a\n" * 5))
    assert len(specs) == 3
    for spec in specs:
        assert (spec.count("permutation"), "DROP TABLE" in spec, session in spec) == (1, False, True)
    assert [spec.count("permutation") for spec in permutations(head + session)] == [0]


RESULTS = [
    Result("public.t", "equal", "", ("p",), "drop s"),
    Result("public.t", "SILENT", "the server has 2 rows at 0/12CFACC8 | in /tmp/x1/all", ("p",), "end"),
    Result("public.u", "equal", "marked: a column was added", ("p",)),
    Result("public.v", "reported", "failed", ("p",)),
    Result("public.w", "reported", "failed", ("p",)),
    Result("", "ended", "exit code 3", ("p",)),
    Result("", "ended", "exit code 3", ("p",)),
]


def test_page(tmp_path: Path) -> None:
    outcome = Outcome("subscription/001_a", "15.18", "1.0", "2026-01-02", 5, "3 ok", 7, "", RESULTS)
    skipped = Outcome("subscription/012_b", "18.6", "1.0", "2026-01-03", skipped="no ICU")
    save(outcome, tmp_path / "15")
    save(skipped, tmp_path / "18")
    assert [*load(tmp_path / "15"), *load(tmp_path / "18")] == [outcome, skipped]
    save_names([outcome.test], tmp_path / "15")
    save_names([skipped.test, "traffic/core"], tmp_path / "18")
    lines = report.page(tmp_path).splitlines()
    assert "| subscription/001\\_a | 1 | 0 | 2 | 0 | 1 | 1 | 1 | 7 | 3 ok | 5 |" in lines
    assert "| subscription/001\\_a | public.t | the server has 2 rows at … \\| in …/all |" in lines
    assert "| subscription/001\\_a | public.v, public.w | failed |" in lines
    assert lines.count("| subscription/001\\_a | (p) | exit code 3 | - |") == 1
    assert "| subscription/012\\_b | no ICU |" in lines
    assert "1 of 2 tests have not been run: traffic/core." in lines
    assert [line for line in lines if line.startswith("## ")] == ["## PostgreSQL 15", "## PostgreSQL 18"]


@pytest.mark.nightly
def test_a_replica_is_compared_with_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, results = Rules(), list[Result]()
    monkeypatch.setattr(sync_module, "PATIENCE", 3.0)
    with Server() as server, server.connect() as connection:
        for statement in (
            'CREATE TABLE t (a int PRIMARY KEY, "A" numrange[], m money, f float4, b bytea, z timestamptz)',
            "INSERT INTO t SELECT n, '{}', n, 'NaN', '\\x00', 'infinity' FROM generate_series(1, 3) n",
            "INSERT INTO t VALUES (4, '{\"[1,2)\"}', NULL, 0.1, '', '2020-01-01')",
            "INSERT INTO t VALUES (5)",
            "CREATE PUBLICATION p FOR TABLE t WHERE (a < 5)",
        ):
            connection.execute(statement.encode())
        sync = Sync(tmp_path / "s", server.dsn, ["p"], results, rules, superuser="postgres")
        try:
            connection.execute("UPDATE t SET b = repeat('x', 9)::bytea WHERE a = 2")
            sync.check("now")
            assert [(one.table, one.kind) for one in results] == [("public.t", "equal")], results
            (table,) = replica_tables(tmp_path / "s/target").values()
            DeltaTable(table.place).delete("a = 3")
            sync.check("later")
            assert results[-1].kind == "SILENT", results
            assert "the server has 4 rows, the replica 3" in results[-1].reason
        finally:
            sync.stop()
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
        refused = Sync(tmp_path / "r", server.dsn, ["missing"], results, rules, superuser="postgres")
        refused.stop()
        assert [one.kind for one in results] == ["equal", "SILENT", "refused"]
        assert "missing" in refused.refusal
