"""Recordings in object stores: Moto's S3 server, with faults, and two recorders at once."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event

import pytest
from deltalake import DeltaTable

from logicalrep.errors import ConnectionLost, RecordingError, RecordingInUse
from logicalrep.recorder import Connected, Reconnecting, Stored, TableComplete
from logicalrep.recorder.storage import lease
from logicalrep.recorder.storage.store_folder import StoreDirectory
from logicalrep.recording import (
    STATE_FILE,
    RecordingReader,
    locate,
    object_store,
    partial_name,
    segment_name,
)
from logicalrep.replica import replica_tables, replicate, replication
from logicalrep.standin import RecordedSource
from tests import store
from tests.conftest import Run
from tests.recorder.conftest import some, working_folder
from tests.recorder.lab import PATIENCE, Lab, Recording, wait_until

SHORT = ((0, 0), (7, 0), (8, 0), (7, 2))
"""From which write on the two recorders are held back in the tests of `make test`. The first write takes the
lease, the next two write it into the state files; the seventh may be the first segment."""


def test_a_recorder_moves_to_another_machine(
    lab: Lab, proxy: store.Proxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
    for number in range(3):
        working_folder(monkeypatch, tmp_path / f"machine {number}")
        events = lab.record(recording=url)
        lab.run(f"INSERT INTO t SELECT g, 'v' FROM generate_series({number * 10}, {number * 10 + 9}) g")
        events = lab.record(recording=url)
        assert all(one.path.startswith(url) for one in events if isinstance(one, Stored))
        assert lab.confirmed_lsn() >= lab.segments(url)[-1].end_lsn
    (table,) = lab.assert_equal(folder=url).values()
    assert len(list(table)) == 30
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file() and path.name != ".owner"] == []


def test_an_idle_recording_takes_one_request_at_a_time(
    lab: Lab, proxy: store.Proxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that waits only asks for the next segment, more rarely after a while, and finds it at once."""
    monkeypatch.setattr(replication, "_REMOTE_POLL_SECONDS", 0.05)
    monkeypatch.setattr(replication, "_IDLE_POLL_SECONDS", 0.2)
    monkeypatch.setattr(replication, "_IDLE_SECONDS", 1.0)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record(recording=url)
    lab.run("INSERT INTO t VALUES (1)")
    lab.record(recording=url)
    stop, last = Event(), lab.segments(url)[-1].number
    applied: list[int] = []

    def report(segment: int, results: object) -> None:
        applied.append(segment)

    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(replicate, url, tmp_path / "lake", follow=True, stop=stop, on_batch=report)
        try:
            wait_until(lambda: applied[-1:] == [last])
            time.sleep(2)
            proxy.requests.clear()
            time.sleep(1)
            requests = proxy.requests.copy()
            assert {*requests} == {("HEAD", f"/{store.BUCKET}/{lab.name}/recording/{segment_name(last + 1)}")}
            assert len(requests) <= 6
            lab.run("INSERT INTO t VALUES (2)")
            lab.record(recording=url)
            wait_until(lambda: applied[-1:] == [last + 1], 5)
        finally:
            stop.set()
        query.result()


class Gate:
    """Holds back all requests of a recorder from its n-th write on, until it is opened.

    Args:
        proxy: The proxy that the recorder uses.
        number: Number of the write, from 1; 0 to hold none.
    """

    def __init__(self, proxy: store.Proxy, number: int) -> None:
        self.reached, self._open = Event(), Event()
        self._left = number
        if number:
            proxy.fault = self._hold

    def open(self) -> None:
        self._open.set()

    def _hold(self, method: str, path: str) -> store.Fault:
        if method == "PUT":
            self._left -= 1
        if self._left <= 0:
            self.reached.set()
            assert self._open.wait(PATIENCE)
        return ""


def run_two_recorders(
    lab: Lab, moto: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, int]
) -> None:
    """Run two recorders of one recording at once, and hold each back for a while from a write on.

    The n-th of `numbers` is the number of the n-th recorder's write; 0 if the recorder is not held back.
    """
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    recordings: list[Recording] = []
    with store.Proxy(moto) as first, store.Proxy(moto) as second:
        proxies = first, second
        gates = [Gate(*one) for one in zip(proxies, numbers, strict=True)]
        endpoints = [f"http://127.0.0.1:{one.port}" for one in proxies]
        # Arrow creates no S3 filesystem while another one of the process waits for an answer.
        locations = {}
        for endpoint in endpoints:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            locations[endpoint] = locate(url)
        monkeypatch.setattr(
            "logicalrep.recorder.storage.folder.locate",
            lambda place: locations[os.environ["AWS_ENDPOINT_URL"]],
        )

        def start() -> Recording:
            place = len(recordings)
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoints[place])
            working_folder(monkeypatch, tmp_path / f"machine {place}")
            recordings.append(Recording(lambda on_event: lab.recorder(recording=url, on_event=on_event)))
            wait_until(lambda: bool(proxies[place].requests))
            return recordings[-1]

        try:
            start()
            wait_until(lambda: gates[0].reached.is_set() or bool(recordings[0].events_of(Stored)))
            lab.run("INSERT INTO t SELECT max(id) + 1 FROM t")
            start()
            deadline = time.monotonic() + 2.5
            while time.monotonic() < deadline and not recordings[1].events_of(Stored):
                if numbers[0] and not recordings[1].events_of(Connected):
                    lab.run(  # as the server does after wal_sender_timeout
                        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                        f" WHERE slot_name = '{lab.slot}' AND active_pid IS NOT NULL"
                    )
                time.sleep(0.1)
            gates[0].open()
            time.sleep(0.5 if numbers[1] else 0)
            gates[1].open()
            wait_until(lambda: sum(one.is_running for one in recordings) == 1)
            lab.run("INSERT INTO t SELECT max(id) + 1 FROM t")
            (running,) = [one for one in recordings if one.is_running]
            (ended,) = [one for one in recordings if one is not running]
            with pytest.raises(
                RecordingError, match=r"has taken the lease of the recording|writes to this URL"
            ):
                ended.join()
            end = lab.lsn()
            wait_until(lambda: lab.confirmed_lsn() >= end)
            running.stop()
        finally:
            for gate in gates:
                gate.open()
            for one in recordings:
                one.recorder.stop()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{moto}")
    lab.assert_equal(folder=url)
    with RecordingReader(url) as reader:
        xids = [one.xid for one in reader.transactions()]
    assert len(xids) == len(set(xids))


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(numbers, marks=() if numbers in SHORT else pytest.mark.nightly)
        for numbers in [*((first, 0) for first in range(13)), *product((2, 7, 8), range(1, 7))]
    ],
)
def test_one_of_two_recorders_goes_on(
    lab: Lab,
    moto: int,
    proxy: store.Proxy,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: tuple[int, int],
) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record(recording=url)
    lab.run("INSERT INTO t VALUES (1)")
    run_two_recorders(lab, moto, url, tmp_path, monkeypatch, numbers)


def is_acknowledged(lab: Lab, lsn: int) -> bool:
    return lab.confirmed_lsn() >= lsn


def slowly(method: str, path: str) -> store.Fault:
    time.sleep(0.1)
    return ""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(some(0.3, "refuse"), id="503"),
        pytest.param(some(0.2, "cut"), id="cut", marks=pytest.mark.nightly),
        pytest.param(some(0.08, "cut-answer", "GET"), id="cut-answer", marks=pytest.mark.nightly),
        pytest.param(some(0.4, "drop-answer", "PUT", "POST", "DELETE"), id="lost-answers"),
        pytest.param(slowly, id="slow", marks=pytest.mark.nightly),
    ],
)
def test_a_store_with_faults(
    lab: Lab, proxy: store.Proxy, url: str, fault: Callable[[str, str], store.Fault]
) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    proxy.fault = fault
    for number in range(2):
        with lab.recording(recording=url) as recording:
            recording.wait(Connected)
            for id_ in range(3):
                lab.run(f"INSERT INTO t VALUES ({number * 3 + id_})")
                time.sleep(0.15)
            recording.wait(Stored)
            wait_until(partial(is_acknowledged, lab, lab.lsn()))
    proxy.fault = lambda method, path: ""
    lab.assert_equal(folder=url)
    assert sum(one.transactions for one in lab.segments(url)) == 6


def test_an_outage_of_the_store(
    lab: Lab, proxy: store.Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged during the outage; the recorder goes on after it by itself."""
    monkeypatch.setattr(object_store, "_RETRIES", 1)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with lab.recording(recording=url) as recording:
        recording.wait(Connected)
        proxy.fault = lambda method, path: "refuse"
        before = lab.lsn()
        lab.run("INSERT INTO t VALUES (1)")
        recording.wait(Reconnecting)
        assert lab.confirmed_lsn() <= before
        proxy.fault = lambda method, path: ""
        recording.wait(Stored)
    lab.assert_equal(folder=url)


def test_a_stale_listing(lab: Lab, proxy: store.Proxy, url: str, run: Run) -> None:
    """A recorder continues behind the last segment; readers do not take the listed segments for all."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record(recording=url)
    for number in range(2):
        lab.run(f"INSERT INTO t VALUES ({number})")
        lab.record(recording=url)
        proxy.answer = lambda method, path, body: (
            re.sub(rb"<Contents><Key>[^<]*0000000001.parquet</Key>.*?</Contents>", b"", body, flags=re.DOTALL)
            if "list-type" in path
            else body
        )
    assert "missing" in run("segments", url).err
    proxy.answer = lambda method, path, body: body
    assert [one.number for one in lab.segments(url)] == [1, 2]
    lab.assert_equal(folder=url)


def test_a_large_segment_is_one_request(lab: Lab, proxy: store.Proxy, url: str) -> None:
    """A killed recorder leaves no parts of an upload."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY, v bytea)", "CREATE PUBLICATION p FOR TABLE t")
    lab.run("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    lab.record(recording=url)
    lab.run("INSERT INTO t SELECT g, convert_to(string_agg(md5(random()::text), ''), 'UTF8') FROM"
        " generate_series(1, 20) g, generate_series(1, 50000) GROUP BY g")  # fmt: skip
    lab.record(recording=url)
    number = lab.segments(url)[-1].number
    sizes = object_store.ObjectStore(url).sizes()
    assert sizes[segment_name(number)] > object_store._LARGE_BYTES
    puts = [path for method, path in proxy.requests if method in ("PUT", "POST")]
    assert sum(segment_name(number) in path for path in puts) == 1
    assert not [path for path in puts if "upload" in path]
    lab.assert_equal(folder=url)


def test_the_next_segments_are_written_while_a_segment_is_stored(
    lab: Lab, proxy: store.Proxy, url: str, tmp_path: Path
) -> None:
    """Two segments wait at most. They are stored in order, and nothing is acknowledged before."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    release = Event()

    def hold(method: str, path: str) -> store.Fault:
        if method == "PUT" and segment_name(1) in path:
            assert release.wait(PATIENCE)
        return ""

    def is_written(number: int) -> bool:
        return any(tmp_path.rglob(partial_name(segment_name(number))))

    with lab.recording(recording=url, segment_seconds=0.05) as recording:
        recording.wait(Connected)
        before = lab.lsn()
        proxy.fault = hold
        try:
            for number in range(1, 4):
                lab.run(f"INSERT INTO t VALUES ({number})")
                wait_until(partial(is_written, number))
            lab.run("INSERT INTO t VALUES (4)")
            time.sleep(0.5)
            assert not is_written(4)
            assert lab.confirmed_lsn() <= before
            assert recording.events_of(Stored) == []
        finally:
            release.set()
        recording.wait(Stored, 4)
    stored = [path.rpartition("/")[2] for method, path in proxy.requests if method == "PUT"]
    numbers = [segment_name(number) for number in range(1, 5)]
    assert [name for name in stored if name in numbers] == numbers
    lab.assert_equal(folder=url)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"AWS_ALLOW_HTTP": ""}, "set AWS_ALLOW_HTTP=true"),
        ({"AWS_ENDPOINT_URL": "", "AWS_REGION": ""}, "set the environment variable AWS_REGION"),
        ({"AWS_ACCESS_KEY_ID": ""}, "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_a_missing_setting_is_named(
    lab: Lab,
    proxy: store.Proxy,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    error: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    with pytest.raises((RecordingError, ConnectionLost), match=error):
        lab.record(recording=url, retry_for=0)
    assert lab.slots() == []


def test_access_that_is_refused_for_a_while(lab: Lab, proxy: store.Proxy, url: str) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with lab.recording(recording=url) as recording:
        recording.wait(Connected)
        proxy.fault = lambda method, path: "403"
        lab.run("INSERT INTO t VALUES (1)")
        assert "the store refuses access" in recording.wait(Reconnecting).reason
        proxy.fault = lambda method, path: ""
        recording.wait(Connected, 2)
        lab.run("INSERT INTO t VALUES (2)")
        recording.wait(Stored)
    lab.record(recording=url)
    lab.assert_equal(folder=url)


@pytest.mark.parametrize("status", ["401", "403"])
def test_errors_show_no_credentials(lab: Lab, proxy: store.Proxy, url: str, status: store.Fault) -> None:
    proxy.fault = lambda method, path: status
    with pytest.raises(ConnectionLost, match="the store refuses access") as error:
        lab.record(recording=url, retry_for=0)
    assert "s3kr3t" not in str(error.value)
    assert "Signature" not in str(error.value)


def test_every_command_reads_the_url(lab: Lab, direct: None, url: str, run: Run, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    lab.run("CREATE PUBLICATION p FOR TABLE t")
    lab.record(recording=url, snapshot=True, create_slot=False)
    lab.run("INSERT INTO t VALUES (2, 'b')")
    with lab.recording(recording=url) as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (3, 'c')")
        recording.wait(Stored)
        done = run("snapshot", "--recording", url, "--table", "public.t")
        assert (done.code, recording.wait(TableComplete).table) == (0, "public.t")
    lab.assert_equal(folder=url)
    for command in ("segments", "segments --json", "decode", "decode --table", "inspect", "check"):
        done = run(*command.split(), url)
        assert (done.code, done.err) == (0, ""), (command, done.err)
        assert done.out
    one = f"{url}/0000000001.parquet"
    assert run("decode", one).code == 0
    source = RecordedSource(url)
    assert [relation.name for relation in source.tables] == ["t"]
    for target in (str(tmp_path / "lake"), url.replace("recording", "lake")):
        done = run("replicate", "--recording", url, "--target", target)
        assert done.code == 0, done.err
        (table,) = replica_tables(target).values()
        assert len(DeltaTable(table.place).to_pyarrow_table()) == 3
    with lab.recording(recording=url):
        done = run("verify", "--recording", url, "--target", str(tmp_path / "lake"), "--dsn", lab.dsn)
        assert (done.code, "3 rows, equal" in done.out) == (0, True), done.out + done.err
    assert "verified table" in run("segments", url).out


def test_a_recorder_whose_clock_is_ahead_does_not_take_a_live_lease(
    direct: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.5)
    objects = object_store.ObjectStore(f"s3://{store.BUCKET}/clock")
    owner = lease.Lease(objects, "owner", lambda: False)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    with pytest.raises(RecordingInUse, match=r"another recorder .* writes to this URL"):
        lease.Lease(objects, "next", lambda: False)
    assert owner.is_held()
    owner.release()
    lease.Lease(objects, "next", lambda: False).release()


def test_preconditions_stop_a_recorder_that_has_lost_the_lease(
    direct: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder that was paused, and has not noticed that the lease is lost, can change no state file."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.3)
    objects = object_store.ObjectStore(f"s3://{store.BUCKET}/preconditions")
    directories = []
    for name in ("paused", "next"):
        (tmp_path / name).mkdir()
        taken = lease.Lease(objects, name, lambda: False)
        directories.append(StoreDirectory(tmp_path / name, objects))
        directories[-1].fence(taken)
        directories[-1].replace(STATE_FILE, b'{"last_segment": 1}\n')
        taken._ended.set()
    paused, next_ = directories
    for directory in directories:
        with directory.create(segment_name(1)) as file:
            file.write(directory.path.name.encode())
    paused.publish(segment_name(1))  # it was on its way
    before = objects.get(STATE_FILE), objects.get("_published.json")
    for name in (STATE_FILE, "_published.json"):
        with pytest.raises(RecordingError, match="has taken the lease of the recording"):
            paused.replace(name, b'{"last_segment": 2}\n')
        paused._lease._error = None
    assert (objects.get(STATE_FILE), objects.get("_published.json")) == before
    with pytest.raises(ConnectionLost, match="the previous recorder has stored this object"):
        next_.publish(segment_name(1))
    found = objects.get(segment_name(1))
    assert found is not None
    assert found[0] == b"paused"
    for directory in directories:
        directory.close()
