"""A recording continues on a server that has all its transactions, and is refused on any other server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logicalrep.errors import ChangesLost, ReplicationError
from logicalrep.recorder import Connected, Reconnecting, Stored
from logicalrep.recording import list_segments
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import Server, Standby

UNPUBLISHED = "SELECT pg_logical_emit_message(false, '', repeat('x', 3000000))"
"""SQL that writes WAL without a transaction, which no publication sends."""


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def standby(primary: Server) -> Iterator[Standby]:
    with Standby(primary) as standby:
        yield standby


@pytest.fixture
def lab(primary: Server, standby: Standby, tmp_path: Path) -> Iterator[Lab]:
    """Make a test database with a recorded table; its failover slot is usable on the standby."""
    with Lab(primary, tmp_path) as lab:
        prepare(lab)
        synchronize(lab, standby)
        yield lab


def prepare(lab: Lab) -> None:
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{lab.slot}', 'pgoutput', failover => true)",
    )
    insert(lab, 1, 10)
    lab.record()


def insert(lab: Lab, first: int, last: int, text: str = "primary") -> None:
    lab.run(f"INSERT INTO t SELECT g, '{text}' FROM generate_series({first}, {last}) g")


def synchronize(lab: Lab, standby: Standby) -> None:
    """Record and copy the slot to the standby until the standby can use the slot."""

    def usable() -> bool:
        lab.run("SELECT pg_log_standby_snapshot()")  # lets the slot's catalog_xmin advance
        lab.record()
        standby.synchronize_slots()
        return lab.slot in standby.usable_slots()

    wait_until(usable)


def fail_over(lab: Lab, standby: Standby) -> None:
    """Promote the standby, which becomes the server of `lab`."""
    standby.promote()
    lab.server = standby
    lab.reconnect()


def fail_over_behind_acknowledged(lab: Lab, standby: Standby) -> int:
    """Promote the standby while its WAL ends before the acknowledged LSN; return the acknowledged LSN.

    The WAL that the standby lacks contains no transactions.
    """
    standby.catch_up()
    standby.cut_off()
    lab.run(UNPUBLISHED)
    lab.record()
    acknowledged = lab.confirmed_lsn()
    fail_over(lab, standby)
    insert(lab, 11, 20, "standby")
    assert lab.lsn() < acknowledged
    return acknowledged


def assert_refused(lab: Lab, run: Run) -> None:
    """Check that a recorder ends with an error, and changes neither the recording nor the slot."""
    segments = {path: path.read_bytes() for path in list_segments(lab.folder)}
    confirmed = lab.confirmed_lsn()
    with pytest.raises(ChangesLost) as caught:
        lab.record()
    ended = run(*lab.command("--until=now")[3:])
    assert ended.code == 2, ended.err
    assert str(caught.value) in ended.err
    assert {path: path.read_bytes() for path in list_segments(lab.folder)} == segments
    assert lab.confirmed_lsn() == confirmed


# Failover of a slot that standbys keep


def test_a_standby_that_lacks_recorded_transactions_is_refused(lab: Lab, standby: Standby, run: Run) -> None:
    standby.cut_off()
    insert(lab, 11, 31)
    lab.record()
    end = lab.lsn()
    fail_over(lab, standby)
    insert(lab, 32, 332, "standby")
    standby.grow_wal(end)
    insert(lab, 333, 340, "standby")
    assert_refused(lab, run)


def test_a_standby_that_lacks_recorded_transactions_is_refused_before_its_wal_has_grown(
    lab: Lab, standby: Standby, run: Run
) -> None:
    standby.cut_off()
    insert(lab, 11, 31)
    lab.record()
    fail_over(lab, standby)
    assert_refused(lab, run)


def test_a_standby_that_has_all_recorded_transactions_is_recorded_after_its_promotion(
    lab: Lab, standby: Standby
) -> None:
    insert(lab, 11, 20)
    lab.record()
    standby.catch_up()
    fail_over(lab, standby)
    insert(lab, 21, 30, "standby")
    lab.record()
    lab.assert_equal()
    timelines = [one.source.timeline for one in lab.segments()]
    assert timelines == sorted(timelines)
    assert set(timelines) == {1, 2}
    # The next run finds the same timelines.
    insert(lab, 31, 40, "standby")
    lab.record()
    lab.assert_equal()


def test_positions_without_transactions_may_be_ahead_of_the_standby(lab: Lab, standby: Standby) -> None:
    """The recorder acknowledges WAL without published changes; a new primary has other WAL at these LSNs."""
    acknowledged = fail_over_behind_acknowledged(lab, standby)
    lab.record()
    lab.assert_equal()
    standby.grow_wal(acknowledged)
    insert(lab, 21, 30, "standby")
    lab.record()
    lab.assert_equal()


def test_positions_without_transactions_may_be_ahead_of_a_standby_that_has_outgrown_them(
    lab: Lab, standby: Standby
) -> None:
    acknowledged = fail_over_behind_acknowledged(lab, standby)
    standby.grow_wal(acknowledged)
    insert(lab, 21, 30, "standby")
    lab.record()
    lab.assert_equal()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[tuple[Lab, Standby]]:
    """Make a test database on its own primary, which the test may crash, and a standby."""
    with Server() as primary, Standby(primary) as standby, Lab(primary, tmp_path) as lab:
        prepare(lab)
        synchronize(lab, standby)
        yield lab, standby


def test_a_dsn_of_several_hosts_follows_the_primary(mortal: tuple[Lab, Standby]) -> None:
    lab, standby = mortal
    with lab.recording(dsn=dsn_of_both(lab, standby)) as recording:
        recording.wait(Connected)
        insert(lab, 11, 20)
        recording.wait(Stored)
        standby.catch_up()
        lab.server.crash()
        recording.wait(Reconnecting)
        fail_over(lab, standby)
        recording.wait(Connected, 2)
        stored = len(recording.events_of(Stored))
        insert(lab, 21, 30, "standby")
        recording.wait(Stored, stored + 1)
    lab.assert_equal()
    assert lab.segments()[-1].source.timeline == 2


def test_a_running_recorder_ends_if_the_next_host_lacks_recorded_transactions(
    mortal: tuple[Lab, Standby],
) -> None:
    lab, standby = mortal
    standby.cut_off()
    with lab.recording(dsn=dsn_of_both(lab, standby)) as recording:
        recording.wait(Connected)
        insert(lab, 11, 31)
        recording.wait(Stored)
        segments, end, primary = list_segments(lab.folder), lab.lsn(), lab.server
        fail_over(lab, standby)
        insert(lab, 32, 332, "standby")
        standby.grow_wal(end)
        primary.crash()
        with pytest.raises(ReplicationError):
            recording.join()
    assert list_segments(lab.folder) == segments


def dsn_of_both(lab: Lab, standby: Standby) -> str:
    """Return a DSN of primary and standby that connects to the server that accepts writes."""
    hosts = f"{lab.server.folder},{standby.folder}"
    return f"host={hosts} user=postgres dbname={lab.name} target_session_attrs=read-write"


# Restored backups


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Lab]:
    """Make a test database on its own server, with a backup made after the first rows were recorded."""
    with Server() as server, Lab(server, tmp_path) as lab:
        prepare(lab)
        with stopped(lab):
            server.back_up()
        yield lab


@contextmanager
def stopped(lab: Lab) -> Iterator[None]:
    lab.server.stop()
    yield
    lab.server.start()
    lab.reconnect()


@pytest.mark.parametrize("grown", [True, False])
def test_a_server_restored_to_before_recorded_transactions_is_refused(
    restored: Lab, run: Run, grown: bool
) -> None:
    insert(restored, 11, 31)
    restored.record()
    end = restored.lsn()
    with stopped(restored):
        restored.server.restore()
    insert(restored, 32, 34, "restored")
    if grown:
        restored.server.grow_wal(end)
        insert(restored, 333, 340, "restored")
    assert_refused(restored, run)


def test_a_server_restored_with_the_same_statements_again_is_refused(restored: Lab, run: Run) -> None:
    """LSNs and transaction IDs equal those in the recording; only the commit times differ."""
    insert(restored, 11, 31, "recorded")
    restored.record()
    with stopped(restored):
        restored.server.restore()
    insert(restored, 11, 31, "restored")
    restored.server.grow_wal(restored.lsn())
    assert_refused(restored, run)


def test_a_server_restored_to_before_positions_without_transactions_is_followed_or_refused(
    restored: Lab,
) -> None:
    restored.run(UNPUBLISHED)
    restored.record()
    end = restored.lsn()
    with stopped(restored):
        restored.server.restore()
    insert(restored, 11, 20, "restored")
    restored.server.grow_wal(end)
    try:
        restored.record()
    except ReplicationError:
        return
    restored.assert_equal()


# Recording from a standby


def test_a_recording_from_a_standby_continues_after_its_promotion(lab: Lab, standby: Standby) -> None:
    dsn = standby.dsn.replace("dbname=postgres", f"dbname={lab.name}")
    folder = lab.folder.with_name("from standby")
    lab.slot = f"{lab.slot}_of_standby"
    with lab.recording(dsn=dsn, recording=folder) as recording:
        with snapshots_logged(lab):
            recording.wait(Connected)
        insert(lab, 11, 20)
        recording.wait(Stored)
        lab.run("TRUNCATE t")
        insert(lab, 21, 30)
        standby.catch_up()
        fail_over(lab, standby)
        insert(lab, 31, 40, "standby")
        end = lab.lsn()
        wait_until(lambda: lab.confirmed_lsn() >= end)
    lab.assert_equal(folder=folder)
    insert(lab, 41, 50, "standby")
    lab.record(recording=folder)
    lab.assert_equal(folder=folder)
    assert lab.segments(folder)[-1].source.timeline == 2


@contextmanager
def snapshots_logged(lab: Lab) -> Iterator[None]:
    """Make the primary log its running transactions, which a new slot on a standby waits for."""
    over = threading.Event()

    def log() -> None:
        with lab.connect() as connection:
            while not over.wait(0.1):
                connection.execute("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
