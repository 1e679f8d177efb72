"""The event trigger that describes each ALTER TABLE in the stream, as a logical message.

A message with the prefix `pgoutput.ddl` stands in the stream before the altered table's next change. Its
content is JSON, which `pgoutput.views.alterations` reads. The trigger's function is STABLE, so its own
queries see the catalogs as they were before the command; a VOLATILE function that it calls sees them after
the command.
"""

from __future__ import annotations

from typing import Final

from pgoutput.errors import ReplicationError
from pgoutput.recorder.connection import Connection

DDL_EVENTS_SINCE: Final = 14
"""First major server version that sends logical messages."""

TRIGGER: Final = "pgoutput_ddl_events"
"""Name of the event trigger. Its function is in the schema `pgoutput`."""

_DESCRIBE: Final = """\
CREATE OR REPLACE FUNCTION pgoutput.table_{when}(relation oid) RETURNS jsonb
LANGUAGE plpgsql {volatility} SET search_path = pg_catalog SET datestyle = 'ISO'
SET intervalstyle = 'postgres' SET extra_float_digits = 3 SET bytea_output = 'hex' SET timezone = 'UTC' AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_object('schema', n.nspname, 'name', c.relname, 'file', c.relfilenode, 'columns', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'name', a.attname,
                'number', a.attnum,
                'type', CASE WHEN b.type < 10000 THEN b.type ELSE a.atttypid END::int8,
                'modifier', a.atttypmod,
                'origin', CASE WHEN a.attgenerated <> '' THEN 'generated' WHEN a.atthasmissing THEN 'missing'
                    WHEN a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL THEN 'default'
                    ELSE '' END,
                'missing', (a.attmissingval::text::text[])[1]
            ) ORDER BY a.attnum), '[]')
            FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid CROSS JOIN LATERAL (
                WITH RECURSIVE base AS (
                    SELECT a.atttypid AS type
                    UNION ALL
                    SELECT t.typbasetype FROM base JOIN pg_type t ON t.oid = base.type AND t.typtype = 'd'
                )
                SELECT base.type FROM base JOIN pg_type t ON t.oid = base.type AND t.typtype <> 'd'
            ) b
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ), 'xid', (
            SELECT a.xmin::text::int8 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
            ORDER BY age(a.xmin) LIMIT 1
        ), 'own', (
            SELECT coalesce(jsonb_agg(a.attnum), '[]') FROM pg_attribute a WHERE a.attrelid = c.oid
            AND age(a.xmin) <= age(pg_current_xact_id()::xid)
        ))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = relation AND c.relpersistence = 'p' AND c.relkind IN ('r', 'p')
    );
END $$"""
"""SQL of a function that describes a table before or after the command that fires the trigger.

`own` contains the numbers of the columns that the current transaction has altered; `xid` is the
subtransaction that has altered a column last.
"""

_SEND: Final = """\
CREATE OR REPLACE FUNCTION pgoutput.send_ddl_events() RETURNS event_trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    altered record;
    columns jsonb;
BEGIN
    FOR altered IN
        WITH RECURSIVE named AS (
            SELECT objid AS oid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass
            UNION
            SELECT inhrelid FROM named JOIN pg_inherits ON inhparent = named.oid
        )
        SELECT oid, pgoutput.table_before(oid) AS old, pgoutput.table_after(oid) AS new FROM named
    LOOP
        CONTINUE WHEN altered.old IS NULL OR altered.new IS NULL;
        CONTINUE WHEN altered.old - 'xid' - 'own' = altered.new - 'xid' - 'own';
        SELECT coalesce(jsonb_agg(now || jsonb_build_object(
            -- A column that another transaction has altered before was described by that transaction.
            'was', CASE WHEN altered.new -> 'own' @> (now -> 'number') THEN was ELSE now END -> 'name'
        ) ORDER BY place), '[]')
        INTO columns
        FROM jsonb_array_elements(altered.new -> 'columns') WITH ORDINALITY AS n (now, place)
        LEFT JOIN jsonb_array_elements(altered.old -> 'columns') was ON was -> 'number' = now -> 'number';
        PERFORM pg_logical_emit_message(true, 'pgoutput.ddl', jsonb_build_object(
            'oid', altered.oid::int8,
            'schema', altered.new -> 'schema',
            'name', altered.new -> 'name',
            'xid', altered.new -> 'xid',
            'rewritten', altered.old -> 'file' <> altered.new -> 'file',
            'columns', columns
        )::text);
    END LOOP;
END $$"""
"""SQL of the event trigger's function."""

_INSTALL: Final = (
    "CREATE SCHEMA IF NOT EXISTS pgoutput",
    "GRANT USAGE ON SCHEMA pgoutput TO PUBLIC",
    _DESCRIBE.format(when="before", volatility="STABLE"),
    _DESCRIBE.format(when="after", volatility="VOLATILE"),
    _SEND,
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    f"CREATE EVENT TRIGGER {TRIGGER} ON ddl_command_end WHEN TAG IN ('ALTER TABLE')\n"
    "    EXECUTE FUNCTION pgoutput.send_ddl_events()",
    f"ALTER EVENT TRIGGER {TRIGGER} ENABLE ALWAYS",
)

_REMOVE: Final = (
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    "DROP FUNCTION IF EXISTS pgoutput.send_ddl_events(), pgoutput.table_before(oid),\n"
    "    pgoutput.table_after(oid)",
    "DROP SCHEMA IF EXISTS pgoutput",
)


def ddl_events_sql(*, remove: bool = False) -> tuple[str, ...]:
    """Return the SQL statements that create the event trigger in a database, or that remove it.

    The statements are meant for one transaction.
    """
    return ("BEGIN", *(_REMOVE if remove else _INSTALL), "COMMIT")


def install_ddl_events(dsn: str, *, remove: bool = False) -> None:
    """Create the event trigger in a database, or remove it. Creating it again replaces it.

    Args:
        dsn: Connection string of libpq. The role must be allowed to create event triggers.
        remove: Whether to remove the event trigger.

    Raises:
        ReplicationError: The server is too old, or refuses the SQL.
        ConnectionLost: The connection was lost or refused.
    """
    with Connection(dsn) as connection:
        version = connection.server_version // 10_000
        if version < DDL_EVENTS_SINCE:
            raise ReplicationError(
                f"the event trigger needs PostgreSQL {DDL_EVENTS_SINCE}, the server is {version}: "
                "record without it"
            )
        try:
            for statement in ddl_events_sql(remove=remove):
                connection.query(statement)
        except ReplicationError as error:
            raise ReplicationError(
                f"{error}: a superuser, or a role that may create event triggers, has to run this command, "
                "or the SQL that --sql prints"
            ) from None
