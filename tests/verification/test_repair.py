"""Only the rows that differ are repaired, through the recording, while a writer changes these rows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psycopg
import pytest
from deltalake import write_deltalake

from logicalrep.recorder import Connected, RowsComplete, TableComplete, is_requested, request_snapshot
from logicalrep.recording import RecordingReader
from logicalrep.verification import TableVerdict
from tests.recorder.lab import Lab, wait_until
from tests.verification.replica import Replica

MAX_KEYS = 1000


def compare(replica: Replica, name: str) -> TableVerdict:
    (verdict,) = replica.verify(name, max_keys=MAX_KEYS)
    return verdict


def repair(replica: Replica, verdict: TableVerdict) -> None:
    """Have the recorder add the rows that differ to the recording."""
    keys = {} if verdict.keys is None else {verdict.table: verdict.keys}
    request = request_snapshot(replica.lab.folder, [verdict.table], keys)
    wait_until(lambda: not is_requested(request))


def repairs(lab: Lab) -> list[Counter[str]]:
    """Return how many messages of each class each transaction of copied rows has that replaces no table."""
    with RecordingReader(lab.folder) as recording:
        found = [
            Counter(type(change.message).__name__ for change in one.changes)
            for one in recording.transactions()
            if not one.xid
        ]
    return [one for one in found if "Delete" in one]


@contextmanager
def writing(lab: Lab, *statements: str) -> Iterator[None]:
    """Run statements again and again on a connection of their own."""
    stop = threading.Event()
    random = Random(1)

    def write() -> None:
        with lab.connect() as connection:
            while not stop.wait(0.005):
                with suppress(psycopg.errors.UniqueViolation):
                    connection.execute(random.choice(statements).encode())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("history", [False, True], ids=["tables", "history"])
def test_rows_are_repaired_while_they_change(lab: Lab, tmp_path: Path, history: bool) -> None:
    """Rows are updated, deleted, inserted and get other keys, also into and out of the repaired keys."""
    rows = 20_000 if history else 100_000
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        f"INSERT INTO t SELECT i, 'a' || i, 'b' || i FROM generate_series(1, {rows}) i",
    )
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake", history=history)
        replica.replicate()
        table = replica.delta("t")
        table.update({"a": "'other'"}, predicate="id = 100")
        table.update({"a": "NULL", "b": "''"}, predicate="id = 200")
        table.delete("id = 300")
        verdict = compare(replica, "public.t")
        assert verdict.keys == frozenset({("100",), ("200",), ("300",)})
        keys = "(ARRAY[100, 200, 300, 400, 500])[1 + floor(random() * 5)::int]"
        with writing(
            lab,
            f"UPDATE t SET a = a || '+' WHERE id = {keys}",
            f"DELETE FROM t WHERE id = {keys}",
            f"INSERT INTO t VALUES ({keys}, 'new', 'row')",
            f"UPDATE t SET id = {keys}, b = 'moved' WHERE id = {keys}",
        ):
            repair(replica, verdict)
        assert recording.wait(RowsComplete).keys == 3
        replica.replicate()
        assert replica.unequal() == []
        (repaired,) = repairs(lab)
        assert repaired["Delete"] >= 3
        assert repaired.total() < 100


@pytest.mark.parametrize("history", [False, True], ids=["tables", "history"])
def test_exactly_the_rows_that_differ_are_copied(lab: Lab, tmp_path: Path, history: bool) -> None:
    """Two-column keys, texts with quotes and backslashes, partitions, row filter and column list."""
    roots, filters = lab.version >= 13, lab.version >= 15
    lab.run(
        "DROP PUBLICATION p",
        "CREATE TABLE keyed (id int, k text, a text, PRIMARY KEY (k, id))",
        "CREATE TABLE listed (id int PRIMARY KEY, a text, secret text)",
        f"CREATE TABLE parts (id int PRIMARY KEY, a text) {'PARTITION BY RANGE (id)' if roots else ''}",
        *(
            f"CREATE TABLE part_{low} PARTITION OF parts FOR VALUES FROM ({low}) TO ({high})"
            for low, high in ((0, 500), (500, 2000))
            if roots
        ),
        "CREATE TABLE wide (id int, a text)",
        "ALTER TABLE wide REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION p FOR TABLE listed {'(id, a) WHERE (id > 100)' if filters else ''},"
        f" parts, keyed, wide, tick {'WITH (publish_via_partition_root)' if roots else ''}",
        *(
            f"INSERT INTO {name} SELECT i, 'a' || i FROM generate_series(1, 1000) i"
            for name in ("listed", "parts", "wide")
        ),
        "INSERT INTO keyed SELECT 1, 'k' || i, 'a' FROM generate_series(1, 1000) i",
        *([] if filters else ["DELETE FROM listed WHERE id <= 100"]),
    )
    texts = ["it's", 'a "b", c', "\\", "E'\\n'", "", "NULL"]
    with lab.connect() as connection:
        for text in texts:
            connection.execute("INSERT INTO keyed VALUES (2, %s, 'a')", [text])
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake", history=history)
        replica.replicate()
        replica.delta("keyed").update({"a": "'other'"}, predicate="id = 2")
        replica.delta("keyed").delete("k = 'k7'")
        replica.delta("listed").update({"id": "50"}, predicate="id = 150")
        replica.delta("parts").update({"a": "NULL"}, predicate="id IN (3, 700)")
        replica.delta("wide").delete("id < 10")
        for name, keys in {
            "public.keyed": {*(("2", text) for text in texts), ("1", "k7")},
            "public.listed": {("50",), ("150",)},
            "public.parts": {("3",), ("700",)},
            "public.wide": None,
        }.items():
            verdict = compare(replica, name)
            assert verdict.keys == keys
            repair(replica, verdict)
        assert recording.wait(TableComplete).table == "public.wide"
        assert [one.table for one in recording.events_of(RowsComplete)] == [
            "public.keyed",
            "public.listed",
            "public.parts",
        ]
        replica.replicate()
        assert replica.unequal() == []
        assert repairs(lab) == [
            {"Delete": 7, "Insert": 7},
            {"Delete": 2, "Insert": 1},
            {"Delete": 2, "Insert": 2},
        ]


def test_keys_that_do_not_identify_rows_are_not_used(replica: Replica) -> None:
    """The replica has a row twice, or more rows differ than wanted."""
    replica.lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t SELECT generate_series(1, 2000)"
    )
    replica.replicate()
    table = replica.delta("t")
    table.update({"id": "7"}, predicate="id IN (8, 9)")
    assert replica.verify("public.t", max_keys=MAX_KEYS)[0].keys is None
    table.update({"a": "'x'"})
    assert replica.verify("public.t", max_keys=MAX_KEYS)[0].keys is None
    table.update({"a": "NULL"})
    assert replica.verify("public.t")[0].keys is None


def test_a_row_that_the_replica_has_twice_is_repaired(replica: Replica) -> None:
    """One of the two rows is equal to the row of the source."""
    replica.lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 9) i",
    )
    replica.replicate()
    rows = replica.delta("t").to_pyarrow_table(filters=[("id", "=", 7)])
    write_deltalake(replica.delta("t").table_uri, rows, mode="append")
    verdict = compare(replica, "public.t")
    assert (verdict.different_rows, verdict.keys) == (1, None)
    repair(replica, verdict)
    replica.replicate()
    assert replica.unequal() == []
