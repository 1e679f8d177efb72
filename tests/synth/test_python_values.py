"""Text of Python dates, times, intervals and documents, compared with PostgreSQL 18."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Json, Jsonb

from logicalrep.errors import ScenarioError
from logicalrep.synth import Scenario
from tests.server import Server

INDIA, BEHIND = timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=1, seconds=61))

VALUES: list[tuple[str, Any]] = [
    *(("date", one) for one in (date(2024, 2, 29), date.min, date.max)),
    *(("time", one) for one in (time(1, 2, 3), time(1, 2, 3, 500_000), time.max)),
    *(("time(3)", one) for one in (time(1, 2, 3, 400), time(1, 2, 3, 500), time.max)),
    *(("timetz", one) for one in (time(1, 2, 3, 500, INDIA), time(1, 2, tzinfo=BEHIND))),
    *(("timestamp", one) for one in (datetime(2024, 1, 2, 3, 4, 5, 120_000), datetime.max, date(2024, 1, 2))),
    *(("timestamp(0)", one) for one in (datetime(1999, 1, 1, 0, 0, 0, 500_000), datetime.max)),
    *(
        ("timestamptz", one)
        for one in (
            datetime(2024, 1, 2, 3, 4, 5, tzinfo=INDIA),
            datetime(2024, 1, 2, 3, 4, 5, 6, BEHIND),
            datetime.min.replace(tzinfo=INDIA),
        )
    ),
    ("timestamptz(3)", datetime(2024, 1, 2, 3, 4, 5, 999_500, UTC)),
    ("timestamptz[]", [datetime(2024, 1, 2, 3, 4, 5, tzinfo=INDIA), None]),
    *(
        ("interval", one)
        for one in (
            timedelta(1, 5, 120),
            timedelta(0),
            timedelta(days=-1, seconds=5),
            timedelta(microseconds=-1),
        )
    ),
    *(
        ("jsonb", one)
        for one in (
            {"b": 1, "aa": [True, None, 'é\n\x7f\x01"\\'], "a": {"z": {}, "": []}},
            [1.0, 1.5e100, -0.0, 1e-7, 10**30],
        )
    ),
    ("json", [1, {"b": 1, "a": None}]),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("date", datetime(2024, 1, 1), "for the type date"),
    ("time", time(1, tzinfo=UTC), "for the type time"),
    ("timetz", time(1), "for the type timetz"),
    ("timestamp", datetime(2024, 1, 1, tzinfo=UTC), "for the type timestamp"),
    ("timestamptz", datetime(2024, 1, 1), "for the type timestamptz"),
    ("interval", b"", "for the type interval"),
    ("jsonb", {"a": float("nan")}, "not JSON compliant"),
    ("jsonb", ["\0"], "cannot contain U"),
    ("json", {"a": object()}, "not JSON serializable"),
]


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection]:
    with Server() as server, server.connect() as connection:
        connection.prepare_threshold = None
        yield connection


def scenario_text(type_: str, value: Any) -> str | None:
    db = Scenario()
    table = db.table("public.t", {"v": type_})
    with db.transaction() as transaction:
        transaction.insert(table, v=value)
    return db.rows(table)[0]["v"]


@pytest.mark.parametrize(("type_", "value"), VALUES)
def test_text_equals_the_servers(connection: psycopg.Connection, type_: str, value: Any) -> None:
    given = {"json": Json, "jsonb": Jsonb}.get(type_, lambda one: one)(value)
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("CREATE TABLE t (v {})").format(sql.SQL(type_)))
        connection.execute("INSERT INTO t VALUES (%s)", [given])
        row = connection.execute("SELECT v::text FROM t").fetchone()
    assert row is not None
    assert scenario_text(type_, value) == row[0]


@pytest.mark.parametrize(("type_", "value", "why"), REFUSED)
def test_ambiguous_values_are_refused(type_: str, value: Any, why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        scenario_text(type_, value)
