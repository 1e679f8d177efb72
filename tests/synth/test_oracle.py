"""Scenarios send what PostgreSQL 18 sends for the same operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logicalrep import messages
from logicalrep.messages import XLogData
from logicalrep.synth import Scenario
from logicalrep.synth.programs import Program, Step, TableDefinition
from logicalrep.synth.programs.definition import run_program
from logicalrep.versions import SERVERS
from tests.server import WHEEL_VERSION
from tests.synth.compare import MODES, compare, running_oracle
from tests.synth.normalize import normalize
from tests.synth.oracle import FLUSH, Oracle
from tests.versions import OLDEST

PROGRAMS = 50
"""Number of random sequences of operations that are compared in each mode; `make oracle` runs 1,000."""
SPOKEN = max(version for version, server in SERVERS.items() if server <= WHEEL_VERSION)
"""The newest protocol version that the server speaks."""
BEGIN, COMMIT = Step(0, "db.transaction"), Step(0, "commit")


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with running_oracle() as running:
        yield running


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_give_the_same_stream_as_a_server(oracle: Oracle, mode: str) -> None:
    received = 0
    for number in range(PROGRAMS):
        count, difference = compare(oracle, mode, number)
        assert difference is None, f"program {number}: {difference}"
        received += count
    assert received > 5 * PROGRAMS


def test_the_comparison_detects_a_difference(oracle: Oracle) -> None:
    insert = Step(0, "insert", ("s.t",), ({"id": "1"},))
    table = TableDefinition(name="s.t", columns={"id": "int4 key"})
    program = Program((), {}, (table,), (BEGIN, insert, COMMIT))
    other = Scenario(proto_version=OLDEST)
    run_program(other, Program((), {}, (table,), (BEGIN, COMMIT)))
    sent = normalize(
        oracle.play(program, other.options, False), other.options, namespace=oracle.schema, ignored=FLUSH
    )
    assert [name for name, *_ in sent] == ["Begin", "Relation", "Insert", "Commit"]
    assert (
        normalize((m for m in other.stream() if isinstance(m, XLogData)), other.options, namespace="s")
        != sent
    )


def test_only_large_transactions_are_streamed(oracle: Oracle) -> None:
    """The scenario and the server stream transactions larger than logical_decoding_work_mem = 64 kB."""
    large = "x" * 100_000
    steps = [
        *(BEGIN, Step(0, "insert", ("s.t",), ({"id": "1", "v": "small"},)), COMMIT),
        *(BEGIN, Step(0, "insert", ("s.t",), ({"id": "2", "v": large},))),
        *(Step(0, "update", ("s.t",), ({"id": "1"},), {"v": "still small"}), COMMIT),
        *(
            BEGIN,
            Step(0, "insert", ("s.t",), ({"id": "3", "v": "small again"},)),
            COMMIT,
        ),
    ]
    table = TableDefinition(name="s.t", columns={"id": "int4 key", "v": "text"})
    program = Program((), {}, (table,), tuple(steps))
    scenario = Scenario(proto_version=SPOKEN, streaming="parallel")
    run_program(scenario, program)
    real = oracle.play(program, scenario.options, False, immediate=False)
    sent = [one for one in scenario.stream() if isinstance(one, XLogData)]
    assert [type(message).__name__ for message in scenario.messages()] == [
        *("Begin", "Relation", "Insert", "Commit"),
        *("StreamStart", "Relation", "Insert", "StreamStop"),
        *("StreamStart", "Update", "StreamStop", "StreamCommit"),
        *("Begin", "Insert", "Commit"),
    ]
    assert normalize(sent, scenario.options, namespace="s") == normalize(
        real, scenario.options, namespace=oracle.schema, ignored=FLUSH
    )
    assert sum(isinstance(m, messages.StreamStart) for m in scenario.messages()) == 2
