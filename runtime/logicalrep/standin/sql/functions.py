"""SQL functions that queries can call: macros of DuckDB, and functions with side effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from logicalrep.standin.backend import Backend
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.sql.system_catalogs import FIRST_OID
from logicalrep.wire import format_lsn, parse_lsn

BUILTINS: Final[Mapping[str, str]] = {
    "abs": "",
    "any_value": "",
    "array_agg": "",
    "array_append": "",
    "array_cat": "",
    "array_position": "int4",
    "array_to_string": "text",
    "bool_and": "bool",
    "bool_or": "bool",
    "concat": "text",
    "concat_ws": "text",
    "count": "int8",
    "count_star": "int8",
    "date_part": "float8",
    "ends_with": "bool",
    "generate_series": "int4",
    "greatest": "",
    "lag": "",
    "lead": "",
    "least": "",
    "left": "text",
    "length": "int4",
    "list_value": "",
    "lower": "text",
    "max": "",
    "md5": "text",
    "min": "",
    "now": "timestamptz",
    "nullif": "",
    "position": "int4",
    "rank": "int8",
    "regexp_matches": "bool",
    "regexp_replace": "text",
    "replace": "text",
    "right": "text",
    "round": "",
    "row_number": "int8",
    "row_to_json": "json",
    "split_part": "text",
    "starts_with": "bool",
    "string_agg": "text",
    "strpos": "int4",
    "substring": "text",
    "sum": "",
    "to_json": "json",
    "trim": "text",
    "unnest": "",
    "upper": "text",
}
"""Type names of the results of DuckDB functions that queries can call, by function name.

An empty type name means that the type depends on the arguments, or that DuckDB's type is used."""

_HEX: Final = (
    "('0x' || split_part({0}, '/', 1))::BIGINT * 4294967296 + ('0x' || split_part({0}, '/', 2))::BIGINT"
)
_VISIBLE: Final = "SELECT 1 FROM {0} _v WHERE _v.oid = a AND _v.{1} IN (11, 2200)"
_TRUE: Final = "(a, b) AS true, (a, b, c) AS true"
_NO_TEXT: Final = "(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR, (a, b, c) AS NULL::VARCHAR"

_KEY: Final = (
    "SELECT 'PRIMARY KEY (' || index_columns(_k.conindid) || ')' FROM pg_constraint _k WHERE _k.oid = a"
)
_TYPE_TEXTS: Final = {
    "bool": "boolean",
    "bpchar": "character",
    "char": '"char"',
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "timetz": "time with time zone",
    "varbit": "bit varying",
    "varchar": "character varying",
}
"""Type names as format_type writes them, by pg_type name."""


def _of_session(column: str) -> str:
    return f"() AS (SELECT _s.{column} FROM session _s)"


def _call(name: str, parameters: Sequence[str]) -> str:
    """Return DuckDB SQL for a struct that describes a function call, which `SideEffects` executes later.

    `parameters` are the names of a DuckDB macro's parameters. Their values are the arguments of the call.
    """
    values = ", ".join(f"{one}::VARCHAR" for one in parameters)
    return f"{{'call': '{name}', 'arguments': [{values}]}}"


def _calls(name: str, *signatures: Sequence[str]) -> str:
    return ", ".join(f"({', '.join(one)}) AS {_call(name, one)}" for one in signatures)


CHANGES: Final = tuple(
    f"pg_logical_slot_{verb}{kind}_changes" for verb in ("get", "peek") for kind in ("", "_binary")
)
"""Names of the functions that return the changes of a slot."""

_CREATE: Final = "pg_create_logical_replication_slot"
_CREATE_ARGUMENTS: Final = ("slot_name", "plugin", "temporary", "twophase", "failover")
_CREATE_SIGNATURES: Final = tuple(_CREATE_ARGUMENTS[:count] for count in (2, 3, 4, 5))

MACROS: Final[Mapping[str, tuple[str, str]]] = {
    "version": ("text", _of_session("version")),
    "current_database": ("name", _of_session("database")),
    "current_catalog": ("name", _of_session("database")),
    "current_schema": ("name", "() AS 'public'"),
    "current_schemas": (
        "name[]",
        "(a) AS CASE WHEN a THEN ['pg_catalog', 'public'] ELSE ['public'] END",
    ),
    "current_user": ("name", _of_session("username")),
    "current_role": ("name", _of_session("username")),
    "session_user": ("name", _of_session("username")),
    "pg_backend_pid": ("int4", _of_session("pid")),
    "pg_is_in_recovery": ("bool", _of_session("in_recovery")),
    "pg_postmaster_start_time": ("timestamptz", _of_session("started")),
    **{f"pg_current_wal{kind}_lsn": ("pg_lsn", _of_session("wal_end")) for kind in ("", "_insert", "_flush")},
    **{f"pg_last_wal_{kind}_lsn": ("pg_lsn", "() AS NULL::VARCHAR") for kind in ("replay", "receive")},
    "pg_current_xact_id": ("xid8", "() AS 3::UBIGINT"),
    "txid_current": ("int8", "() AS 3::BIGINT"),
    "txid_current_snapshot": ("text", "() AS '3:3:'"),
    "txid_snapshot_xmin": ("int8", "(a) AS split_part(a, ':', 1)::BIGINT"),
    "txid_snapshot_xmax": ("int8", "(a) AS split_part(a, ':', 2)::BIGINT"),
    "pg_wal_lsn_diff": ("numeric", f"(a, b) AS ({_HEX.format('a')}) - ({_HEX.format('b')})"),
    "current_setting": (
        "text",
        "(a) AS coalesce((SELECT _s.setting FROM pg_settings _s WHERE lower(_s.name) = lower(a)),"
        " error('42704|unrecognized configuration parameter \"' || a || '\"')),"
        " (a, b) AS coalesce((SELECT _s.setting FROM pg_settings _s WHERE lower(_s.name) = lower(a)),"
        " CASE WHEN NOT b THEN error('42704|unrecognized configuration parameter \"' || a || '\"') END)",
    ),
    "index_columns": (
        "text",
        "(a) AS (SELECT string_agg(_a.attname, ', ' ORDER BY _a.attnum)"
        " FROM pg_attribute _a WHERE _a.attrelid = a)",
    ),
    "pg_has_role": ("bool", _TRUE),
    "has_database_privilege": ("bool", _TRUE),
    "has_schema_privilege": ("bool", _TRUE),
    "has_table_privilege": ("bool", _TRUE),
    "pg_relation_is_publishable": ("bool", "(a) AS true"),
    "pg_table_is_visible": (
        "bool",
        f"(a) AS EXISTS ({_VISIBLE.format('pg_class', 'relnamespace')})",
    ),
    "pg_type_is_visible": (
        "bool",
        f"(a) AS EXISTS ({_VISIBLE.format('pg_type', 'typnamespace')})",
    ),
    "pg_get_userbyid": ("name", "(a) AS (SELECT _o.rolname FROM pg_roles _o WHERE _o.oid = a)"),
    "pg_encoding_to_char": ("name", "(a) AS 'UTF8'"),
    "pg_get_expr": ("text", _NO_TEXT),
    "obj_description": ("text", _NO_TEXT),
    "col_description": ("text", _NO_TEXT),
    "shobj_description": ("text", _NO_TEXT),
    "pg_get_serial_sequence": ("text", _NO_TEXT),
    "type_text": (
        "text",
        "(name, modifier) AS CASE name "
        + " ".join(f"WHEN '{name}' THEN '{text}'" for name, text in _TYPE_TEXTS.items())
        + " ELSE name END || CASE WHEN modifier < 0 OR modifier IS NULL THEN ''"
        " WHEN name IN ('varchar', 'bpchar') THEN '(' || (modifier - 4) || ')'"
        " WHEN name IN ('bit', 'varbit') THEN '(' || modifier || ')'"
        " WHEN name = 'numeric' THEN '(' || ((modifier - 4) >> 16) || ',' || ((modifier - 4) & 2047) || ')'"
        " ELSE '' END",
    ),
    "format_type": (
        "text",
        "(a, b) AS CASE WHEN a = 0 THEN '-' ELSE (SELECT coalesce(type_text(_e.typname, b) || '[]',"
        " type_text(_t.typname, b)) FROM pg_type _t LEFT JOIN pg_type _e ON _e.oid = _t.typelem"
        " AND _t.typcategory = 'A' WHERE _t.oid = a) END",
    ),
    "index_text": (
        "text",
        "(a) AS (SELECT 'CREATE UNIQUE INDEX ' || _x.relname || ' ON ' || _n.nspname || '.' || _c.relname"
        " || ' USING btree (' || index_columns(a) || ')' FROM pg_class _x, pg_index _i, pg_class _c,"
        " pg_namespace _n WHERE _x.oid = a AND _i.indexrelid = a AND _c.oid = _i.indrelid"
        " AND _n.oid = _c.relnamespace)",
    ),
    "pg_get_indexdef": (
        "text",
        "(a) AS index_text(a), (a, b, c) AS CASE b WHEN 0 THEN index_text(a) ELSE"
        " (SELECT _a.attname FROM pg_attribute _a WHERE _a.attrelid = a AND _a.attnum = b) END",
    ),
    "pg_get_constraintdef": ("text", f"(a) AS ({_KEY}), (a, b) AS ({_KEY})"),
    "pg_get_statisticsobjdef_columns": ("text", _NO_TEXT),
    "pg_partition_ancestors": ("record", "(a) AS list_transform(a, lambda x: {relid: x})"),
    "pg_partition_tree": (
        "record",
        "(a) AS list_transform(a, lambda x:"
        " {relid: x, parentrelid: NULL::UINTEGER, isleaf: true, level: 0::INTEGER})",
    ),
    "age": ("int4", "(a) AS 0"),
    "pg_collation_is_visible": ("bool", "(a) AS true"),
    "to_regclass": (
        "regclass",
        "(a) AS (SELECT min(_c.oid) FROM pg_class _c WHERE _c.relname = split_part(a, '.', -1))",
    ),
    "to_regtype": (
        "regtype",
        "(a) AS (SELECT min(_t.oid) FROM pg_type _t WHERE _t.typname = split_part(a, '.', -1))",
    ),
    "array_lower": ("int4", "(a, b) AS CASE WHEN len(a) > 0 THEN 1 END"),
    "array_upper": ("int4", "(a, b) AS nullif(len(a), 0)::INTEGER"),
    "array_length": ("int4", "(a, b) AS nullif(len(a), 0)::INTEGER"),
    "cardinality": ("int4", "(a) AS len(a)::INTEGER"),
    "generate_subscripts": ("int4", "(a, b) AS unnest(range(1, len(a) + 1))::INTEGER"),
    "_pg_expandarray": ("record", "(a) AS unnest(list_transform(a, lambda x, n: {x: x, n: n::INTEGER}))"),
    "to_jsonb": ("jsonb", "(a) AS to_json(a)"),
    "jsonb_without": ("jsonb", "(a, b) AS json_merge_patch(a, json_object(b::VARCHAR, NULL))"),
    "pg_advisory_unlock_all": ("void", "() AS ''"),
    "pg_get_publication_tables": (
        "record",
        "(a) AS (SELECT coalesce(list({pubid: _p.oid, relid: _c.oid, attrs: (SELECT list(_a.attnum"
        " ORDER BY _a.attnum) FROM pg_attribute _a WHERE _a.attrelid = _c.oid), qual: NULL::VARCHAR}), [])"
        " FROM pg_publication _p, pg_class _c"
        f" WHERE list_contains(a, _p.pubname) AND _c.relkind = 'r' AND _c.oid >= {FIRST_OID})",
    ),
    "quote_ident": (
        "text",
        "(a) AS CASE WHEN regexp_full_match(a, '[a-z_][a-z0-9_]*') THEN a"
        " ELSE '\"' || replace(a, '\"', '\"\"') || '\"' END",
    ),
    "format_rest": ("text", "(f) AS substr(f, length(split_part(f, '%', 1)) + 3)"),
    "format_first": (
        "text",
        "(f, a) AS split_part(f, '%', 1)"
        " || CASE split_part(f, '%', 2)[1] WHEN 'I' THEN quote_ident(a) ELSE a END",
    ),
    "format": (
        "text",
        "(f, a) AS format_first(f, a) || format_rest(f),"
        " (f, a, b) AS format_first(f, a) || format_first(format_rest(f), b) || format_rest(format_rest(f))",
    ),
    "has_rows": (
        "bool",
        "(a, b) AS CASE WHEN EXISTS (SELECT 1 FROM pg_class _c JOIN pg_namespace _n"
        " ON _n.oid = _c.relnamespace WHERE _n.nspname = a AND _c.relname = b"
        f" AND _c.oid >= {FIRST_OID}) THEN false"
        " ELSE error('42P01|relation \"' || CASE a WHEN 'public' THEN '' ELSE a || '.' END || b"
        " || '\" does not exist') END",
    ),
    "row_security_active": ("bool", "(a) AS false"),
    "pg_get_replica_identity_index": (
        "regclass",
        "(a) AS (SELECT min(_i.indexrelid) FROM pg_index _i WHERE _i.indrelid = a)",
    ),
    "set_config": ("text", _calls("set_config", ("name", "value", "is_local"))),
    _CREATE: ("record", _calls(_CREATE, *_CREATE_SIGNATURES)),
    "pg_drop_replication_slot": ("void", _calls("pg_drop_replication_slot", ("slot_name",))),
    "pg_replication_slot_advance": (
        "record",
        _calls("pg_replication_slot_advance", ("slot_name", "upto_lsn")),
    ),
}
"""By name of a PostgreSQL function: name of its result type, and the DuckDB macro that replaces it."""

ARGUMENTS: Final[Mapping[str, Sequence[str]]] = {
    _CREATE: ("name", "name", "bool", "bool", "bool"),
    "pg_drop_replication_slot": ("name",),
    "pg_replication_slot_advance": ("name", "pg_lsn"),
    **dict.fromkeys(CHANGES, ("name", "pg_lsn", "int4")),
}
"""Types of the first arguments of functions that read or change slots, by name. Other arguments are text."""

OBJECT_NAMES: Final[Mapping[str, str]] = {
    "pg_class": "(a) AS (SELECT CASE WHEN pg_table_is_visible(a) THEN '' ELSE _n.nspname || '.' END"
    " || _o.relname FROM pg_class _o JOIN pg_namespace _n ON _n.oid = _o.relnamespace WHERE _o.oid = a)",
    "pg_type": "(a) AS format_type(a, NULL)",
    "pg_proc": "(a) AS (SELECT _o.proname FROM pg_proc _o WHERE _o.oid = a)",
    "pg_namespace": "(a) AS (SELECT _o.nspname FROM pg_namespace _o WHERE _o.oid = a)",
    "pg_roles": "(a) AS (SELECT _o.rolname FROM pg_roles _o WHERE _o.oid = a)",
}
"""DuckDB macros that return the name of an object from its OID (`a`), by the catalog of the object."""

RENAMED: Final[Mapping[str, str]] = {
    "json_object_agg": "json_group_object",
    "json_agg": "json_group_array",
    "jsonb_agg": "json_group_array",
    "json_build_array": "json_array",
    "json_build_object": "json_object",
}
"""Names of DuckDB functions, by the name of the equivalent PostgreSQL function."""

RECORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "pg_get_publication_tables": {
        "pubid": "oid",
        "relid": "oid",
        "attrs": "int2vector",
        "qual": "pg_node_tree",
    },
    "pg_partition_ancestors": {"relid": "regclass"},
    "pg_partition_tree": {"relid": "regclass", "parentrelid": "regclass", "isleaf": "bool", "level": "int4"},
}
"""Type names of the result columns of functions that return records, by function name and column name.

The DuckDB macros of these functions take a list as argument, and return a list of structs."""

TABLE_MACROS: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    _CREATE: (
        {"slot_name": "name", "lsn": "pg_lsn"},
        ", ".join(
            f"({', '.join(one)}) AS TABLE (SELECT {_call(f'{_CREATE}.slot_name', one)} AS slot_name,"
            f" {_call(f'{_CREATE}.lsn', one)} AS lsn)"
            for one in _CREATE_SIGNATURES
        ),
    ),
}
"""By name of a function in FROM: its result columns (type by name), and the DuckDB macro that replaces it."""


_FLAGS_SINCE: Final = (10, 14, 17)
"""First major versions in which pg_create_logical_replication_slot has temporary, twophase and failover."""


class SideEffects:
    """Executes the function calls with side effects in the result of a query.

    In the result, a call is a struct with the function's name and arguments (see `_call`).

    Args:
        server: State of the server.
        backend: State of the connection.
    """

    def __init__(self, server: ServerState, backend: Backend) -> None:
        self._server = server
        self._backend = backend
        self._created: dict[tuple[str, ...], tuple[str, str]] = {}
        self._functions: Mapping[str, Callable[..., str]] = {
            "set_config": self._set_config,
            "pg_drop_replication_slot": self._drop,
            "pg_replication_slot_advance": self._advance,
            _CREATE: lambda *arguments: f"({','.join(self._create(*arguments))})",
            f"{_CREATE}.slot_name": lambda *arguments: self._create(*arguments)[0],
            f"{_CREATE}.lsn": lambda *arguments: self._create(*arguments)[1],
        }

    def execute(self, call: Mapping[str, object]) -> str | None:
        """Execute a call and return its result. If an argument is NULL, return None without executing it.

        Raises:
            ServerError: The call failed.
        """
        arguments = call["arguments"]
        assert isinstance(arguments, list)
        return None if None in arguments else self._functions[str(call["call"])](*arguments)

    def _create(self, name: str, plugin: str, *flags: str) -> tuple[str, str]:
        arguments = (name, plugin, *flags)
        if len(flags) > sum(self._server.major_version >= since for since in _FLAGS_SINCE):
            kinds = ", ".join(("name", "name", *("boolean" for _ in flags)))
            raise ServerError("42883", f"function {_CREATE}({kinds}) does not exist")
        # A query calls this method once for each result column of the SQL function: create only one slot.
        if arguments not in self._created:
            options = dict(zip(("temporary", "two_phase", "failover"), map(_is_true, flags), strict=False))
            slot = self._server.create_slot(self._backend, name, plugin, **options)
            self._created[arguments] = slot.name, format_lsn(slot.confirmed_flush_lsn)
        return self._created[arguments]

    def _drop(self, name: str) -> str:
        self._server.slots.drop(name)
        return ""

    def _advance(self, name: str, lsn: str) -> str:
        slot = self._server.acquire_slot(name, self._backend)
        slot.active_pid = None
        position = min(parse_lsn_argument(lsn), self._server.source.end_lsn)
        if not position:
            raise ServerError("22023", "invalid target WAL LSN")
        least = slot.confirmed_flush_lsn
        if position < least:
            text = "cannot advance replication slot to {}, minimum is {}"
            raise ServerError("55000", text.format(format_lsn(position), format_lsn(least)))
        slot.confirmed_flush_lsn = position
        return f"({name},{format_lsn(slot.confirmed_flush_lsn)})"

    def _set_config(self, name: str, value: str, _: str) -> str:
        self._backend.change_setting(name, value)
        return value


def _is_true(text: str) -> bool:
    return text.lower() in ("t", "true", "1", "on")


def parse_lsn_argument(text: str) -> int:
    """Parse an LSN that is passed to a function as text.

    Raises:
        ServerError: The text is not an LSN.
    """
    try:
        return parse_lsn(text)
    except ValueError:
        raise ServerError("22P02", f'invalid input syntax for type pg_lsn: "{text}"') from None
