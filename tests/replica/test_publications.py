"""Replicas of several publications equal their source: of partitions and their roots, and with column lists.

Each case is recorded while its statements run, and again with a recorder that is stopped meanwhile. `make
matrix` and `make nightly` run all cases, `make test` some.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from logicalrep.errors import ReplicationError
from logicalrep.replica import replica_tables
from logicalrep.verification import verify_tables
from tests.recorder.lab import Lab, wait_until
from tests.replica.live import Replica
from tests.replica.tables import read_table, row_texts

VIA = "WITH (publish_via_partition_root)"
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')"
ROOT = "CREATE TABLE r (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)"
PART = f"{ROOT}; CREATE TABLE t PARTITION OF r FOR VALUES IN (1); INSERT INTO r VALUES (1, 1)"
ALONE = f"{ROOT}; CREATE TABLE t (id int, k int, PRIMARY KEY (id, k)); INSERT INTO t VALUES (1, 1)"
MIDDLE = (
    f"{ROOT}; CREATE TABLE m PARTITION OF r FOR VALUES IN (1) PARTITION BY LIST (id);"
    " CREATE TABLE t PARTITION OF m DEFAULT; INSERT INTO r VALUES (1, 1)"
)
SCHEMA = (
    "CREATE SCHEMA s; CREATE TABLE s.r (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
    " CREATE TABLE t PARTITION OF s.r FOR VALUES IN (1); INSERT INTO t VALUES (1, 1)"
)
CHANGES = "INSERT INTO t VALUES (2, 1); UPDATE t SET id = 3 WHERE id = 1"
LATER = (PART, ("FOR TABLE t", VIA))

CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    # A partition in one publication; its root, or a level between, through the root in another
    "partition, root": (PART, ("FOR TABLE t", f"FOR TABLE r {VIA}"), CHANGES),
    "root, partition": (PART, (f"FOR TABLE r {VIA}", "FOR TABLE t"), CHANGES),
    "all tables, root": (PART, ("FOR ALL TABLES", f"FOR TABLE r {VIA}"), CHANGES),
    "both in one": (PART, (f"FOR TABLE r, t {VIA}",), CHANGES),
    "root twice": (PART, ("FOR TABLE r", f"FOR TABLE r {VIA}"), CHANGES),
    "root by schema": (SCHEMA, ("FOR TABLE t", f"FOR TABLES IN SCHEMA s {VIA}"), CHANGES),
    "partition by schema": (PART, ("FOR TABLES IN SCHEMA public", f"FOR TABLE r {VIA}"), CHANGES),
    "level, root": (MIDDLE, (f"FOR TABLE m {VIA}", f"FOR TABLE r {VIA}"), CHANGES),
    "leaf, level": (MIDDLE, ("FOR TABLE t", f"FOR TABLE m {VIA}"), CHANGES),
    "root joins": (*LATER, f"ALTER PUBLICATION p1 ADD TABLE r; {CHANGES}"),
    "root joins, no change": (*LATER, "ALTER PUBLICATION p1 ADD TABLE r"),
    "root by setting": (
        PART,
        ("FOR TABLE t", "FOR TABLE r"),
        f"ALTER PUBLICATION p1 SET (publish_via_partition_root); {CHANGES}",
    ),
    "root by all": (
        PART,
        ("FOR TABLE t", "FOR ALL TABLES"),
        f"ALTER PUBLICATION p1 SET (publish_via_partition_root); {CHANGES}",
    ),
    "root leaves": (
        PART,
        ("FOR TABLE t", f"FOR TABLE r {VIA}"),
        f"{CHANGES}; ALTER PUBLICATION p1 DROP TABLE r; INSERT INTO t VALUES (5, 1)",
    ),
    "new root joins and is published in place of its partition": (
        TABLE,
        ("FOR TABLE t",),
        f"BEGIN; {ROOT}; CREATE TABLE p PARTITION OF r FOR VALUES IN (1); INSERT INTO r VALUES (1, 1);"
        " ALTER PUBLICATION p0 ADD TABLE r; INSERT INTO r VALUES (2, 1);"
        " ALTER PUBLICATION p0 SET (publish_via_partition_root); INSERT INTO r VALUES (3, 1); COMMIT",
    ),
    "attached": (
        ALONE,
        ("FOR TABLE t", f"FOR TABLE r {VIA}"),
        f"ALTER TABLE r ATTACH PARTITION t FOR VALUES IN (1); {CHANGES}",
    ),
    "detached": (
        PART,
        ("FOR TABLE t", f"FOR TABLE r {VIA}"),
        f"{CHANGES}; ALTER TABLE r DETACH PARTITION t; INSERT INTO t VALUES (6, 1)",
    ),
    # Column lists beside publications without one
    "all columns, none": (TABLE, ("FOR TABLE t (id, v)", "FOR TABLE t"), "INSERT INTO t VALUES (2, 'b')"),
    "all columns, all tables": (
        TABLE,
        ("FOR TABLE t (v, id)", "FOR ALL TABLES"),
        "INSERT INTO t VALUES (2, 'b')",
    ),
    "all columns, schema": (
        TABLE,
        ("FOR TABLE t (v, id)", "FOR TABLES IN SCHEMA public"),
        "INSERT INTO t VALUES (2, 'b')",
    ),
    "all columns of a root": (PART, (f"FOR TABLE r (id, k) {VIA}", f"FOR TABLE r {VIA}"), CHANGES),
    # Columns without a value in existing rows
    "ADD COLUMN": (TABLE, ("FOR TABLE t",), "ALTER TABLE t ADD w int"),
    "ADD COLUMN, rows follow": (
        TABLE,
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w int; INSERT INTO t VALUES (2, 'b', 3)",
    ),
    "ADD COLUMN DEFAULT NULL": (
        TABLE,
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w int DEFAULT NULL; INSERT INTO t VALUES (2, 'b', 3)",
    ),
    "ADD COLUMN to a root": (
        PART,
        (f"FOR TABLE r {VIA}",),
        "ALTER TABLE r ADD w int; INSERT INTO r VALUES (3, 1, 3)",
    ),
    "ADD COLUMN of a domain": (
        f"CREATE DOMAIN d AS int; {TABLE}",
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w d; INSERT INTO t VALUES (2, 'b', 3)",
    ),
    "ADD COLUMN twice": (
        TABLE,
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w int; INSERT INTO t VALUES (2, 'b', 3);"
        " ALTER TABLE t ADD x int; INSERT INTO t VALUES (4, 'd', 5, 6)",
    ),
    "ADD COLUMN, then a default": (
        TABLE,
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w int; ALTER TABLE t ADD x int DEFAULT 8; INSERT INTO t VALUES (2, 'b', 3)",
    ),
    "ADD COLUMN with a default": (
        TABLE,
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w int DEFAULT 7; INSERT INTO t VALUES (2, 'b', 3)",
    ),
    "ADD COLUMN with an identity": (
        TABLE,
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w int GENERATED ALWAYS AS IDENTITY; INSERT INTO t VALUES (2, 'b')",
    ),
    "ADD COLUMN of a domain with a default": (
        f"CREATE DOMAIN d AS int DEFAULT 5; {TABLE}",
        ("FOR TABLE t",),
        "ALTER TABLE t ADD w d; INSERT INTO t VALUES (2, 'b', 3)",
    ),
}
"""Statements before the recording, the publications p0, p1 …, and statements that are recorded."""

SOME = {"partition, root", "root joins", "all columns, none", "ADD COLUMN, rows follow"}
"""The cases that `make test` runs."""

IS_MATRIX = "LOGICALREP_TEST_VERSION" in os.environ


def published(lab: Lab, count: int) -> dict[int, str]:
    """Return the names of the tables that the server sends, by OID: a partition as its topmost root."""
    columns = {10: "relid", 15: "relid, attrs, qual", 16: "pubid, relid, attrs, qual"}
    of_version = columns[max(one for one in columns if one <= lab.version)]
    query = f"SELECT relid::int8 FROM pg_get_publication_tables('p{{}}') g({of_version})"
    oids = {oid for n in range(count) for (oid,) in lab.rows(query.format(n))}
    tree = f"unnest(ARRAY[{','.join(map(str, oids)) or 'NULL'}]::regclass[]) o, pg_partition_tree(o) t"
    below = lab.rows(f"SELECT t.relid::oid::int8 FROM {tree} WHERE t.relid <> o")
    return {oid: lab.value(f"SELECT {oid}::regclass::text") for oid in oids - {one for (one,) in below}}


def assert_right(lab: Lab, replica: Replica, count: int) -> None:
    """Check that each published table is equal and unmarked, and each other table that exists is marked."""
    tables, wanted = replica_tables(replica.target), published(lab, count)
    assert wanted.keys() <= tables.keys()
    for oid, table in tables.items():
        if oid not in wanted:
            assert table.may_differ or table.dropped, table.name
            continue
        assert table.may_differ == (), table.name
        rows = map(row_texts, read_table(table.place).to_pylist())
        found = [{k: v for k, v in row.items() if v is not None} for row in rows]
        query = f"SELECT json_strip_nulls(json_object_agg(key, value)) FROM {wanted[oid]} _row,"
        texts = lab.rows(f"{query} json_each_text(row_to_json(_row)) GROUP BY _row")
        assert sorted(found, key=str) == sorted((row for (row,) in texts), key=str), table.name


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if IS_MATRIX or one in SOME else pytest.mark.nightly) for one in CASES],
)
def test_replicas_equal_their_source(name: str, is_live: bool, lab: Lab, tmp_path: Path) -> None:
    setup, publications, statements = CASES[name]
    for since, words in ((13, "via_partition_root"), (15, "SCHEMA"), (15, "TABLE t ("), (15, "TABLE r (")):
        if any(words in one for one in (*publications, statements)):
            lab.require(since, words)
    lab.run(*setup.split("; "))
    for number, text in enumerate(publications):
        lab.run(f"CREATE PUBLICATION p{number} {text}")
    names = [f"p{number}" for number in range(len(publications))]
    options: dict[str, Any] = {"snapshot": True, "resync": "on-ddl"}
    replica = Replica(lab, tmp_path / "target")
    lab.record(*names, **options)
    replica.follow()
    if is_live:
        with lab.recording(*names, **options) as recording:
            wait_until(recording.has_read_catalogs)
            lab.run(*statements.split("; "))
    else:
        lab.run(*statements.split("; "))
    for _ in range(2):  # the second time, nothing is left to be copied
        lab.record(*names, **options)
    replica.follow()
    assert_right(lab, replica, len(names))
    verdicts = {one.oid: one for one in verify_tables(lab.folder, replica.target, lab.dsn)}
    assert all(verdicts[oid].is_equal for oid in published(lab, len(names))), verdicts


REFUSED = {
    "two lists": (TABLE, ("FOR TABLE t (id, v)", "FOR TABLE t (id)"), 15, 99),
    "a generated column": (
        "CREATE TABLE t (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id + 1) STORED)",
        ("FOR TABLE t (id, v)", "FOR TABLE t"),
        15,
        15,
    ),
    "a dropped column": (
        f"{TABLE}; ALTER TABLE t ADD w int; ALTER TABLE t DROP w",
        ("FOR TABLE t (id, v)", "FOR ALL TABLES"),
        15,
        15,
    ),
    "generated columns": (
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)",
        ("FOR TABLE t", "FOR TABLE t WITH (publish_generated_columns = stored)"),
        18,
        99,
    ),
}
"""Statements, publications, and the versions of servers that refuse them."""


@pytest.mark.parametrize("name", REFUSED)
def test_column_lists_are_refused_only_where_the_server_refuses_them(name: str, lab: Lab) -> None:
    setup, publications, first, last = REFUSED[name]
    lab.require(first, "these publications")
    lab.run(*setup.split("; "))
    for number, text in enumerate(publications):
        lab.run(f"CREATE PUBLICATION p{number} {text}")
    if lab.version <= last:
        with pytest.raises(ReplicationError, match="the publications have different column lists"):
            lab.record("p0", "p1", snapshot=True)
        lab.record("p0", "p1")  # the server itself refuses to send a change
        lab.run("INSERT INTO t VALUES (9)")
        with pytest.raises(ReplicationError, match="cannot use different"):
            lab.record("p0", "p1")
        return
    lab.record("p0", "p1", snapshot=True)
    lab.run("INSERT INTO t VALUES (9)")
    lab.record("p0", "p1", snapshot=True)
    lab.assert_equal(publication="p1")
