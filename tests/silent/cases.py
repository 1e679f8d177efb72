"""Cases of DDL that gives existing rows other values, or only seems to: what replicas must have afterwards.

Each case is run in a schema of its own, in which `t` is the table that is compared.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Case(msgspec.Struct, frozen=True):
    """What is done before and while tables are followed.

    Attributes:
        before: SQL that is run before the first reading of the catalogs; without it the table is new.
        after: Statements whose effects the replica must have. They are run one after another without a pause;
            `...` waits for a reading of the catalogs.
        copied: Whether the table must be copied again; None if both are right.
        since: First major version of servers with these statements.
    """

    before: str
    after: tuple[str, ...]
    copied: bool | None = None
    since: int = 10


def transaction(*statements: str) -> tuple[str]:
    """Return statements as one text that runs them in a transaction."""
    return ("; ".join(("BEGIN", *statements, "COMMIT")),)


TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, v text, w text)"
ROWS: Final = "INSERT INTO t VALUES (1, 'v1', 'w1'), (2, 'v2', 'w2')"
ROW: Final = "INSERT INTO t SELECT 9"
ENUM: Final = "CREATE TYPE e AS ENUM ('a', 'b')"
RENAMED: Final = "ALTER TYPE e RENAME VALUE 'a' TO 'z'"
BACK: Final = "ALTER TYPE e RENAME VALUE 'z' TO 'a'"
PAIR: Final = "CREATE TYPE c AS (a int, b text)"
TREE: Final = (
    "CREATE TABLE t (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)",
    "INSERT INTO t VALUES (1, 1), (2, 1)",
)

NEW_ALTERED: Final[dict[str, tuple[str, ...]]] = {
    "default": ("ALTER TABLE t ADD x int NOT NULL DEFAULT 3",),
    "default and a row": ("ALTER TABLE t ADD x int NOT NULL DEFAULT 3", ROW),
    "default, dropped default and a row": (
        "ALTER TABLE t ADD x int DEFAULT 3",
        "ALTER TABLE t ALTER x DROP DEFAULT",
        ROW,
    ),
    "column": ("ALTER TABLE t ADD x int",),
    "swap": (
        "ALTER TABLE t RENAME v TO x",
        "ALTER TABLE t RENAME w TO v",
        "ALTER TABLE t RENAME x TO w",
    ),
    "swap and defaults": (
        "ALTER TABLE t RENAME v TO x",
        "ALTER TABLE t RENAME w TO v",
        "ALTER TABLE t RENAME x TO w",
        "ALTER TABLE t ALTER v SET DEFAULT 'd', ALTER w SET DEFAULT 'd', ALTER id SET DEFAULT 7",
    ),
    "rename": ("ALTER TABLE t RENAME v TO x",),
    "rename and default": ("ALTER TABLE t RENAME v TO x", "ALTER TABLE t ALTER x SET DEFAULT 'd'"),
    "drop": ("ALTER TABLE t DROP v",),
    "drop and add": ("ALTER TABLE t DROP w", "ALTER TABLE t ADD w text DEFAULT 'd'"),
    "drop and add, no default": ("ALTER TABLE t DROP w", "ALTER TABLE t ADD w text"),
    "rename and add": (
        "ALTER TABLE t RENAME w TO x",
        "ALTER TABLE t ADD w text DEFAULT 'd'",
        "UPDATE t SET x = 'y' WHERE id = 1",
    ),
    "truncate": ("TRUNCATE t", ROWS, "ALTER TABLE t ADD x int DEFAULT 3"),
    "truncate last": ("ALTER TABLE t ADD x int DEFAULT 3", "TRUNCATE t"),
    "savepoint": ("SAVEPOINT a", "ALTER TABLE t ADD x int DEFAULT 3", "RELEASE a"),
    "savepoint of the rows": (
        "SAVEPOINT a",
        "INSERT INTO t VALUES (5, 'v5')",
        "ALTER TABLE t ADD x int DEFAULT 3",
        "RELEASE a",
    ),
    "alteration rolled back": ("SAVEPOINT a", "ALTER TABLE t RENAME v TO x", "ROLLBACK TO a"),
    "alteration, and one rolled back": (
        "ALTER TABLE t RENAME v TO x",
        "SAVEPOINT a",
        "ALTER TABLE t RENAME x TO y",
        "ROLLBACK TO a",
    ),
    "using": ("ALTER TABLE t ALTER v TYPE text USING upper(v)",),
    "rewrite": ("ALTER TABLE t ADD x float8 DEFAULT random()",),
    "type": ("ALTER TABLE t ALTER v TYPE varchar",),
    "not null": ("ALTER TABLE t ALTER v SET NOT NULL",),
    "identity": ("ALTER TABLE t ADD x int GENERATED ALWAYS AS IDENTITY",),
    "unlogged": ("ALTER TABLE t SET UNLOGGED", "DELETE FROM t WHERE id = 1", "ALTER TABLE t SET LOGGED"),
    "renamed table": ("ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME TO t"),
    "inherited": ("CREATE TABLE u () INHERITS (t)", "ALTER TABLE t ADD x int DEFAULT 3"),
    "inherits": (
        "CREATE TABLE u (id int NOT NULL)",
        "ALTER TABLE t INHERIT u",
        "ALTER TABLE u ADD x int DEFAULT 3",
    ),
    "generated": ("ALTER TABLE t ADD x int GENERATED ALWAYS AS (id * 2) STORED",),
    "type of the transaction": (ENUM, "ALTER TABLE t ADD x e DEFAULT 'a'", ROW, RENAMED),
}
"""What is done to a new table with rows, in the transaction that creates it."""

NEW: Final = (
    {
        f"new, {name}": Case(
            "", transaction(TABLE, ROWS, *statements), since=12 if name == "generated" else 10
        )
        for name, statements in NEW_ALTERED.items()
    }
    | {
        f"new of transaction before, {name}": Case(
            "",
            (*transaction(TABLE, ROWS), *transaction(*statements)),
            since=12 if name == "generated" else 10,
        )
        for name, statements in NEW_ALTERED.items()
        if name in ("default", "swap", "drop and add", "rename and add", "savepoint", "unlogged")
    }
    | {
        "new, first command and its number": Case(
            "",
            (
                "DO $$BEGIN EXECUTE 'CREATE TABLE t (v int, w int)'; INSERT INTO t VALUES (1, 2);"
                "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w;"
                "END$$",
            ),
        ),
        "new, rename, and one rolled back that leaves the command of CREATE TABLE as cmin": Case(
            "CREATE TABLE o (i int)",
            transaction(
                "INSERT INTO o VALUES (1)",
                "INSERT INTO o VALUES (2)",
                "CREATE TABLE t (v text, w text)",
                "INSERT INTO t VALUES ('v', 'w')",
                "ALTER TABLE t RENAME v TO x",
                "SAVEPOINT a",
                "ALTER TABLE t RENAME x TO y",
                "ROLLBACK TO a",
            ),
        ),
        "new, rename without TOAST": Case(
            "",
            transaction(
                "CREATE TABLE t (v int, w int)",
                "INSERT INTO t VALUES (1, 2)",
                "ALTER TABLE t RENAME v TO x",
                "ALTER TABLE t ALTER x SET DEFAULT 3",
            ),
        ),
        "new, rename before rows": Case(
            "",
            transaction(
                "CREATE TABLE t (v int, w int)",
                "ALTER TABLE t RENAME v TO x",
                "INSERT INTO t VALUES (1, 2)",
                "ALTER TABLE t RENAME x TO v",
            ),
        ),
        "new, AS": Case(
            "",
            transaction(
                "CREATE TABLE t AS SELECT i AS id, 2 * i AS v FROM generate_series(1, 3) i",
                "ALTER TABLE t ADD PRIMARY KEY (id)",
                "ALTER TABLE t ADD w int DEFAULT 1",
            ),
        ),
        "new, LIKE": Case(
            "CREATE TABLE o (id int PRIMARY KEY, v text DEFAULT 'd')",
            transaction("CREATE TABLE t (LIKE o INCLUDING ALL)", ROW, "ALTER TABLE t ADD w int DEFAULT 1"),
        ),
        "new root": Case("", transaction(*TREE, "ALTER TABLE t ADD z int DEFAULT 4"), since=13),
        "new root, row": Case(
            "",
            transaction(*TREE, "ALTER TABLE t ADD z int DEFAULT 4", "INSERT INTO t VALUES (3, 1, 5)"),
            since=13,
        ),
        "new root, swap": Case(
            "",
            transaction(
                "CREATE TABLE t (id int, a int, b int) PARTITION BY LIST (id)",
                "CREATE TABLE t1 PARTITION OF t DEFAULT",
                "INSERT INTO t VALUES (1, 2, 3)",
                "ALTER TABLE t RENAME a TO x",
                "ALTER TABLE t RENAME b TO a",
                "ALTER TABLE t RENAME x TO b",
            ),
            since=13,
        ),
        "new root, attached": Case(
            "",
            transaction(
                TREE[0],
                "CREATE TABLE t1 (id int NOT NULL, k int NOT NULL)",
                "INSERT INTO t1 VALUES (1, 1)",
                "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES IN (1)",
                "ALTER TABLE t ADD z int DEFAULT 4",
                "INSERT INTO t VALUES (2, 1)",
            ),
            since=13,
        ),
        "new leaf": Case(
            f"{TREE[0]}; {TREE[1]}; {TREE[2]}",
            transaction(
                "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)",
                "INSERT INTO t VALUES (1, 2)",
                "ALTER TABLE t ADD z int DEFAULT 4",
            ),
            since=13,
        ),
    }
)
"""New tables that are altered before the catalogs are read again."""

UNALTERED: Final = {
    f"unaltered, {name}": Case(before, transaction(text, ROW if values is None else values), False, since)
    for name, (text, before, values, since) in {
        "key": ("CREATE TABLE t (id int PRIMARY KEY, v text)", "", None, 10),
        "defaults": (
            "CREATE TABLE t (id int, v timestamptz DEFAULT now(), w text DEFAULT 'x')",
            "",
            None,
            10,
        ),
        "serial": (
            "CREATE TABLE t (id bigserial PRIMARY KEY, v int CHECK (v > 0), w timestamptz DEFAULT now())",
            "",
            None,
            10,
        ),
        "identity": (
            "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY, v text NOT NULL DEFAULT 'x')",
            "",
            None,
            10,
        ),
        "generated": ("CREATE TABLE t (id int, v int GENERATED ALWAYS AS (id * 2) STORED)", "", None, 12),
        "inherits": (
            "CREATE TABLE t (w int DEFAULT 5) INHERITS (o)",
            "CREATE TABLE o (id int NOT NULL, v text NOT NULL DEFAULT 'x')",
            None,
            10,
        ),
        "like": (
            "CREATE TABLE t (LIKE o)",
            "CREATE TABLE o (id int NOT NULL, v text NOT NULL)",
            "INSERT INTO t VALUES (1, 'x')",
            10,
        ),
        "typed": ("CREATE TABLE t OF o", "CREATE TYPE o AS (id int, v text)", None, 10),
        "as": ("CREATE TABLE t AS SELECT 1 AS id, 2 AS v", "", None, 10),
        "reference": (
            "CREATE TABLE t (id int PRIMARY KEY, v int REFERENCES o, w int DEFAULT 4)",
            "CREATE TABLE o (id int PRIMARY KEY)",
            None,
            10,
        ),
        "enum": (f"{ENUM}; CREATE TABLE t (id int PRIMARY KEY, v e, w e[])", "", None, 10),
        "composite": (f"{PAIR}; CREATE TABLE t (id int PRIMARY KEY, v c)", "", None, 10),
        "altered enum": ("CREATE TABLE t (id int PRIMARY KEY, v e)", f"{ENUM}; {RENAMED}", None, 10),
        "root": (f"{TREE[0]}; {TREE[1]}", "", "INSERT INTO t VALUES (1, 1)", 13),
        "root with defaults": (
            "CREATE TABLE t (id int DEFAULT 3, k int, v text DEFAULT 'x') PARTITION BY LIST (k);"
            "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)",
            "",
            "INSERT INTO t VALUES (1, 1)",
            13,
        ),
    }.items()
}
"""New tables that are complete, as the catalogs prove."""

_TYPES: Final = {
    f"type, {name}{', and back' if is_back else ''}": Case(
        "",
        (
            *made,
            f"CREATE TABLE t (id int PRIMARY KEY, v {column})",
            f"INSERT INTO t VALUES (1, {value})",
            *altered,
            *((ROW, BACK) if is_back else ()),
        ),
        since=since,
    )
    for is_back in (False, True)
    for name, column, value, made, altered, since in [
        ("enum", "e", "'a'", (ENUM,), (RENAMED,), 10),
        ("enum in an array", "e[]", "ARRAY['a']::e[]", (ENUM,), (RENAMED,), 10),
        ("enum in a domain", "d", "'a'", (ENUM, "CREATE DOMAIN d AS e"), (RENAMED,), 10),
        ("enum in a range", "r", "'[a,b]'", (ENUM, "CREATE TYPE r AS RANGE (SUBTYPE = e)"), (RENAMED,), 10),
        (
            "enum in a multirange",
            "m",
            "'{[a,b]}'",
            (ENUM, "CREATE TYPE r AS RANGE (SUBTYPE = e, MULTIRANGE_TYPE_NAME = m)"),
            (RENAMED,),
            14,
        ),
        ("enum in a composite", "n", "'(a,1)'", (ENUM, "CREATE TYPE n AS (x e, y int)"), (RENAMED,), 10),
        ("enum in a row", "n", "'(a,1)'", (ENUM, "CREATE TABLE n (x e, y int)"), (RENAMED,), 10),
        ("drop", "c", "'(1,x)'", (PAIR,), ("ALTER TYPE c DROP ATTRIBUTE b",), 10),
        ("add", "c", "'(1,x)'", (PAIR,), ("ALTER TYPE c ADD ATTRIBUTE d int",), 10),
        (
            "drop and add",
            "c",
            "'(1,x)'",
            (PAIR,),
            ("ALTER TYPE c DROP ATTRIBUTE b, ADD ATTRIBUTE b text",),
            10,
        ),
        ("array, drop", "c[]", "ARRAY[(1,'x')::c]", (PAIR,), ("ALTER TYPE c DROP ATTRIBUTE b",), 10),
        (
            "nested, drop",
            "n",
            "ROW(1, ROW(1, 'x'))",
            (PAIR, "CREATE TYPE n AS (x int, y c)"),
            ("ALTER TYPE c DROP ATTRIBUTE b",),
            10,
        ),
        (
            "row of a table, drop",
            "n",
            "'(1,x)'",
            ("CREATE TABLE n (x int, y text)",),
            ("ALTER TABLE n DROP y",),
            10,
        ),
    ]
    if not is_back or RENAMED in altered
}
TYPES: Final = (
    _TYPES
    | {
        f"{name}, one transaction": Case("", transaction(*one.after), since=one.since)
        for name, one in _TYPES.items()
    }
    | {
        "type, enum of a new column": Case(
            f"{TABLE}; {ROWS}",
            transaction(ENUM, "ALTER TABLE t ADD x e", "UPDATE t SET x = 'a'", RENAMED),
        ),
        "type, enum of a new column with default": Case(
            f"{TABLE}; {ROWS}",
            (ENUM, "ALTER TABLE t ADD x e DEFAULT 'a'", RENAMED, "UPDATE t SET v = 'y' WHERE id = 1"),
        ),
        "type, known": Case(
            ENUM, ("CREATE TABLE t (id int PRIMARY KEY, v e)", "INSERT INTO t VALUES (1, 'a')", RENAMED)
        ),
        "type, known pair": Case(
            PAIR,
            (
                "CREATE TABLE t (id int PRIMARY KEY, v c)",
                "INSERT INTO t VALUES (1, '(1,x)')",
                "ALTER TYPE c DROP ATTRIBUTE b",
            ),
        ),
        "type, a value later": Case(
            "",
            (
                ENUM,
                "CREATE TABLE t (id int PRIMARY KEY, v e)",
                "INSERT INTO t VALUES (1, 'a')",
                "...",
                RENAMED,
            ),
        ),
    }
)
"""Tables with columns of types that are altered before the catalogs are read again."""


def _retyped(old: str, new: str, *values: str, extra: str = "") -> Case:
    rows = ", ".join(f"({number}, {value})" for number, value in enumerate(values, 1))
    return Case(
        f"{extra}; CREATE TABLE t (id int PRIMARY KEY, v {old}); INSERT INTO t VALUES {rows}",
        (f"ALTER TABLE t ALTER v TYPE {new}",),
    )


def _key(old: str, new: str, *values: str) -> Case:
    rows = ", ".join(f"({value}, {number})" for number, value in enumerate(values, 1))
    return Case(
        f"CREATE TABLE t (id {old} PRIMARY KEY, v int); INSERT INTO t VALUES {rows}",
        (f"ALTER TABLE t ALTER id TYPE {new}", "UPDATE t SET v = 7 WHERE v = 1", "DELETE FROM t WHERE v = 2"),
    )


def _expect(cases: dict[str, Case], *, copied: bool) -> dict[str, Case]:
    return {name: msgspec.structs.replace(one, copied=copied) for name, one in cases.items()}


TYPES_ALIKE: Final = (
    "".join(
        f"CREATE TYPE {name}; CREATE FUNCTION {name}_in(cstring) RETURNS {name} LANGUAGE internal AS '{i}';"
        f"CREATE FUNCTION {name}_out({name}) RETURNS cstring LANGUAGE internal AS '{o}';"
        f"CREATE TYPE {name} (INPUT = {name}_in, OUTPUT = {name}_out, LIKE = int);"
        for name, i, o in (("x1", "int4in", "int4out"), ("x2", "date_in", "date_out"))
    )
    + "CREATE CAST (x1 AS x2) WITHOUT FUNCTION"
)
RETYPED: Final = _expect(
    {
        "cidr to inet": _retyped("cidr", "inet", "'10.0.0.1/32'", "'10.0.0.0/8'"),
        "int to oid": _retyped("int", "oid", "-1"),
        "oid to int": _retyped("oid", "int", "4294967295"),
        "oid to regtype": _retyped("oid", "regtype", "2205"),
        "regclass to oid": _retyped("regclass", "oid", "'pg_class'"),
        "regclass to int": _retyped("regclass", "int", "'pg_class'"),
        "domain over cidr": _retyped("d", "inet", "'10.0.0.1/32'", extra="CREATE DOMAIN d AS cidr"),
        "to a domain": _retyped("cidr", "d", "'10.0.0.1/32'", extra="CREATE DOMAIN d AS inet"),
        "xml to text": _retyped("xml", "text", '\'<?xml version="1.0" encoding="UTF-8"?><a/>\''),
        "key, cidr to inet": _key("cidr", "inet", "'10.0.0.1/32'", "'10.0.0.2/32'"),
        "key, int to oid": _key("int", "oid", "-1", "-2"),
        "cast without function": _retyped("x1", "x2 USING v::x2", "'1'", extra=TYPES_ALIKE),
    },
    copied=True,
) | {
    "cidr to inet, later a row": Case(
        "CREATE TABLE t (id int PRIMARY KEY, v cidr); INSERT INTO t VALUES (1, '10.0.0.1/32')",
        ("ALTER TABLE t ALTER v TYPE inet", "...", "INSERT INTO t VALUES (2, '1.1.1.1')"),
        True,
    ),
    "cidr to inet and back": Case(
        "CREATE TABLE t (id int PRIMARY KEY, v cidr); INSERT INTO t VALUES (1, '10.0.0.1/32')",
        (
            "ALTER TABLE t ALTER v TYPE inet",
            "INSERT INTO t VALUES (2, '1.1.1.1')",
            "ALTER TABLE t ALTER v TYPE cidr",
        ),
    ),
    "cidr to inet of a root": Case(
        "CREATE TABLE t (id int PRIMARY KEY, v cidr) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t DEFAULT; INSERT INTO t VALUES (1, '10.0.0.1/32')",
        ("ALTER TABLE t ALTER v TYPE inet",),
        True,
        13,
    ),
    "cidr to inet with all columns as identity": Case(
        "CREATE TABLE t (v cidr); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES ('10.0.0.1/32')",
        ("ALTER TABLE t ALTER v TYPE inet", "DELETE FROM t", "INSERT INTO t VALUES ('10.0.0.2')"),
        True,
    ),
}
"""Changes of types without a rewrite, after which the texts of existing values are others."""

RELABELLED: Final = _expect(
    {
        "varchar": _retyped("varchar(10)", "varchar(20)", "'a '", "''"),
        "varchar to text": _retyped("varchar(10)", "text", "'a '", "''"),
        "text to varchar": _retyped("text", "varchar", "'a '", "''"),
        "text to bpchar": _retyped("text", "bpchar", "'a '", "''"),
        "varchar to bpchar": _retyped("varchar(5)", "bpchar", "'a '", "''"),
        "numeric": _retyped("numeric(10, 2)", "numeric(12, 2)", "1.50", "-7", "'NaN'"),
        "numeric without bounds": _retyped("numeric(10, 2)", "numeric", "1.50", "-7", "'NaN'"),
        "bits": _retyped("varbit(5)", "varbit(9)", "B'101'"),
        "bits without bounds": _retyped("varbit(5)", "varbit", "B'101'"),
        "bit to varbit": _retyped("bit(3)", "varbit", "B'101'"),
        "timestamp": _retyped("timestamp(3)", "timestamp(6)", "'2020-02-03 04:05:06.789'", "'infinity'"),
        "timestamptz": _retyped("timestamptz(3)", "timestamptz", "'2020-02-03 04:05:06.789Z'"),
        "time": _retyped("time(3)", "time(6)", "'04:05:06.789'"),
        "timetz": _retyped("timetz(3)", "timetz", "'04:05:06.789+01'"),
        "interval": _retyped("interval(3)", "interval", "'04:05:06.789'"),
        "interval of fields": _retyped("interval hour to second(3)", "interval", "'04:05:06.789'"),
        "using": _retyped("varchar(10)", "text USING v::text", "'a '", "''"),
        "citext": _retyped(
            "text", "citext", "'a '", "''", extra="CREATE EXTENSION IF NOT EXISTS citext SCHEMA public"
        ),
        "to a domain": _retyped("varchar(5)", "d", "'a '", extra="CREATE DOMAIN d AS text"),
        "of a domain": _retyped("d", "varchar", "'a '", extra="CREATE DOMAIN d AS text"),
        "key, varchar to text": _key("varchar(5)", "text", "'a '", "'b'"),
        "key, numeric": _key("numeric(5, 2)", "numeric(9, 2)", "1.50", "7"),
    },
    copied=False,
) | {
    f"{old} to {new}{', row later' if row else ''}": Case(
        f"CREATE TABLE t (id int PRIMARY KEY, v {old}); INSERT INTO t VALUES (1, '{value}')",
        (f"ALTER TABLE t ALTER v TYPE {new}", *row, f"INSERT INTO t VALUES (2, '{value}')"),
        False,
        since,
    )
    for row in ((), ("...",))
    for old, new, value, since in (
        ("timestamptz", "timestamp", "2020-02-03 04:05:06.789", 12),
        ("timestamp", "timestamptz", "2020-02-03 04:05:06.789", 12),
        ("varchar(9)", "text", "a ", 10),
        ("numeric(5,2)", "numeric(7,2)", "1.50", 10),
        ("numeric(5,2)", "numeric", "1.50", 10),
        ("time(3)", "time", "04:05:06.789", 10),
    )
}
"""Changes of types without a rewrite, after which the texts of existing values are the same."""

GENERATED: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED);"
    "INSERT INTO t (id, a) VALUES (1, 1), (2, 2)"
)
DROPPED: Final = "ALTER TABLE t ALTER g DROP EXPRESSION"
EXPRESSIONS: Final = {
    "drop expression": Case(GENERATED, (DROPPED,), True, 13),
    "drop expression, row": Case(GENERATED, (DROPPED, "INSERT INTO t VALUES (3, 3, 9)"), True, 13),
    "drop expression, row later": Case(
        GENERATED, (DROPPED, "...", "INSERT INTO t VALUES (3, 3, 9)"), True, 13
    ),
    "drop expression, row in the transaction": Case(
        GENERATED, transaction(DROPPED, "INSERT INTO t VALUES (3, 3, 9)"), True, 13
    ),
    "drop expression, renamed": Case(GENERATED, (DROPPED, "ALTER TABLE t RENAME g TO h"), True, 13),
    "drop expression of a root": Case(
        "CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)"
        "PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t DEFAULT; INSERT INTO t (id, a) VALUES (1, 1), (2, 2)",
        (DROPPED,),
        True,
        13,
    ),
    "new, drop expression": Case("", transaction(*GENERATED.split(";"), DROPPED), since=13),
}
"""Columns that begin to be published."""

OTHER: Final = (
    "CREATE TABLE o (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE o1 PARTITION OF o FOR VALUES IN (1)",
    "INSERT INTO o VALUES (1, 1)",
)
VISIT: Final = (
    "CREATE TABLE p (LIKE o)",
    "ALTER TABLE o ATTACH PARTITION p FOR VALUES IN (2)",
    "INSERT INTO o VALUES (7, 2)",
    "ALTER TABLE o DETACH PARTITION p",
)
ROOTS: Final = {
    f"root, {name}": Case("; ".join(TREE), tuple(one.replace(" o", " t") for one in VISIT) + after, True, 13)
    for name, after in {
        "partition for a time": (),
        "partition for a time, dropped": ("DROP TABLE p",),
        "partition for a time, twice": (
            "...",
            "ALTER TABLE t ATTACH PARTITION p FOR VALUES IN (2)",
            "INSERT INTO t VALUES (8, 2)",
            "ALTER TABLE t DETACH PARTITION p",
        ),
    }.items()
}
"""Roots that have changes of a partition between two readings of the catalogs."""

SERIAL: Final = "CREATE TABLE t (id serial PRIMARY KEY, v text); INSERT INTO t (v) VALUES ('a'), ('b')"
UNLOGGED: Final = (
    "ALTER TABLE t SET UNLOGGED",
    "DELETE FROM t WHERE id = 1",
    "ALTER TABLE t SET LOGGED",
    "REPACK (CONCURRENTLY) t",
)
PLAIN: Final = f"{TABLE}; {ROWS}"
NUMBERS: Final = (
    "CREATE TABLE t (id int, n int); INSERT INTO t VALUES (1, 1), (2, 2); ALTER TABLE t REPLICA IDENTITY FULL"
)
HARMLESS: Final = {
    f"harmless, {name}": Case(before, after, False, since)
    for name, (before, after, since) in {
        "vacuum full": (PLAIN, ("VACUUM FULL t",), 10),
        "vacuum full without TOAST": (NUMBERS, ("VACUUM FULL t",), 10),
        "cluster": (PLAIN, ("CLUSTER t USING t_pkey",), 10),
        "repack": (PLAIN, ("REPACK t",), 19),
        "repack concurrently": (PLAIN, ("REPACK (CONCURRENTLY) t",), 19),
        "repack concurrently with a sequence": (SERIAL, ("REPACK (CONCURRENTLY) t", ROW), 19),
        "truncate": (PLAIN, ("TRUNCATE t",), 11),
        "truncate without TOAST": (NUMBERS, ("TRUNCATE t",), 11),
        "truncate and a row": (PLAIN, ("TRUNCATE t", "INSERT INTO t VALUES (3)"), 11),
        "truncate and rows without TOAST": (NUMBERS, ("TRUNCATE t", "INSERT INTO t VALUES (3)"), 11),
        "truncate and a row in a transaction": (
            PLAIN,
            transaction("TRUNCATE t", "INSERT INTO t VALUES (3)"),
            11,
        ),
        "a table comes and goes beside a root": (
            "; ".join(TREE),
            ("CREATE TABLE x (id int PRIMARY KEY, k int)", "INSERT INTO x VALUES (5, 2)", "DROP TABLE x"),
            13,
        ),
        "drop rolled back": ("; ".join(TREE), ("BEGIN; DROP TABLE t; ROLLBACK",), 13),
        "drop rolled back to a savepoint": (
            "; ".join(TREE),
            transaction("SAVEPOINT a", "DROP TABLE t", "ROLLBACK TO a", "INSERT INTO t VALUES (5, 1)"),
            13,
        ),
        "a partition of a root with equal columns comes and goes": (
            "; ".join((*TREE, *OTHER)),
            (*VISIT, "...", "INSERT INTO p VALUES (8, 2)"),
            13,
        ),
        "a partition of a root with equal columns is dropped": (
            "; ".join((*TREE, *OTHER)),
            (*VISIT, "DROP TABLE p"),
            13,
        ),
        "truncate beside another table": (
            f"{'; '.join(TREE)}; CREATE TABLE x (id int, k int)",
            ("TRUNCATE t, x", "INSERT INTO t VALUES (3, 1)"),
            13,
        ),
        "attribute renamed": (
            f"{PAIR}; CREATE TABLE t (id int PRIMARY KEY, v c); INSERT INTO t VALUES (1, '(1,x)')",
            ("ALTER TYPE c RENAME ATTRIBUTE b TO f",),
            10,
        ),
        "grant": (PLAIN, ("GRANT SELECT ON t TO PUBLIC", "GRANT SELECT (v) ON t TO PUBLIC"), 10),
        "owner": (PLAIN, ("ALTER TABLE t OWNER TO pg_monitor",), 10),
        "statistics": (PLAIN, ("ALTER TABLE t ALTER v SET STATISTICS 7",), 10),
        "storage": (PLAIN, ("ALTER TABLE t ALTER v SET STORAGE EXTERNAL",), 10),
        "compression": (PLAIN, ("ALTER TABLE t ALTER v SET COMPRESSION pglz",), 14),
        "options": (
            PLAIN,
            ("ALTER TABLE t ALTER v SET (n_distinct = 7)", "ALTER TABLE t SET (fillfactor = 70)"),
            10,
        ),
        "not null": (PLAIN, ("ALTER TABLE t ALTER v SET NOT NULL",), 10),
        "default": (PLAIN, ("ALTER TABLE t ALTER v SET DEFAULT 'd'",), 10),
        "constraints": (PLAIN, ("ALTER TABLE t ADD CHECK (id > 0)", "ALTER TABLE t ADD UNIQUE (v)"), 10),
        "trigger": (
            PLAIN,
            (
                "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
                "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE PROCEDURE f()",
                "ALTER TABLE t DISABLE TRIGGER g",
            ),
            10,
        ),
        "row security": (PLAIN, ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY g ON t"), 10),
        "cluster on": (PLAIN, ("ALTER TABLE t CLUSTER ON t_pkey",), 10),
        "index": (PLAIN, ("CREATE INDEX ON t (v)", "REINDEX TABLE t"), 10),
        "column": (PLAIN, ("ALTER TABLE t ADD x int",), 10),
        "renamed column": (PLAIN, ("ALTER TABLE t RENAME v TO x",), 10),
        "renamed columns, read in between": (
            PLAIN,
            (
                "ALTER TABLE t RENAME id TO x",
                "...",
                "ALTER TABLE t RENAME v TO y",
                "ALTER TABLE t RENAME x TO z",
            ),
            10,
        ),
        "dropped column": (PLAIN, ("ALTER TABLE t DROP v",), 10),
        "enum value": (
            f"{ENUM}; CREATE TABLE t (id int PRIMARY KEY, v e); INSERT INTO t VALUES (1, 'a')",
            ("ALTER TYPE e ADD VALUE 'c'",),
            10,
        ),
        "domain": (
            "CREATE DOMAIN d AS int; CREATE TABLE t (id int PRIMARY KEY, v d); INSERT INTO t VALUES (1, 2)",
            ("ALTER DOMAIN d ADD CHECK (VALUE > 0)", "ALTER DOMAIN d SET DEFAULT 4"),
            10,
        ),
        "new type": (PLAIN, (ENUM, "ALTER TABLE t ADD x e", "INSERT INTO t VALUES (3, 'v', 'w', 'a')"), 10),
    }.items()
}
"""Statements that change no value of a known table."""

CASES: Final = (
    NEW
    | UNALTERED
    | TYPES
    | RETYPED
    | {f"relabelled, {name}": one for name, one in RELABELLED.items()}
    | EXPRESSIONS
    | ROOTS
    | {"unlogged, then repacked": Case(SERIAL, UNLOGGED, True, 19)}
    | HARMLESS
)

READ_LATE: Final = {
    name: msgspec.structs.replace(CASES[name], copied=None)
    for name in (
        "new, default and a row",
        "new root, row",
        "unaltered, serial",
        "unaltered, root",
        "root, partition for a time, dropped",
        "harmless, renamed column",
    )
}
"""Cases after which replicas are right also if the catalogs are read later; more may be copied."""

ONE_OF_EACH: Final = {
    name: CASES[name]
    for name in (
        "new, default and a row",
        "new, drop and add",
        "new, swap and defaults",
        "new, rename, and one rolled back that leaves the command of CREATE TABLE as cmin",
        "new, type of the transaction",
        "new root, row",
        "unaltered, serial",
        "type, enum in a domain",
        "type, drop and add, one transaction",
        "type, enum of a new column with default",
        "cidr to inet, later a row",
        "key, cidr to inet",
        "relabelled, key, varchar to text",
        "drop expression, row later",
        "new, drop expression",
        "root, partition for a time, twice",
        "harmless, a partition of a root with equal columns comes and goes",
        "harmless, truncate and rows without TOAST",
        "harmless, repack concurrently",
        "harmless, new type",
        "harmless, renamed columns, read in between",
    )
}
"""One case of each fault that was ever found."""
