"""`logicalrep doctor` finds what is wrong with a server, and its SQL mends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from logicalrep.cli.operate import doctor, server_checks
from logicalrep.recorder.client.errors import error_of_attempt
from logicalrep.recording import ObjectStore
from tests import store
from tests.conftest import Run
from tests.recorder.lab import Lab
from tests.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    """A database with a published table, and a role that may read it."""
    with Lab(server, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        lab.run("CREATE ROLE replicator LOGIN REPLICATION", "GRANT SELECT ON t TO replicator")
        yield lab
        lab.run("DROP OWNED BY replicator", "DROP ROLE replicator")


def examined(run: Run, lab: Lab, *options: str | Path, user: str = "replicator") -> dict[str, Any]:
    """Return the report on the publication p and the slot s as JSON."""
    dsn = lab.dsn.replace("user=postgres", f"user={user}")
    done = run("doctor", "--dsn", dsn, "--publication", "p", "--slot", "s", "--json", *options)
    report = json.loads(done.out)
    assert done.code == any(one["level"] == "error" for one in report["findings"]), done
    return dict(report)


def found(report: dict[str, Any]) -> dict[str, str]:
    """Return the remedies by check, without the settings of the test server and missing packages."""
    known = {"WAL limit", "DDL events", "packages"}
    return {one["check"]: one["remedy"] for one in report["findings"] if one["check"] not in known}


def test_a_prepared_server_has_no_errors(lab: Lab, run: Run, tmp_path: Path) -> None:
    report = examined(run, lab, "--place", tmp_path / "recording")
    assert found(report) == {}
    assert {one["check"] for one in report["findings"]} >= {"WAL limit", "DDL events"}
    assert report["server"].startswith("PostgreSQL ")
    assert not (tmp_path / "recording").exists()
    dsn = lab.dsn.replace("user=postgres", "user=replicator")
    lines = run("doctor", "--dsn", dsn).out.splitlines()
    at = lines.index("warning  max_slot_wal_keep_size is -1")
    assert lines[at + 2].startswith("         > ALTER SYSTEM SET max_slot_wal_keep_size = ")
    assert lines[-1].endswith(" checks: 0 errors, 1 warning")


@pytest.mark.parametrize(
    ("statements", "check"),
    [
        (["ALTER PUBLICATION p RENAME TO q"], "publication"),
        (["ALTER PUBLICATION p DROP TABLE t"], "published tables"),
        (["ALTER PUBLICATION p SET (publish = 'insert')"], "published operations"),
        (["ALTER TABLE t DROP CONSTRAINT t_pkey"], "replica identity"),
        (["ALTER TABLE t REPLICA IDENTITY NOTHING"], "replica identity"),
        (["ALTER TABLE t REPLICA IDENTITY FULL"], "replica identity FULL"),
        (["ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) STORED"], "generated columns"),
        (["REVOKE SELECT ON t FROM replicator"], "table privilege"),
        (["REVOKE SELECT ON t FROM replicator", "GRANT SELECT (id) ON t TO replicator"], "table privilege"),
        (["ALTER TABLE t ENABLE ROW LEVEL SECURITY"], "row security"),
        (["REVOKE USAGE ON SCHEMA public FROM PUBLIC"], "schema privilege"),
        (["BEGIN", "INSERT INTO t VALUES (1)", "PREPARE TRANSACTION 'g'"], "prepared transaction"),
    ],
)
def test_the_sql_of_a_finding_mends_it(
    lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch, statements: list[str], check: str
) -> None:
    at_once = (
        msgspec.structs.replace(one, query=one.query.replace("1 hour", "0 hours"))
        for one in server_checks.CHECKS
    )
    monkeypatch.setattr(server_checks, "CHECKS", tuple(at_once))
    lab.run(*statements)
    remedy = found(examined(run, lab))[check]
    lab.run(remedy.replace("ADD TABLE …", "ADD TABLE t").replace("(…)", "(id)").partition(" --")[0])
    assert check not in found(examined(run, lab))


def test_a_server_with_unfit_settings(run: Run, tmp_path: Path) -> None:
    server = Server(
        wal_level="replica", max_replication_slots="1", max_wal_senders="0", wal_sender_timeout="0"
    )
    with server, Lab(server, tmp_path) as lab:
        lab.run("CREATE PUBLICATION p FOR ALL TABLES", "SELECT pg_create_physical_replication_slot('other')")
        remedies = found(examined(run, lab, user="postgres"))
        assert "ALTER SYSTEM SET max_wal_senders = …" in remedies.pop("replication connection")
        assert remedies["wal_level"].startswith("ALTER SYSTEM SET wal_level = logical; ")
        assert remedies["free slot"].startswith("ALTER SYSTEM SET max_replication_slots = 2; ")
        assert remedies["free sender"].startswith("ALTER SYSTEM SET max_wal_senders = 2; ")
        assert remedies["sender timeout"].startswith("ALTER SYSTEM SET wal_sender_timeout = '1min'; ")
        changes = "".join(one.partition("; ")[0] + ";" for one in remedies.values() if "SYSTEM" in one)
        for statement in changes.split(";")[:-1]:
            lab.run(statement)
        assert len(lab.rows("SELECT FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'")) == 4


def test_an_open_transaction_and_an_old_minor_release_are_found(
    lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"1 hour": "0 hours", "current_setting('server_version_num')::int": "170004"}
    checks = server_checks.CHECKS
    for old, new in changed.items():
        checks = tuple(msgspec.structs.replace(one, query=one.query.replace(old, new)) for one in checks)
    monkeypatch.setattr(server_checks, "CHECKS", checks)
    with lab.server.connect(lab.name) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (1)")
        remedies = found(examined(run, lab, user="postgres"))
        assert remedies["open transaction"] == f"SELECT pg_terminate_backend({other.info.backend_pid});"
        assert remedies["minor release"] == "install the latest minor release"
        other.execute("ROLLBACK")
    assert "open transaction" not in found(examined(run, lab, user="postgres"))


def test_a_role_without_replication_is_found(lab: Lab, run: Run) -> None:
    lab.run("ALTER ROLE replicator NOREPLICATION")
    (finding,) = [one for one in examined(run, lab)["findings"] if one["level"] == "error"]
    assert finding["check"] == "replication connection"
    _, _, sql = finding["remedy"].rpartition(": ")
    assert sql == 'ALTER ROLE "replicator" REPLICATION'
    lab.run(sql)
    assert found(examined(run, lab)) == {}


def test_slots_that_cannot_be_recorded_are_found(lab: Lab, run: Run) -> None:
    def slot() -> list[str]:
        return [one["found"] for one in examined(run, lab)["findings"] if one["check"] == "slot"]

    assert slot() == []
    lab.run("SELECT pg_create_physical_replication_slot('s')")
    assert slot() == ["s is a physical slot"]
    lab.run("SELECT pg_drop_replication_slot('s')")
    with lab.server.connect("postgres") as other:
        other.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    assert slot() == ["the slot s belongs to the database postgres"]
    lab.run("SELECT pg_drop_replication_slot('s')")
    lab.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    assert slot() == []
    lab.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        lab.run("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t", "SELECT pg_switch_wal()")
    lab.run("CHECKPOINT")
    (text,) = slot()
    assert text == "the slot s is lost (wal_removed)"
    lab.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    lab.run("SELECT pg_drop_replication_slot('s')")


def test_places_and_servers_that_do_not_answer_are_found(
    lab: Lab, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    places = "--place", "/proc/recording", "--place", tmp_path / "file", "--place", "nix://bucket/x"
    report = examined(run, lab, *places)
    texts = [one["found"] for one in report["findings"] if one["check"] == "place"]
    assert len(texts) == 3, texts
    monkeypatch.setattr(doctor, "FREE_BYTES", 1 << 60)
    assert "disk" in found(examined(run, lab, "--place", tmp_path))
    done = run("doctor", "--dsn", "host=/nowhere", "--place", tmp_path)
    assert (done.code, done.out.splitlines()[-1].partition(": ")[2]) == (1, "2 errors, 0 warnings")
    assert "the server cannot be checked" in done.out
    refused = run("doctor", "--dsn", "nonsense")
    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize(
    ("address", "ssl", "expected"),
    [
        ("203.0.113.9", "false", {"encryption"}),
        ("203.0.113.9", "true", {"certificate"}),
        ("127.0.0.1", "false", set()),
        ("127.0.0.1", "true", set()),
        ("::1", "false", set()),
    ],
)
def test_an_unencrypted_or_unverified_connection_is_found(
    lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch, address: str, ssl: str, expected: set[str]
) -> None:
    changed = {
        "inet_server_addr()": f"inet '{address}'",
        "AND NOT ssl": f"AND NOT {ssl}",
        "AND ssl": f"AND {ssl}",
    }
    checks = server_checks.CHECKS
    for old, new in changed.items():
        checks = tuple(msgspec.structs.replace(one, query=one.query.replace(old, new)) for one in checks)
    monkeypatch.setattr(server_checks, "CHECKS", checks)
    assert found(examined(run, lab)).keys() == expected
    assert found(examined(run, lab, user="replicator sslmode=verify-full")).keys() == expected - {
        "certificate"
    }


def test_the_missing_line_of_pg_hba_is_printed(lab: Lab, run: Run) -> None:
    """The line lets the role connect; an error names the address of a client, which may be that of IPv6."""
    hba = lab.server.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("local all postgres trust\n")
    try:
        lab.run("SELECT pg_reload_conf()")
        _, _, line = found(examined(run, lab))["connection"].rpartition(": ")
        assert re.fullmatch(r"local \w+ replicator scram-sha-256", line)
        hba.write_text(f"local all postgres trust\n{line.replace('scram-sha-256', 'trust')}\n")
        lab.run("SELECT pg_reload_conf()")
        assert found(examined(run, lab)) == {}
    finally:
        hba.write_text(before)
        lab.run("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("attempts", "line"),
    [
        (['"192.0.2.7", user "r", database "d", no encryption'], "host d r 192.0.2.7/32 scram-sha-256"),
        (['"2001:db8::7", user "r", database "d", SSL on'], "hostssl d r 2001:db8::7/128 scram-sha-256"),
        (
            ['"::1", user "r", database "d", SSL encryption', '"::1", user "r", database "d", no encryption'],
            "hostssl d r ::1/128 scram-sha-256",
        ),
    ],
)
def test_the_missing_line_demands_tls_if_the_client_has_used_it(attempts: list[str], line: str) -> None:
    text = "\n".join(f"FATAL: no pg_hba.conf entry for host {one}" for one in attempts)
    assert str(error_of_attempt(psycopg.OperationalError(text))).rpartition(": ")[2] == line


def test_a_connection_without_tls_is_not_advised(run: Run) -> None:
    """The server may have a `hostssl` line only, which a `host` line would make useless."""
    with Server(listen_addresses="127.0.0.1", port="5439") as server:
        (server.data / "pg_hba.conf").write_text("local all postgres trust\n")
        with server.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        for mode, expected in (("disable", "use sslmode=verify-full, "), ("prefer", "add to pg_hba.conf, ")):
            dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres sslmode={mode}"
            report = json.loads(run("doctor", "--dsn", dsn, "--json").out)
            assert found(report)["connection"].startswith(expected)


def test_a_refused_role_or_password_is_explained(lab: Lab, run: Run) -> None:
    remedy = found(examined(run, lab, user="nobody"))["connection"]
    assert remedy == "a superuser has to run: CREATE ROLE \"nobody\" LOGIN REPLICATION PASSWORD '…'"
    hba = lab.server.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    try:
        lab.run("ALTER ROLE replicator PASSWORD 'right'", "SELECT pg_reload_conf()")
        remedy = found(examined(run, lab, user="replicator password=wrong"))["connection"]
        for part in ("~/.pgpass", "PGPASSWORD", "the DSN", "ALTER ROLE \"replicator\" PASSWORD '…'"):
            assert part in remedy
        assert "~/.pgpass" in found(examined(run, lab))["connection"]
    finally:
        hba.write_text(before)
        lab.run("SELECT pg_reload_conf()")


def test_a_store_that_refuses_writes_is_found(lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.moto() as port, store.Proxy(port) as proxy:
        for name, value in store.settings(proxy.port).items():
            monkeypatch.setenv(name, value)
        place = "--place", f"s3://{store.BUCKET}/recording"
        assert found(examined(run, lab, *place)) == {}
        assert ObjectStore(place[1]).sizes() == {}
        proxy.fault = lambda method, path: "403" if method == "PUT" else ""
        assert found(examined(run, lab, *place)).keys() == {"place"}
