"""Tables that equal the source are found equal, and every row that differs is found."""

from __future__ import annotations

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from logicalrep.errors import RecordingError, ReplicaError, ReplicationError
from logicalrep.recorder import Connected, RecorderOptions
from logicalrep.recorder.catalogs.publications import published_tables
from logicalrep.recorder.client.connection import Connection
from logicalrep.recording import Recording, SegmentReader, prune
from logicalrep.replica import recorded_changes, replicate, select_tables
from logicalrep.verification import RowDifference, key_ranges, verify as verify_module, verify_tables
from logicalrep.verification.differences import ValueDifference
from logicalrep.verification.source_rows import SourceRows, Total
from logicalrep.verification.verify import SHOWN_ROWS
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import Server
from tests.values.test_server import SAMPLED, VECTORS, query_samples
from tests.verification.replica import Replica

OTHERS = (
    """CREATE TABLE others (
        y year, p price, m mood, c pair, n numeric, n2 numeric(5, -2), n3 numeric(3, 5), r numrange,
        i interval, g int GENERATED ALWAYS AS (y + 1) STORED, d date, t timestamptz(3), j json,
        "odd ""Name" text, ja jsonb[], mo mood[], ps pair[], ti time, tz timetz)""",
    """INSERT INTO others (y, p, m, c, n, n2, n3, r, i, d, t, j, "odd ""Name", ja, mo, ps, ti, tz) VALUES
        (1, 0.10, 'so so', ('a "b', now()), 'NaN', 12345, 0.00123, '[1.10,2)', '1 day 2 h', 'infinity', now(),
        '{ "a" :1}', 'x', ARRAY['{"a": "b c"}'::jsonb], '{so so,sad}', ARRAY[('a,b', now())::pair],
        '24:00', '12:00+05:30'),
        (NULL, NULL, NULL, (NULL, NULL), '-Infinity', -100, -0.00999, 'empty', '-1 mon +1 day',
        '0044-03-15 BC', '4000-01-01 BC', '[]', E'\\t', '{}', '{}', '{NULL}', '00:00:00.1', '12:00-15:59'),
        (2, 'NaN', NULL, NULL, 1e100, 0, 'NaN', NULL, '0', '-infinity', 'infinity', NULL, '', NULL, NULL,
        NULL, NULL, NULL)""",
)
"""Statements for a table whose values need care: domains, enums, composites, and what Arrow lacks."""


OLDER = {
    12: ("GENERATED ALWAYS AS (y + 1) STORED", ""),
    14: ("'-Infinity'", "'-1e40'"),
    15: ("n2 numeric(5, -2), n3 numeric(3, 5)", "n2 numeric(5), n3 numeric(8, 5)"),
}
"""Parts of `OTHERS` that servers before a major version refuse, and what takes their place."""

SAMPLED_SINCE = {"xid8": 13, "pg_snapshot": 13, "jsonpath": 12, "numeric": 14, "interval": 17}
"""First major version whose server accepts and returns all samples of a type."""


def test_a_table_that_is_not_published_any_more_is_not_equal(replica: Replica) -> None:
    """A dropped table is no table of the source; the replica has marked it."""
    lab = replica.lab
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    lab.run("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    replica.replicate()
    assert replica.unequal() == []
    lab.run("ALTER TABLE t SET UNLOGGED", "DROP TABLE u")
    (left, gone) = replica.unequal()
    assert (left.table, gone.table) == ("public.t", "public.u")
    assert "do not contain the table any more" in left.error
    while replica.table("u").dropped is None:
        replica.replicate()
    assert [one.table for one in replica.unequal()] == ["public.t"]


def test_generated_columns_that_are_not_published_are_named(replica: Replica, run: Run) -> None:
    lab = replica.lab
    lab.require(12, "generated columns")
    lab.run("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)")
    lab.run("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    replica.replicate()
    assert {one.table: one.not_compared for one in replica.verify()} == {"public.t": ("g",), "public.u": ()}
    printed = run("verify", "--recording", lab.folder, "--target", replica.target, "--dsn", lab.dsn).out
    assert printed.count("without the generated columns g, which are not published") == 1


def test_values_of_all_types_are_equal(replica: Replica) -> None:
    """Also arrays, ranges, domains, enums, composites, generated columns and values that Arrow lacks."""
    lab = replica.lab
    others = list(OTHERS)
    for since, (part, instead) in OLDER.items():
        if lab.version < since:
            others = [one.replace(part, instead) for one in others]
    sampled = [name for name in SAMPLED if SAMPLED_SINCE.get(name, 0) <= lab.version]
    with lab.connect() as connection:
        for name in sampled:
            sql, parameter, form = query_samples(name)
            lab.run(f'CREATE TABLE "t_{name}" (n int PRIMARY KEY, v "{name}", a "{name}"[])')
            arrays = f"""CASE n % 3 WHEN 0 THEN ARRAY[v, NULL, v] WHEN 1 THEN ARRAY[[v], [v]]
                ELSE ('[-1:-1]=' || ARRAY[v]::text)::"{name}"[] END"""
            arrays = "NULL" if name in VECTORS else arrays
            result = connection.pgconn.exec_params(
                f'INSERT INTO "t_{name}" SELECT n, v, {arrays} FROM ({sql}) AS s'.encode(),
                [parameter],
                param_formats=[form],
            )
            assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, result.error_message
    lab.run(
        "CREATE TYPE mood AS ENUM ('sad', 'so so')",
        "CREATE DOMAIN year AS int CHECK (value > 0)",
        "CREATE DOMAIN price AS numeric(10, 2)",
        "CREATE TYPE pair AS (a text, b timestamptz)",
        *others,
    )
    replica.replicate()
    floats = (
        "the columns v, a cannot be compared: they have floats, which servers before PostgreSQL 12 round in "
        "their text. Name only other tables (--table), or upgrade the server"
    )
    assert {one.table: one.error for one in replica.unequal()} == {
        **({} if lab.version >= 15 else {"public.t_char": ""}),  # not valid UTF-8
        **({} if lab.version >= 12 else {"public.t_float4": floats, "public.t_float8": floats}),
    }
    assert replica.verified_lsn("others") is not None


def tampered(replica: Replica) -> Replica:
    replica.lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        "INSERT INTO t SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 3000) i",
        "UPDATE t SET a = NULL WHERE id = 500",
    )
    replica.replicate()
    assert replica.unequal() == []
    return replica


def test_rows_changed_in_the_replica_are_found(replica: Replica) -> None:
    """Update, delete, insert, NULL against empty text, and values swapped between two rows."""
    table = tampered(replica).delta("t")
    table.update({"a": "'other'"}, predicate="id = 100")
    table.update({"a": "''"}, predicate="id = 500")
    table.update({"a": "CASE id WHEN 7 THEN 'a8' ELSE 'a7' END"}, predicate="id IN (7, 8)")
    table.delete("id = 900")
    row = table.to_pyarrow_table().slice(0, 1)
    write_deltalake(table, row.set_column(0, "id", pa.array([9999], pa.int32())), mode="append")
    (verdict,) = replica.unequal()
    assert (verdict.table, verdict.rows, verdict.different_rows) == ("public.t", 3000, 6)
    assert sorted(verdict.differences, key=lambda one: int(one.key["id"] or 0)) == [
        RowDifference("different", {"id": "7"}, {"a": ValueDifference("a7", "a8")}),
        RowDifference("different", {"id": "8"}, {"a": ValueDifference("a8", "a7")}),
        RowDifference("different", {"id": "100"}, {"a": ValueDifference("a100", "other")}),
        RowDifference("different", {"id": "500"}, {"a": ValueDifference(None, "")}),
        RowDifference("only in the source", {"id": "900"}),
        RowDifference("only in the replica", {"id": "9999"}),
    ]
    assert replica.verified_lsn("t") is None


def test_all_differing_rows_are_counted_and_some_are_shown(replica: Replica) -> None:
    tampered(replica).delta("t").update({"b": "'x'"})
    (verdict,) = replica.unequal()
    assert verdict.different_rows == 3000
    assert len(verdict.differences) == SHOWN_ROWS


def test_a_replica_that_lags_or_leads_is_equal(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes, schema changes and a TRUNCATE are not applied yet, or are applied after the snapshot."""
    lab = replica.lab
    lab.require(11, "TRUNCATE in the stream")
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        "CREATE TABLE gone (id int)",
        "INSERT INTO gone VALUES (1)",
        "INSERT INTO t SELECT i, repeat('x', 100), NULL FROM generate_series(1, 100) i",
    )
    replica.replicate()
    changes = (
        "UPDATE t SET a = 'y', id = -id WHERE id % 7 = 1",
        "DELETE FROM t WHERE id % 5 = 0",
        "ALTER TABLE t ADD COLUMN c int",
        "ALTER TABLE t RENAME COLUMN b TO bb",
        "ALTER TABLE t ALTER COLUMN a TYPE varchar(300)",
        "INSERT INTO t VALUES (1000, 'new', 'row', 5)",
        "TRUNCATE gone",
        "INSERT INTO gone VALUES (2)",
    )
    lab.run(*changes[:4])
    assert replica.unequal() == []  # it lags; the column was renamed and nothing came after it
    lab.run(*changes[4:])
    assert replica.unequal() == []
    replica.replicate()
    lab.run("ALTER TABLE t ADD COLUMN d text", "ALTER TABLE t DROP COLUMN bb")
    awaited = verify_module._await_recording
    leads = [
        (
            "UPDATE t SET a = 'later', id = id + 5000",
            "INSERT INTO t (id, d) VALUES (2000, 'z')",
            "TRUNCATE gone",
        ),
        ("DELETE FROM t WHERE id % 3 = 1",),
    ]

    def lead(*arguments: object) -> None:
        for statements in leads:
            lab.run(*statements)
            replica.replicate()
        awaited(*arguments)  # type: ignore[arg-type]
        leads.clear()

    monkeypatch.setattr(verify_module, "_await_recording", lead)
    verdicts = replica.verify()
    # A snapshot of before the TRUNCATE cannot be read: the table is compared as of another one.
    assert [(one.table, one.is_equal, one.rows) for one in verdicts] == [
        ("public.t", True, 81),
        ("public.gone", True, 0),
    ]
    assert verdicts[0].lsn < verdicts[1].lsn


def test_segments_are_read_once_for_all_tables(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments whose changes all tables have applied are not read, even if a table never changes again."""
    lab = replica.lab
    lab.run(*(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(4)), "INSERT INTO t0 VALUES (0)")
    replica.replicate()
    for number in range(3):
        lab.run(f"INSERT INTO t1 VALUES ({number})", f"INSERT INTO t2 VALUES ({number})")
        replica.replicate()
    applied = Recording(lab.folder).numbers[-1]
    lab.run("INSERT INTO t1 VALUES (10)", "INSERT INTO t3 VALUES (10)")
    opened: list[int] = []

    def reader(place: str) -> SegmentReader:
        opened.append(int(Path(place).stem))
        return SegmentReader(place)

    monkeypatch.setattr(recorded_changes, "SegmentReader", reader)
    assert replica.unequal() == []
    assert len(opened) == len({*opened})
    assert {applied + 1} <= {*opened} <= {*range(applied + 1, applied + 5)}


def grouped(replica: Replica) -> Lab:
    """Return the test database, with a replica of 30 tables."""
    lab = replica.lab
    names = [f"g{number}" for number in range(30)]
    lab.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    lab.run(*(f"INSERT INTO {name} VALUES (1)" for name in names))
    replica.replicate()
    return lab


def test_small_tables_are_compared_together(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptions are read once for a group; of a group, only an altered table is compared again."""
    lab = grouped(replica)
    monkeypatch.setattr(verify_module, "_GROUP_TABLES", 10)
    awaited, queries = verify_module._await_recording, list[str]()
    query = Connection.query

    def look(self: Connection, text: Any, **options: Any) -> list[Any]:
        queries.append(str(text))
        return query(self, text, **options)

    def alter(*arguments: object) -> None:
        if not any("LOCK TABLE" in one for one in queries):
            lab.run("ALTER TABLE g7 ADD COLUMN a text")
        awaited(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "query", look)
    monkeypatch.setattr(verify_module, "_await_recording", alter)
    verdicts = replica.verify()
    assert [one.table for one in verdicts if not one.is_equal] == []
    assert len(verdicts) == 30
    assert verdicts[-1].table == "public.g7"
    assert sum("LOCK TABLE" in one for one in queries) == 32  # also "tick"
    assert sum("quote_ident(a.attname)" in one for one in queries) == 2 + 4 + 1


def test_no_lock_is_held_while_waiting_for_another(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = grouped(replica)
    awaited = verify_module._await_recording
    with ThreadPoolExecutor(1) as pool, lab.connect() as other:

        def lock(*arguments: object) -> None:
            other.execute("BEGIN")
            other.execute("LOCK TABLE g9")
            awaited(*arguments)  # type: ignore[arg-type]
            monkeypatch.undo()

        monkeypatch.setattr(verify_module, "_await_recording", lock)
        verdicts = pool.submit(replica.verify)
        wait_until(lambda: lab.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
        held = "mode = 'AccessShareLock' AND granted AND relation::regclass::text ~ '^g[0-9]+$'"
        assert lab.value(f"SELECT count(*) FROM pg_locks WHERE {held}") == 0
        other.execute("ROLLBACK")
        assert all(one.is_equal for one in verdicts.result())


def test_changes_that_the_replica_has_not_applied_yet_are_counted(replica: Replica) -> None:
    tampered(replica)
    replica.lab.run("DELETE FROM t WHERE id < 11")
    (verdict,) = replica.verify()
    assert (verdict.is_equal, verdict.pending) == (True, 10)
    replica.replicate()
    (verdict,) = replica.verify()
    assert (verdict.is_equal, verdict.pending) == (True, 0)


def test_tables_are_found_without_the_registry(replica: Replica) -> None:
    tampered(replica)
    shutil.rmtree(replica.target / "_relations")
    (verdict,) = replica.verify()
    assert (verdict.is_equal, verdict.pending) == (True, 0)
    assert replica.verified_lsn("t") == verdict.lsn


def test_an_older_copy_of_a_table_is_continued(replica: Replica) -> None:
    """The position of a table is in the table, so the copy lacks the changes after its own position."""
    table = Path(tampered(replica).table("t").place)
    copy = replica.target.parent / "copy"
    shutil.copytree(table, copy)
    replica.lab.run("UPDATE t SET a = 'new' WHERE id IN (5, 6)")
    replica.replicate()
    shutil.rmtree(table)
    copy.rename(table)
    (verdict,) = replica.verify()
    assert (verdict.is_equal, verdict.pending) == (True, 2)
    replica.replicate()
    (verdict,) = replica.verify()
    assert (verdict.is_equal, verdict.pending) == (True, 0)
    replica.assert_equal()


def test_a_replica_is_verified_after_the_segments_that_it_has_read_were_pruned(replica: Replica) -> None:
    tampered(replica)
    replica.lab.run("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    for key in range(2, 5):
        replica.lab.run(f"INSERT INTO other VALUES ({key})")
        replica.replicate()
    assert prune(replica.lab.folder, keep=0).first_segment > 1
    assert replica.unequal() == []


def test_rows_of_a_leading_replica_are_found_if_they_differ(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered(replica).delta("t").update({"a": "'other'"}, predicate="id = 100")
    awaited = verify_module._await_recording

    def lead(*arguments: object) -> None:
        replica.lab.run("UPDATE t SET b = 'later' WHERE id IN (99, 100)")
        replica.replicate()
        awaited(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(verify_module, "_await_recording", lead)
    (verdict,) = replica.unequal()
    assert [(one.key["id"], one.columns) for one in verdict.differences] == [
        ("100", {"a": ValueDifference("a100", "other")})
    ]


@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
def test_equal_rows_of_a_table_without_key_are_counted(replica: Replica, identity: str) -> None:
    lab = replica.lab
    lab.require(12, "comparable floats")
    lab.run(
        "CREATE TABLE t (a float8, b text)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t SELECT v, NULL FROM generate_series(1, 5), unnest('{0,-0,NaN,1e300}'::float8[]) v",
        "CREATE TABLE bare ()",
        "INSERT INTO bare DEFAULT VALUES",
        "INSERT INTO bare DEFAULT VALUES",
    )
    replica.replicate()
    assert replica.unequal() == []
    table = replica.delta("t")
    rows = table.to_pyarrow_table()
    write_deltalake(table, rows.slice(2), mode="overwrite")
    gone = rows["a"].slice(0, 2).to_pylist()
    (verdict,) = replica.unequal()
    assert verdict.different_rows == 2
    assert {one.kind for one in verdict.differences} == {"only in the source"}
    assert len(verdict.differences) == 2
    assert sorted(str(float(one.key["a"] or 0)) for one in verdict.differences) == sorted(map(str, gone))


def test_only_current_versions_of_a_history_are_compared(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake", history=True)
        lab.run("UPDATE t SET a = 'c' WHERE id = 1", "INSERT INTO t VALUES (3, NULL)")
        replica.replicate()
        lab.run("DELETE FROM t WHERE id = 2", "UPDATE t SET a = 'd' WHERE id = 3")
        assert replica.unequal() == []
        replica.replicate()
        lab.run("ALTER TABLE t ALTER COLUMN id TYPE bigint", "INSERT INTO t VALUES (5000000000, 'x')")
        assert replica.unequal() == []
        replica.replicate()  # the recorder has copied the rows of the retyped table
        replica.delta("t").update({"a": "'z'"}, predicate="a = 'c'")
        assert [one.different_rows for one in replica.unequal()] == [1]


def test_only_published_rows_and_columns_are_compared(lab: Lab, tmp_path: Path) -> None:
    lab.require(15, "row filters and column lists")
    lab.run(
        "DROP PUBLICATION p",
        "CREATE TABLE t (id int PRIMARY KEY, a text, secret text)",
        "CREATE TABLE parts (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION p FOR TABLE t (id, a) WHERE (id > 5), parts, tick"
        " WITH (publish_via_partition_root)",
        "INSERT INTO t SELECT i, i, 'no' FROM generate_series(1, 10) i",
        "INSERT INTO parts SELECT i, i FROM generate_series(1, 19) i",
    )
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake")
        replica.replicate()
        verdicts = replica.verify()
    assert {(one.table, one.rows, one.is_equal) for one in verdicts} == {
        ("public.t", 5, True),
        ("public.parts", 19, True),
    }


def test_values_that_were_never_sent_are_shown(replica: Replica) -> None:
    """The stream does not tell the values that ADD COLUMN gives to existing rows."""
    lab = replica.lab
    lab.run(
        "CREATE TABLE t (id int, a text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a')",
    )
    replica.replicate()
    lab.run("ALTER TABLE t ADD COLUMN b int", "INSERT INTO t VALUES (2, 'b', 3)")
    assert replica.unequal() == []
    lab.run("ALTER TABLE t ADD COLUMN c int DEFAULT 7", "INSERT INTO t VALUES (3, 'b', 3, 8)")
    replica.replicate()
    (verdict,) = replica.unequal()
    # Without a key, each of two rows is on either side only.
    assert (verdict.different_rows, verdict.only_in_source, verdict.only_in_replica) == (4, 2, 2)


def test_equal_rows_of_a_table_without_a_key_share_a_line(replica: Replica, run: Run) -> None:
    lab = replica.lab
    lab.run(
        "CREATE TABLE t (a text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT 'x' FROM generate_series(1, 30)",
    )
    replica.replicate()
    replica.delta("t").delete()
    found = run("verify", f"--recording={lab.folder}", f"--target={replica.target}", f"--dsn={lab.dsn}")
    assert "public.t: 30 rows, 30 only in the source as of" in found.out
    (line,) = re.findall("a='x'.*", found.out)
    assert re.fullmatch(r"a='x' \(30 times\) +only in the source +", line)


def test_a_snapshot_taken_anew_repairs_a_table(replica: Replica, run: Run) -> None:
    tampered(replica).delta("t").update({"a": "'other'"}, predicate="id = 100")
    arguments = [
        f"--recording={replica.lab.folder}",
        f"--target={replica.target}",
        f"--dsn={replica.lab.dsn}",
    ]
    found = run("verify", *arguments, "--table=public.t", "--repair")
    assert found.code == 1
    assert "public.t: 3,000 rows, 1 different as of" in found.out
    assert re.search("id='100' +a +'a100' +'other'", found.out)
    assert "public.t: the recorder copies only the rows that differ" in found.err
    replica.replicate()
    assert replica.table("t").may_differ
    again = run("verify", *arguments, "--table=public.t", "--json")
    assert replica.table("t").may_differ == (), "an equal table does not differ"
    assert again.code == 0
    verdict = json.loads(again.out)
    assert (verdict["table"], verdict["rows"], verdict["equal"]) == ("public.t", 3000, True)
    assert "keys" not in verdict
    assert re.search(r"public\.t +0/\w+ +\S+ \S+ +3,000 +/\S+/lake", run("segments", replica.lab.folder).out)
    (found_equal,) = listed(run, replica)
    assert found_equal["verified_through"]["rows"] == 3000
    assert found_equal["target"] == str(replica.target)
    replica.delta("t").delete("id = 5")
    assert len(replica.unequal("public.t")) == 1
    assert listed(run, replica) == []
    replica.lab.run("UPDATE t SET a = 'changed' WHERE id = 6")
    replica.replicate()
    assert replica.table("t").may_differ, "the later change is another reason"


def listed(run: Run, replica: Replica) -> list[Any]:
    """Return what `logicalrep segments --json` prints if the table t was found equal."""
    lines = map(json.loads, run("segments", "--json", replica.lab.folder).out.splitlines())
    return [one for one in lines if one.get("table") == "public.t"]


def test_an_interrupted_comparison_is_continued(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(replica).lab.run("ANALYZE t")
    read: list[int] = []
    total = SourceRows.total

    def interrupt(self: SourceRows, number: int) -> Total:
        read.append(number)
        if is_interrupted and len(read) == 4:
            raise KeyboardInterrupt
        return total(self, number)

    monkeypatch.setattr(key_ranges, "ROWS", 500)
    monkeypatch.setattr(SourceRows, "total", interrupt)
    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        replica.verify("public.t")
    is_interrupted = False
    assert read[:4] == [0, 1, 2, 3]
    read.clear()
    assert (replica.target / "_verification").exists()
    replica.lab.run("UPDATE t SET a = 'later' WHERE id IN (1, 2999)")
    replica.delta("t").update({"b": "'other'"}, predicate="id IN (600, 2500)")
    (verdict,) = replica.unequal("public.t")
    assert read == [3, 4, 5, 6, 0, 1], "the ranges of the ids 1 and 600 have changed since"
    assert (verdict.rows, verdict.different_rows) == (3000, 2)
    assert not (replica.target / "_verification").exists()


def test_a_database_in_another_encoding_is_compared(server: Server, tmp_path: Path) -> None:
    options = "ENCODING 'LATIN1' TEMPLATE template0"
    with Lab(server, tmp_path, options) as lab:
        lab.run(
            "CREATE PUBLICATION p FOR ALL TABLES",
            "CREATE TABLE tick (n int)",
            "CREATE TABLE t (id int PRIMARY KEY, a text)",
            "INSERT INTO t VALUES (1, chr(233)), (2, 'a')",
        )
        with lab.recording(snapshot=True) as recording:
            recording.wait(Connected)
            replica = Replica(lab, tmp_path / "lake")
            replica.replicate()
            assert replica.unequal() == []
            replica.delta("t").update({"a": "'è'"}, predicate="id = 1")
            (verdict,) = replica.unequal()
    assert verdict.differences[0].columns == {"a": ValueDifference("é", "è")}


KEYS = {
    "int2": "g - 1500",
    "int8": "g * 10000000000 - 15000000000000",
    "uuid": "(to_char(g, 'FM00000000') || '-0000-0000-0000-000000000000')::uuid",
    "numeric": """CASE g % 500 WHEN 0 THEN 'NaN' WHEN 1 THEN '-1e30' WHEN 2 THEN '1e30'
        ELSE (g - 1500) / 7.0 END""",
    "numeric(12, 3)": "(g - 1500) / 7.0",
    "date": """CASE WHEN g < 3 THEN '-infinity' WHEN g > 2990 THEN 'infinity'
        ELSE date '0001-01-10 BC' + g END""",
    "timestamp": """CASE WHEN g > 2990 THEN 'infinity'
        ELSE timestamp '9999-12-01' + g * interval '1000.5 s' END""",
    "timestamptz": """CASE WHEN g = 7 THEN '4000-01-01 BC'
        ELSE timestamptz '2020-01-01' + g * interval '0.7 s' END""",
    "text": "'O''Neil ' || repeat('ä', g / 1000 * 8) || to_char(g, 'FM0000') || chr(70 + g) || '\\x'",
    'varchar(20) COLLATE "POSIX"': "to_char(g, 'FM0000')",
}
"""SQL for 3,000 keys, nearly sorted, by type of the key."""


@pytest.mark.parametrize("type_", KEYS)
def test_tables_are_divided_by_keys_of_several_types(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    """Also with NULL in the column, and with values that sort unlike their text."""
    monkeypatch.setattr(key_ranges, "ROWS", 500)
    lab = replica.lab
    value = KEYS[type_]
    lab.run(
        f"CREATE TABLE t (a int, k {type_})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t SELECT g, {value} FROM generate_series(1, 3000) g",
        "INSERT INTO t SELECT g FROM generate_series(3001, 3010) g",
        "CREATE INDEX ON t (k)",
        "ANALYZE t",
        "SET enable_seqscan = off",
    )
    conditions = []
    total = SourceRows.total

    def look(self: SourceRows, number: int) -> Total:
        conditions.append(self._ranges.condition(number))
        return total(self, number)

    monkeypatch.setattr(SourceRows, "total", look)
    replica.replicate()
    assert replica.unequal() == []
    conditions = [one for one in conditions if one != "true"]
    assert len(conditions) == 7
    for condition in conditions:
        (count,) = lab.rows(f"SELECT count(*) FROM t WHERE {condition}")[0]
        assert count > 100
        plan = "".join(line for (line,) in lab.rows(f"EXPLAIN SELECT a FROM t WHERE {condition}"))
        assert "Index Cond" in plan
    replica.delta("t").update({"k": "NULL"}, predicate="a = 1800")
    assert [one.different_rows for one in replica.unequal()] == [2]


def test_texts_in_another_order_than_that_of_their_bytes_are_one_range(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ranges, "ROWS", 500)
    lab = replica.lab
    others = "collprovider = 'c' AND collcollate NOT IN ('', 'C', 'POSIX') AND collencoding = 6"
    collations = lab.rows(f"SELECT quote_ident(collname) FROM pg_collation WHERE {others}")
    if not collations:
        pytest.skip("the system has no locale besides C")
    lab.run(
        f"CREATE TABLE t (k text COLLATE {collations[0][0]} PRIMARY KEY)",
        "INSERT INTO t SELECT to_char(g, 'FM0000') FROM generate_series(1, 3000) g",
        "ANALYZE t",
    )
    replica.replicate()
    with Connection(lab.dsn) as connection:
        (table,) = (
            one for one in published_tables(connection, ["p"], binary=False) if one.name == "public.t"
        )
        assert len(key_ranges.choose_ranges(connection, table, 1 << 30, None)) == 1


def test_reading_is_limited_in_rate(replica: Replica) -> None:
    tampered(replica)
    begin = time.monotonic()
    assert replica.unequal("public.t", rate=3000) == []
    assert time.monotonic() - begin > 1


def test_a_binary_recording_is_compared_where_its_text_is_known(lab: Lab, tmp_path: Path) -> None:
    lab.require(14, "values in binary format")
    lab.run(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE known (id int PRIMARY KEY, a numeric, b jsonb, c float8[], d tstzrange, e interval)",
        "CREATE TABLE unknown (m mood, r regclass)",
        """INSERT INTO known VALUES (1, 1.50, '{"a": [1, "x y"]}', '{0.1,NaN}', '[now,infinity]', '-1 mon'),
            (2, 'NaN', NULL, '{}', 'empty', '1 day')""",
        "INSERT INTO unknown VALUES ('sad', 'known')",
    )
    with lab.recording(snapshot=True, options=RecorderOptions(binary=True)) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake")
        replica.replicate()
        (verdict,) = replica.unequal()
    assert verdict.error == (
        "the columns m, r cannot be compared: the recording has their values in binary format, which "
        "logicalrep does not convert to the server's text. Name only other tables (--table), or record anew "
        "without the stream option binary"
    )


def test_what_cannot_be_compared_is_refused(replica: Replica, tmp_path: Path) -> None:
    lab = replica.lab
    tampered(replica)
    with pytest.raises(
        RecordingError, match=r"^no publication of the recording has the table public\.u: give"
    ):
        replica.verify("public.u")
    with pytest.raises(ReplicationError, match="is of the database"):
        list(verify_tables(lab.folder, replica.target, lab.server.dsn))
    with pytest.raises(ReplicaError, match="the target is not a replica of the recording"):
        list(verify_tables(lab.folder, tmp_path, lab.dsn))
    role = f"{lab.name}_reader"
    lab.run(f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON tick TO {role}")
    try:
        dsn = lab.dsn.replace("user=postgres", f"user={role}")
        verdicts = list(verify_tables(lab.folder, replica.target, dsn, on_event=replica.report))
    finally:
        lab.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    errors = {one.table: one.error for one in verdicts}
    assert errors.pop("public.tick") == ""
    assert "a superuser has to run: GRANT SELECT ON public.t TO" in errors["public.t"]
    assert len({one.lsn for one in verdicts}) == 1  # a lack of privileges does not need another snapshot


def test_tables_that_the_target_does_not_follow_are_not_compared(replica: Replica) -> None:
    lab = replica.lab
    tables = ("t", "u")
    lab.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables))
    lab.run(*(f"INSERT INTO {name} VALUES (1)" for name in tables))
    replica.replicate()
    target = replica.target.with_name("selected")
    select_tables(lab.folder, target, ["public.t"])
    replicate(lab.folder, target)
    verdicts = list(verify_tables(lab.folder, target, lab.dsn, on_event=replica.report))
    assert [(one.table, one.is_equal) for one in verdicts] == [("public.t", True)]
    with pytest.raises(ReplicaError, match=r"the target does not follow the table public\.u: add"):
        list(verify_tables(lab.folder, target, lab.dsn, tables=["public.u"], on_event=replica.report))


def test_without_a_recorder_verify_records_until_the_snapshot(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "INSERT INTO t VALUES (1)")
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake")
        replica.replicate()
    lab.run("INSERT INTO t VALUES (2)")
    (verdict,) = replica.verify()
    assert (verdict.rows, verdict.is_equal, verdict.pending) == (2, True, 1)
    lab.record()  # the recording can be continued
    lab.run("INSERT INTO t VALUES (3)")
    copy = shutil.copytree(lab.folder, tmp_path / "copy")
    with pytest.raises(
        RecordingError, match=f"{copy}: the recorder wrote to {lab.folder}, so this recording may be a copy"
    ):
        [*verify_tables(copy, replica.target, lab.dsn)]
    lab.record()  # the copy has read nothing from the slot
    with lab.connect() as other:
        other.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    with pytest.raises(ReplicationError, match="slot"):
        replica.verify()
