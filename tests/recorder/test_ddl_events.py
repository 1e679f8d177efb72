"""The event trigger that describes alterations in the stream: its installation and its messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgoutput.errors import ReplicationError
from pgoutput.messages import LogicalMessage
from pgoutput.recorder import Connected, ddl_events_sql, install_ddl_events
from pgoutput.recorder.ddl_events import DDL_EVENTS_SINCE
from pgoutput.recording import RecordingReader
from tests.conftest import Run
from tests.recorder.lab import Lab
from tests.server import VERSION, Server

INSTALLED = "SELECT count(*) FROM pg_event_trigger WHERE evtname = 'pgoutput_ddl_events' AND evtenabled = 'A'"


def described(lab: Lab) -> list[dict[str, Any]]:
    """Return the contents of the recorded messages."""
    with RecordingReader(lab.folder) as recording:
        messages = [change.message for one in recording.transactions() for change in one.changes]
    return [json.loads(one.content) for one in messages if isinstance(one, LogicalMessage)]


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.require(DDL_EVENTS_SINCE, "the event trigger")
    return lab


@pytest.mark.skipif(DDL_EVENTS_SINCE <= VERSION, reason="the server supports the event trigger")
def test_an_older_server_is_refused(server: Server, run: Run) -> None:
    done = run("install-ddl-events", "--dsn", server.dsn)
    assert done.code == 3
    assert f"the event trigger needs PostgreSQL 14, the server is {VERSION}: record without it" in done.err


def test_install_and_remove(lab: Lab, run: Run) -> None:
    for _ in range(2):
        assert run("install-ddl-events", "--dsn", lab.dsn).code == 0
        assert lab.value(INSTALLED) == 1
    for _ in range(2):
        assert run("install-ddl-events", "--dsn", lab.dsn, "--remove").code == 0
        assert lab.value(INSTALLED) == 0
    assert lab.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgoutput'") == 0


def test_the_printed_sql_installs_the_event_trigger(lab: Lab, run: Run) -> None:
    lab.run(run("install-ddl-events", "--sql").out)
    assert lab.value(INSTALLED) == 1
    lab.run(*ddl_events_sql(remove=True))
    assert lab.value(INSTALLED) == 0


def test_a_role_without_the_privilege_is_told_what_to_do(lab: Lab) -> None:
    role = f"{lab.name}_reader"
    lab.run(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(ReplicationError, match="a superuser, or a role that may create event triggers"):
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
