"""Commit times outside the years 1 to 9999, and times that say nothing about a lag.

`pg_replication_origin_xact_setup` gives a transaction any commit time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import eq
from pathlib import Path
from typing import Final

import psycopg
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from logicalrep import views
from logicalrep.cli.common.lag import commit_age, unix_seconds
from logicalrep.messages import Message
from logicalrep.recording import GoneTable, Recording, SegmentReader, locate
from logicalrep.replica import replicate, versions_at
from logicalrep.stream.check import samples as s
from logicalrep.targets.registry import archive_table
from logicalrep.wire import format_time, from_datetime
from tests.cli.test_metrics import sync
from tests.conftest import Run
from tests.recording.recordings import record
from tests.server import Server

FIRST: Final = from_datetime(datetime(1, 1, 1, tzinfo=UTC))
LAST: Final = from_datetime(datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC))
EXTREMES: Final = {
    2**63 - 1: "infinity",
    2**63 - 2: "294277-01-09 04:00:54+00:00",
    9_223_371_331_199_999_999: "294276-12-31 23:59:59+00:00",
    LAST + 1: "10000-01-01 00:00:00+00:00",
    FIRST - 1: "0001-12-31 23:59:59+00:00 BC",
    -211_813_488_000_000_000: "4714-11-24 00:00:00+00:00 BC",
    -(2**63) + 1: "290279-12-22 19:59:05+00:00 BC",
    -(2**63): "-infinity",
}
"""The text of times outside the years 1 to 9999."""
TIMES: Final = [
    pytest.param(number, id=text, marks=() if abs(number) >= 2**63 - 1 else pytest.mark.nightly)
    for number, text in EXTREMES.items()
]

STREAMED: Final = (s.FIRST, s.STREAMED_RELATION, s.STREAMED, s.STOP)
ENDS: Final[Mapping[str, tuple[Message, ...]]] = {
    "Commit": s.TRANSACTION,
    "StreamCommit": (*STREAMED, s.STREAM_COMMIT),
    "StreamAbort": (*STREAMED, replace(s.STREAM_ABORT, abort_lsn=2_000, abort_time=0)),
    "Prepare": s.PREPARED,
    "CommitPrepared": (*s.PREPARED, s.COMMIT_PREPARED),
    "RollbackPrepared": (*s.PREPARED, s.ROLLBACK_PREPARED),
    "StreamPrepare": (*STREAMED, s.STREAM_PREPARE),
}
"""The messages of a transaction, by the name of the last one, which has a time."""


def at(number: int, *messages: Message) -> list[Message]:
    """Return messages with all their times set to `number`."""
    times = [[name for name in one.__struct_fields__ if name.endswith("_time")] for one in messages]
    return [
        replace(one, **{name: number for name in names if getattr(one, name) is not None})
        for one, names in zip(messages, times, strict=True)
    ]


def later(number: int, row: str, after: int) -> list[Message]:
    """Return a transaction that inserts a row, with the time `number`, `after` bytes after the first one."""
    begin = replace(s.BEGIN, final_lsn=1_000 + after)
    commit = replace(s.COMMIT, commit_lsn=1_000 + after, end_lsn=1_048 + after)
    return at(number, begin, s.RELATION, replace(s.INSERT, new=(row, "x")), commit)


@pytest.mark.parametrize(("number", "text"), EXTREMES.items(), ids=EXTREMES.values())
def test_the_text_of_a_time(number: int, text: str) -> None:
    assert (format_time(number), unix_seconds(number)) == (text, None)


@pytest.mark.parametrize("number", [FIRST, -1, 0, 1_500_000, 846_763_494_863_424, LAST])
def test_the_text_of_a_time_in_the_years_1_to_9999(number: int) -> None:
    assert datetime.fromisoformat(format_time(number, "T", "auto")) == datetime(
        2000, 1, 1, tzinfo=UTC
    ) + timedelta(microseconds=number)
    assert unix_seconds(number) == pytest.approx(number / 1e6 + 946_684_800)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("number", TIMES)
def test_every_command_reads_the_recording(run: Run, tmp_path: Path, end: str, number: int) -> None:
    """The transaction is the last of the recording; then another one follows."""
    folder, target = (tmp_path / name for name in ("recording", "lake"))
    folder.mkdir()
    record(folder, *at(number, *ENDS[end]))
    replica = "--recording", folder, "--target", target
    for command in (
        ("decode", folder),
        ("decode", "--table", folder),
        ("inspect", folder),
        ("check", folder),
        ("segments", folder),
        ("segments", "--json", folder),
        ("replicate", *replica),
        ("tables", target),
        ("status", *replica),
        ("status", *replica, "--json"),
    ):
        done = run(*command)
        assert done.code == 0 or "has no tables" in done.err, (command, done)
        if command == ("decode", folder):
            assert f":{number}" in done.out, "the message keeps the raw value"
        if command[0] == "inspect" or (command[0] in ("segments", "status") and "Commit" in end):
            shown = str(number) if command[:2] == ("segments", "--json") else format_time(number)[:12]
            assert shown in done.out, command
    record(folder, *later(number, "7", 9_000))
    assert run("replicate", *replica).code == run("status", *replica).code == 0


@pytest.mark.parametrize("number", EXTREMES, ids=EXTREMES.values())
def test_columns_are_null(tmp_path: Path, number: int) -> None:
    """Views and history have no time; LSN and position sort the rows."""
    folder, target = (tmp_path / name for name in ("recording", "lake"))
    folder.mkdir()
    begin, commit = replace(s.BEGIN, final_lsn=2_000), replace(s.COMMIT, commit_lsn=2_000, end_lsn=2_048)
    record(folder, *at(number, *s.TRANSACTION, begin, s.DELETE, commit))
    recording = Recording(folder)
    for task in views.plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            for batch in views.read(segment, views.ChangesView(segment, task, lambda shape: True)):
                assert batch["commit_time"].null_count == len(batch)
                assert batch["commit_lsn"].to_pylist() == [1_000, 2_000]
    replicate(folder, target, history=True)
    (row,) = DeltaTable(target / "public.t").to_pyarrow_table().to_pylist()
    moments = row["__START_AT"], row["__END_AT"]
    assert [(one["commit_lsn"], one["commit_time"]) for one in moments] == [(1_000, None), (2_000, None)]


NOON: Final = from_datetime(datetime(2026, 1, 31, 12, tzinfo=UTC))
HOUR: Final = 3_600_000_000


@pytest.mark.parametrize("number", TIMES)
@pytest.mark.parametrize("together", [False, True])
def test_a_commit_without_a_time_counts_with_the_one_before(
    tmp_path: Path, number: int, together: bool
) -> None:
    """Commits at 12, 13, ?, and 15 o'clock, one commit of the table each, or those at 13 and ? in one."""
    folder, target = (tmp_path / name for name in ("recording", "lake"))
    folder.mkdir()
    times = NOON, NOON + HOUR, number, NOON + 3 * HOUR
    for index, own in enumerate(times):
        record(folder, *later(own, str(index), 1_000 * index))
        if not (together and index == 1):
            replicate(folder, target)
    found = {}
    for minutes in (-30, 30, 90, 150, 210):
        moment = datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(minutes=minutes)
        (table,) = versions_at(target, time=moment).tables.values()
        rows = (
            [] if table.version is None else DeltaTable(table.place, table.version).to_pyarrow_table()["id"]
        )
        found[minutes] = len(rows)
    assert found == {-30: 0, 30: 1, 90: 3, 150: 3, 210: 4}
    assert versions_at(target, time=datetime.max.replace(tzinfo=UTC)).tables[s.OID].version is not None
    before = versions_at(target, time=datetime.min.replace(tzinfo=UTC) + timedelta(days=1))
    assert before.tables[s.OID].version is None


@pytest.mark.parametrize("number", EXTREMES, ids=EXTREMES.values())
def test_an_archived_table_has_a_name(tmp_path: Path, number: int) -> None:
    folder, target = (tmp_path / name for name in ("recording", "lake"))
    folder.mkdir()
    record(folder, *s.TRANSACTION)
    replicate(folder, target)
    gone = GoneTable(oid=s.OID, namespace="public", name="t", after_lsn=2_000, time=number)
    name = archive_table(locate(target), gone)
    assert name == f"public.t@{s.OID}-{EXTREMES[number].split()[0]}"
    assert DeltaTable(target / name).version() == DeltaTable(str(target / name)).version()


@pytest.mark.parametrize(
    ("committed", "earlier", "age"),
    [
        (-5.0, None, 5.0),
        (3.0, None, 0.0),
        (86_400.0, None, None),
        (-25 * 366 * 86_400.0, None, None),
        (-86_400.0, None, 86_400.0),
        (-86_400.0, 50.0, None),
        (-51.0, 50.0, 51.0),
    ],
)
def test_the_age_of_a_commit(committed: float, earlier: float | None, age: float | None) -> None:
    now = 1.8e9
    assert commit_age(now + committed, now, *(() if earlier is None else (earlier,))) == age


STRANGE: Final = (
    "infinity",
    "-infinity",
    "294276-12-31",
    "4713-11-24 BC",
    "9999-12-31",
    "2001-01-01",
    "0001-01-01",
)


def test_a_live_replica_goes_on(
    server: Server, connection: psycopg.Connection, run: Run, tmp_path: Path
) -> None:
    """Each time is that of the last commit for a while: recorder, replica, metrics and status go on."""
    name = "test_a_live_replica_goes_on"
    origin = f"SELECT pg_replication_origin_create('{name}'), pg_replication_origin_session_setup('{name}')"
    connection.execute(origin.encode())
    inserts = f"logicalrep_replica_applied_changes_total[Insert][public.{name}]"
    with sync(server, name, tmp_path) as command:
        command.wait({"logicalrep_recorder_connected": lambda value: value == 1})
        for number, moment in enumerate(STRANGE, 1):
            with connection.transaction():
                connection.execute("SELECT pg_replication_origin_xact_setup('0/1', %s)", [moment])
                connection.execute(f"INSERT INTO {name} VALUES ({number})".encode())
            values = command.wait(
                {
                    inserts: partial(eq, number),
                    "logicalrep_replica_lag_segments": partial(eq, 0),
                }
            )
            assert max(value for key, value in values.items() if "lag_seconds" in key) < 60, moment
            metric = "logicalrep_replica_last_commit_timestamp_seconds"
            assert (metric in values) == (moment in STRANGE[4:]), moment
        (recording,) = (one.parent for one in tmp_path.rglob("_recording.json"))
        for words in (
            ("segments", recording),
            ("status", "--recording", recording, "--dsn", server.dsn, "--target", tmp_path),
            ("prune", "--recording", recording, "--keep", "0s", "--dry-run"),
            ("verify", "--recording", recording, "--dsn", server.dsn, "--target", tmp_path),
        ):
            done = run(*words)
            assert done.code == 0, (words, done)
        connection.execute(b"SELECT pg_replication_origin_session_reset()")
        connection.execute(f"SELECT pg_replication_origin_drop('{name}')".encode())
