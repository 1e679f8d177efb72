"""A session acknowledges only stored LSNs; tested with a fake connection and a blocked disk."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from logicalrep import envelope, v2
from logicalrep.columns import XLogDataBatch, decode_xlog_data
from logicalrep.errors import ConnectionLost
from logicalrep.messages import (
    Begin,
    Commit,
    Message,
    PrimaryKeepalive,
    StandbyStatusUpdate,
    XLogData,
)
from logicalrep.recorder import Recorder
from logicalrep.recorder.catalogs.catalog import Catalog
from logicalrep.recorder.catalogs.changes import CatalogChanges
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.client.server import Server
from logicalrep.recorder.session.session import Session
from logicalrep.recorder.session.start import PreparedSession
from logicalrep.recording import (
    Directory,
    Remarks,
    ResentCommitCheck,
    SessionStart,
    Source,
    find_inconsistencies,
    read_metadata,
)
from tests.recorder.lab import wait_until

SOURCE = Source(
    recording="7b0c3e0e-0000-4000-8000-000000000001",
    system_identifier="1",
    server_version="14.0",
    database="d",
    slot="s",
    publications=("p",),
    proto_version=2,
)


class FakeConnection:
    """Replaces `Connection`: the test supplies the messages that the server sends."""

    more = False
    ended = False

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._said: list[Message] = []
        self.heard: list[StandbyStatusUpdate] = []
        self.broken = False

    def fileno(self) -> int:
        return self._here.fileno()

    def say(self, *messages: Message) -> None:
        self._said += messages
        self._there.send(b".")

    @property
    def unheard(self) -> bool:
        """Whether messages of the server are left that the session has not received."""
        return bool(self._said)

    def receive(self) -> XLogDataBatch:
        if self.broken:
            raise ConnectionLost("broken")
        self._here.recv(100)
        said, self._said = self._said, []
        return decode_xlog_data(list(map(envelope.encode, said)))

    def send(self, message: StandbyStatusUpdate) -> None:
        if self.broken:
            raise ConnectionLost("broken")
        self.heard.append(message)

    def end_replication(self) -> None:
        self.ended = True

    def close(self) -> None:
        self._here.close()
        self._there.close()


class Lab:
    """A session on a fake connection, running in a thread.

    Attributes:
        saved: LSNs that the session has saved before acknowledging them.
        stored: Paths of the stored segments.
        disk: Event that the test clears to block the saving of LSNs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        acknowledged_lsn: int = 100,
        sender_timeout: float = 60.0,
        segment_seconds: float = 0.0,
    ) -> None:
        self.connection = FakeConnection()
        self.saved: list[int] = []
        self.stored: list[Path] = []
        self.disk = threading.Event()
        self.disk.set()
        self.failure: BaseException | None = None
        self.over = False
        prepared = PreparedSession(
            server=Server("1", "d", "14.0", 14, 100, sender_timeout),
            source=SOURCE,
            start=SessionStart(session=1, number=1, position=0, lsn=100),
            begin_lsn=100,
            acknowledged_lsn=acknowledged_lsn,
            resent=ResentCommitCheck(),
            catalog=Catalog(100, 16_384, (), {}, {}),
            changes=CatalogChanges((), ()),
            timelines=None,
        )
        recorder = Recorder(
            "",
            SOURCE.slot,
            SOURCE.publications,
            folder,
            segment_bytes=1 << 20,
            segment_seconds=segment_seconds,
        )
        self.session = Session(
            cast(Connection, self.connection),
            Directory(folder),
            prepared,
            recorder._settings,
            on_stored=lambda path, metadata: self._store(path),
            save_lsn=self._save,
            remarks=lambda *_: Remarks(),
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _store(self, path: Path) -> None:
        self.stored.append(path)

    def _save(self, lsn: int) -> None:
        self.disk.wait()
        self.saved.append(lsn)

    def _run(self) -> None:
        try:
            self.session.run(None, lambda: self.over, lambda: False)
        except BaseException as failure:
            self.failure = failure

    @property
    def heard(self) -> list[int]:
        """The LSNs that the session has acknowledged, in order."""
        return [status.flushed_lsn for status in self.connection.heard]


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Block os.fsync() until the returned event is set."""
    free = threading.Event()
    monkeypatch.setattr("os.fsync", lambda descriptor: free.wait(10))
    return free


@contextmanager
def at_work(folder: Path, **options: Any) -> Iterator[Lab]:
    lab = Lab(folder, **options)
    try:
        yield lab
    finally:
        lab.over = True
        lab.disk.set()
        lab.thread.join(60)
        assert not lab.thread.is_alive()
        lab.connection.close()


def transaction(lsn: int) -> list[Message]:
    """Return the messages of an empty transaction that ends at an LSN."""
    return sent(
        Begin(final_lsn=lsn - 10, commit_time=0, xid=7),
        Commit(commit_lsn=lsn - 10, end_lsn=lsn, commit_time=0),
    )


def sent(*messages: Message) -> list[Message]:
    return [XLogData(wal_start=0, wal_end=0, send_time=0, data=v2.encode(message)) for message in messages]


def keepalive(lsn: int, *, reply: bool = False) -> PrimaryKeepalive:
    return PrimaryKeepalive(wal_end=lsn, send_time=0, reply_requested=reply)


def test_a_keepalive_that_requests_a_reply_is_answered_at_once(tmp_path: Path) -> None:
    with at_work(tmp_path) as lab:
        lab.connection.say(keepalive(90, reply=True))
        wait_until(lambda: lab.heard == [100], 0.2)


def test_nothing_is_acknowledged_before_it_is_on_the_disk(tmp_path: Path, blocked: threading.Event) -> None:
    with at_work(tmp_path) as lab:
        lab.connection.say(*transaction(200), keepalive(300, reply=True))
        wait_until(lambda: len(lab.heard) == 1)
        lab.connection.say(*transaction(400), keepalive(500, reply=True), keepalive(600, reply=True))
        wait_until(lambda: len(lab.heard) == 3)
        assert set(lab.heard) == {100}
        blocked.set()
        wait_until(lambda: lab.heard[-1] >= 400)
    assert lab.heard == sorted(lab.heard)
    assert [read_metadata(path).end_lsn for path in lab.stored][-1] == 400
    assert lab.failure is None


def test_an_idle_slot_is_advanced_after_the_lsn_is_saved(tmp_path: Path) -> None:
    with at_work(tmp_path) as lab:
        lab.disk.clear()
        lab.connection.say(keepalive(300, reply=True))
        wait_until(lambda: lab.heard == [100])
        lab.disk.set()
        wait_until(lambda: lab.heard[-1] == 300)
        assert lab.saved == [300]
        lab.connection.say(keepalive(200, reply=True))  # never goes back
        wait_until(lambda: len(lab.heard) == 3)
        assert lab.heard[-1] == 300


def test_a_keepalive_advances_past_earlier_messages_only(tmp_path: Path) -> None:
    with at_work(tmp_path) as lab:
        lab.connection.say(keepalive(300), *transaction(400), keepalive(500), *transaction(600))
        wait_until(lambda: lab.heard[-1:] == [600])
    assert lab.saved == [300]  # no segment was open at 300; one was open at 500


def test_a_keepalive_inside_a_transaction_does_not_advance_the_slot(tmp_path: Path) -> None:
    with at_work(tmp_path) as lab:
        begin, _ = transaction(200)
        lab.connection.say(begin, keepalive(300, reply=True), keepalive(350, reply=True))
        wait_until(lambda: lab.heard == [100, 100])
        lab.over = True
        lab.thread.join(60)
    assert set(lab.heard) == {100}
    assert lab.saved == []


def fill(lab: Lab) -> int:
    """Send transactions until the session waits for the disk; return the last received end LSN."""
    for lsn in range(200, 10_000, 100):
        lab.connection.say(*transaction(lsn))
        deadline = time.monotonic() + 0.5
        while lab.connection.unheard:
            if time.monotonic() > deadline:
                return lsn - 100
            time.sleep(0.01)
    raise AssertionError("the session does not wait")


def test_an_acknowledgement_never_goes_back(tmp_path: Path) -> None:
    with at_work(tmp_path, acknowledged_lsn=150) as lab:  # while idle, after the last segment
        lab.connection.say(keepalive(90, reply=True))
        wait_until(lambda: lab.heard == [150])


def test_status_updates_are_sent_while_the_recorder_waits_for_the_disk(
    tmp_path: Path, blocked: threading.Event
) -> None:
    with at_work(tmp_path, sender_timeout=0.9) as lab:
        last = fill(lab)
        heard = len(lab.heard)
        wait_until(lambda: len(lab.heard) > heard + 1)
        assert set(lab.heard) == {100}
        blocked.set()
        wait_until(lambda: lab.heard[-1] == last + 100)


def test_received_messages_are_stored_if_the_connection_breaks_during_a_slow_write(
    tmp_path: Path, blocked: threading.Event
) -> None:
    with at_work(tmp_path, sender_timeout=0.3) as lab:
        last = fill(lab)
        lab.connection.broken = True
        threading.Timer(0.7, blocked.set).start()
        lab.thread.join(60)
    assert isinstance(lab.failure, ConnectionLost)
    metadata = [read_metadata(path) for path in lab.stored]
    assert metadata[-1].end_lsn == last
    assert list(find_inconsistencies(metadata)) == []
    assert sum(one.messages for one in metadata) == 2 * (last - 100) // 100
    assert not list(tmp_path.glob(".*"))


def test_everything_received_is_acknowledged_at_the_end(tmp_path: Path) -> None:
    with at_work(tmp_path, segment_seconds=60.0) as lab:
        lab.connection.say(*transaction(200), keepalive(300))
        wait_until(lambda: lab.session.messages == 2)
        assert lab.stored == []
    assert lab.heard[-1] == 300
    assert lab.saved == [300]
    assert [read_metadata(path).end_lsn for path in lab.stored] == [200]
    assert lab.connection.ended


def test_status_updates_are_sent_while_the_end_waits_for_a_slow_disk(tmp_path: Path) -> None:
    with at_work(tmp_path, sender_timeout=0.3) as lab:
        lab.connection.say(*transaction(200))
        wait_until(lambda: lab.heard[-1:] == [200])
        lab.disk.clear()
        lab.connection.say(keepalive(300, reply=True))
        lab.over = True
        heard = len(lab.heard)
        wait_until(lambda: len(lab.heard) > heard + 3)
        assert lab.heard[-1] == 200
        lab.disk.set()
        lab.thread.join(60)
    assert lab.heard[-1] == 300
