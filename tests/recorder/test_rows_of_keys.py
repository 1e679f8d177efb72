"""Rows with given keys are added to a recording while the recorder runs and the rows change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any

import pytest

from logicalrep import messages as m
from logicalrep.messages import TupleData
from logicalrep.recorder import (
    Connected,
    RecorderOptions,
    RowsComplete,
    TableComplete,
    install_ddl_events,
    is_requested,
    request_snapshot,
)
from logicalrep.recorder.catalogs.ddl_events import DDL_EVENTS_SINCE
from logicalrep.recorder.snapshots.table_copy import TableCopy
from logicalrep.recorder.storage.status import stored_lsn
from logicalrep.recording import RecordingReader
from logicalrep.standin import RecordedSource
from logicalrep.standin.recorded.recording import open_stream
from logicalrep.stream import Table, Tables, Transaction, Transactions
from logicalrep.wire import parse_lsn
from tests.conftest import Run
from tests.recorder.lab import Lab, Recording, wait_until

BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))"
"""SQL for a value that is stored out of line, and not sent if an update does not change it."""


@pytest.fixture
def later(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Functions that are called after rows are copied, each once; the recorder waits for their changes."""
    calls: list[Callable[[], None]] = []
    run = TableCopy.run

    def run_and_call(*arguments: Any) -> Any:
        result = run(*arguments)
        if calls:
            calls.pop(0)()
            lsn = lab.lsn()
            wait_until(lambda: stored_lsn(lab.folder) >= lsn)
        return result

    monkeypatch.setattr(TableCopy, "run", run_and_call)
    return calls


def transactions(lab: Lab) -> list[Transaction]:
    with RecordingReader(lab.folder) as recording:
        return list(recording.transactions())


def replay(lab: Lab, lsn: str, wrong: Collection[tuple[str, ...]]) -> Tables:
    """Return the tables of the recording if some rows became wrong at an LSN, in each table.

    As in a replica, a row that is written takes the place of a row with the same key.

    Args:
        lab: The test database.
        lsn: The LSN.
        wrong: Keys of the rows that are wrong: each row is missing, or exists with other values.
    """
    tables = Tables()
    is_wrong = False
    for transaction in transactions(lab):
        if not is_wrong and transaction.commit_lsn >= parse_lsn(lsn):
            is_wrong = True
            for table in tables.values():
                keys = [at for at, column in enumerate(table.relation.columns) if column.flags]
                for number, key in enumerate(sorted(wrong)):
                    cells: list[str | None] = [None] * len(table.relation.columns)
                    for at, value in zip(keys, key, strict=True):
                        cells[at] = value
                    remove(table, tuple(cells), table.relation)
                    if number % 2:
                        row = tuple("wrong" if cell is None else cell for cell in cells)
                        table.apply(m.Insert(relation_oid=table.relation.oid, new=row), table.relation)
        for change in transaction.changes:
            message = change.message
            if isinstance(message, m.Insert) or (isinstance(message, m.Update) and message.key):
                for relation in change.relations:
                    if relation.oid in tables:
                        remove(tables[relation.oid], message.new, relation)
            tables.apply_change(change)
    return tables


def remove(table: Table, row: TupleData, relation: m.Relation) -> None:
    """Remove the row with the same key as `row`, if there is one."""
    table.apply(m.Delete(relation_oid=relation.oid, key=row), relation)


def assert_repaired(lab: Lab, lsn: str, wrong: Collection[tuple[str, ...]]) -> None:
    """Check that a reader whose rows with some keys were wrong has the rows of the server."""
    right = lab.assert_equal()
    for oid, table in replay(lab, lsn, wrong).items():
        rows = [sorted(tuple(map(str, row.values())) for row in one) for one in (table, right[oid])]
        assert rows[0] == rows[1]


def served(lab: Lab) -> Iterator[Transaction]:
    """Yield the transactions that the stand-in server sends from the recording."""
    stream = open_stream(lab.folder)
    decoder = stream.decoder()
    found = Transactions(decoder)
    source = RecordedSource(lab.folder)
    for envelope in source.start(stream.options, source.start_lsn):
        if isinstance(envelope, m.XLogData):
            transaction = found.feed(decoder.decode(envelope.data))
            if transaction is not None:
                yield transaction


def operations(transaction: Transaction) -> list[str]:
    return [type(change.message).__name__ for change in transaction.changes]


def last_repair(lab: Lab) -> Transaction:
    """Return the last transaction with copied rows."""
    return [one for one in transactions(lab) if not one.xid][-1]


def test_only_the_rows_with_the_keys_are_copied(lab: Lab) -> None:
    """Keys with quotes and backslashes, equal numbers with other text, keys of no row, filter and columns."""
    filters = lab.version >= 15
    lab.run(
        "CREATE TABLE t (n numeric, k text, a text, secret text, PRIMARY KEY (n, k))",
        f"CREATE PUBLICATION p FOR TABLE t {'(n, k, a) WHERE (n < 100)' if filters else ''}",
    )
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        texts = ["", "it's", 'a "b', "\\", "\\n", "ü\t\n", "$$", "%s"]
        with lab.connect() as connection:
            for number in ("1.0", "2", "100"):
                for text in texts:
                    connection.execute(
                        "INSERT INTO t VALUES (%s::text::numeric, %s, 'x', 'no')", [number, text]
                    )
        keys = {("1.0", text) for text in texts} | {("100", ""), ("1.00", "it's"), ("7", "")}
        request_snapshot(lab.folder, ["public.t"], {"public.t": keys})
        event = recording.wait(RowsComplete)
        assert (event.table, event.keys) == ("public.t", len(keys))
    inserts = len(texts) + (0 if filters else 1)
    assert operations(last_repair(lab)) == ["Delete"] * len(keys) + ["Insert"] * inserts
    tables = replay(lab, event.lsn, keys)
    assert [len(table) for table in tables.values()] == [(2 if filters else 3) * len(texts)]
    assert not list(lab.folder.glob("_snapshot-*"))
    assert not (lab.folder / ".tables.partial").exists()


def test_random_changes_of_the_rows_meanwhile_are_applied_once(
    lab: Lab, run: Run, later: list[Callable[[], None]]
) -> None:
    """Rows get other keys, leave and enter the keys that are copied, and the table is truncated."""
    random = Random(1)
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT id, 'old', {BIG} FROM generate_series(1, 20) id",
        "CREATE PUBLICATION p FOR TABLE t",
    )

    def change() -> None:
        for _ in range(random.randint(5, 40)):
            one, other = (random.randint(1, 30) for _ in range(2))
            free = f"NOT EXISTS (SELECT FROM t WHERE id = {other})"
            (statement,) = random.choices(
                (
                    f"INSERT INTO t VALUES ({one}, 'new', {BIG}) ON CONFLICT DO NOTHING",
                    f"UPDATE t SET v = v || '+' WHERE id = {one}",
                    f"UPDATE t SET id = {other} WHERE id = {one} AND {free}",
                    f"UPDATE t SET id = {other}, big = {BIG} WHERE id = {one} AND {free}",
                    f"DELETE FROM t WHERE id = {one}",
                    "TRUNCATE t",
                ),
                (8, 4, 2, 4, 4, 0.8 if lab.version >= 11 else 0),  # older servers do not send TRUNCATE
            )
            lab.run(f"BEGIN; SAVEPOINT s; {statement}; {random.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))}")

    seen = set()
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        for number in range(1, 8):
            later.append(change)
            keys = {(str(key),) for key in random.sample(range(1, 31), random.randint(1, 12))}
            request_snapshot(lab.folder, ["public.t"], {"public.t": keys})
            wait_for_both(recording, number)
            event = recording.events_of(RowsComplete)[-1:]
            if event and last_repair(lab).changes and event[0].lsn not in seen:
                seen.add(event[0].lsn)
                assert_repaired(lab, event[0].lsn, keys)
    assert len(seen) >= 3
    after_snapshot = transactions(lab)[1:]
    assert [one.changes for one in served(lab)] == [one.changes for one in after_snapshot]
    for command in ("check", "segments"):
        assert run(command, lab.folder).code == 0


def wait_for_both(recording: Recording, count: int) -> None:
    """Wait until rows were added `count` times: rows with keys, or all rows of a table."""
    wait_until(
        lambda: len(recording.events_of(RowsComplete)) + len(recording.events_of(TableComplete)) >= count
    )


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE t SET id = 5 WHERE id = 15",  # its value `big` is not sent
        "ALTER TABLE t ADD COLUMN c int; UPDATE t SET c = 1 WHERE id = 15",
        "ALTER TABLE t RENAME COLUMN v TO w; UPDATE t SET w = 1 WHERE id = 15",
        "ALTER TABLE t ADD COLUMN c int",  # an event trigger tells the stream
    ],
)
def test_all_rows_are_copied_if_later_changes_do_not_fit_the_rows_with_the_keys(
    lab: Lab, later: list[Callable[[], None]], change: str
) -> None:
    lab.require(10 if "UPDATE" in change else DDL_EVENTS_SINCE, "the event trigger")
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT id, 'old', {BIG} FROM generate_series(6, 20) id",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    if lab.version >= DDL_EVENTS_SINCE:
        install_ddl_events(lab.dsn)
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        later.append(lambda: lab.run(change))
        request = request_snapshot(lab.folder, ["public.t"], {"public.t": [("5",), ("6",)]})
        event = recording.wait(TableComplete)
        wait_until(lambda: not is_requested(request))
        assert not recording.events_of(RowsComplete)
    assert operations(last_repair(lab))[:16] == ["Truncate"] + ["Insert"] * 15
    assert_repaired(lab, event.lsn, [("5",), ("6",)])


@pytest.mark.parametrize(
    ("identity", "publish", "key", "options"),
    [
        ("FULL", "insert, update, delete, truncate", ("1",), {}),
        ("DEFAULT", "insert, update", ("1",), {}),
        ("DEFAULT", "insert, update, delete, truncate", ("1", "2"), {}),
        ("DEFAULT", "insert, update, delete, truncate", ("no number",), {}),
        ("DEFAULT", "insert, update, delete, truncate", ("1",), {"options": RecorderOptions(binary=True)}),
    ],
)
def test_all_rows_are_copied_if_rows_have_no_such_keys(
    lab: Lab, identity: str, publish: str, key: tuple[str, ...], options: dict[str, Any]
) -> None:
    lab.require(14 if options else 10, "values in binary format")
    if lab.version < 11:
        publish = publish.replace(", truncate", "")
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1), (2)",
        f"CREATE PUBLICATION p FOR TABLE t WITH (publish = '{publish}')",
    )
    with lab.recording(snapshot=True, **options) as recording:
        recording.wait(Connected)
        request_snapshot(lab.folder, ["public.t"], {"public.t": [key]})
        recording.wait(TableComplete)
        assert not recording.events_of(RowsComplete)
    assert operations(last_repair(lab)) == ["Truncate", "Insert", "Insert"]
