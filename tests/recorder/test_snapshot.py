"""A snapshot has every row once, with the messages that the stream would have."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from logicalrep import messages
from logicalrep.errors import RecordingError, ReplicationError
from logicalrep.messages import Message
from logicalrep.recorder import (
    Connected,
    Event,
    RecorderOptions,
    Snapshotted,
    TableComplete,
    TableNotCopied,
)
from logicalrep.recorder.catalogs.publications import PublishedTable, published_tables
from logicalrep.recorder.client.connection import Connection
from logicalrep.recorder.snapshots.table_copy import TableCopy
from logicalrep.recording import RecordingReader, SegmentReader, list_segments
from tests.recorder import workload
from tests.recorder.lab import Lab, wait_until


def described(folder: Path, *, snapshot: bool) -> dict[int, list[Message]]:
    """Return the first Relation message of each relation, with the Type messages before it, by OID."""
    found: dict[int, list[Message]] = {}
    for path in list_segments(folder):
        with SegmentReader(path) as segment:
            if (segment.metadata.kind == "snapshot") != snapshot:
                continue
        types: list[Message] = []
        with RecordingReader(path) as segments:
            for decoded in segments.messages():
                if isinstance(decoded.message, messages.Type):
                    types.append(decoded.message)
                elif isinstance(decoded.message, messages.Relation):
                    found.setdefault(decoded.message.oid, [*types, decoded.message])
                    types = []
    return found


def test_relations_and_types_are_those_that_the_server_sends(lab: Lab) -> None:
    workload.create(lab)
    index = "PRIMARY KEY (b, a) INCLUDE (c)" if lab.version >= 11 else "PRIMARY KEY (b, a)"
    domains = "small[]" if lab.version >= 11 else "mood[]"
    lab.run(
        f"CREATE TABLE covering (a int, b mood, c small, d mood, e mood[], {index})",
        "CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE, b varchar(7)[], c numeric(7, 3), d char)",
        "CREATE TABLE dropped (a int, gone int, b int PRIMARY KEY)",
        "ALTER TABLE dropped DROP gone, ADD c information_schema.cardinal_number",
        "CREATE DOMAIN texts AS text[]",
        "CREATE DOMAIN more_texts AS texts NOT NULL",
        "CREATE SCHEMA other",
        "CREATE TYPE other.mood AS ENUM ('x')",
        "CREATE TYPE span AS RANGE (subtype = float8)",
        f"""CREATE TABLE typed (a more_texts, b other.mood, c mood, d span, e pair, f {domains}, g oid,
            h regclass, i information_schema.sql_identifier, j other.mood)""",
        "CREATE TABLE old_index (a int NOT NULL, b int NOT NULL, c int PRIMARY KEY)",
        "CREATE UNIQUE INDEX pair_key ON old_index (b, a)",
        "ALTER TABLE old_index REPLICA IDENTITY USING INDEX pair_key",
        "CREATE TABLE silent (a int PRIMARY KEY)",
        "ALTER TABLE silent REPLICA IDENTITY NOTHING",
    )
    published = lab.published()
    lab.record(snapshot=True)
    for oid, (name, _) in published.items():
        if lab.value(f"SELECT relkind = 'p' OR relispartition FROM pg_class WHERE oid = {oid}"):
            lab.run("INSERT INTO parts VALUES (1, 'x'), (100, 'y') ON CONFLICT DO NOTHING")
            continue
        columns = lab.rows(
            f"""SELECT quote_ident(attname), CASE atttypid::regtype::text WHEN 'more_texts' THEN '''{{}}'''
            WHEN 'small' THEN '1' WHEN 'positive' THEN '1' ELSE CASE WHEN attnotnull THEN
                CASE WHEN atttypid = 'mood'::regtype THEN '''sad''' ELSE '1' END ELSE 'NULL' END END
            FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped
            {"AND attgenerated = ''" if lab.version >= 12 else ""} ORDER BY attnum"""
        )
        if columns:
            names, values = (", ".join(part) for part in zip(*columns, strict=True))
            lab.run(f"INSERT INTO {name} ({names}) VALUES ({values})")
        else:
            lab.run(f"INSERT INTO {name} DEFAULT VALUES")
    lab.record()
    first, later = described(lab.folder, snapshot=True), described(lab.folder, snapshot=False)
    assert set(first) == set(published)
    for oid, (name, _) in published.items():
        assert first[oid] == later[oid], name
    lab.assert_equal()


def test_rows_written_before_and_during_the_snapshot_come_once(lab: Lab) -> None:
    workload.create(lab)
    workload.work(lab)
    workload.finish(lab)
    lab.run("INSERT INTO big SELECT g, repeat('x', 50) FROM generate_series(1000000, 1030000) g")
    over = threading.Event()
    done = 0

    def write() -> None:
        nonlocal done
        with lab.connect() as connection:
            while not over.is_set():
                done += 1
                connection.execute(f"INSERT INTO keys VALUES ({100000 + done}, 'w', NULL)")
                connection.execute(f"UPDATE big SET a = 'w' WHERE id = {1000000 + done}")
                connection.execute(f"DELETE FROM big WHERE id = {1000000 + done // 2}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with lab.recording(snapshot=True, segment_bytes=1 << 18) as recording:
            recording.wait(Connected)
            so_far = done
            wait_until(lambda: done > so_far + 20)
    finally:
        over.set()
        writer.join()
    lab.record()
    tables = lab.assert_equal()
    assert done > 20
    told = recording.events_of(Snapshotted)
    assert (told[-1].tables_done, told[-1].tables) == (len(lab.published()), len(lab.published()))
    assert {event.table for event in told} >= {"public.big", "Söme \" scheme.tab\tle '\\ß"}
    assert max(event.rows for event in told if event.table == "public.big") > 30_000
    metadata = lab.segments()
    snapshot = [one for one in metadata if one.kind == "snapshot"]
    assert len(snapshot) > len(tables)  # `big` has several segments
    assert all(one.end_lsn == one.start_lsn == snapshot[0].end_lsn for one in snapshot)


def test_column_lists_and_row_filters_are_respected(lab: Lab) -> None:
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY, secret text, open text)",
        "CREATE TABLE b (id int, t text, v int, PRIMARY KEY (t, id))",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "CREATE TABLE empty (id int PRIMARY KEY, t text)",
        "INSERT INTO a SELECT g, 'secret', 'open' FROM generate_series(1, 9) g",
        "INSERT INTO b SELECT g, 'it''s \\', g % 5 FROM generate_series(1, 50) g",
        "INSERT INTO c VALUES (1)",
    )
    where, columns = {}, {}
    if lab.version >= 15:
        lab.run(
            "CREATE PUBLICATION p FOR TABLE a (open, id), b (id, t) WHERE (id > 20 AND t = 'it''s \\'), empty"
        )
        where, columns = {"b": "id > 20"}, {"a": ["id", "open"], "b": ["id", "t"]}
    else:
        lab.run("CREATE PUBLICATION p FOR TABLE a, b, empty")
    lab.record(snapshot=True)
    lab.assert_equal(where=where, columns=columns)
    lab.run("UPDATE a SET secret = 'x', open = 'y' WHERE id = 3", "INSERT INTO b VALUES (60, 'it''s \\', 1)")
    lab.run("INSERT INTO b VALUES (-1, 'it''s \\', 1)", "DELETE FROM b WHERE id IN (2, 40)")
    lab.record()
    lab.assert_equal(where=where, columns=columns)
    # An empty table has a Relation message too.
    assert set(described(lab.folder, snapshot=True)) == set(lab.published())


def test_several_publications_are_one_stream(lab: Lab) -> None:
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE b (id int PRIMARY KEY, v int)",
        "INSERT INTO a SELECT g, g FROM generate_series(1, 20) g",
        "INSERT INTO b SELECT g, g FROM generate_series(1, 20) g",
    )
    filters = lab.version >= 15
    lab.run(
        f"CREATE PUBLICATION low FOR TABLE a {'WHERE (id < 5)' if filters else ''}",
        f'CREATE PUBLICATION "Hi\'g""h" FOR TABLE a {"WHERE (id > 10)" if filters else ""}, b',
    )
    names = ("low", "Hi'g\"h")
    lab.record(*names, snapshot=True)
    lab.run("INSERT INTO a VALUES (30, 1), (0, 1)", "DELETE FROM b WHERE id = 2")
    lab.record(*names)
    where = {"a": "id < 5 OR id > 10"} if filters else {}
    lab.run("CREATE PUBLICATION all_of_it FOR TABLE a, b")
    tables = lab.assert_equal(publication="all_of_it", where=where)
    sizes = {table.relation.name: len(table) for table in tables.values()}
    assert sizes == {"a": 16 if filters else 22, "b": 19}


def test_column_lists_that_differ_are_refused(lab: Lab) -> None:
    lab.run("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE PUBLICATION p FOR TABLE a")
    if lab.version >= 15:
        lab.run("CREATE PUBLICATION q FOR TABLE a (id)")
        with pytest.raises(ReplicationError, match="different column lists for the table"):
            lab.record("p", "q", snapshot=True)
        assert lab.slots() == []
    lab.record(snapshot=True)
    lab.assert_equal()


def test_generated_columns(lab: Lab) -> None:
    generated = lab.version >= 12
    published = lab.version >= 18
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY, t text"
        + (", n int GENERATED ALWAYS AS (id * 2) STORED)" if generated else ", n int)"),
        "INSERT INTO a (id, t) VALUES (1, 'a')",
        "CREATE PUBLICATION p FOR TABLE a"
        + (" WITH (publish_generated_columns = stored)" if published else ""),
    )
    lab.record(snapshot=True)
    lab.run("INSERT INTO a (id, t) VALUES (2, 'a')")
    lab.record()
    oid = lab.value("SELECT 'a'::regclass::oid::int8")
    names = ["id", "t", "n"] if published or not generated else ["id", "t"]
    lab.assert_equal(columns={"a": names})
    later = described(lab.folder, snapshot=False)[oid]
    assert described(lab.folder, snapshot=True)[oid] == later


def test_a_partitioned_table_is_one_table_or_its_partitions(lab: Lab) -> None:
    lab.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    if lab.version >= 13:
        lab.run(
            "CREATE TABLE parts (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
            "CREATE TABLE higher (t text, id int NOT NULL)",
            "ALTER TABLE high ATTACH PARTITION higher FOR VALUES FROM (15) TO (20)",
            "INSERT INTO parts VALUES (1, 'x'), (16, 'y')",
            "CREATE PUBLICATION p FOR TABLE parts, a WITH (publish_via_partition_root)",
            "CREATE PUBLICATION leaves FOR TABLE parts, a",
        )
        lab.record(
            "leaves", snapshot=True, slot=f"{lab.name}_leaves", recording=lab.folder.with_name("leaves")
        )
    else:
        lab.run("CREATE PUBLICATION p FOR TABLE a")
    lab.record(snapshot=True)
    if lab.version >= 13:
        lab.run("UPDATE parts SET id = id + 1", "UPDATE parts SET id = 18 WHERE id = 2")
        lab.record("leaves", slot=f"{lab.name}_leaves", recording=lab.folder.with_name("leaves"))
        tables = lab.assert_equal(folder=lab.folder.with_name("leaves"), publication="leaves")
        assert {table.relation.name for table in tables.values()} == {"low", "higher", "a"}
    lab.record()
    tables = lab.assert_equal()
    wanted = {"parts", "a"} if lab.version >= 13 else {"a"}
    assert {table.relation.name for table in tables.values()} == wanted


def test_a_publication_without_tables_has_a_snapshot_without_rows(lab: Lab) -> None:
    """The rows of a table that is added later are copied then."""
    lab.run("CREATE PUBLICATION p", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        lab.run("ALTER PUBLICATION p ADD TABLE t", "INSERT INTO t VALUES (2)")
        recording.wait(TableComplete)
    lab.assert_equal()
    assert not (lab.folder / "snapshot").exists()


def test_a_snapshot_that_was_stopped_goes_on_with_its_slot(lab: Lab) -> None:
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY, t text)",
        "INSERT INTO a SELECT g, repeat('x', 20) FROM generate_series(1, 60000) g",
        "CREATE PUBLICATION p FOR TABLE a",
    )

    def stop(event: Event) -> None:
        if isinstance(event, Snapshotted):
            recorder.stop()

    recorder = lab.recorder(snapshot=True, on_event=stop)
    recorder.run()
    assert lab.slots() == [lab.slot]
    with pytest.raises(RecordingError):
        list_segments(lab.folder)  # a partial snapshot is not visible
    lab.run("DELETE FROM a WHERE id < 100")
    lab.record(snapshot=True)
    assert len(lab.assert_equal()[lab.value("SELECT 'a'::regclass::oid::int8")]) == 59901


def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    lab.run("CREATE PUBLICATION p FOR TABLE a")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("logicalrep.recorder.snapshots.segment.SegmentFile.finish", full)
        with pytest.raises(OSError, match="No space left"):
            lab.record(snapshot=True)
    assert lab.slots() == []
    assert list(lab.folder.iterdir()) == []
    lab.record(snapshot=True)
    lab.assert_equal()


def test_rows_hidden_by_a_policy_are_an_error(lab: Lab) -> None:
    role = f"{lab.name}_reader"
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1), (2)",
        "ALTER TABLE a ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON a TO {role}",
        f"CREATE POLICY one ON a TO {role} USING (id = 1)",
        "CREATE PUBLICATION p FOR TABLE a",
    )
    recorder = lab.recorder(snapshot=True, dsn=lab.dsn.replace("user=postgres", f"user={role}"))
    try:
        with pytest.raises(ReplicationError, match=f"a superuser has to run: ALTER ROLE {role} BYPASSRLS$"):
            recorder.run(until="now")
        assert lab.slots() == []
    finally:
        lab.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("hidden", ["a", "b"])
def test_a_table_with_rows_hidden_by_a_policy_does_not_stop_the_snapshot(lab: Lab, hidden: str) -> None:
    """The rows of the other table may be copied before or after."""
    role = f"{lab.name}_reader"
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1), (2)",
        "INSERT INTO b VALUES (1), (2)",
        f"ALTER TABLE {hidden} ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON a, b TO {role}",
        "CREATE PUBLICATION p FOR TABLE a, b",
    )
    dsn = lab.dsn.replace("user=postgres", f"user={role}")
    try:
        with pytest.raises(ReplicationError, match=f"a superuser has to run: ALTER ROLE {role} BYPASSRLS$"):
            lab.record(dsn=dsn, snapshot=True, strict=True, workers=1)
        events = lab.record(dsn=dsn, snapshot=True, workers=1)
        (refused,) = (one for one in events if isinstance(one, TableNotCopied))
        assert refused.table == f"public.{hidden}"
        reason = f"the role may not read all rows: a superuser has to run: ALTER ROLE {role} BYPASSRLS"
        assert refused.reason == reason
        assert [one.name for one in lab.segments()[-1].incomplete] == [hidden]
        lab.run(f"ALTER ROLE {role} BYPASSRLS")
        lab.record(dsn=dsn, snapshot=True, workers=1)
        lab.assert_equal()
    finally:
        lab.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_snapshot_needs_a_new_slot_and_a_new_folder(lab: Lab) -> None:
    lab.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE a")
    lab.record()
    with pytest.raises(RecordingError, match="began without a snapshot, which cannot be added later"):
        lab.record(snapshot=True)
    with pytest.raises(
        ReplicationError, match="exists already, but a snapshot needs a new slot: drop the slot"
    ):
        lab.record(snapshot=True, recording=lab.folder.with_name("other"))
    assert lab.slots() == [lab.slot]


def test_the_recorder_stops_while_the_slot_waits_for_a_transaction(lab: Lab) -> None:
    lab.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE a")
    with lab.connect() as writer:
        writer.execute("BEGIN; INSERT INTO a VALUES (1)")
        with lab.recording(snapshot=True) as recording:
            wait_until(lambda: lab.slots() == [lab.slot])
        assert recording.events_of(Connected) == []
        wait_until(lambda: lab.slots() == [])
        writer.execute("COMMIT")
    assert lab.slots() == []
    lab.record(snapshot=True, options=RecorderOptions())
    lab.assert_equal()


def test_the_recorder_stops_while_it_waits_for_a_table_lock(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE a")

    def lock_and_list(*arguments: Any, **options: Any) -> list[PublishedTable]:
        other.execute("BEGIN; LOCK TABLE a")
        return published_tables(*arguments, **options)

    monkeypatch.setattr("logicalrep.recorder.snapshots.table_copy.published_tables", lock_and_list)
    with lab.connect() as other:
        with lab.recording(snapshot=True):
            wait_until(lambda: lab.value(WAITING_LOCKS) == 1)
        assert lab.slots() == [lab.slot]


WAITING_LOCKS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'a'::regclass"


def test_a_waiting_alter_table_does_not_block_the_snapshot(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO b VALUES (1)",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )

    def alter() -> None:
        with lab.connect() as other:
            other.execute("ALTER TABLE a ADD t text")
            other.execute("INSERT INTO a VALUES (2)")

    changing = threading.Thread(target=alter)

    def lock(copy: TableCopy, connection: Connection) -> list[PublishedTable]:
        tables = lock_tables(copy, connection)
        changing.start()
        wait_until(lambda: lab.value(WAITING_LOCKS) == 1)
        return tables

    lock_tables = TableCopy._lock_tables
    monkeypatch.setattr(TableCopy, "_lock_tables", lock)
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        changing.join()
    lab.record()
    lab.assert_equal()


def test_a_table_altered_before_its_lock_is_copied_with_a_new_snapshot(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run(
        "CREATE TABLE a (id int PRIMARY KEY, n int)",
        "INSERT INTO a SELECT g, g FROM generate_series(1, 9) g",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    changes = ["ALTER TABLE a ALTER n TYPE text", "ALTER TABLE a DROP m", "ALTER TABLE a ADD m int"]

    def lock(copy: TableCopy, connection: Connection) -> list[PublishedTable]:
        if changes:
            lab.run(changes.pop())
        return lock_tables(copy, connection)

    lock_tables = TableCopy._lock_tables
    monkeypatch.setattr(TableCopy, "_lock_tables", lock)
    lab.record(snapshot=True)
    assert changes == []
    (copied,) = lab.assert_equal().values()  # the table was rewritten: an older snapshot would see no rows
    assert len(copied) == 9
