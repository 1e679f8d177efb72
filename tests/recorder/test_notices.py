"""Notices and warnings of the server are reported; a publication that was missing ends the recording."""

from __future__ import annotations

import time

import pytest

from logicalrep.errors import ConnectionLost, RecordingError, ReplicationError
from logicalrep.recorder import Connected, Notice, Reconnecting, Stored, TableComplete, TableIncomplete
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.session.session import Session
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab, wait_until

SKIPPED = (
    "the stream lacks changes that were made while a publication did not exist "
    '(skipped loading publication "p"'
)
RECREATED = 'the publication "p" was dropped and created anew'
SINCE = 18
"""First version of servers that skip a missing publication with a warning."""


def recreate_publication(lab: Lab, first: int) -> int:
    """Insert rows before, between and after DROP and CREATE PUBLICATION; return the LSN after DROP."""
    lab.run(f"INSERT INTO t VALUES ({first})", "DROP PUBLICATION p")
    lost_lsn = lab.lsn()
    lab.run(
        f"INSERT INTO t VALUES ({first + 1})",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t VALUES ({first + 2})",
    )
    return lost_lsn


def stored_ids(lab: Lab) -> list[int]:
    return sorted(int(str(row["id"])) for table in lab.replay().values() for row in table)


def test_each_text_is_reported_once(lab: Lab) -> None:
    notices: list[Notice] = []
    with Connection(
        f"{lab.dsn} options='-c client_min_messages=error'", on_notice=notices.append
    ) as connection:
        for level in ("notice", "warning", "notice"):
            connection.query(f"DO $$ BEGIN RAISE {level} 'disk %', '\u00fc' USING HINT = 'more'; END $$")
        connection.query("DO $$ BEGIN RAISE warning 'another'; END $$")
    assert [(notice.severity, notice.sqlstate, notice.message) for notice in notices] == [
        ("NOTICE", "00000", "disk \u00fc (more)"),
        ("WARNING", "01000", "another"),
    ]


def test_a_publication_recreated_while_recording(table: Lab) -> None:
    with pytest.raises(ReplicationError) as caught, table.recording() as recording:  # noqa: PT012
        recording.wait(Connected)
        table.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
        lost_lsn = recreate_publication(table, 2)
        recording.join()
    assert not isinstance(caught.value, ConnectionLost)
    if table.version >= SINCE:
        assert str(caught.value).startswith((SKIPPED, RECREATED))  # from the warning, or from the catalogs
        assert {(one.severity, one.sqlstate) for one in recording.events_of(Notice)} <= {("WARNING", "55000")}
    assert table.confirmed_lsn() <= lost_lsn
    assert stored_ids(table) == [1, 2]


def test_a_publication_recreated_while_stopped(table: Lab, record_cli: Command) -> None:
    table.run("INSERT INTO t VALUES (0)")
    table.record()
    recreate_publication(table, 1)
    confirmed_lsn = table.confirmed_lsn()
    for _ in range(2):  # nothing is acknowledged, so the next run fails too
        code, out, err = record_cli("--until=now")
        assert (code, out) == (2, "")
        assert err.startswith(f"logicalrep: {RECREATED}, or another was renamed to it, after ")
        assert "Record anew from a new slot and in another folder" in err
        assert table.confirmed_lsn() == confirmed_lsn


def test_a_publication_recreated_without_changes_in_between(table: Lab) -> None:
    """The server sends no warning; the recorder finds that the publication has a new OID."""
    with pytest.raises(ReplicationError, match=RECREATED), table.recording() as recording:  # noqa: PT012
        recording.wait(Connected)
        table.run("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t")
        recording.join()


@pytest.mark.parametrize(("running", "sees"), [(False, False), (True, False), (True, True)])
def test_a_publication_renamed_and_back(table: Lab, running: bool, sees: bool) -> None:
    """The server sends no change that was made meanwhile, and does not publish them later."""
    table.require(SINCE, "streams that skip a missing publication")
    table.run("INSERT INTO t VALUES (1)")
    table.record(snapshot=True)
    statements = (
        "ALTER PUBLICATION p RENAME TO q",
        "INSERT INTO t VALUES (2)",
        "ALTER PUBLICATION q RENAME TO p",
        "INSERT INTO t VALUES (3)",
    )
    if running:
        with table.recording(snapshot=True) as recording:
            recording.wait(Connected)
            table.run(statements[0])
            if sees:  # the recorder ends if the publication is missing for longer
                recording.wait(TableIncomplete)
            table.run(*statements[1:])
            recording.wait(TableComplete)
            if not sees:  # another skip, in a later session
                sessions = len(recording.events_of(Connected))
                table.run(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    f" WHERE slot_name = '{table.slot}'"
                )
                recording.wait(Connected, sessions + 1)
                table.run(*(one.replace("(", "(1") for one in statements))
                recording.wait(TableComplete, 2)
    else:
        table.run(*statements)
        with pytest.raises(RecordingError, match="the publication p was altered"):
            table.record(strict=True)
        assert stored_ids(table) == [1]
    table.record(snapshot=True)
    assert [one for one in table.record() if isinstance(one, TableIncomplete)] == []
    table.assert_equal()


RENAMED = (
    "ALTER PUBLICATION p RENAME TO q",
    "INSERT INTO t VALUES (2)",
    "ALTER PUBLICATION q RENAME TO p",
    "INSERT INTO t VALUES (3)",
)


def test_the_server_warns_again_of_changes_that_it_sends_again(
    table: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an acknowledgement, the server sends all again: the recording knows what it lacks there."""
    table.require(SINCE, "streams that skip a missing publication")
    table.run("INSERT INTO t VALUES (1)")
    table.record(snapshot=True)
    table.run(*RENAMED)

    def acknowledge(session: Session, *, reply_requested: bool = False) -> None:
        session._status_sent = time.monotonic()

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_acknowledge", acknowledge)
        table.record(snapshot=True)
        table.run("INSERT INTO t VALUES (4)")
        for _ in range(2):
            assert not [one for one in table.record(snapshot=True) if isinstance(one, TableIncomplete)]
    table.record(snapshot=True)
    table.assert_equal()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_missing_publication_is_waited_for(table: Lab, is_new: bool) -> None:
    """The recording may have no segment yet."""
    table.require(SINCE, "streams that skip a missing publication")
    if not is_new:
        table.run("INSERT INTO t VALUES (0)")
        table.record(snapshot=True)
    with table.recording(snapshot=True) as recording:
        recording.wait(Connected)
        wait_until(lambda: recording.has_read_catalogs())
        table.run(*RENAMED[:2])
        recording.wait(Reconnecting, 2)
        table.run(*RENAMED[2:])
        wait_until(lambda: table.folder.exists() and len(stored_ids(table)) == 3 - is_new)
    reason = recording.events_of(Reconnecting)[-1].reason
    assert reason.startswith('there is no publication "p" ')
    assert "if it was renamed, rename it back" in reason
    table.assert_equal()


def test_a_publication_recreated_between_two_readings(table: Lab) -> None:
    """A reading of the catalogs without the publication does not hide that it has a new OID."""
    with pytest.raises(ReplicationError, match=RECREATED), table.recording() as recording:  # noqa: PT012
        wait_until(lambda: recording.has_read_catalogs())
        table.run("DROP PUBLICATION p")
        recording.wait(TableIncomplete)
        table.run("CREATE PUBLICATION p FOR TABLE t")
        recording.join()


def test_a_publication_is_found_whose_name_differs_in_case(lab: Lab) -> None:
    lab.run('CREATE PUBLICATION "Orders" FOR ALL TABLES')
    with pytest.raises(ReplicationError, match=r'no publication "orders" .*, but "Orders", which differs in'):
        lab.record("orders")
