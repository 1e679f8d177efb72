"""Hypothesis strategies for scenarios, for their streams, and for streams with a fault."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from logicalrep import messages as m
from logicalrep.stream.check import CheckOptions, check
from logicalrep.synth import MIN_WORK_MEM, Scenario
from logicalrep.synth.programs import Program, generate_program
from logicalrep.synth.programs.definition import run_program
from logicalrep.testing import Corruption, Stream, broken_streams, corruptions, scenarios, shop, streams
from logicalrep.testing.python_source import format_program
from tests.effort import examples, mostly_nightly
from tests.synth.random_scenarios import OPTION_SETS
from tests.versions import OLDEST, RELEASED

SEARCH = settings(
    max_examples=2_000,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@settings(max_examples=examples(30))
@given(scenarios(streaming="parallel", messages=True, seed=7))
def test_fixed_options_are_kept(db: Scenario) -> None:
    assert db.options.proto_version in RELEASED
    assert (db.options.streaming, db.options.messages) == ("parallel", True)
    assert db.wal.records == [] or db.wal.records[0].lsn == Scenario(seed=7).end_lsn


@pytest.mark.parametrize("option", ["two_phase", "binary", "messages", "publish_via_partition_root"])
def test_other_options_are_random(option: str) -> None:
    def value(db: Scenario) -> Any:
        return getattr(db.options if hasattr(db.options, option) else db, option)

    find(scenarios(), value, settings=SEARCH)
    find(scenarios(), lambda db: not value(db), settings=SEARCH)


def test_unsupported_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="streaming = parallel needs protocol version 4, not 3"):
        scenarios(proto_version=3, streaming="parallel")
    with pytest.raises(ValueError, match="PostgreSQL 15 has no streaming = parallel"):
        scenarios(server=15, streaming="parallel")
    with pytest.raises(TypeError, match="a Scenario has no option speed"):
        scenarios(speed=1)  # type: ignore[call-arg]


@settings(max_examples=examples(50))
@given(streams())
def test_streams_are_valid(stream: Stream) -> None:
    assert list(check(stream.messages, stream.options)) == []


@settings(
    max_examples=examples(50), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(broken_streams())
def test_broken_streams_with_a_certain_fault_are_invalid(broken: Corruption) -> None:
    if broken.certain:
        assert list(check(broken.stream.messages, broken.stream.options))


# Shrinking


def has(*kinds: type[m.Message]) -> Callable[[Scenario], bool]:
    return lambda db: all(any(isinstance(one, kind) for one in db.messages()) for kind in kinds)


@pytest.mark.parametrize(
    ("condition", "records"),
    [
        (has(m.Insert), 2),
        pytest.param(has(m.Update), 3, marks=pytest.mark.nightly),
        pytest.param(has(m.Truncate), 3, marks=pytest.mark.nightly),
        (has(m.StreamCommit, m.Insert), 2),
    ],
)
def test_scenarios_shrink_to_few_steps(condition: Callable[[Scenario], bool], records: int) -> None:
    db = find(scenarios(), condition, settings=SEARCH)
    assert len(db.wal.records) <= records + 1
    assert len(db.tables) <= 3
    assert db.end_lsn - db.wal.records[0].lsn < 1_000
    assert db.wal.records[0].lsn == Scenario(seed=0).end_lsn


def test_scenarios_shrink_to_default_options() -> None:
    db = find(scenarios(), has(m.Insert), settings=SEARCH)
    assert db.options == Scenario(proto_version=OLDEST).options
    assert db.logical_decoding_work_mem == MIN_WORK_MEM


# Programs as Python code


@pytest.mark.parametrize("seed", mostly_nightly(range(60), range(2 * len(OPTION_SETS))))
def test_a_program_as_python_code_gives_the_same_stream(seed: int) -> None:
    options = OPTION_SETS[seed % len(OPTION_SETS)] | {"seed": seed, "logical_decoding_work_mem": 0}
    generated = Scenario(**options)
    program = generate_program(Random(str(seed)), generated)
    namespace: dict[str, Any] = {}
    exec(format_program(program, options), namespace)
    assert list(namespace["db"].stream()) == list(generated.stream())
    repeated = Scenario(**options)
    run_program(repeated, program)
    assert list(repeated.stream()) == list(generated.stream())


def test_default_options_are_left_out_of_python_code() -> None:
    assert format_program(Program((), {}, (), ()), {"seed": 0, "binary": True}).splitlines() == [
        "from logicalrep.synth import Scenario",
        "",
        "db = Scenario(binary=True)",
    ]


# The example


@pytest.mark.parametrize("options", OPTION_SETS)
def test_the_shop_contains_all_messages_of_its_options(options: dict[str, Any]) -> None:
    db = shop(**options)
    stream = Stream.of(db)
    assert list(check(stream.messages, stream.options)) == []
    assert stream.options == CheckOptions(**{"binary": False, "messages": False} | options)
    types = {type(place.message).__name__ for place in stream.places}
    expected = {"Begin", "Commit", "Relation", "Type", "Insert", "Update", "Delete", "Truncate"}
    if options.get("streaming", "off") != "off":
        expected |= {"StreamStart", "StreamStop", "StreamCommit", "StreamAbort"}
    if options.get("two_phase"):
        expected |= {"BeginPrepare", "Prepare", "CommitPrepared", "RollbackPrepared"}
    if options.get("messages"):
        expected |= {"LogicalMessage"}
    assert types == expected
    updates = [place.message for place in stream.places if isinstance(place.message, m.Update)]
    assert any(m.UNCHANGED in one.new for one in updates)
    assert any(one.key for one in updates)
    assert any(one.old for one in updates)
    corruptions(stream)
