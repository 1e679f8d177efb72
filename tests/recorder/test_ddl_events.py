"""The event trigger that describes alterations in the stream: its installation and its messages."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from logicalrep.errors import ReplicationError
from logicalrep.messages import LogicalMessage
from logicalrep.recorder import Connected, TableIncomplete, ddl_events_sql, install_ddl_events
from logicalrep.recorder.catalogs.ddl_events import DDL_EVENTS_SINCE
from logicalrep.recording import RecordingReader
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import VERSION, Server

INSTALLED = "SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'logicalrep_ddl%' AND evtenabled = 'A'"


def described(lab: Lab) -> list[dict[str, Any]]:
    """Return the contents of the recorded messages."""
    with RecordingReader(lab.folder) as recording:
        messages = [change.message for one in recording.transactions() for change in one.changes]
    return [json.loads(one.content) for one in messages if isinstance(one, LogicalMessage)]


def reasons(lab: Lab) -> dict[str, str]:
    """Record; return why tables are incomplete, by name."""
    return {one.table: one.reason for one in lab.record() if isinstance(one, TableIncomplete)}


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.require(DDL_EVENTS_SINCE, "the event trigger")
    return lab


@pytest.mark.skipif(DDL_EVENTS_SINCE <= VERSION, reason="the server supports the event trigger")
def test_an_older_server_is_refused(server: Server, run: Run) -> None:
    done = run("install-ddl-events", "--dsn", server.dsn)
    assert done.code == 3
    error = f"the event trigger needs PostgreSQL 14 or later, but the server is PostgreSQL {VERSION}: "
    assert f"{error}record without the event trigger" in done.err


def test_install_and_remove(lab: Lab, run: Run) -> None:
    for _ in range(2):
        assert run("install-ddl-events", "--dsn", lab.dsn).code == 0
        assert lab.value(INSTALLED) == 2
    for _ in range(2):
        assert run("install-ddl-events", "--dsn", lab.dsn, "--remove").code == 0
        assert lab.value(INSTALLED) == 0
    assert lab.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'logicalrep'") == 0


def test_the_printed_sql_installs_the_event_trigger(lab: Lab, run: Run) -> None:
    lab.run(run("install-ddl-events", "--sql").out)
    assert lab.value(INSTALLED) == 2
    lab.run(*ddl_events_sql(remove=True))
    assert lab.value(INSTALLED) == 0


def test_what_was_installed_under_the_former_name_is_removed(lab: Lab) -> None:
    lab.run(*(one.replace("logicalrep", "pgoutput") for one in ddl_events_sql()))
    assert lab.value("SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'pgoutput%'") == 2
    lab.run(*ddl_events_sql(remove=True))
    assert lab.value("SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'pgoutput%'") == 0
    assert lab.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgoutput'") == 0


def test_a_role_without_the_privilege_is_told_what_to_do(lab: Lab) -> None:
    role = f"{lab.name}_reader"
    lab.run(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(
            ReplicationError, match="as a superuser or as a role that may create event triggers"
        ):
            install_ddl_events(f"{lab.dsn} user={role}")
    finally:
        lab.run(f"DROP ROLE {role}")


def test_messages_describe_what_any_role_alters(lab: Lab) -> None:
    """Temporary and unlogged tables, and alterations that concern no column, are not described."""
    install_ddl_events(lab.dsn)
    role = f"{lab.name}_owner"
    lab.run(
        "CREATE PUBLICATION p FOR ALL TABLES", f"CREATE ROLE {role}", f"GRANT ALL ON SCHEMA public TO {role}"
    )
    lab.record()
    lab.run(
        "SET session_replication_role = replica",
        f"SET ROLE {role}",
        "CREATE DOMAIN positive AS int DEFAULT 4 CHECK (value > 0)",
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL",
        'ALTER TABLE t RENAME a TO "B c"',
        "ALTER TABLE t ADD d date DEFAULT '2020-01-31'",
        "ALTER TABLE t ADD e positive",
        "CREATE UNLOGGED TABLE u (id int)",
        "ALTER TABLE u ADD a int DEFAULT 5",
        "CREATE TEMPORARY TABLE v (id int)",
        "ALTER TABLE v ADD a int DEFAULT 5",
        "RESET ROLE",
    )
    events = lab.record()
    (connected,) = (one for one in events if isinstance(one, Connected))
    assert connected.options["messages"] == "on"
    renamed, added, rewritten = described(lab)
    assert [(one["was"], one["name"]) for one in renamed["columns"]] == [("id", "id"), ("a", "B c")]
    keys = "was", "name", "type", "origin", "missing"
    assert [added["columns"][-1][key] for key in keys] == [None, "d", 1082, "missing", "2020-01-31"]
    assert (added["schema"], added["name"], added["rewritten"]) == ("public", "t", False)
    last = rewritten["columns"][-1]
    assert rewritten["rewritten"] == (last["origin"] == "default")
    assert (last["type"], last["origin"] in ("default", "missing")) == (23, True)
    lab.run("RESET session_replication_role", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


TREE = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_3 PARTITION OF {t}_2 FOR VALUES FROM (10) TO (15)",
    "CREATE TABLE {t}_free (id int PRIMARY KEY, a text)",
    "INSERT INTO {t} VALUES (1, 'a'), (11, 'b')",
    "INSERT INTO {t}_free VALUES (30, 'x')",
)
STATEMENTS = {
    "ALTER TABLE {t} DETACH PARTITION {t}_1": "(ALTER TABLE public.{t})",
    "ALTER TABLE {t} DETACH PARTITION {t}_1 CONCURRENTLY": "",
    "ALTER TABLE {t} ATTACH PARTITION {t}_free FOR VALUES FROM (30) TO (40)": "(ALTER TABLE public.{t})",
    "ALTER TABLE {t}_3 SET UNLOGGED": "(ALTER TABLE public.{t}_3)",
    "DROP TABLE {t}_3": "(DROP TABLE)",
}
"""Statements, and how the reason for an incomplete table names them."""


def test_a_recorder_names_statements_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment with a statement names the root, without another reason to read the catalogs."""
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._MIN_PAUSE", 600.0)
    install_ddl_events(lab.dsn)
    lab.run(*(one.format(t=f"t{number}") for number in range(len(STATEMENTS)) for one in TREE))
    roots = ", ".join(f"t{number}" for number in range(len(STATEMENTS)))
    lab.run(f"CREATE PUBLICATION p FOR TABLE {roots} WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    with lab.recording() as recording:
        for number, (statement, named) in enumerate(STATEMENTS.items()):
            # Before PostgreSQL 15, another session begins after each statement.
            wait_until(partial(recording.has_read_catalogs, 1 if lab.version >= 15 else number + 1))
            lab.run(statement.format(t=f"t{number}"))
            incomplete = recording.wait(TableIncomplete, number + 1)
            assert incomplete.table == f"public.t{number}"
            assert named.format(t=f"t{number}") in incomplete.reason
    first: dict[str, int] = {}
    for segment in lab.segments():
        for one in segment.incomplete:
            first.setdefault(one.name, segment.messages)
    assert len(first) == len(STATEMENTS)
    assert all(first.values())
    lab.record(snapshot=True)
    assert reasons(lab).keys() == {"public.t3"}
    lab.assert_equal()


def test_statements_are_described_at_their_place(lab: Lab) -> None:
    lab.require(15, "schemas in publications")
    install_ddl_events(lab.dsn)
    lab.run("CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY)", "CREATE TYPE mood AS ENUM ('sad')")
    lab.run("CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
    lab.record()
    lab.run(
        "INSERT INTO s.t VALUES (1); ALTER TABLE s.t SET SCHEMA public; INSERT INTO t VALUES (2); "
        "ALTER TABLE t SET SCHEMA s; ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "ALTER PUBLICATION p SET (publish = 'insert')",
    )
    lab.record()
    with RecordingReader(lab.folder) as recording:
        found = [change.message for one in recording.transactions() for change in one.changes]
    statements = [one for one in described(lab) if "command" in one]
    assert [(one["command"], one["objects"]) for one in statements] == [
        ("ALTER TABLE", ["public.t"]),
        ("ALTER TABLE", ["s.t"]),
        ("ALTER TYPE", ["public.mood"]),
        ("ALTER PUBLICATION", ["p"]),
    ]
    assert [isinstance(one, LogicalMessage) for one in found] == [False, *[True] * 5, True]


EXCEPTED = "ALTER PUBLICATION p SET ALL TABLES EXCEPT (TABLE t)", "ALTER PUBLICATION p SET ALL TABLES"
REMOVED = "ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t"


@pytest.mark.parametrize(
    ("since", "kind", "statements"), [(14, "TABLE u", REMOVED), (19, "ALL TABLES", EXCEPTED)]
)
def test_a_table_that_leaves_a_publication_between_two_readings_is_incomplete(
    lab: Lab, since: int, kind: str, statements: tuple[str, str]
) -> None:
    """The catalogs do not show it."""
    lab.require(since, "the statements")
    install_ddl_events(lab.dsn)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u ()", f"CREATE PUBLICATION p FOR {kind}")
    lab.record(snapshot=True)
    if since < 19:
        lab.run(statements[1], "INSERT INTO t VALUES (1)")
    lab.run(statements[0], "DELETE FROM t", statements[1])
    assert reasons(lab)["public.t"].startswith("not published for a time, by ALTER PUBLICATION")
    lab.record(snapshot=True)
    assert reasons(lab) == {}
