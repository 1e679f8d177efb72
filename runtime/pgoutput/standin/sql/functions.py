"""The functions that look-ups can call, by name: the type of what they give, and what they do.

As in PostgreSQL, most give NULL when they are given one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

from pgoutput.standin.protocol import Refused
from pgoutput.standin.sql.lookups import Functions
from pgoutput.standin.sql.values import BOOL, INT4, INT8, NAME, PG_LSN, TEXT, Cell
from pgoutput.wire import format_lsn, parse_lsn

if TYPE_CHECKING:
    from pgoutput.standin.sql.statements import Backend


def functions_of(backend: Backend, *, act: bool) -> Functions:
    """The functions, as one connection calls them in one query.

    Args:
        backend: The connection.
        act: Whether those that change something do so; a query that is only described changes nothing.
    """
    source, settings = backend.hub.source, backend.settings
    created: dict[tuple[Cell, ...], str] = {}

    def wal_end(*_: Cell) -> str:
        return format_lsn(source.end_lsn)

    def create(
        name: str, plugin: str, temporary: Cell = False, two_phase: Cell = False, failover: Cell = False
    ) -> str:
        given = (name, plugin, temporary, two_phase, failover)
        if given not in created:  # one call of SQL is one of each of its columns
            slot = backend.create_slot(name, plugin, bool(temporary), bool(two_phase), bool(failover))
            created[given] = format_lsn(slot.confirmed_flush_lsn)
        return created[given]

    def drop(name: str) -> str:
        backend.hub.slots.drop(name)
        return ""

    def advance(name: str, lsn: str) -> str:
        slot = backend.hub.slots.acquire(name, backend.pid, backend.database)
        slot.active_pid = None
        slot.confirmed_flush_lsn = max(slot.confirmed_flush_lsn, min(_lsn(lsn), source.end_lsn))
        return f"({name},{format_lsn(slot.confirmed_flush_lsn)})"

    def set_config(name: str, value: str, _: Cell) -> str:
        backend.set(name, value)
        return value

    def current_setting(name: str, missing_ok: Cell = False) -> Cell:
        try:
            return settings[name]
        except Refused:
            if missing_ok in (1, "t", "true"):
                return None
            raise

    def no_changes(*_: Cell) -> str:
        raise Refused("0A000", "a stand-in gives changes through START_REPLICATION only")

    wal_ends = ("pg_current_wal_lsn", "pg_current_wal_insert_lsn", "pg_current_wal_flush_lsn")
    replayed = ("pg_last_wal_replay_lsn", "pg_last_wal_receive_lsn")
    changes = (
        f"pg_logical_slot_{verb}{kind}_changes" for verb in ("get", "peek") for kind in ("", "_binary")
    )
    acting: Functions = {
        "set_config": (TEXT, _strict(set_config)),
        "pg_create_logical_replication_slot": (
            TEXT,
            _strict(lambda *given: f"({given[0]},{create(*given)})"),
        ),
        "created_slot_name": (NAME, _strict(lambda *given: create(*given) and given[0])),
        "created_slot_lsn": (PG_LSN, _strict(create)),
        "pg_drop_replication_slot": (TEXT, _strict(drop)),
        "pg_replication_slot_advance": (TEXT, _strict(advance)),
    }
    if not act:
        acting = {name: (type_oid, lambda *_: None) for name, (type_oid, _) in acting.items()}
    return {
        **acting,
        **dict.fromkeys(wal_ends, (PG_LSN, wal_end)),
        **{name: (PG_LSN, lambda: None) for name in replayed},  # of a standby, which this is not
        **dict.fromkeys(changes, (TEXT, no_changes)),
        "version": (TEXT, lambda: f"PostgreSQL {source.server_version} (a stand-in of pgoutput)"),
        "pg_is_in_recovery": (BOOL, lambda: int(backend.settings["in_hot_standby"] == "on")),
        "pg_postmaster_start_time": (TEXT, lambda: backend.hub.started),
        "pg_get_expr": (TEXT, lambda *_: None),
        "pg_backend_pid": (INT4, lambda: backend.pid),
        "current_database": (NAME, lambda: backend.database),
        "current_catalog": (NAME, lambda: backend.database),
        "current_schema": (NAME, lambda: "public"),
        "current_user": (NAME, lambda: backend.user),
        "current_role": (NAME, lambda: backend.user),
        "session_user": (NAME, lambda: backend.user),
        "current_setting": (TEXT, _strict(current_setting)),
        "pg_wal_lsn_diff": (INT8, _strict(lambda a, b: _lsn(a) - _lsn(b))),
    }


def _strict(function: Callable[..., Cell]) -> Callable[..., Cell]:
    """The function, which gives NULL if any argument is."""

    @wraps(function)
    def call(*given: Cell) -> Cell:
        return None if None in given else function(*given)

    return call


def _lsn(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError:
        raise Refused("22P02", f'invalid input syntax for type pg_lsn: "{text}"') from None
