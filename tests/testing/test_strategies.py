"""Strategies of scenarios, of their streams, and of such with a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from pgoutput import messages as m
from pgoutput.stream.check import CheckOptions, check
from pgoutput.synth import Scenario
from pgoutput.synth.scenario import WORK_MEM
from pgoutput.testing import Corruption, Stream, broken_streams, corruptions, scenarios, shop, streams
from pgoutput.testing.chosen import make
from pgoutput.testing.programs import Program, play
from pgoutput.testing.written import as_python
from tests.effort import examples
from tests.synth.choices import ASKED
from tests.synth.compare import RandomChoices

SEARCH = settings(
    max_examples=2_000,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@given(scenarios(streaming="parallel", messages=True, seed=7))
def test_what_is_fixed_is_not_drawn(db: Scenario) -> None:
    assert (db.options.proto_version, db.options.streaming, db.options.messages) == (4, "parallel", True)
    assert db.log.records == [] or db.log.records[0].lsn == Scenario(seed=7).end_lsn


@pytest.mark.parametrize("option", ["two_phase", "binary", "messages", "publish_via_partition_root"])
def test_what_is_not_fixed_is_drawn(option: str) -> None:
    def said(db: Scenario) -> Any:
        return getattr(db.options if hasattr(db.options, option) else db, option)

    find(scenarios(), said, settings=SEARCH)
    find(scenarios(), lambda db: not said(db), settings=SEARCH)


def test_what_no_version_has_is_refused() -> None:
    with pytest.raises(ValueError, match="two_phase = on needs protocol version 3, not 1"):
        scenarios(proto_version=1, two_phase=True)
    with pytest.raises(TypeError, match="a scenario has no option speed"):
        scenarios(speed=1)  # type: ignore[call-arg]


@settings(max_examples=examples(50))
@given(streams())
def test_streams_are_legal(stream: Stream) -> None:
    assert list(check(stream.messages, stream.options)) == []


@settings(
    max_examples=examples(50), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(broken_streams())
def test_broken_streams_are_not_where_that_is_certain(broken: Corruption) -> None:
    if broken.certain:
        assert list(check(broken.stream.messages, broken.stream.options))


# What they shrink to


def has(*kinds: type[m.Message]) -> Callable[[Scenario], bool]:
    return lambda db: all(any(isinstance(one, kind) for one in db.messages()) for kind in kinds)


@pytest.mark.parametrize(
    ("wanted", "records"),
    [
        (has(m.Insert), 2),
        (has(m.Update), 3),
        (has(m.Truncate), 3),
        (has(m.StreamCommit, m.Insert), 2),
    ],
)
def test_they_shrink_to_little(wanted: Callable[[Scenario], bool], records: int) -> None:
    db = find(scenarios(), wanted, settings=SEARCH)
    assert len(db.log.records) <= records + 1
    assert len(db.tables) <= 3
    assert db.end_lsn - db.log.records[0].lsn < 1_000
    assert db.log.records[0].lsn == Scenario(seed=0).end_lsn


def test_the_least_asks_for_nothing() -> None:
    db = find(scenarios(), has(m.Insert), settings=SEARCH)
    assert (db.options, db.logical_decoding_work_mem) == (Scenario(proto_version=1).options, WORK_MEM)


# What is shown of them


@pytest.mark.parametrize("seed", range(60))
def test_a_program_as_python_makes_the_same_bytes(seed: int) -> None:
    options = ASKED[seed % len(ASKED)] | {"seed": seed, "logical_decoding_work_mem": 0}
    made = Scenario(**options)
    program = make(RandomChoices(str(seed)), made)
    namespace: dict[str, Any] = {}
    exec(as_python(program, options), namespace)
    assert list(namespace["db"].stream()) == list(made.stream())
    played = Scenario(**options)
    play(played, program)
    assert list(played.stream()) == list(made.stream())


def test_only_what_is_said_is_in_it() -> None:
    assert as_python(Program((), {}, (), ()), {"seed": 0, "binary": True}).splitlines() == [
        "from pgoutput.synth import Scenario",
        "",
        "db = Scenario(binary=True)",
    ]


# The example


@pytest.mark.parametrize("options", ASKED)
def test_the_shop_has_what_readers_must_take(options: dict[str, Any]) -> None:
    db = shop(**options)
    stream = Stream.of(db)
    assert list(check(stream.messages, stream.options)) == []
    assert stream.options == CheckOptions(**{"binary": False, "messages": False} | options)
    there = {type(place.message).__name__ for place in stream.places}
    wanted = {"Begin", "Commit", "Relation", "Type", "Insert", "Update", "Delete", "Truncate"}
    if options.get("streaming", "off") != "off":
        wanted |= {"StreamStart", "StreamStop", "StreamCommit", "StreamAbort"}
    if options.get("two_phase"):
        wanted |= {"BeginPrepare", "Prepare", "CommitPrepared", "RollbackPrepared"}
    if options.get("messages"):
        wanted |= {"LogicalMessage"}
    assert there == wanted
    updates = [place.message for place in stream.places if isinstance(place.message, m.Update)]
    assert any(m.UNCHANGED in one.new for one in updates)
    assert any(one.key for one in updates)
    assert any(one.old for one in updates)
    corruptions(stream)
