"""What the stream does not say of publications and tables, the recorder finds in the catalogs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput.errors import RecordingError
from pgoutput.recorder import Connected, PublicationAltered, Recorder, SnapshotKept, Stored, TableIncomplete
from pgoutput.recorder.alterations import compare
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.publications import _look, look
from pgoutput.recording import Metadata
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab, wait_until


@pytest.fixture
def table(lab: Lab) -> Lab:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "CREATE PUBLICATION p FOR TABLE t")
    return lab


def reasons(segments: list[Metadata]) -> dict[str, str]:
    """The incomplete tables of a recording, with the reasons."""
    return {one.name: one.reason for one in segments[-1].incomplete}


def changes(segments: list[Metadata]) -> list[str]:
    """The changes of publications that segments have."""
    return [text for one in segments for change in one.publication_changes for text in change.changes]


def test_a_table_added_later_is_incomplete_on_every_run(table: Lab) -> None:
    table.record(snapshot=True)
    table.run("CREATE TABLE late (id int)", "INSERT INTO late SELECT generate_series(1, 9)")
    table.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (10), (11)")
    for _ in range(2):
        told = [one for one in table.record(snapshot=True) if isinstance(one, TableIncomplete)]
        assert [one.table for one in told] == ["public.late"]
        assert told[0].reason.endswith("earlier rows are missing")
    assert list(reasons(table.segments())) == ["late"]
    assert changes(table.segments()) == ["publishes public.late"]
    with pytest.raises(RecordingError, match=r"lacks rows of some tables \(public\.late: "):
        table.record(strict=True)


def test_a_table_added_while_recording_is_incomplete_in_its_first_segment(table: Lab) -> None:
    table.run("CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
    with table.recording(snapshot=True) as recording:
        recording.wait(Connected)
        table.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (2)")
        recording.wait(Stored)
        assert recording.wait(TableIncomplete).table == "public.late"
        assert recording.wait(PublicationAltered).changes == ("publishes public.late",)
    first = next(one for one in table.segments() if one.kind == "stream" and one.relations)
    assert [one.name for one in first.incomplete] == ["late"]


@pytest.mark.parametrize("publication", ["FOR TABLE t, empty", "FOR ALL TABLES"])
def test_a_table_that_the_stream_has_wholly_is_complete(lab: Lab, publication: str) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE TABLE empty (id int)", f"CREATE PUBLICATION p {publication}")
    lab.record()
    lab.run("CREATE TABLE new (id int)")
    if "ALL" in publication:
        lab.run("INSERT INTO new VALUES (1)")
    else:
        lab.run("ALTER PUBLICATION p ADD TABLE new")
    assert not [one for one in lab.record() if isinstance(one, TableIncomplete)]
    lab.run("INSERT INTO t VALUES (1)", "INSERT INTO empty VALUES (1)", "INSERT INTO new VALUES (2)")
    lab.record()
    assert reasons(lab.segments()) == {}
    lab.assert_equal()


def test_a_table_that_another_transaction_fills_is_not_taken_for_empty(table: Lab) -> None:
    table.record()
    table.run("CREATE TABLE late (id int)")
    with table.connect() as writer:
        writer.execute("BEGIN; INSERT INTO late VALUES (1)")
        table.run("ALTER PUBLICATION p ADD TABLE late")
        assert [one.table for one in table.record() if isinstance(one, TableIncomplete)] == ["public.late"]
        writer.execute("COMMIT")


def test_an_unlogged_table_that_becomes_logged_is_incomplete(lab: Lab) -> None:
    lab.run("CREATE PUBLICATION p FOR ALL TABLES")
    lab.record()
    lab.run("CREATE UNLOGGED TABLE u (id int)", "INSERT INTO u VALUES (1)", "ALTER TABLE u SET LOGGED")
    assert [one.table for one in lab.record() if isinstance(one, TableIncomplete)] == ["public.u"]


def test_a_recording_without_a_snapshot_lacks_what_was_there(table: Lab) -> None:
    table.run(
        "CREATE TABLE empty (id int)", "ALTER PUBLICATION p ADD TABLE empty", "INSERT INTO t VALUES (1)"
    )
    told = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert [one.table for one in told] == ["public.t"]
    assert told[0].reason.startswith("recorded without a snapshot: rows from before ")


def test_a_table_added_again_during_a_look_is_noted(table: Lab) -> None:
    """That look's snapshot lacks the row of pg_publication_rel, but the server's function has the table."""
    with Connection(table.dsn) as connection:
        before = look(connection, ["p"])
        table.run("ALTER PUBLICATION p DROP TABLE t", "INSERT INTO t VALUES (1)")
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.query("SELECT 1 FROM pg_publication_rel")
        table.run("ALTER PUBLICATION p ADD TABLE t")
        during = _look(connection, ["p"], table.lsn())
        connection.query("COMMIT")
        assert during.tables.keys() == before.tables.keys()
        assert [one.name for one in compare(before, during, 0, connection).incomplete] == ["t"]


def incomplete(lab: Lab, *publications: str) -> list[str]:
    """The tables that a run up to now reports as incomplete."""
    return [one.table for one in lab.record(*publications) if isinstance(one, TableIncomplete)]


MOVED = {
    "to another publication": "ALTER PUBLICATION p DROP TABLE t; {}; ALTER PUBLICATION q ADD TABLE t",
    "to one with fewer operations": "ALTER PUBLICATION p DROP TABLE t; {}; ALTER PUBLICATION q SET"
    " (publish = 'insert'); ALTER PUBLICATION q ADD TABLE t",
}


@pytest.mark.parametrize("way", MOVED)
def test_a_table_that_was_moved_to_another_recorded_publication_is_incomplete(table: Lab, way: str) -> None:
    table.run("CREATE TABLE u (id int)", "CREATE PUBLICATION q FOR TABLE u")
    table.record("p", "q", snapshot=True)
    table.run(*MOVED[way].format("INSERT INTO t VALUES (1)").split("; "))
    assert "public.t" in incomplete(table, "p", "q")


@pytest.mark.parametrize(
    ("operations", "tables"), [("insert, update, delete, truncate", []), ("insert", ["public.t"])]
)
def test_a_table_of_two_publications_loses_one(table: Lab, operations: str, tables: list[str]) -> None:
    operations = operations.replace(", truncate", "" if table.version < 11 else ", truncate")
    table.run(f"CREATE PUBLICATION q FOR TABLE t WITH (publish = '{operations}')")
    table.record("p", "q", snapshot=True)
    table.run("ALTER PUBLICATION p DROP TABLE t", "INSERT INTO t VALUES (1)", "UPDATE t SET a = 'x'")
    assert incomplete(table, "p", "q") == tables


def test_a_table_that_gets_another_publication_stays_complete(table: Lab) -> None:
    table.run("CREATE TABLE u (id int)", "CREATE PUBLICATION q FOR TABLE u")
    table.record(snapshot=True)
    table.record("p", "q")
    table.run("ALTER PUBLICATION q ADD TABLE t", "INSERT INTO t VALUES (1)")
    assert incomplete(table, "p", "q") == []


def test_a_table_that_other_publications_are_recorded_of_is_incomplete(table: Lab) -> None:
    """They may have published it later than where the slot stands."""
    table.run("CREATE TABLE u (id int)", "CREATE PUBLICATION q FOR TABLE u")
    table.record(snapshot=True)
    table.run("INSERT INTO t VALUES (1)", "ALTER PUBLICATION q ADD TABLE t", "INSERT INTO t VALUES (2)")
    assert incomplete(table, "q") == ["public.t"]


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize(
    "statements",
    [
        "ALTER PUBLICATION p DROP TABLE t; {}; ALTER PUBLICATION p ADD TABLE t",
        "ALTER TABLE t DETACH PARTITION t1; {}; ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (9)",
    ],
)
def test_partitions_that_were_not_published_meanwhile_are_incomplete(
    lab: Lab, root: bool, statements: str
) -> None:
    if lab.version < 13 or (root and "DETACH" in statements):
        return
    lab.run(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (9)",
        f"CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = {root})",
    )
    lab.record(snapshot=True)
    assert incomplete(lab) == []
    lab.run(*statements.format("INSERT INTO t1 VALUES (1)").split("; "))
    assert incomplete(lab) == ["public.t" if root else "public.t1"]


def test_a_schema_that_was_not_published_meanwhile_is_incomplete(lab: Lab) -> None:
    if lab.version < 15:
        return
    lab.run("CREATE SCHEMA s", "CREATE TABLE s.t (id int)", "CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
    lab.record(snapshot=True)
    lab.run("ALTER PUBLICATION p DROP TABLES IN SCHEMA s", "INSERT INTO s.t VALUES (1)")
    lab.run("ALTER PUBLICATION p ADD TABLES IN SCHEMA s")
    assert incomplete(lab) == ["s.t"]


ALTERED = {
    "ALTER PUBLICATION p SET (publish = 'insert')": "altered (updates: on before, off now",
    "ALTER PUBLICATION p DROP TABLE t": "does not publish public.t any more",
    "ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t": "removed from the publication and",
    "ALTER PUBLICATION p SET TABLE t WHERE (id > 5)": "row filter changed",
    "ALTER PUBLICATION p SET TABLE t (id, a)": "column list changed",
}
SINCE = {"WHERE": 15, "(id, a)": 15}


@pytest.mark.parametrize("statements", ALTERED)
@pytest.mark.parametrize("running", [False, True])
def test_an_altered_publication_is_noted(table: Lab, statements: str, running: bool) -> None:
    if table.version < max([since for part, since in SINCE.items() if part in statements] or [0]):
        return
    table.record(snapshot=True)
    table.run("CREATE TABLE other (id int)", "ALTER PUBLICATION p ADD TABLE other")
    table.record()
    table.run("INSERT INTO t VALUES (1)", "INSERT INTO other VALUES (1)")
    if running:
        with table.recording() as recording:
            recording.wait(Connected)
            table.run(*statements.split("; "))
            # A look can fall between the two tables that a statement alters.
            wait_until(lambda: "public.t" in [one.table for one in recording.told(TableIncomplete)])
            table.run("INSERT INTO other VALUES (2)")
            recording.wait(Stored)
    else:
        table.run(*statements.split("; "))
        assert [one.table for one in table.record() if isinstance(one, TableIncomplete)]
        table.run("INSERT INTO other VALUES (2)")
        table.record()
    segments = table.segments()
    assert "t" in reasons(segments)
    expected = [ALTERED[statements]]
    if running and "; " in statements:
        expected.append(ALTERED[statements.split("; ")[0]])  # a look can fall between the statements
    assert any(one in text for text in changes(segments) for one in expected), changes(segments)


def test_a_publication_that_was_altered_and_set_back(table: Lab) -> None:
    table.record(snapshot=True)
    everything = "insert, update, delete" + (", truncate" if table.version >= 11 else "")
    for operations in ("insert", everything):
        table.run(f"ALTER PUBLICATION p SET (publish = '{operations}')")
    assert [one.table for one in table.record() if isinstance(one, TableIncomplete)] == ["public.t"]


def test_an_owner_does_not_matter(table: Lab) -> None:
    table.record(snapshot=True)
    role = f"{table.name}_owner"
    table.run(f"CREATE ROLE {role} SUPERUSER", f"ALTER PUBLICATION p OWNER TO {role}")
    try:
        assert not [one for one in table.record() if isinstance(one, TableIncomplete)]
    finally:
        table.run("ALTER PUBLICATION p OWNER TO CURRENT_USER", f"DROP ROLE {role}")


def test_the_last_column_dropped_and_added_again(table: Lab) -> None:
    """Its Relation message is the same as before, and the values of rows are not sent."""
    table.run("INSERT INTO t VALUES (1, 'a', 'b')")
    table.record(snapshot=True)
    table.run("ALTER TABLE t DROP b, ADD b text DEFAULT 'new'")
    told = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert told[0].reason.startswith('"b" dropped and added again after ')


def test_values_that_using_changes_under_one_type(table: Lab) -> None:
    """No Relation message differs, and nothing is sent of existing rows."""
    table.run("INSERT INTO t VALUES (1, 'a', 'b')")
    table.record(snapshot=True)
    table.run("ALTER TABLE t ALTER a TYPE text USING upper(a)")
    told = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert told[0].reason.startswith('"a" rewritten (ALTER COLUMN … USING) after ')
    table.run("VACUUM FULL t")
    assert table.record()
    table.run("ALTER TABLE t ALTER b SET NOT NULL")
    (told_again,) = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert told_again.reason == told[0].reason


@pytest.mark.parametrize("type_", ["mood", "mood[]"])
def test_a_renamed_value_of_an_enum(lab: Lab, type_: str) -> None:
    lab.run("CREATE TYPE mood AS ENUM ('sad', 'happy')", f"CREATE TABLE t (id int PRIMARY KEY, m {type_})")
    lab.run("CREATE TABLE other (id int)", "CREATE PUBLICATION p FOR ALL TABLES")
    lab.record(snapshot=True)
    lab.run("ALTER TYPE mood ADD VALUE 'calm'")
    assert not [one for one in lab.record() if isinstance(one, TableIncomplete)]
    lab.run("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    (told,) = [one for one in lab.record() if isinstance(one, TableIncomplete)]
    assert told.table == "public.t"
    assert told.reason.startswith('"m" of an enum of which a value was renamed after ')


def test_other_alterations_of_tables_leave_them_complete(table: Lab) -> None:
    table.record(snapshot=True)
    table.run(
        "ALTER TABLE t RENAME a TO c", "ALTER TABLE t DROP b", "ALTER TABLE t RENAME TO t2", "TRUNCATE t2"
    )
    assert not [one for one in table.record() if isinstance(one, TableIncomplete)]


def test_a_snapshot_that_is_there_is_not_ignored_in_silence(table: Lab) -> None:
    table.record(snapshot=True)
    assert [one for one in table.record(snapshot=True) if isinstance(one, SnapshotKept)]
    assert not [one for one in table.record() if isinstance(one, SnapshotKept)]


# The folder


@pytest.mark.parametrize("removed", [False, True])
def test_a_folder_that_is_moved_or_removed(lab: Lab, tmp_path: Path, removed: bool) -> None:
    """A second recorder that takes its place keeps every file."""
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(RecordingError, match="the folder was moved or removed"), lab.recording() as one:  # noqa: PT012
        one.wait(Connected)
        lab.run("INSERT INTO t VALUES (1)")
        one.wait(Stored)
        moved = tmp_path / "moved"
        lab.folder.rename(moved)
        if removed:
            for path in moved.iterdir():
                path.unlink()
            moved.rmdir()
        other = Recorder(lab.dsn, f"{lab.slot}_two", ["p"], lab.folder, create_slot=True, segment_seconds=0.1)
        other.run(until="now")
        before = {path.name: path.read_bytes() for path in lab.folder.iterdir()}
        lab.run("INSERT INTO t VALUES (2)")
        one.join()
    assert {path.name: path.read_bytes() for path in lab.folder.iterdir()} == before
    other.run(until="now")
    assert {one.source.slot for one in lab.segments()} == {f"{lab.slot}_two"}


def test_a_segment_is_never_replaced(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    path = lab.folder / "0000000002.parquet"
    with pytest.raises(FileExistsError), lab.recording() as recording:  # noqa: PT012
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
        path.write_bytes(b"of another")
        lab.run("INSERT INTO t VALUES (2)")
        recording.join()
    assert path.read_bytes() == b"of another"


def test_the_last_segment_is_missed(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t", "SELECT 1")
    lab.record()
    for number in range(2):
        lab.run(f"INSERT INTO t VALUES ({number})")
        lab.record()
    (lab.folder / "0000000002.parquet").unlink()
    with pytest.raises(RecordingError, match=r"segments are missing, up to 0000000002"):
        lab.record()


def test_another_recordings_files(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record()
    lab.run("INSERT INTO t VALUES (1)")
    lab.record()
    segment = (lab.folder / "0000000001.parquet").read_bytes()
    lab.folder.rename(tmp_path / "old")
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')")
    lab.record()
    lab.run("INSERT INTO t VALUES (2)")
    lab.record()
    (lab.folder / "0000000001.parquet").write_bytes(segment)
    with pytest.raises(RecordingError, match="segment 1 is of the recording"):
        lab.record()


def test_a_folder_that_cannot_be_written_is_noticed_before_a_slot_is_made(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    read_only = Path("/proc/self")  # not even root can write there
    with pytest.raises((OSError, RecordingError)):
        Recorder(lab.dsn, lab.slot, ["p"], read_only, create_slot=True).run(until="now")
    wait_until(lambda: lab.slots() == [])


def test_a_look_does_not_wait_for_a_locked_table_in_silence(table: Lab, capture: Command) -> None:
    """Since PostgreSQL 16, the server opens each published table for it."""
    table.record()
    with table.connect() as other:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        code, _, err = capture("--until=now", "--retry-for=1")
        assert code == (3 if table.version >= 16 else 0)
        assert table.version < 16 or "a transaction holds a published table exclusively" in err
    assert capture("--until=now")[0] == 0
