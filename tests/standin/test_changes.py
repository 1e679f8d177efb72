"""pg_logical_slot_peek_binary_changes and …_get_… have the rows and errors of PostgreSQL 18."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from logicalrep.capturefile import CaptureFile
from logicalrep.messages import Commit, XLogData
from logicalrep.standin import RecordedSource, StandIn
from logicalrep.synth import Scenario
from logicalrep.wire import format_lsn
from tests.versions import CAPTURES, OLDEST

OPTIONS = f"'proto_version', '{OLDEST}', 'publication_names', 'p'"

CAPTURE_FILES = [
    *(CAPTURES / f"{name}.jsonl.gz" for name in ("pg10_p1", "pg15_p1_on_2pc_slot", "pg19_p1")),
    *sorted(CAPTURES.glob("pg18_p[34]*.jsonl.gz")),
]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Three transactions, each with two inserts: 5, 4 and 4 messages."""
    scenario = Scenario()
    table = scenario.table("public.t", id="int4 key")
    for number in range(3):
        with scenario.transaction() as tx:
            tx.insert(table, id=number)
            tx.insert(table, id=number + 100)
    return scenario


@pytest.fixture
def connection(scenario: Scenario) -> Iterator[psycopg.Connection[Any]]:
    with StandIn(scenario) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('a', 'pgoutput')")
        yield connection


def count(connection: psycopg.Connection[Any], upto: str, verb: str = "peek") -> int:
    sql = f"SELECT count(*) FROM pg_logical_slot_{verb}_binary_changes('a', {upto}, {OPTIONS})"
    return int(connection.execute(sql.encode()).fetchall()[0][0])


def test_the_rows_are_the_messages(connection: psycopg.Connection[Any], scenario: Scenario) -> None:
    sql = f"SELECT lsn, xid, data FROM pg_logical_slot_peek_binary_changes('a', NULL, NULL, {OPTIONS})"
    for binary in (False, True):
        rows = connection.execute(sql.encode(), binary=binary).fetchall()
        sent = [one for one in scenario.stream(proto_version=OLDEST) if isinstance(one, XLogData)]
        assert [bytes(row[2]) for row in rows] == [one.data for one in sent]
    rows = connection.execute(sql.encode()).fetchall()
    first = int(rows[0][1])
    assert [int(row[1]) - first for row in rows] == [0] * 5 + [1] * 4 + [2] * 4
    lsns = [format_lsn(one.wal_start) for one in sent]
    assert [row[0] for row in rows] == [lsns[0], lsns[2], *lsns[2:]]  # that of the Relation message too


def test_rows_end_after_the_transaction_that_reaches_the_number(connection: psycopg.Connection[Any]) -> None:
    counts = [count(connection, f"NULL, {number}") for number in (0, 1, 4, 5, 6, 9, 10, 99)]
    assert counts == [13, 5, 5, 5, 9, 9, 13, 13]


def test_a_transaction_that_commits_at_the_lsn_is_left_out(
    connection: psycopg.Connection[Any], scenario: Scenario
) -> None:
    commits = [one for one in scenario.messages(proto_version=OLDEST) if isinstance(one, Commit)]
    for number, commit in enumerate(commits):
        rows = (0, 5, 9, 13)[number : number + 2]
        limits = [commit.commit_lsn + offset for offset in (-1, 0, 1)] + [commit.end_lsn, commit.end_lsn + 1]
        found = [count(connection, f"'{format_lsn(limit)}', NULL") for limit in limits]
        assert found == [rows[0], rows[0], rows[1], rows[1], rows[1]]


def test_get_acknowledges_what_it_returns(connection: psycopg.Connection[Any], scenario: Scenario) -> None:
    first, *_, last = (one.end_lsn for one in scenario.history())
    for upto, rows, lsn in (("NULL, 1", 5, first), ("NULL, NULL", 9, last), ("NULL, NULL", 0, last)):
        assert count(connection, upto, "get") == rows
        (confirmed,) = connection.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchall()
        assert confirmed == (format_lsn(lsn),)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="neither a constant nor a parameter"):
        count(connection, "NULL, 1 + 1")


def test_arguments_may_be_parameters_casts_and_arrays(connection: psycopg.Connection[Any]) -> None:
    options = ["proto_version", str(OLDEST), "publication_names", "p"]
    function = "SELECT count(*) FROM pg_catalog.pg_logical_slot_peek_binary_changes"
    for arguments, values in (
        ("%s, NULL, %s, %s, %s, %s, %s", ("a", 4, *options)),
        ("%s, %s::pg_lsn, 4, VARIADIC %s::text[]", ("a", None, options)),
        (f"'a'::name, NULL, 4, VARIADIC ARRAY{options}", ()),
    ):
        assert connection.execute(f"{function}({arguments})".encode(), values).fetchall() == [(5,)]


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "text"),
    [
        ("'a', NULL, NULL", "22023", 'option "proto_version" missing'),
        ("'a', NULL, NULL, 'proto_version'", "0A000", "array must have even number of elements"),
        ("'a', NULL, NULL, 'proto_version', NULL", "0A000", "array must not contain nulls"),
        (f"'b', NULL, NULL, {OPTIONS}", "42704", 'replication slot "b" does not exist'),
        (f"NULL, NULL, NULL, {OPTIONS}", "22004", "slot name must not be null"),
        (f"'a', NULL, NULL, {OPTIONS}, 'binary', 'x'", "42601", "binary requires a Boolean value"),
        (f"'a', 'x', NULL, {OPTIONS}", "22P02", 'invalid input syntax for type pg_lsn: "x"'),
        (f"'a', NULL, 'x', {OPTIONS}", "22P02", 'invalid input syntax for type integer: "x"'),
    ],
)
def test_errors_are_those_of_a_server(
    connection: psycopg.Connection[Any], arguments: str, sqlstate: str, text: str
) -> None:
    with pytest.raises(psycopg.Error) as error:
        connection.execute(f"SELECT * FROM pg_logical_slot_get_binary_changes({arguments})".encode())
    assert (error.value.sqlstate, str(error.value).partition("\n")[0]) == (sqlstate, text)
    assert count(connection, "NULL, NULL") == 13


def test_the_functions_for_text_refuse_logicalrep(connection: psycopg.Connection[Any]) -> None:
    text = (
        'logical decoding output plugin "pgoutput" produces binary output, but function '
        r'"pg_logical_slot_peek_changes\(name,pg_lsn,integer,text\[\]\)" expects textual data'
    )
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=text):
        connection.execute(f"SELECT * FROM pg_logical_slot_peek_changes('a', NULL, NULL, {OPTIONS})".encode())


@pytest.mark.parametrize("path", CAPTURE_FILES, ids=lambda path: path.name)
def test_a_capture_of_these_functions_is_returned_as_it_was(path: Path) -> None:
    with CaptureFile(path) as capture:
        payloads = [one.data for one in capture.records()]
        options = {**capture.header.options, "proto_version": str(capture.header.proto_version)}
    given = [text for pair in options.items() for text in pair]
    with StandIn(RecordedSource(path)) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        two_phase = ", false, true" if "2pc_slot" in path.name else ""
        connection.execute(f"SELECT pg_create_logical_replication_slot('a', 'pgoutput'{two_phase})".encode())
        sql = "SELECT data FROM pg_logical_slot_get_binary_changes('a', NULL, NULL, VARIADIC %s::text[])"
        rows = connection.execute(sql, (given,)).fetchall()
    assert [bytes(row[0]) for row in rows] == payloads
