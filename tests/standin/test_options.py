"""START_REPLICATION and CREATE_REPLICATION_SLOT are accepted or refused as by a server, with its words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product

import pytest
from psycopg.pq import DiagnosticField, ExecStatus, PGconn

from logicalrep.synth import Scenario
from logicalrep.testing.server import Server as StandInProcess
from tests.server import VERSION, Server

NUMBERS = count()

NAMES = "publication_names 'p'"

OPTIONS = [
    "",
    *(
        "proto_version '1'",
        NAMES,
        f"proto_version '1', {NAMES}, {NAMES}",
        f"proto_version '1', {NAMES}, x 'y'",
    ),
    *(
        f"proto_version '{value}', {NAMES}"
        for value in ("x", "-1", "0", "1", "2", "3", "4", "5", "4294967296")
    ),
    *(
        f"proto_version '1', publication_names '{value}'"
        for value in ("", " ", "p,q", "p,", ",p", '"p', '"P q"', "p q")
    ),
    *(
        f"proto_version '{version}', {NAMES}, streaming '{value}'"
        for version, value in product((1, 2, 4), ("on", "off", "parallel", "Parallel", "true", "1", "x", ""))
    ),
    *(
        f"proto_version '{version}', {NAMES}, two_phase '{value}'"
        for version, value in product((1, 2, 3), ("on", "off", "x"))
    ),
    *(f"proto_version '3', {NAMES}, two_phase 'on', streaming '{value}'" for value in ("on", "parallel")),
    *(
        f"proto_version '{version}', {NAMES}, {name} '{value}'"
        for version in (1, 2)
        for name in ("binary", "messages")
        for value in ("true", "false", "ON", "0", "yes", "t", "x", "")
    ),
    *(f"proto_version '1', {NAMES}, binary 'on', binary 'off'", f"proto_version '1', {NAMES}, messages"),
    *(f"proto_version '4', {NAMES}, origin '{value}'" for value in ("any", "none", "ANY", "local", "")),
    *(f"proto_version '{version}', {NAMES}, streaming" for version in (1, 2)),
    *(f"proto_version '4', {NAMES}, streaming 'on', streaming 'on'", f"Proto_Version '1', {NAMES}"),
    "\"proto_version\" '1', \"publication_names\" 'p'",
    f"proto_version 1, {NAMES}",
]

SLOTS = [
    "LOGICAL pgoutput",
    "LOGICAL pgoutput NOEXPORT_SNAPSHOT",
    "LOGICAL pgoutput NOEXPORT_SNAPSHOT NOEXPORT_SNAPSHOT",
    "LOGICAL pgoutput TWO_PHASE",
    "LOGICAL pgoutput RESERVE_WAL",
    "LOGICAL pgoutput ()",
    "LOGICAL pgoutput (SNAPSHOT 'nothing')",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE)",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE false)",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE 'maybe')",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', SNAPSHOT 'nothing')",
    "LOGICAL pgoutput (SNAPSHOT 'all')",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER)",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', NONSENSE)",
    "LOGICAL pgoutput (SNAPSHOT 'use')",
    "LOGICAL pgoutput USE_SNAPSHOT",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE 'on')",
    "LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE 0)",
    "LOGICAL pgoutput (RESERVE_WAL)",
    "LOGICAL",
    "logicalrep",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture(scope="module")
def standin() -> Iterator[StandInProcess]:
    """Start a stand-in server in a process of its own: libpq's calls hold the lock of this one."""
    with StandInProcess(Scenario(server=VERSION)) as standin:
        yield standin


def answer(dsn: str, *commands: str) -> str:
    """Return the answer to the last command in a new connection: its status, or its SQLSTATE and text."""
    connection = PGconn.connect(f"{dsn} replication=database".encode())
    try:
        for command in commands:
            result = connection.exec_(command.encode())
            place = ""
            if result.status == ExecStatus.COPY_BOTH:  # before 11, the stream has begun when options are read
                place = " in the stream"
                connection.put_copy_end()
                while connection.get_copy_data(0)[0] > 0:
                    pass
                result = connection.get_result() or result
            if result.status == ExecStatus.FATAL_ERROR:
                code, text = map(
                    result.error_field, (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
                )
                return f"{(code or b'').decode()} {(text or b'').decode()}{place}"
        return ExecStatus(result.status).name
    finally:
        connection.finish()


@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_the_plugin(server: Server, standin: StandInProcess, options: str) -> None:
    name = f"s{next(NUMBERS)}"  # a slot is dropped some time after its connection has ended
    create = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
    start = f"START_REPLICATION SLOT {name} LOGICAL 0/0{f' ({options})' if options else ''}"
    assert answer(standin.dsn, create, start) == answer(server.dsn, create, start)


@pytest.mark.parametrize("slot", SLOTS)
def test_options_of_a_slot(server: Server, standin: StandInProcess, slot: str) -> None:
    command = f"CREATE_REPLICATION_SLOT s{next(NUMBERS)} TEMPORARY {slot}"
    assert answer(standin.dsn, command) == answer(server.dsn, command)
