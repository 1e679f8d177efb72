"""Look up types and catalogs with asyncpg, which has no replication.

`python -m tests.standin.fetched.asyncpg_client look_up HOST PORT DATABASE` fails if an answer is wrong.
"""

from __future__ import annotations

import asyncio
import sys

import asyncpg


async def look_up(host: str, port: str, database: str) -> None:
    connection = await asyncpg.connect(
        host=host, port=int(port), user="postgres", database=database, server_settings={"jit": "off"}
    )
    assert await connection.fetchval("SELECT 1") == 1
    rows = await connection.fetch("SELECT oid, typname FROM pg_type WHERE typname = $1", "int4")
    assert [tuple(row) for row in rows] == [(23, "int4")]
    assert await connection.fetchval("SELECT array_agg(oid) FROM pg_type WHERE oid = ANY($1)", [16, 23])
    # The types aclitem[] and oidvector are not known to asyncpg, which looks them up.
    query = "SELECT proname, proargtypes, proacl FROM pg_proc WHERE oid = $1"
    assert (await connection.fetchrow(query, 750))["proname"] == "array_in"
    for name in ("int4", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")
    assert await connection.fetchval("SELECT oid::int4 FROM pg_type WHERE typname = 'jsonb'") == "3802"
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        assert await connection.fetchval("SELECT current_database()") == database
    query = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots"
    assert all(row["confirmed_flush_lsn"] for row in await connection.fetch(query))
    create = "SELECT pg_create_logical_replication_slot($1, 'pgoutput', $2)"
    assert (await connection.fetchval(create, "asyncpg", True))[0] == "asyncpg"
    peek = "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, $2, VARIADIC $3)"
    await connection.fetch(peek, "asyncpg", 1, ["proto_version", "1", "publication_names", "p"])
    await connection.fetchval("SELECT pg_drop_replication_slot($1)", "asyncpg")
    await connection.reset()
    await connection.close()


if __name__ == "__main__":
    asyncio.run(look_up(*sys.argv[2:]))
