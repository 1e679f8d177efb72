"""Tables that equal the source are found equal, and every row that differs is found."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pgoutput.errors import RecordingError, ReplicaError, ReplicationError
from pgoutput.recorder import Connected, RecorderOptions
from pgoutput.verification import (
    SHOWN_ROWS,
    RowDifference,
    ValueDifference,
    key_ranges,
    verify_tables,
)
from pgoutput.verification import verify as verify_module
from pgoutput.verification.source_rows import SourceRows, Total
from tests.conftest import Run
from tests.recorder.lab import Lab
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


def test_values_of_all_types_are_equal(replica: Replica) -> None:
    """Also arrays, ranges, domains, enums, composites, generated columns and values that Arrow lacks."""
    lab = replica.lab
    with lab.connect() as connection:
        for name in SAMPLED:
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
        *OTHERS,
    )
    replica.replicate()
    assert replica.unequal() == []
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
        replica.delta("t").update({"a": "'z'"}, predicate="a = 'c'")
        assert [one.different_rows for one in replica.unequal()] == [1]


def test_only_published_rows_and_columns_are_compared(lab: Lab, tmp_path: Path) -> None:
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
    assert verdict.different_rows == 4  # without a key, each of two rows is on either side only


def test_a_snapshot_taken_anew_repairs_a_table(replica: Replica, run: Run) -> None:
    tampered(replica).delta("t").update({"a": "'other'"}, predicate="id = 100")
    arguments = [
        f"--recording={replica.lab.folder}",
        f"--target={replica.target}",
        f"--dsn={replica.lab.dsn}",
    ]
    found = run("verify", *arguments, "--table=public.t", "--repair")
    assert found.code == 1
    assert "public.t: 3,000 rows, 1 differ as of" in found.out
    assert re.search("id='100' +a +'a100' +'other'", found.out)
    assert "takes the rows of public.t anew" in found.err
    replica.replicate()
    again = run("verify", *arguments, "--table=public.t", "--json")
    assert again.code == 0
    verdict = json.loads(again.out)
    assert (verdict["table"], verdict["rows"], verdict["equal"]) == ("public.t", 3000, True)


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
    replica.delta("t").update({"b": "'other'"}, predicate="id = 2500")
    (verdict,) = replica.unequal("public.t")
    assert read == [3, 4, 5, 6]
    assert (verdict.rows, verdict.different_rows) == (3000, 1)
    assert not (replica.target / "_verification").exists()


def test_reading_is_limited_in_rate(replica: Replica) -> None:
    tampered(replica)
    begin = time.monotonic()
    assert replica.unequal("public.t", rate=3000) == []
    assert time.monotonic() - begin > 1


def test_a_binary_recording_is_compared_where_its_text_is_known(lab: Lab, tmp_path: Path) -> None:
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
        "the recording has the values of m, r in binary format, which is not converted to the server's text"
    )


def test_what_cannot_be_compared_is_refused(replica: Replica, tmp_path: Path) -> None:
    lab = replica.lab
    tampered(replica)
    with pytest.raises(RecordingError, match=r"^no publication of the recording has the table public\.u$"):
        replica.verify("public.u")
    with pytest.raises(ReplicationError, match="is of the database"):
        list(verify_tables(lab.folder, replica.target, lab.server.dsn))
    with pytest.raises(ReplicaError, match="no replica of the recording"):
        list(verify_tables(lab.folder, tmp_path, lab.dsn))


def test_a_recording_that_ends_before_the_snapshot_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "INSERT INTO t VALUES (1)")
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        replica = Replica(lab, tmp_path / "lake")
        replica.replicate()
    with pytest.raises(RecordingError, match="no recorder is running"):
        replica.verify()
