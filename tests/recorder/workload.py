"""A workload with every kind of change that the tested server version can publish."""

from __future__ import annotations

from tests.recorder.lab import Lab


def create(lab: Lab) -> None:
    """Create the tables of the workload, and the publication `p` FOR ALL TABLES."""
    generated = ", twice int GENERATED ALWAYS AS (id * 2) STORED" if lab.version >= 12 else ""
    lab.run(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"', 'happy')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE DOMAIN small AS positive CHECK (value < 1000000)",
        "CREATE TYPE pair AS (a int, b text)",
        """CREATE TABLE types (
            id small PRIMARY KEY, m mood, ms mood[], p positive, pairs pair[], i2 int2, i8 int8, n numeric,
            n2 numeric(12, 4), f4 float4, f8 float8, b bool, c char(10), vc varchar(20), t text, by bytea,
            j json, jb jsonb, d date, ts timestamp(3), tz timestamptz, iv interval, u uuid, ip inet,
            r int4range, a int[], aa text[][], bits bit(5), acl aclitem)""",
        "CREATE TABLE toast (id int PRIMARY KEY, big text, other text, n int)",
        "ALTER TABLE toast ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE keys (a int, b text, c text, PRIMARY KEY (b, a))",
        "CREATE TABLE full_identity (a int, b text)",
        "ALTER TABLE full_identity REPLICA IDENTITY FULL",
        "CREATE TABLE no_identity (a int, b text)",
        "CREATE TABLE index_identity (a int, b text NOT NULL, c text)",
        "CREATE UNIQUE INDEX by_b ON index_identity (b)",
        "ALTER TABLE index_identity REPLICA IDENTITY USING INDEX by_b",
        "CREATE TABLE changing (id int PRIMARY KEY, a text, b int)",
        f"CREATE TABLE computed (id int PRIMARY KEY, a text{generated})",
        "CREATE TABLE nothing ()",
        "ALTER TABLE nothing REPLICA IDENTITY FULL",
        'CREATE SCHEMA "Söme "" scheme"',
        """CREATE TABLE "Söme "" scheme"."tab\tle '\\ß" ("id "" x" int PRIMARY KEY, "SELECT" text)""",
        "CREATE TABLE big (id int PRIMARY KEY, a text)",
        "CREATE TABLE never (id int PRIMARY KEY)",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
    )
    if lab.version >= 11:
        lab.run(
            "CREATE TABLE parts (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
            "CREATE TABLE parts_2 (a text, gone int, id int NOT NULL)",
            "ALTER TABLE parts_2 DROP gone",
            "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (100) TO (200)",
        )
    root = " WITH (publish_via_partition_root)" if lab.version >= 13 else ""
    lab.run(f"CREATE PUBLICATION p FOR ALL TABLES{root}")


def work(lab: Lab, first: int = 1) -> None:
    """Make changes of every kind.

    Args:
        lab: Test database with the tables of `create`.
        first: First of 20 keys that the changes use; at most 49.
    """
    one, two, three = first, first + 1, first + 2
    lab.run(
        f"""INSERT INTO types VALUES ({one}, 'it''s "ok"', '{{sad,NULL,"it''s \\"ok\\""}}', 3,
            ARRAY[(1, 'x,"y')::pair, NULL], -32768, 9223372036854775807, 'NaN', -12345678.9012, 16777.217,
            0.30000000000000004,
            true, 'ab', 'c', E'\\t\\n\\r\\b\\f\\v\\\\N\\\\.\\x01 ''" é 漢 😀', '\\x00ff5c',
            '{{"a": [1,  2]}}', '{{"a": [1,  2]}}', '0001-01-01 BC', '2000-01-01 01:02:03.456',
            '1999-12-31 23:59:59.999999+05:30',
            '1 mon -2 days 03:04:05.000006', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.0/8', '[1,5)',
            '[0:1]={{1,NULL}}', '{{{{a,"b c"}},{{"NULL",NULL}}}}', B'10101',
            'postgres=r/postgres')""",
        f"INSERT INTO types (id) VALUES ({two})",
        f"INSERT INTO types (id, t, c, by, n, f8, a) VALUES ({three}, '', '', '', 1e40, '-Infinity', '{{}}')",
        f"UPDATE types SET tz = '-infinity', d = 'infinity', m = 'happy', t = E'\\\\' WHERE id = {two}",
        # TOASTed values, which are not sent when they do not change.
        f"""INSERT INTO toast SELECT g, string_agg(md5((g * k)::text), ''), 'o', 0
            FROM generate_series({first}, {first} + 3) g, generate_series(1, 400) k GROUP BY g""",
        f"UPDATE toast SET n = n + 1 WHERE id >= {first}",
        f"UPDATE toast SET big = big || 'x' WHERE id = {two}",
        f"UPDATE toast SET id = id + 30, other = NULL WHERE id = {three}",
        f"BEGIN; UPDATE toast SET n = 7 WHERE id = {one}; UPDATE toast SET n = 8 WHERE id = {one}; COMMIT",
        f"DELETE FROM toast WHERE id = {first + 3}",
        # Keys
        f"INSERT INTO keys SELECT g, 'k' || g, NULL FROM generate_series({first}, {first} + 9) g",
        f"UPDATE keys SET a = a + 1000 WHERE a = {one}",
        f"UPDATE keys SET b = b || '\t', c = 'both' WHERE a = {two}",
        f"UPDATE keys SET c = 'not the key' WHERE a = {three}",
        f"DELETE FROM keys WHERE a > {first} + 5 AND a < 1000",
        f"INSERT INTO full_identity VALUES ({one}, NULL), ({one}, NULL), ({two}, 'x'), (NULL, NULL)",
        f"DELETE FROM full_identity WHERE ctid = (SELECT min(ctid) FROM full_identity WHERE a = {one})",
        f"UPDATE full_identity SET b = 'y' WHERE a = {one}",
        f"UPDATE full_identity SET a = NULL WHERE a = {two}",
        f"INSERT INTO no_identity SELECT {first}, 'x' FROM generate_series(1, 3)",
        f"INSERT INTO index_identity VALUES ({one}, '{one}', 'c'), ({two}, '{two}', NULL)",
        f"UPDATE index_identity SET c = a, a = NULL WHERE b = '{one}'",
        f"UPDATE index_identity SET b = b || 'z' WHERE a = {two}",
        # A schema that changes
        f"INSERT INTO changing (id) VALUES ({one}), ({two})",
        f"ALTER TABLE changing ADD new{first} mood",
        f"UPDATE changing SET new{first} = 'sad' WHERE id = {one}",
        f"ALTER TABLE changing RENAME b TO b{first}",
        f"UPDATE changing SET b{first} = id, a = 'renamed'",
        "ALTER TABLE changing DROP a",
        f"INSERT INTO changing (id) VALUES ({three})",
        f"BEGIN; ALTER TABLE changing ADD a text; INSERT INTO changing (id, a) VALUES ({first + 3}, 'a'); "
        f"ALTER TABLE changing RENAME b{first} TO b; UPDATE changing SET b = 0; COMMIT",
        f"INSERT INTO computed (id, a) VALUES ({one}, 'a'), ({two}, NULL)",
        f"UPDATE computed SET id = id + 30, a = 'moved' WHERE id = {two}",
        "INSERT INTO nothing DEFAULT VALUES",
        f"""INSERT INTO "Söme "" scheme"."tab\tle '\\ß" VALUES ({one}, 'x'), ({two}, NULL)""",
        f"""DELETE FROM "Söme "" scheme"."tab\tle '\\ß" WHERE "id "" x" = {one}""",
        f"INSERT INTO parent VALUES ({one})",
        f"INSERT INTO child VALUES ({two}), ({three})",
        f"UPDATE parent SET id = id + 30 WHERE id = {three}",
        # Large, with savepoints, some of which are rolled back
        f"""BEGIN; INSERT INTO big SELECT g, 'kept' FROM generate_series({first}000, {first}000 + 700) g;
            SAVEPOINT a; UPDATE big SET a = 'lost' WHERE id >= {first}000;
            SAVEPOINT b; DELETE FROM big WHERE id < {first}000 + 300; ROLLBACK TO a;
            SAVEPOINT c; UPDATE big SET a = 'kept too' WHERE id % 7 = 0; RELEASE c;
            SAVEPOINT d; DELETE FROM big WHERE id % 11 = 0; COMMIT""",
        f"BEGIN; INSERT INTO big SELECT g, 'lost' FROM generate_series(-700, -{first}) g; ROLLBACK",
    )
    with lab.connect() as other:
        other.execute("BEGIN")
        for step in range(3):
            start = -(first * 10 + step) * 1000
            other.execute(f"INSERT INTO big SELECT {start} - g, 'slow' FROM generate_series(1, 600) g")
            lab.run(f"INSERT INTO keys VALUES ({first * 10000 + step}, 'between', NULL)")
        other.execute("COMMIT")
    if lab.version >= 11:
        lab.run(
            f"INSERT INTO parts SELECT g, 'p' FROM generate_series({first}, {first} + 4) g",
            f"UPDATE parts SET id = id + 100 WHERE id = {one}",  # into the other partition
            f"UPDATE parts SET a = 'direct' WHERE id = {two}",
            f"DELETE FROM parts WHERE id = {three}",
            f"INSERT INTO parts_2 (id, a) VALUES ({first} + 150, 'leaf')",
            # TRUNCATE is published since then
            "CREATE TABLE IF NOT EXISTS emptied (id int PRIMARY KEY)",
            f"INSERT INTO emptied VALUES ({one}), ({two})",
            "TRUNCATE emptied, no_identity RESTART IDENTITY CASCADE",
            f"INSERT INTO emptied VALUES ({three})",
        )
    if lab.version >= 14:
        lab.run(
            "SELECT pg_logical_emit_message(false, 'now', 'x')",
            f"BEGIN; SELECT pg_logical_emit_message(true, 'then', 'y'); INSERT INTO never VALUES ({first}); "
            f"DELETE FROM never WHERE id = {first}; COMMIT",
        )
    prepared = f"{lab.name} {first}"
    lab.run(
        f"BEGIN; INSERT INTO keys VALUES ({first}, 'prepared', NULL); PREPARE TRANSACTION '{prepared} a'",
        f"BEGIN; INSERT INTO keys VALUES ({first}, 'undone', NULL); PREPARE TRANSACTION '{prepared} b'",
        f"BEGIN; INSERT INTO big SELECT {first}00000 + g, 'prepared' FROM generate_series(1, 900) g; "
        f"PREPARE TRANSACTION '{prepared} c'",
        f"INSERT INTO keys VALUES ({first}, 'meanwhile', NULL)",
        f"COMMIT PREPARED '{prepared} a'",
        f"ROLLBACK PREPARED '{prepared} b'",
    )
    origin = f"{lab.name} {first}"
    lab.run(
        f"SELECT pg_replication_origin_create('{origin}')",
        f"SELECT pg_replication_origin_session_setup('{origin}')",
        f"BEGIN; SELECT pg_replication_origin_xact_setup('0/{first}', now()); "
        f"INSERT INTO keys VALUES ({first}, 'elsewhere', NULL); COMMIT",
        f"BEGIN; INSERT INTO big SELECT {first}00000 - g, 'elsewhere' FROM generate_series(1, 900) g; COMMIT",
        "SELECT pg_replication_origin_session_reset()",
    )


def finish(lab: Lab, first: int = 1) -> None:
    """Commit the transaction that `work` has left prepared; drop the replication origin of `work`."""
    lab.run(
        f"COMMIT PREPARED '{lab.name} {first} c'",
        f"SELECT pg_replication_origin_drop('{lab.name} {first}')",
    )
