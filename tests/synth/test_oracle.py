"""What scenarios send is what PostgreSQL 18 sends when the same is done there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgoutput import messages
from pgoutput.messages import XLogData
from pgoutput.synth import Scenario
from pgoutput.testing import programs
from pgoutput.testing.programs import Program, TableDefinition, run_program
from tests.synth.compare import MODES, compare, running_oracle
from tests.synth.normal import normal
from tests.synth.oracle import FLUSH, Oracle

PROGRAMS = 50
"""In each mode; `make oracle` plays 1,000."""


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with running_oracle() as running:
        yield running


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_give_the_stream_of_a_server(oracle: Oracle, mode: str) -> None:
    received = 0
    for number in range(PROGRAMS):
        count, difference = compare(oracle, mode, number)
        assert difference is None, f"program {number}: {difference}"
        received += count
    assert received > 5 * PROGRAMS


def test_a_comparison_sees_what_differs(oracle: Oracle) -> None:
    insert = programs.Insert(0, "s.t", {"id": "1"})
    table = TableDefinition(name="s.t", columns={"id": "int4 key"})
    program = Program((), {}, (table,), (programs.Begin(0), insert, programs.End(0, True)))
    other = Scenario(proto_version=1)
    run_program(other, Program((), {}, (table,), (programs.Begin(0), programs.End(0, True))))
    sent = normal(
        oracle.play(program, other.options, False), other.options, namespace=oracle.schema, ignored=FLUSH
    )
    assert [name for name, *_ in sent] == ["Begin", "Relation", "Insert", "Commit"]
    assert (
        normal((m for m in other.stream() if isinstance(m, XLogData)), other.options, namespace="s") != sent
    )


def test_what_is_large_is_streamed_and_what_is_small_is_not(oracle: Oracle) -> None:
    """With logical_decoding_work_mem = 64 kB, which the oracle's server has."""
    large = "x" * 100_000
    steps = [
        *(programs.Begin(0), programs.Insert(0, "s.t", {"id": "1", "v": "small"}), programs.End(0, True)),
        *(programs.Begin(0), programs.Insert(0, "s.t", {"id": "2", "v": large})),
        *(programs.Update(0, "s.t", {"id": "1"}, {"v": "still small"}), programs.End(0, True)),
        *(
            programs.Begin(0),
            programs.Insert(0, "s.t", {"id": "3", "v": "small again"}),
            programs.End(0, True),
        ),
    ]
    table = TableDefinition(name="s.t", columns={"id": "int4 key", "v": "text"})
    program = Program((), {}, (table,), tuple(steps))
    scenario = Scenario(streaming="parallel")
    run_program(scenario, program)
    real = oracle.play(program, scenario.options, False, immediate=False)
    sent = [one for one in scenario.stream() if isinstance(one, XLogData)]
    assert [type(message).__name__ for message in scenario.messages()] == [
        *("Begin", "Relation", "Insert", "Commit"),
        *("StreamStart", "Relation", "Insert", "StreamStop"),
        *("StreamStart", "Update", "StreamStop", "StreamCommit"),
        *("Begin", "Insert", "Commit"),
    ]
    assert normal(sent, scenario.options, namespace="s") == normal(
        real, scenario.options, namespace=oracle.schema, ignored=FLUSH
    )
    assert sum(isinstance(m, messages.StreamStart) for m in scenario.messages()) == 2
