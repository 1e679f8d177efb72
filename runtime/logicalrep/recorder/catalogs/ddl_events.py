"""The event trigger that describes statements of DDL in the stream, as logical messages.

The stream has a message with the prefix `logicalrep.ddl` where the statement was executed. Its content is
JSON: the columns of an altered table, which `logicalrep.views.alterations` reads, or a `Statement`. The
trigger's function is STABLE, so its own queries see the catalogs as they were before the command; a VOLATILE
function that it calls sees them after the command.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from logicalrep.errors import ReplicationError
from logicalrep.recorder.client import Connection

DDL_EVENTS_SINCE: Final = 14
"""First major server version that sends logical messages."""

TRIGGERS: Final = "logicalrep_ddl_begins", "logicalrep_ddl_events"
"""Names of the event triggers for start and end of statements; their functions: schema `logicalrep`."""

_DESCRIBE: Final = """\
CREATE OR REPLACE FUNCTION logicalrep.table_{when}(relation oid) RETURNS jsonb
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
"""SQL of a function that returns a table as JSON, as of before or after the command that fires the trigger.

In the JSON, `own` has the numbers of the columns that the current transaction has altered, and `xid` is the
subtransaction that has altered a column last.
"""

_FACTS: Final = """\
CREATE OR REPLACE FUNCTION logicalrep.facts_{when}(named oid[])
RETURNS TABLE (kind text, above oid, relation oid, value jsonb)
LANGUAGE plpgsql {volatility} SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY
    SELECT 'partition', inhparent, inhrelid, NULL::jsonb FROM pg_inherits
    UNION ALL
    SELECT 'table', 0::oid, oid, jsonb_build_array(relnamespace::int8, relpersistence, relreplident)
    FROM pg_class WHERE oid = ANY (named) AND relkind IN ('r', 'p') AND relpersistence <> 't'
    UNION ALL
    SELECT CASE to_jsonb(r) ->> 'prexcept' WHEN 'true' THEN 'excepted' ELSE 'published' END, prpubid, prrelid,
        to_jsonb(r)
    FROM pg_publication_rel r;
END $$"""
"""SQL of a function that returns the catalog rows that decide whether changes of tables are sent.

These are all rows for partitions and for tables in publications, and the rows of the tables whose OIDs are in
its argument `named`.
"""

_BEGIN: Final = """\
CREATE OR REPLACE FUNCTION logicalrep.begin_ddl_event() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM set_config('logicalrep.statement', '', false), set_config('logicalrep.statement', 'begun', true);
END $$"""
"""SQL of the function that runs at the start of a statement, and notes in a local setting that it began.

DETACH PARTITION … CONCURRENTLY ends in another transaction without a snapshot: a query of a STABLE function
would crash the server there (GetActiveSnapshot in snapmgr.c). The missing local setting reveals this case.
"""

_SEND: Final = """\
CREATE OR REPLACE FUNCTION logicalrep.send_ddl_events() RETURNS event_trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    altered record;
    columns jsonb;
    named oid[];
    statement jsonb;
    sent pg_lsn;
BEGIN
    IF current_setting('logicalrep.statement', true) IS DISTINCT FROM 'begun' THEN  -- no query is possible
        sent := pg_logical_emit_message(true, 'logicalrep.ddl', '{"command": "ALTER TABLE"}');
        RETURN;
    END IF;
    FOR altered IN
        WITH RECURSIVE named AS (
            SELECT objid AS oid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass
            UNION
            SELECT inhrelid FROM named JOIN pg_inherits ON inhparent = named.oid
        )
        SELECT oid, logicalrep.table_before(oid) AS old, logicalrep.table_after(oid) AS new FROM named
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
        PERFORM pg_logical_emit_message(true, 'logicalrep.ddl', jsonb_build_object(
            'oid', altered.oid::int8,
            'schema', altered.new -> 'schema',
            'name', altered.new -> 'name',
            'xid', altered.new -> 'xid',
            'rewritten', altered.old -> 'file' <> altered.new -> 'file',
            'columns', columns
        )::text);
    END LOOP;
    SELECT coalesce(array_agg(objid) FILTER (WHERE classid = 'pg_class'::regclass), '{}'),
        jsonb_build_object('command', tg_tag, 'objects', coalesce(jsonb_agg(DISTINCT object_identity), '[]'))
    INTO named, statement FROM pg_event_trigger_ddl_commands();
    WITH RECURSIVE before AS MATERIALIZED (SELECT * FROM logicalrep.facts_before(named)),
    after AS MATERIALIZED (SELECT * FROM logicalrep.facts_after(named)),
    lost AS (TABLE before EXCEPT TABLE after),
    gained AS (TABLE after EXCEPT TABLE before),
    concerned AS (
        SELECT relation FROM (TABLE lost UNION TABLE gained) changed
        UNION
        SELECT f.above FROM concerned JOIN (TABLE before UNION TABLE after) f USING (relation)
        WHERE kind = 'partition'
    )
    SELECT statement || jsonb_build_object('tables', jsonb_agg(relation::int8), 'left', (
        SELECT coalesce(jsonb_agg(relation::int8), '[]') FROM (
            SELECT relation FROM lost WHERE kind = 'published'
            UNION SELECT relation FROM gained WHERE kind = 'excepted'
        ) l
    ))
    INTO statement FROM concerned HAVING count(*) > 0 OR tg_tag <> ALL ('{ALTER TABLE, DROP TABLE}');
    IF statement IS NOT NULL THEN
        PERFORM pg_logical_emit_message(true, 'logicalrep.ddl', jsonb_strip_nulls(statement)::text);
    END IF;
END $$"""
"""SQL of the function that runs at the end of a statement, and writes the logical messages about it."""

_TAGS: Final = """\
WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'ALTER PUBLICATION',
    'DROP TABLE', 'DROP SCHEMA', 'DROP OWNED')"""

_DROP: Final = tuple(f"DROP EVENT TRIGGER IF EXISTS {one}" for one in TRIGGERS)

_INSTALL: Final = (
    "CREATE SCHEMA IF NOT EXISTS logicalrep",
    "GRANT USAGE ON SCHEMA logicalrep TO PUBLIC",
    _DESCRIBE.format(when="before", volatility="STABLE"),
    _DESCRIBE.format(when="after", volatility="VOLATILE"),
    _FACTS.format(when="before", volatility="STABLE"),
    _FACTS.format(when="after", volatility="VOLATILE"),
    _SEND,
    _BEGIN,
    *_DROP,
    f"CREATE EVENT TRIGGER {TRIGGERS[0]} ON ddl_command_start {_TAGS}\n"
    "    EXECUTE FUNCTION logicalrep.begin_ddl_event()",
    f"CREATE EVENT TRIGGER {TRIGGERS[1]} ON ddl_command_end {_TAGS}\n"
    "    EXECUTE FUNCTION logicalrep.send_ddl_events()",
    *(f"ALTER EVENT TRIGGER {one} ENABLE ALWAYS" for one in TRIGGERS),
)

_REMOVE_OWN: Final = (
    *_DROP,
    "DROP FUNCTION IF EXISTS logicalrep.begin_ddl_event(), logicalrep.send_ddl_events(),\n"
    "    logicalrep.table_before(oid), logicalrep.table_after(oid), logicalrep.facts_before(oid[]),\n"
    "    logicalrep.facts_after(oid[])",
    "DROP SCHEMA IF EXISTS logicalrep",
)

# Before its first release, the package had the plugin's name.
_REMOVE: Final = (*_REMOVE_OWN, *(one.replace("logicalrep", "pgoutput") for one in _REMOVE_OWN))


class Statement(msgspec.Struct, frozen=True):
    """A DDL statement that may change what the server sends, as a logical message describes it.

    All fields are empty if the message describes the columns of an altered table instead.
    """

    command: str = ""
    """The command's tag, such as `ALTER TABLE`."""
    objects: tuple[str, ...] = ()
    """Names of the objects that the command has created or altered; empty if it has dropped them."""
    tables: tuple[int, ...] = ()
    """OIDs of the tables that the statement affects, and of the partitioned tables above them."""
    left: tuple[int, ...] = ()
    """OIDs of the tables that a publication does not publish any more, or publishes differently."""

    @property
    def text(self) -> str:
        """The command and the names of its objects, for errors and logs."""
        return " ".join([self.command, ", ".join(self.objects)]).rstrip()


def parse_statement(content: bytes) -> Statement:
    """Return the statement in a logical message's content; an empty `Statement` if there is none."""
    try:
        return msgspec.convert(json.loads(content.decode("utf-8", "replace")), Statement)
    except (ValueError, msgspec.ValidationError):
        return Statement()


def ddl_events_sql(*, remove: bool = False) -> tuple[str, ...]:
    """Return the SQL statements that create the event trigger in a database, or that remove it.

    BEGIN and COMMIT are included: the statements are one transaction.
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
                f"the event trigger needs PostgreSQL {DDL_EVENTS_SINCE} or later, but the server is "
                f"PostgreSQL {version}: record without the event trigger"
            )
        try:
            for statement in ddl_events_sql(remove=remove):
                connection.query(statement)
        except ReplicationError as error:
            raise ReplicationError(
                f"{error}: run this command, or the SQL that --sql prints, as a superuser or as a role that "
                "may create event triggers"
            ) from None
