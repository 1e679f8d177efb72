"""Each statement that changes rows without sending them makes its table incomplete; other statements do not.

The tables of all cases are in one database: a case costs some statements, and no recording of its own.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

import pytest

from logicalrep.errors import RecordingError
from logicalrep.recorder import Connected, Event, TableComplete, TableIncomplete, request_snapshot
from tests.recorder.lab import Lab, Recording, wait_until

PLAIN = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text, b text)",
    "INSERT INTO {t} VALUES (1, 'a', 'b'), (2, 'c', 'd')",
)
NUMBERS = "CREATE TABLE {t} (id int PRIMARY KEY, n int)", "INSERT INTO {t} VALUES (1, 1), (2, 2)"
TREE = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_3 PARTITION OF {t}_2 FOR VALUES FROM (10) TO (15)",
    "CREATE TABLE {t}_4 PARTITION OF {t} FOR VALUES FROM (50) TO (60)",
    "INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (11, 'c'), (50, 'd')",
)
FREE = "CREATE TABLE {t}_free (id int PRIMARY KEY, a text)"
FILL = "INSERT INTO {t}_free VALUES (30, 'x')"
ATTACH = "ALTER TABLE {t} ATTACH PARTITION {t}_free FOR VALUES FROM (30) TO (40)"
DETACHED = (
    "ALTER TABLE {t} DETACH PARTITION {t}_1",
    "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (10)",
)
MOODS = "CREATE TYPE {t}_mood AS ENUM ('sad', 'happy')"
RENAMED = "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'"
PAIR = "CREATE TYPE {t}_pair AS (x int, y text)"


def typed(type_: str, value: str, *types: str) -> tuple[str, ...]:
    """Return statements that create types, and a table with a column of one of these types."""
    return (
        *types,
        f"CREATE TABLE {{t}} (id int PRIMARY KEY, v {type_})",
        f"INSERT INTO {{t}} VALUES (1, {value})",
    )


class Case(NamedTuple):
    """Statements that create a table `{t}`, later statements, and whether these make the table incomplete."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    schema: str = "public"
    since: int = 15


HARMFUL = {
    # Partitions that are published through their root.
    "drop": Case(TREE, ("DROP TABLE {t}_1",)),
    "drop below": Case(TREE, ("DROP TABLE {t}_2",)),
    "detach": Case(TREE, ("ALTER TABLE {t} DETACH PARTITION {t}_1",)),
    "detach concurrently": Case(TREE, ("ALTER TABLE {t} DETACH PARTITION {t}_1 CONCURRENTLY",)),
    "truncate": Case(TREE, ("TRUNCATE {t}_3",)),
    "truncate of all partitions": Case(TREE, ("TRUNCATE {t}_1, {t}_3, {t}_4",)),
    "truncate of a root and a partition": Case(
        TREE, ("TRUNCATE {t}", "INSERT INTO {t} VALUES (3)", "TRUNCATE {t}_1")
    ),
    "truncate of a root and a partition in one transaction": Case(
        TREE, ("BEGIN; TRUNCATE {t}; INSERT INTO {t} VALUES (3), (11); TRUNCATE {t}_1; COMMIT",)
    ),
    "truncate and fill": Case(TREE, ("TRUNCATE {t}_1", "INSERT INTO {t} VALUES (3, 'new')")),
    "attach": Case((*TREE, FREE, FILL), (ATTACH,)),
    "attach a new table": Case(TREE, (FREE, FILL, ATTACH)),
    "attach in one transaction": Case(TREE, ("; ".join(("BEGIN", FREE, FILL, ATTACH, "COMMIT")),)),
    "attach below": Case(
        TREE,
        (
            FREE,
            "INSERT INTO {t}_free VALUES (17, 'x')",
            "ALTER TABLE {t}_2 ATTACH PARTITION {t}_free DEFAULT",
        ),
    ),
    "detach and attach": Case(TREE, (DETACHED[0], "INSERT INTO {t}_1 VALUES (5, 'x')", DETACHED[1])),
    "detach and attach above": Case(
        TREE,
        (
            "ALTER TABLE {t} DETACH PARTITION {t}_2",
            "UPDATE {t}_2 SET a = 'lost'",
            "ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (10) TO (20)",
        ),
    ),
    "unlogged partition": Case(
        TREE,
        (
            "ALTER TABLE {t}_1 SET UNLOGGED",
            "UPDATE {t} SET a = 'lost' WHERE id = 1",
            "ALTER TABLE {t}_1 SET LOGGED",
        ),
    ),
    "unlogged partition that stays": Case(TREE, ("ALTER TABLE {t}_1 SET UNLOGGED",)),
    "new unlogged partition": Case(
        TREE, ("CREATE UNLOGGED TABLE {t}_5 PARTITION OF {t} FOR VALUES FROM (70) TO (80)",)
    ),
    "replica identity of a root": Case(TREE, ("ALTER TABLE {t} REPLICA IDENTITY FULL",)),
    "using of a root": Case(TREE, ("ALTER TABLE {t} ALTER a TYPE text USING upper(a)",)),
    # Tables that leave the stream and come back.
    "unlogged": Case(
        PLAIN,
        ("ALTER TABLE {t} SET UNLOGGED", "UPDATE {t} SET a = 'lost'", "ALTER TABLE {t} SET LOGGED"),
        "s",
    ),
    "unlogged in one transaction": Case(
        PLAIN,
        ("BEGIN; ALTER TABLE {t} SET UNLOGGED; DELETE FROM {t}; ALTER TABLE {t} SET LOGGED; COMMIT",),
        "s",
    ),
    "unlogged without TOAST": Case(
        NUMBERS, ("ALTER TABLE {t} SET UNLOGGED", "UPDATE {t} SET n = 7", "ALTER TABLE {t} SET LOGGED"), "s"
    ),
    "other schema": Case(
        PLAIN,
        ("ALTER TABLE {t} SET SCHEMA public", "UPDATE {n} SET a = 'lost'", "ALTER TABLE {n} SET SCHEMA s"),
        "s",
    ),
    "other schema in one transaction": Case(
        PLAIN,
        ("BEGIN; ALTER TABLE {t} SET SCHEMA public; DELETE FROM {n}; ALTER TABLE {n} SET SCHEMA s; COMMIT",),
        "s",
    ),
    # Columns behind existing rows.
    "varchar": Case(
        typed("varchar(10)", "'abcdef'"), ("ALTER TABLE {t} ALTER v TYPE varchar(3) USING left(v, 3)",)
    ),
    "varchar array": Case(
        typed("varchar(10)[]", "'{{abcdef}}'"), ("ALTER TABLE {t} ALTER v TYPE varchar(3)[] USING '{{abc}}'",)
    ),
    "time": Case(typed("time", "'01:02:03.456'"), ("ALTER TABLE {t} ALTER v TYPE time(0)",)),
    "timestamp": Case(
        typed("timestamp(6)", "'2000-01-01 01:02:03.456'"), ("ALTER TABLE {t} ALTER v TYPE timestamp(0)",)
    ),
    "numeric": Case(typed("numeric(10, 4)", "1.2345"), ("ALTER TABLE {t} ALTER v TYPE numeric(10, 2)",)),
    "numeric array": Case(
        typed("numeric(10, 4)[]", "'{{1.2345}}'"), ("ALTER TABLE {t} ALTER v TYPE numeric(10, 2)[]",)
    ),
    "default that is dropped": Case(
        PLAIN, ("ALTER TABLE {t} ADD c float8 DEFAULT random()", "ALTER TABLE {t} ALTER c DROP DEFAULT")
    ),
    "default of a root": Case(TREE, ("ALTER TABLE {t} ADD c int DEFAULT 7",)),
    "default and vacuum full": Case(PLAIN, ("ALTER TABLE {t} ADD c int DEFAULT 7", "VACUUM FULL {t}")),
    "wider type with using": Case(NUMBERS, ("ALTER TABLE {t} ALTER n TYPE int8 USING n + 1",)),
    "text with using": Case(typed("varchar", "'abc'"), ("ALTER TABLE {t} ALTER v TYPE text USING upper(v)",)),
    "renamed and back": Case(
        PLAIN,
        (
            "ALTER TABLE {t} RENAME b TO c",
            "INSERT INTO {t} VALUES (3)",
            "ALTER TABLE {t} RENAME c TO b",
        ),
    ),
    "swapped and back": Case(
        PLAIN,
        (
            "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME c TO b",
            "INSERT INTO {t} VALUES (3)",
            "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME c TO b",
        ),
    ),
    "renamed and back, and altered": Case(
        PLAIN,
        (
            "ALTER TABLE {t} RENAME b TO c",
            "INSERT INTO {t} VALUES (3)",
            "ALTER TABLE {t} RENAME c TO b",
            "ALTER TABLE {t} ALTER a SET STATISTICS 7",
            "ALTER TABLE {t} ALTER b SET DEFAULT 'x'",
        ),
    ),
    "swapped, with a column added": Case(
        PLAIN,
        (
            "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME c TO b",
            "INSERT INTO {t} VALUES (3)",
            "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME c TO b",
            "ALTER TABLE {t} ADD c int",
        ),
    ),
    "added, dropped and added again": Case(
        PLAIN,
        (
            "ALTER TABLE {t} ADD c text",
            "INSERT INTO {t} VALUES (3, 'x', 'x', 'lost')",
            "ALTER TABLE {t} DROP c",
            "ALTER TABLE {t} ADD c text",
        ),
    ),
    "names pushed along": Case(
        PLAIN,
        (
            "ALTER TABLE {t} DROP a; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} ADD b text",
            "INSERT INTO {t} VALUES (3, 'lost', 'lost')",
            "ALTER TABLE {t} DROP b; ALTER TABLE {t} RENAME a TO b",
        ),
    ),
    # Types behind existing rows.
    "enum": Case(typed("{t}_mood", "'sad'", MOODS), (RENAMED,)),
    "enum and back": Case(
        typed("{t}_mood", "'sad'", MOODS),
        (RENAMED, "INSERT INTO {t} VALUES (2, 'blue')", "ALTER TYPE {t}_mood RENAME VALUE 'blue' TO 'sad'"),
    ),
    "enum in an array": Case(typed("{t}_mood[]", "'{{sad}}'", MOODS), (RENAMED,)),
    "enum in a composite": Case(
        typed("{t}_pair", "'(sad,1)'", MOODS, "CREATE TYPE {t}_pair AS (x {t}_mood, y int)"), (RENAMED,)
    ),
    "enum in an array of composites": Case(
        typed("{t}_pair[]", "'{{\"(sad,1)\"}}'", MOODS, "CREATE TYPE {t}_pair AS (x {t}_mood, y int)"),
        (RENAMED,),
    ),
    "enum in a domain of a domain": Case(
        typed("{t}_d2", "'sad'", MOODS, "CREATE DOMAIN {t}_d1 AS {t}_mood", "CREATE DOMAIN {t}_d2 AS {t}_d1"),
        (RENAMED,),
    ),
    "enum in a range": Case(
        typed("{t}_r", "'[sad,happy]'", MOODS, "CREATE TYPE {t}_r AS RANGE (SUBTYPE = {t}_mood)"), (RENAMED,)
    ),
    "attribute added": Case(typed("{t}_pair", "'(1,x)'", PAIR), ("ALTER TYPE {t}_pair ADD ATTRIBUTE z int",)),
    "attribute dropped": Case(typed("{t}_pair", "'(1,x)'", PAIR), ("ALTER TYPE {t}_pair DROP ATTRIBUTE y",)),
    "attribute of a row type": Case(
        typed("{t}_other", "'(1,x)'", "CREATE TABLE {t}_other (x int, y text)"),
        ("ALTER TABLE {t}_other DROP y",),
    ),
}

HARMLESS = {
    "attribute renamed": Case(
        typed("{t}_pair", "'(1,x)'", PAIR), ("ALTER TYPE {t}_pair RENAME ATTRIBUTE y TO z",)
    ),
    "new partition": Case(
        TREE,
        (
            "CREATE TABLE {t}_5 PARTITION OF {t} FOR VALUES FROM (70) TO (80)",
            "INSERT INTO {t} VALUES (71, 'x'), (72, 'y')",
            "CREATE TABLE {t}_6 PARTITION OF {t}_2 FOR VALUES FROM (15) TO (20)",
            "INSERT INTO {t}_6 VALUES (17, 'x')",
        ),
    ),
    "new partition in one transaction": Case(
        TREE,
        ("BEGIN; CREATE TABLE {t}_5 PARTITION OF {t} DEFAULT; INSERT INTO {t} VALUES (99, 'x'); COMMIT",),
    ),
    "empty table attached": Case((*TREE, FREE), (ATTACH,)),
    "empty new table attached": Case(TREE, (FREE, ATTACH)),
    "vacuum full of a partition": Case(TREE, ("VACUUM FULL {t}_1",)),
    "cluster of a partition": Case(TREE, ("CLUSTER {t}_1 USING {n}_1_pkey",)),
    "index on a tree": Case(TREE, ("CREATE INDEX ON {t} (a)", "REINDEX TABLE {t}_1", "ANALYZE {t}")),
    "column of a tree": Case(TREE, ("ALTER TABLE {t} ADD c int", "ALTER TABLE {t} ALTER a SET NOT NULL")),
    "truncate": Case(PLAIN, ("TRUNCATE {t}", "INSERT INTO {t} VALUES (3)")),
    "truncate of a root": Case(TREE, ("TRUNCATE {t}", "INSERT INTO {t} VALUES (3), (11)")),
    "truncate of two roots": Case(
        (*TREE, "CREATE TABLE {t}_other (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)"),
        ("TRUNCATE {t}, {t}_other",),
        "s",
    ),
    "truncate of a partition, then of its root": Case(TREE, ("TRUNCATE {t}_1", "TRUNCATE {t}")),
    "not null and back": Case(
        PLAIN,
        (
            "INSERT INTO {t} VALUES (3, 'x')",
            "ALTER TABLE {t} ALTER a SET NOT NULL",
            "INSERT INTO {t} VALUES (4, 'x')",
            "ALTER TABLE {t} ALTER a DROP NOT NULL",
            "INSERT INTO {t} VALUES (5, 'x')",
        ),
    ),
    "not null and back, with a column added": Case(
        PLAIN,
        (
            "INSERT INTO {t} VALUES (3, 'x')",
            "ALTER TABLE {t} ALTER a SET NOT NULL, ADD c int",
            "INSERT INTO {t} VALUES (4, 'x')",
            "ALTER TABLE {t} ALTER a DROP NOT NULL",
        ),
    ),
    "not null and back, with a column dropped": Case(
        PLAIN,
        (
            "INSERT INTO {t} VALUES (3, 'x')",
            "ALTER TABLE {t} ALTER a SET NOT NULL",
            "ALTER TABLE {t} DROP b",
            "INSERT INTO {t} VALUES (4, 'x')",
            "ALTER TABLE {t} ALTER a DROP NOT NULL",
        ),
    ),
    "not null and back of a root": Case(
        TREE,
        (
            "ALTER TABLE {t} ALTER a SET NOT NULL",
            "INSERT INTO {t} VALUES (3, 'x')",
            "ALTER TABLE {t} ALTER a DROP NOT NULL",
        ),
    ),
    "unlogged and truncate": Case(
        PLAIN,
        ("ALTER TABLE {t} SET UNLOGGED", "DELETE FROM {t}", "ALTER TABLE {t} SET LOGGED", "TRUNCATE {t}"),
        "s",
    ),
    "truncate without TOAST": Case(NUMBERS, ("TRUNCATE {t}", "INSERT INTO {t} VALUES (3)"), "s"),
    "vacuum full": Case(PLAIN, ("VACUUM FULL {t}",)),
    "vacuum full without TOAST": Case(NUMBERS, ("VACUUM FULL {t}",)),
    "repack": Case(PLAIN, ("REPACK {t}", "REPACK (CONCURRENTLY) {t}"), since=19),
    "vacuum": Case(PLAIN, ("VACUUM ANALYZE {t}", "VACUUM (FREEZE) {t}")),
    "alterations": Case(
        PLAIN,
        (
            "ALTER TABLE {t} ALTER a SET NOT NULL",
            "ALTER TABLE {t} ALTER a SET STATISTICS 7",
            "ALTER TABLE {t} ALTER b SET DEFAULT 'x'",
            "ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL",
            "ALTER TABLE {t} SET (fillfactor = 70)",
            "ALTER TABLE {t} ADD CHECK (id > 0)",
            "GRANT SELECT (a) ON {t} TO PUBLIC",
            "COMMENT ON TABLE {t} IS 'x'",
            "CREATE INDEX ON {t} (a)",
        ),
    ),
    "another default": Case(
        ("CREATE TABLE {t} (id int PRIMARY KEY, a text DEFAULT 'x')", "INSERT INTO {t} VALUES (1)"),
        ("ALTER TABLE {t} ALTER a SET DEFAULT 'y'",),
    ),
    "longer varchar": Case(
        typed("varchar(10)", "'abcdef'"), ("ALTER TABLE {t} ALTER v TYPE varchar(20)", "VACUUM FULL {t}")
    ),
    "varchar to text": Case(typed("varchar(9)", "'abc'"), ("ALTER TABLE {t} ALTER v TYPE text",)),
    "enum value added": Case(
        typed("{t}_pair", "'(sad,1)'", MOODS, "CREATE TYPE {t}_pair AS (x {t}_mood, y int)"),
        ("ALTER TYPE {t}_mood ADD VALUE 'calm'",),
    ),
    "renamed table": Case(PLAIN, ("ALTER TABLE {t} RENAME TO {n}_x", "ALTER TABLE {t}_x RENAME TO {n}")),
}

LASTING = {
    "unlogged partition that stays": "changes of unlogged or foreign partitions",
    "new unlogged partition": "changes of unlogged or foreign partitions",
    "replica identity of a root": "old values of partitions lack the columns of its replica identity",
}
"""Why a table is incomplete also with all its rows, for the cases after which not all changes are sent."""

CASES = HARMFUL | {f"harmless {name}": case for name, case in HARMLESS.items()}

HARMLESS_AT_THE_END = {"harmless unlogged and truncate", "harmless truncate of a partition, then of its root"}
"""Cases that only their last statement makes harmless. The catalogs may be read before it."""


def create(lab: Lab, cases: dict[str, Case]) -> dict[str, str]:
    """Create the tables of cases, and a publication of the tables; return the names of the cases by table."""
    lab.require(15, "the cases")
    lab.run("CREATE SCHEMA s")
    names = {f"{case.schema}.t{number}": name for number, (name, case) in enumerate(cases.items())}
    names = {table: name for table, name in names.items() if cases[name].since <= lab.version}
    for table, name in names.items():
        run(lab, table, cases[name].before)
    listed = ", ".join(table for table in names if table.startswith("public"))
    lab.run(f"CREATE PUBLICATION p FOR TABLE {listed}, TABLES IN SCHEMA s WITH (publish_via_partition_root)")
    return names


def run(lab: Lab, table: str, statements: tuple[str, ...]) -> None:
    lab.run(*(statement.format(t=table, n=table.partition(".")[2]) for statement in statements))


def incomplete(events: list[Event]) -> dict[str, str]:
    """Return why tables were reported as incomplete, by name of the table."""
    return {one.table: one.reason for one in events if isinstance(one, TableIncomplete)}


def test_tables_with_unsent_changes_are_incomplete(lab: Lab) -> None:
    names = create(lab, CASES)
    lab.record(snapshot=True)
    assert incomplete(lab.record()) == {}
    for table, name in names.items():
        run(lab, table, CASES[name].after)
    told = {names[table] for table in incomplete(lab.record())}
    assert sorted(told) == sorted(HARMFUL)


def test_a_running_recorder_copies_tables_with_unsent_changes(lab: Lab) -> None:
    names = create(lab, CASES)
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        for table, name in names.items():
            run(lab, table, CASES[name].after)
        expected = HARMFUL.keys() - LASTING.keys()
        wait_until(lambda: expected <= {names[one.table] for one in recording.events_of(TableComplete)})
    told = {names[table] for table in incomplete(recording.events)}
    assert told - HARMLESS_AT_THE_END == HARMFUL.keys()
    for table, name in names.items():  # the new columns of a table come with its next change
        if name == "replica identity of a root":
            continue  # nobody could find the row
        lab.run(f"DELETE FROM {table} WHERE id = (SELECT max(id) FROM {table})")
    lab.record(snapshot=True)  # a reading between two statements of a case was answered by a copy too early
    left = {names[table]: reason for table, reason in incomplete(lab.record()).items()}
    assert left.keys() == LASTING.keys()
    assert all(reason.startswith(LASTING[name]) for name, reason in left.items())
    lab.assert_equal()


def test_partitions_that_get_the_replica_identity_of_their_root_have_lost_changes(lab: Lab) -> None:
    lab.require(13, "partitions that are published through their root")
    run(lab, "t", TREE)
    lab.run("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    lab.run("ALTER TABLE t REPLICA IDENTITY FULL")
    lab.record()
    lab.run("DELETE FROM t WHERE id = 2", *(f"ALTER TABLE t_{n} REPLICA IDENTITY FULL" for n in (1, 3, 4)))
    told = incomplete(lab.record())
    assert "without the replica identity of the table for a time" in told["public.t"]
    lab.record(snapshot=True)
    assert incomplete(lab.record()) == {}
    lab.assert_equal()


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_new_table_that_was_emptied_before_it_is_seen(lab: Lab, is_sent: bool) -> None:
    lab.require(11, "TRUNCATE in publications")
    options = "" if is_sent else " WITH (publish = 'insert, update, delete')"
    lab.run(f"CREATE PUBLICATION p FOR ALL TABLES{options}")
    lab.record()
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "TRUNCATE t")
    assert ("public.t" in incomplete(lab.record())) == (not is_sent)


def test_an_added_column_does_not_explain_that_an_empty_table_was_rewritten(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1)")
    lab.run("CREATE PUBLICATION p FOR ALL TABLES")
    lab.record(snapshot=True)
    lab.run("ALTER TABLE t SET UNLOGGED", "DELETE FROM t", "ALTER TABLE t ADD b float8 DEFAULT random()")
    lab.run("ALTER TABLE t SET LOGGED")
    assert list(incomplete(lab.record())) == ["public.t"]


ONE_TRANSACTION = [
    "ALTER TABLE s.t SET SCHEMA public; DELETE FROM public.t; ALTER TABLE public.t SET SCHEMA s",
    "ALTER TABLE s.t SET UNLOGGED; DELETE FROM s.t; ALTER TABLE s.t SET LOGGED",
]


@pytest.mark.parametrize("statements", ONE_TRANSACTION)
def test_a_strict_recorder_ends_when_a_table_has_left_the_stream(lab: Lab, statements: str) -> None:
    lab.require(15, "schemas in publications")
    lab.run("CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY, a text)")
    lab.run("INSERT INTO s.t VALUES (1)", "CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
    lab.record(snapshot=True)
    recording = Recording(partial(lab.recorder, strict=True))
    recording.wait(Connected)
    lab.run(f"BEGIN; {statements}; COMMIT")
    with pytest.raises(RecordingError, match="lacks rows of some tables"):
        recording.join()


@pytest.mark.parametrize("publish", ["insert", "update, delete", "insert, update, delete, truncate"])
def test_operations_that_are_not_published_make_tables_incomplete(lab: Lab, publish: str) -> None:
    lab.require(11, "TRUNCATE in the stream")
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE PUBLICATION p FOR TABLE t WITH (publish = '{publish}')",
    )
    reasons = {"insert": "its updates and deletes", "update, delete": "its inserts"}
    expected = {"public.t": f"{reasons[publish]} are not published"} if publish in reasons else {}
    for _ in range(2):
        assert incomplete(lab.record(snapshot=True)) == expected
    if expected:
        request_snapshot(lab.folder, ["public.t"])
        lab.record()
        assert incomplete(lab.record()) == expected
        with pytest.raises(RecordingError, match="are not published"):
            lab.record(strict=True)
        lab.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
        assert "was altered" in incomplete(lab.record(snapshot=True))["public.t"]
        assert incomplete(lab.record(strict=True)) == {}


def test_a_truncate_that_is_not_published_makes_a_table_incomplete(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    lab.run("CREATE PUBLICATION p FOR TABLE t, u WITH (publish = 'insert, update, delete')")
    lab.run("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    lab.record(snapshot=True)
    lab.run("TRUNCATE t", "VACUUM FULL u")
    assert list(incomplete(lab.record())) == ["public.t"]


ALTERED = {
    "operations": "ALTER PUBLICATION p SET (publish = 'insert'); CREATE TABLE new (id int PRIMARY KEY); "
    "INSERT INTO new VALUES (1); DELETE FROM new; "
    "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
    "root": "ALTER PUBLICATION p SET (publish_via_partition_root = false); "
    "CREATE TABLE new (id int PRIMARY KEY) PARTITION BY RANGE (id); "
    "CREATE TABLE new_1 PARTITION OF new DEFAULT; INSERT INTO new VALUES (1); "
    "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
}


@pytest.mark.parametrize("way", ALTERED)
def test_a_table_created_while_its_publication_was_altered_is_incomplete(lab: Lab, way: str) -> None:
    lab.require(13, "publish_via_partition_root")
    lab.run("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    lab.run(*ALTERED[way].split("; "))
    assert list(incomplete(lab.record())) == ["public.new"]
    assert list(incomplete(lab.record(snapshot=True))) == ["public.new"]
    assert incomplete(lab.record()) == {}


@pytest.mark.parametrize("looks", [False, True])
def test_roots_are_incomplete_after_their_partitions_were_published(lab: Lab, looks: bool) -> None:
    lab.require(13, "publish_via_partition_root")
    lab.run(*(one.format(t="t") for one in TREE))
    lab.run("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    lab.run("ALTER PUBLICATION p SET (publish_via_partition_root = false)", "DELETE FROM t WHERE id < 9")
    if looks:
        lab.record()
    lab.run("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    assert "public.t" in incomplete(lab.record())
    lab.record(snapshot=True)
    assert "public.t" not in incomplete(lab.record())


def test_partitions_of_all_tables_are_attached(lab: Lab) -> None:
    """The rows of a table were sent as its own, and become rows of the root when it is attached."""
    lab.require(13, "publish_via_partition_root")
    lab.run(*(one.format(t="t") for one in (*TREE, FREE)))
    lab.run("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    lab.run(FILL.format(t="t"), ATTACH.format(t="t"))
    assert list(incomplete(lab.record())) == ["public.t", "public.t_free"]


def test_a_table_that_is_excepted_for_a_time_is_incomplete(lab: Lab) -> None:
    lab.require(19, "EXCEPT in publications")
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    lab.run("INSERT INTO t VALUES (1)", "CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE u)")
    lab.record(snapshot=True)
    lab.run("ALTER PUBLICATION p SET ALL TABLES EXCEPT (TABLE t)", "INSERT INTO t VALUES (2)")
    assert list(incomplete(lab.record())) == ["public.t"]
    lab.run("ALTER PUBLICATION p SET ALL TABLES", "INSERT INTO t VALUES (3)")
    assert list(incomplete(lab.record(snapshot=True))) == ["public.t"]
    assert incomplete(lab.record()) == {}
    lab.assert_equal()


@pytest.mark.parametrize("statement", ["INSERT INTO t VALUES (31, 'x')", "DELETE FROM t WHERE id = 30"])
def test_a_published_table_that_was_a_partition_for_a_time_is_incomplete(lab: Lab, statement: str) -> None:
    lab.require(13, "publish_via_partition_root")
    lab.run(*(one.format(t="t") for one in (*TREE, FREE, FILL)))
    lab.run("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    lab.run(ATTACH.format(t="t"), statement, "ALTER TABLE t DETACH PARTITION t_free")
    assert list(incomplete(lab.record(snapshot=True))) == ["public.t_free", "public.t"]
    assert incomplete(lab.record()) == {}
    lab.assert_equal()


@pytest.mark.parametrize("is_new", [False, True])
def test_a_new_table_that_was_a_partition_at_first_is_incomplete(lab: Lab, is_new: bool) -> None:
    lab.require(13, "publish_via_partition_root")
    root, first, *others, _ = [one.format(t="t") for one in TREE]
    lab.run("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    lab.run(*(() if is_new else (root, *others)))
    lab.record(snapshot=True)
    lab.run(*((root, *others) if is_new else ()), first, "INSERT INTO t VALUES (1, 'x'), (11, 'y')")
    lab.run("CREATE TABLE other (id int PRIMARY KEY, a text DEFAULT 'x')", "INSERT INTO other VALUES (1)")
    lab.run("ALTER TABLE t DETACH PARTITION t_1")
    assert set(incomplete(lab.record(snapshot=True))) == {"public.t", "public.t_1"}
    assert incomplete(lab.record()) == {}
    lab.assert_equal()


def test_a_table_whose_columns_cannot_be_read_in_time_is_incomplete(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._MIN_PAUSE", 600.0)
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch.CatalogWatch.read_now", lambda *_: None)
    run(lab, "t", PLAIN)
    lab.run("CREATE PUBLICATION p FOR TABLE t")
    lab.record(snapshot=True)
    with lab.recording() as recording:
        wait_until(recording.has_read_catalogs)
        lab.run("ALTER TABLE t RENAME b TO c", "INSERT INTO t VALUES (3)", "ALTER TABLE t RENAME c TO b")
        wait_until(lambda: any("not be read" in one.reason for one in recording.events_of(TableIncomplete)))


@pytest.mark.parametrize("root", [False, True])
def test_harmless_statements_of_a_running_recorder_are_not_reported(lab: Lab, root: bool) -> None:
    lab.require(13 if root else 10, "publish_via_partition_root")
    run(lab, "t", TREE if root else PLAIN)
    lab.run(f"CREATE PUBLICATION p FOR TABLE t{' WITH (publish_via_partition_root)' if root else ''}")
    lab.record(snapshot=True)
    truncate = ["TRUNCATE t"] if lab.version >= 11 else []
    with lab.recording() as recording:
        recording.wait(Connected)
        for number in range(4):
            lab.run("ALTER TABLE t ALTER a SET NOT NULL", f"INSERT INTO t VALUES (3, '{number}')")
            lab.run("ALTER TABLE t ALTER a DROP NOT NULL", "DELETE FROM t WHERE id = 3", *truncate)
            time.sleep(0.8)
    assert incomplete([*recording.events, *lab.record()]) == {}
    lab.assert_equal()


@pytest.mark.parametrize("running", [False, True])
def test_a_partition_that_no_reading_has_shown_makes_its_root_incomplete(lab: Lab, running: bool) -> None:
    lab.require(13, "publish_via_partition_root")
    lab.run(*(one.format(t="t") for one in TREE), "CREATE TABLE other (x int) PARTITION BY RANGE (x)")
    lab.run("CREATE PUBLICATION p FOR TABLE t, other WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    statements = (
        "CREATE TABLE t_5 PARTITION OF t FOR VALUES FROM (70) TO (80)",
        "INSERT INTO t VALUES (71, 'x')",
        "DROP TABLE t_5",
    )
    if running:
        with lab.recording(snapshot=True) as recording:
            recording.wait(Connected)
            lab.run(*statements)
            assert recording.wait(TableIncomplete).table == "public.t"
    else:
        lab.run(*statements)
        assert list(incomplete(lab.record())) == ["public.t"]
    lab.record(snapshot=True)
    assert incomplete(lab.record()) == {}
    lab.assert_equal()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_partitioned_table_that_was_attached_for_a_time_is_incomplete(lab: Lab, leaves: bool) -> None:
    """Only the partitions of the attached table need be published, and its own row has no trace of it."""
    lab.require(13, "publish_via_partition_root")
    root, *others = (one.format(t="t") for one in TREE)
    own = [one.format(t="sub") for one in (TREE[0], TREE[1].replace("(0) TO (10)", "(30) TO (35)"))]
    lab.run(root, *others, *own, "INSERT INTO sub VALUES (30, 'x')")
    published = "sub_1" if leaves else "sub"
    lab.run(f"CREATE PUBLICATION p FOR TABLE t, {published} WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    lab.run("ALTER TABLE sub ADD c int", "ALTER TABLE sub DROP c", "ALTER TABLE sub ALTER a SET STATISTICS 9")
    assert incomplete(lab.record()) == {}
    lab.run("ALTER TABLE t ATTACH PARTITION sub FOR VALUES FROM (30) TO (40)", "INSERT INTO t VALUES (31)")
    lab.run("ALTER TABLE t DETACH PARTITION sub")
    assert incomplete(lab.record(snapshot=True)).keys() == {"public.t", f"public.{published}"}
    assert incomplete(lab.record()) == {}
    lab.assert_equal()


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLE t"])
@pytest.mark.parametrize("count", [1, 2])
def test_changes_of_moved_partitions_are_changes_of_their_new_root(
    lab: Lab, publication: str, count: int
) -> None:
    """A walsender of a server before PostgreSQL 15 sends them as changes of the relation from before."""
    lab.require(13, "publish_via_partition_root")
    *earlier, statement = (one.format(t="t") for one in DETACHED[:count])
    lab.run(*(one.format(t="t") for one in TREE), *earlier)
    lab.run(f"CREATE PUBLICATION p {publication} WITH (publish_via_partition_root)")
    lab.record(snapshot=True)
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t_1 VALUES (3)", "INSERT INTO t VALUES (12)")
        lsn = lab.lsn()
        wait_until(lambda: lab.confirmed_lsn() >= lsn)
        lab.run(statement)
        wait_until(lambda: "public.t" in {one.table for one in recording.events_of(TableComplete)})
        lab.run("INSERT INTO t_1 VALUES (5)")
    lab.record()
    (recorded,) = (one for one in lab.replay().values() if one.relation.name == "t")
    assert len(recorded) == lab.value("SELECT count(*) FROM t")
