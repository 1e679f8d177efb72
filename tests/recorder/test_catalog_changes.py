"""Changes of publications and tables that the stream does not report are found in the catalogs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from psycopg import sql

from logicalrep.errors import RecordingError
from logicalrep.recorder import Connected, PublicationAltered, Stored, TableIncomplete
from logicalrep.recorder.catalogs.catalog import Catalog
from logicalrep.recorder.catalogs.changes import compare_catalogs
from logicalrep.recorder.catalogs.publications import published_relations
from logicalrep.recorder.catalogs.queries import query_catalog, read_catalog
from logicalrep.recorder.catalogs.watch import CatalogWatch
from logicalrep.recorder.client.connection import Connection
from logicalrep.recording import Metadata
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab, wait_until


def reasons(segments: list[Metadata]) -> dict[str, str]:
    """Return why tables of a recording are incomplete, by name of the table."""
    return {one.name: one.reason for one in segments[-1].incomplete}


def changes(segments: list[Metadata]) -> list[str]:
    """Return the texts of all publication changes in the metadata of segments."""
    return [text for one in segments for change in one.publication_changes for text in change.changes]


def test_a_table_added_later_is_incomplete_on_every_run(table: Lab) -> None:
    table.record(snapshot=True)
    table.run("CREATE TABLE late (id int)", "INSERT INTO late SELECT generate_series(1, 9)")
    table.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (10), (11)")
    for altered in (["publishes public.late"], []):
        events = table.record()
        told = [one for one in events if isinstance(one, TableIncomplete)]
        assert [one.table for one in told] == ["public.late"]
        assert told[0].reason.endswith("earlier rows are missing")
        assert [
            text for one in events if isinstance(one, PublicationAltered) for text in one.changes
        ] == altered
    assert list(reasons(table.segments())) == ["late"]
    assert changes(table.segments()) == ["publishes public.late"]
    with pytest.raises(RecordingError, match=r"lacks rows of some tables \(public\.late: "):
        table.record(strict=True)


def test_a_table_added_while_recording_is_incomplete_in_its_first_segment(table: Lab) -> None:
    table.run("CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
    with table.recording() as recording:
        recording.wait(Connected)
        table.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (2)")
        recording.wait(Stored)
        assert recording.wait(TableIncomplete).table == "public.late"
        assert recording.wait(PublicationAltered).changes == ("publishes public.late",)
        wait_until(lambda: any(one.kind == "stream" and one.relations for one in table.segments()))
    first = next(one for one in table.segments() if one.kind == "stream" and one.relations)
    assert [one.name for one in first.incomplete] == ["late"]


def test_changes_between_two_sessions_are_reported(table: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._MIN_PAUSE", 600.0)
    table.run("CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
    with table.recording() as recording:
        wait_until(recording.has_read_catalogs)
        pid = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{table.slot}'"
        table.run("ALTER PUBLICATION p ADD TABLE late", f"SELECT pg_terminate_backend(({pid}))")
        recording.wait(Connected, 2)
        assert [one.table for one in recording.events_of(TableIncomplete)] == ["public.late"]
        assert [one.changes for one in recording.events_of(PublicationAltered)] == [
            ("publishes public.late",)
        ]


@pytest.mark.parametrize("publication", ["FOR TABLE t, empty", "FOR ALL TABLES"])
def test_a_table_whose_rows_are_all_in_the_stream_is_complete(lab: Lab, publication: str) -> None:
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


def test_a_table_with_uncommitted_rows_does_not_count_as_empty(table: Lab) -> None:
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


def test_a_recording_without_a_snapshot_reports_earlier_rows_as_missing(table: Lab) -> None:
    table.run(
        "CREATE TABLE empty (id int)", "ALTER PUBLICATION p ADD TABLE empty", "INSERT INTO t VALUES (1)"
    )
    told = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert [one.table for one in told] == ["public.t"]
    assert told[0].reason.startswith("recorded without a snapshot: rows from before ")


def test_a_table_added_again_while_the_catalogs_are_read_is_incomplete(table: Lab) -> None:
    """The table is in pg_get_publication_tables(), but not in the transaction's older pg_publication_rel."""
    with Connection(table.dsn) as connection:
        before = read_catalog(connection, ["p"])
        table.run("ALTER PUBLICATION p DROP TABLE t", "INSERT INTO t VALUES (1)")
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.query("SELECT 1 FROM pg_publication_rel")
        table.run("ALTER PUBLICATION p ADD TABLE t")
        during = query_catalog(connection, ["p"], table.lsn())
        connection.query("COMMIT")
        assert during.tables.keys() == before.tables.keys()
        assert [one.name for one in compare_catalogs(before, during, connection).incomplete] == ["t"]


def test_a_table_added_while_the_catalogs_are_read_was_not_published_before(
    table: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.run("CREATE TABLE late (id int)")
    alterations = ["ALTER PUBLICATION p ADD TABLE late"]

    def add_table(*arguments: Any) -> sql.Composable:
        table.run(*alterations)
        alterations.clear()
        return published_relations(*arguments)

    with Connection(table.dsn) as connection:
        before = read_catalog(connection, ["p"])
        monkeypatch.setattr("logicalrep.recorder.catalogs.queries.published_relations", add_table)
        during, after = (read_catalog(connection, ["p"]) for _ in range(2))
        assert [len(one.tables) for one in (before, during, after)] == [1, 2, 2]
        assert during.tables == after.tables
        texts = [change.changes for change in compare_catalogs(before, during, connection).publications]
        assert texts == [("publishes public.late",)]


def incomplete(lab: Lab, *publications: str) -> list[str]:
    """Record up to the current end of the WAL; return the tables reported as incomplete."""
    return [one.table for one in lab.record(*publications) if isinstance(one, TableIncomplete)]


MOVES = {
    "to another publication": "ALTER PUBLICATION p DROP TABLE t; {}; ALTER PUBLICATION q ADD TABLE t",
    "to one with fewer operations": "ALTER PUBLICATION p DROP TABLE t; {}; ALTER PUBLICATION q SET"
    " (publish = 'insert'); ALTER PUBLICATION q ADD TABLE t",
}


@pytest.mark.parametrize("way", MOVES)
def test_a_table_that_was_moved_to_another_recorded_publication_is_incomplete(table: Lab, way: str) -> None:
    table.run("CREATE TABLE u (id int)", "CREATE PUBLICATION q FOR TABLE u")
    table.record("p", "q", snapshot=True)
    table.run(*MOVES[way].format("INSERT INTO t VALUES (1)").split("; "))
    assert "public.t" in incomplete(table, "p", "q")


@pytest.mark.parametrize(
    ("operations", "tables"), [("insert, update, delete, truncate", []), ("insert", ["public.t"])]
)
def test_a_table_removed_from_one_of_two_publications(table: Lab, operations: str, tables: list[str]) -> None:
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


def test_a_table_recorded_through_another_publication_is_incomplete(table: Lab) -> None:
    """The second session has another publication, to which the table was added after the slot's LSN."""
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
def test_partitions_removed_and_added_again_are_incomplete(lab: Lab, root: bool, statements: str) -> None:
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


def test_tables_of_a_schema_removed_and_added_again_are_incomplete(lab: Lab) -> None:
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
def test_an_altered_publication_is_reported(table: Lab, statements: str, running: bool) -> None:
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
            # The catalogs may be read between the two tables that a statement alters.
            wait_until(lambda: "public.t" in [one.table for one in recording.events_of(TableIncomplete)])
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
        expected.append(ALTERED[statements.split("; ")[0]])  # the catalogs may be read between the statements
    assert any(one in text for text in changes(segments) for one in expected), changes(segments)


def test_a_publication_altered_and_set_back_is_reported(table: Lab) -> None:
    table.record(snapshot=True)
    everything = "insert, update, delete" + (", truncate" if table.version >= 11 else "")
    for operations in ("insert", everything):
        table.run(f"ALTER PUBLICATION p SET (publish = '{operations}')")
    assert [one.table for one in table.record() if isinstance(one, TableIncomplete)] == ["public.t"]


def test_a_new_owner_of_a_publication_is_not_reported(table: Lab) -> None:
    table.record(snapshot=True)
    role = f"{table.name}_owner"
    table.run(f"CREATE ROLE {role} SUPERUSER", f"ALTER PUBLICATION p OWNER TO {role}")
    try:
        assert not [one for one in table.record() if isinstance(one, TableIncomplete)]
    finally:
        table.run("ALTER PUBLICATION p OWNER TO CURRENT_USER", f"DROP ROLE {role}")


def test_dropping_and_adding_the_last_column_makes_a_table_incomplete(table: Lab) -> None:
    """The server sends an unchanged Relation message, and does not send the new values of existing rows."""
    table.run("INSERT INTO t VALUES (1, 'a', 'b')")
    table.record(snapshot=True)
    table.run("ALTER TABLE t DROP b, ADD b text DEFAULT 'new'")
    told = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert told[0].reason.startswith('"b" dropped and added again after ')


def test_values_rewritten_without_a_change_of_type_make_a_table_incomplete(table: Lab) -> None:
    """The server sends an unchanged Relation message, and does not send the rewritten rows."""
    table.run("INSERT INTO t VALUES (1, 'a', 'b')")
    table.record(snapshot=True)
    table.run("ALTER TABLE t ALTER b TYPE text USING upper(b)")
    told = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert told[0].reason.startswith('"b" rewritten (ALTER COLUMN … USING) after ')
    table.run("VACUUM FULL t")
    assert table.record()
    table.run("ALTER TABLE t ALTER b SET NOT NULL")
    (told_again,) = [one for one in table.record() if isinstance(one, TableIncomplete)]
    assert told_again.reason == told[0].reason


ALTERATIONS = "ALTER TABLE t RENAME a TO c", "ALTER TABLE t DROP b"


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("statements", [ALTERATIONS, ALTERATIONS[::-1]])
def test_alterations_in_several_readings_are_compared_with_what_the_stream_described(
    lab: Lab, statements: tuple[str, str], is_changed: bool
) -> None:
    """A replica follows a rename if the stream describes the table before another alteration."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int, d int)", "INSERT INTO t VALUES (1, 2, 3, 4)")
    lab.run("CREATE PUBLICATION p FOR TABLE t")
    lab.record(snapshot=True)
    lab.run(statements[0])
    if is_changed:
        lab.run("INSERT INTO t VALUES (2)")
    lab.record()
    lab.run(statements[1], "INSERT INTO t VALUES (3)")
    told = [one.table for one in lab.record() if isinstance(one, TableIncomplete)]
    assert told == ([] if is_changed else ["public.t"])


@pytest.mark.parametrize("type_", ["mood", "mood[]"])
def test_a_renamed_enum_value_makes_a_table_incomplete(lab: Lab, type_: str) -> None:
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
    table.run("ALTER TABLE t RENAME a TO c", "ALTER TABLE t DROP b", "ALTER TABLE t RENAME TO t2")
    if table.version >= 11:  # older servers do not send it
        table.run("TRUNCATE t2")
    assert not [one for one in table.record() if isinstance(one, TableIncomplete)]


def test_a_locked_table_does_not_block_reading_the_catalogs_silently(table: Lab, record_cli: Command) -> None:
    """Since PostgreSQL 16, listing the published tables waits for locks on each of these tables."""
    table.record()
    with table.connect() as other:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        code, _, err = record_cli("--until=now", "--retry-for=1")
        assert code == (3 if table.version >= 16 else 0)
        assert table.version < 16 or "a transaction has locked a published table exclusively" in err
    assert record_cli("--until=now")[0] == 0


def test_segments_do_not_wait_for_a_server_that_refuses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a server shuts down, it refuses connections and waits until the recorder has the whole stream."""
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._ANSWER_SECONDS", 600.0)
    with CatalogWatch("host=127.0.0.1 port=1", "s", ["p"], Catalog(1, 1, (), {}, {}), None) as watch:
        begin = time.monotonic()
        watch.read_now()
        assert time.monotonic() - begin < 300


def test_an_unexpected_error_of_the_thread_ends_the_session() -> None:
    with CatalogWatch("invalid", "s", ["p"], Catalog(1, 1, (), {}, {}), None) as watch:
        assert watch.read_now() is None
        with pytest.raises(ValueError, match="DSN"):
            watch.take_updates()


@pytest.mark.nightly
def test_a_table_that_leaves_a_published_schema_and_returns_is_noticed_soon(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not send the row, and nothing in the stream says so. Each reading takes 0.3 seconds."""
    lab.require(15, "publications of schemas")
    lab.run("CREATE SCHEMA s", "CREATE TABLE s.t (id int)", "CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
    lab.record()

    def read_slowly(*arguments: Any) -> Catalog:
        time.sleep(0.3)
        return read_catalog(*arguments)

    monkeypatch.setattr("logicalrep.recorder.catalogs.watch.read_catalog", read_slowly)
    with lab.recording() as recording:
        wait_until(recording.has_read_catalogs)
        began = time.monotonic()
        moves = "ALTER TABLE s.t SET SCHEMA public", "INSERT INTO t VALUES (1)", "ALTER TABLE t SET SCHEMA s"
        lab.run(*moves)
        recording.wait(TableIncomplete)
        assert time.monotonic() - began < 20  # a hundred times the duration of a reading is 30 seconds
