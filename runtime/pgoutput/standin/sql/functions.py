"""SQL functions that queries can call, such as pg_create_logical_replication_slot.

As in PostgreSQL, most functions are strict: they return NULL if any argument is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TypeAlias

from pgoutput.standin.backend import Backend
from pgoutput.standin.protocol import ServerError
from pgoutput.standin.server_state import ServerState
from pgoutput.standin.values import BOOL, INT4, INT8, NAME, PG_LSN, TEXT, SqlValue
from pgoutput.wire import format_lsn, parse_lsn

FunctionTable: TypeAlias = Mapping[str, tuple[int, Callable[..., SqlValue]]]
"""Pairs of return type OID and Python function, by the name of the SQL function."""


def make_functions(server: ServerState, backend: Backend, *, execute: bool) -> FunctionTable:
    """Return the SQL functions that one query of a connection can call.

    Args:
        server: State of the server.
        backend: State of the connection.
        execute: Whether functions with side effects are executed. If False, they return NULL instead: a query
            must have no side effects while it is only described.
    """
    source, settings = server.source, backend.settings
    created: dict[tuple[SqlValue, ...], str] = {}

    def wal_end(*_: SqlValue) -> str:
        return format_lsn(source.end_lsn)

    def create(
        name: str,
        plugin: str,
        temporary: SqlValue = False,
        two_phase: SqlValue = False,
        failover: SqlValue = False,
    ) -> str:
        # The rewritten query calls this function once for each result column, but creates one slot.
        arguments = (name, plugin, temporary, two_phase, failover)
        if arguments not in created:
            slot = server.create_slot(
                backend,
                name,
                plugin,
                temporary=bool(temporary),
                two_phase=bool(two_phase),
                failover=bool(failover),
            )
            created[arguments] = format_lsn(slot.confirmed_flush_lsn)
        return created[arguments]

    def drop(name: str) -> str:
        server.slots.drop(name)
        return ""

    def advance(name: str, lsn: str) -> str:
        slot = server.slots.acquire(name, backend.pid, backend.database)
        slot.active_pid = None
        slot.confirmed_flush_lsn = max(slot.confirmed_flush_lsn, min(_parse_lsn(lsn), source.end_lsn))
        return f"({name},{format_lsn(slot.confirmed_flush_lsn)})"

    def set_config(name: str, value: str, _: SqlValue) -> str:
        backend.change_setting(name, value)
        return value

    def current_setting(name: str, missing_ok: SqlValue = False) -> SqlValue:
        try:
            return settings[name]
        except ServerError:
            if missing_ok in (1, "t", "true"):
                return None
            raise

    def no_changes(*_: SqlValue) -> str:
        raise ServerError("0A000", "a stand-in server sends changes through START_REPLICATION only")

    wal_ends = ("pg_current_wal_lsn", "pg_current_wal_insert_lsn", "pg_current_wal_flush_lsn")
    standby_only = ("pg_last_wal_replay_lsn", "pg_last_wal_receive_lsn")
    changes = (
        f"pg_logical_slot_{verb}{kind}_changes" for verb in ("get", "peek") for kind in ("", "_binary")
    )
    side_effects: FunctionTable = {
        "set_config": (TEXT, _strict(set_config)),
        "pg_create_logical_replication_slot": (
            TEXT,
            _strict(lambda *arguments: f"({arguments[0]},{create(*arguments)})"),
        ),
        "created_slot_name": (NAME, _strict(lambda *arguments: create(*arguments) and arguments[0])),
        "created_slot_lsn": (PG_LSN, _strict(create)),
        "pg_drop_replication_slot": (TEXT, _strict(drop)),
        "pg_replication_slot_advance": (TEXT, _strict(advance)),
    }
    if not execute:
        side_effects = {name: (type_oid, lambda *_: None) for name, (type_oid, _) in side_effects.items()}
    return {
        **side_effects,
        **dict.fromkeys(wal_ends, (PG_LSN, wal_end)),
        **{name: (PG_LSN, lambda: None) for name in standby_only},
        **dict.fromkeys(changes, (TEXT, no_changes)),
        "version": (TEXT, lambda: f"PostgreSQL {source.server_version} (stand-in server of pgoutput)"),
        "pg_is_in_recovery": (BOOL, lambda: int(backend.settings["in_hot_standby"] == "on")),
        "pg_postmaster_start_time": (TEXT, lambda: server.started),
        "pg_get_expr": (TEXT, lambda *_: None),
        "pg_backend_pid": (INT4, lambda: backend.pid),
        "current_database": (NAME, lambda: backend.database),
        "current_catalog": (NAME, lambda: backend.database),
        "current_schema": (NAME, lambda: "public"),
        "current_user": (NAME, lambda: backend.user),
        "current_role": (NAME, lambda: backend.user),
        "session_user": (NAME, lambda: backend.user),
        "current_setting": (TEXT, _strict(current_setting)),
        "pg_wal_lsn_diff": (INT8, _strict(lambda a, b: _parse_lsn(a) - _parse_lsn(b))),
    }


def _strict(function: Callable[..., SqlValue]) -> Callable[..., SqlValue]:
    """Return a strict version of the function: the result is NULL if any argument is NULL."""

    @wraps(function)
    def call(*arguments: SqlValue) -> SqlValue:
        return None if None in arguments else function(*arguments)

    return call


def _parse_lsn(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError:
        raise ServerError("22P02", f'invalid input syntax for type pg_lsn: "{text}"') from None
