"""Hypothesis strategies of scenarios, of their streams, and of streams with a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any, Final, Unpack

from hypothesis import note, strategies as st

from logicalrep import strategies
from logicalrep._roles import classes
from logicalrep.messages import LogicalMessage, Message
from logicalrep.synth import MIN_WORK_MEM, Scenario
from logicalrep.synth.programs import generate_program
from logicalrep.testing.faults import Corruption, Stream, corruptions
from logicalrep.testing.options import ScenarioOptions
from logicalrep.testing.python_source import format_program
from logicalrep.versions import CODECS, LATEST_RELEASED, OPTIONS

_DEPENDENT_OPTIONS: Final[Mapping[str, Sequence[Any]]] = {
    "proto_version": tuple(version for version in CODECS if version <= LATEST_RELEASED),
    "streaming": tuple(OPTIONS["streaming"]),
    "two_phase": (False, True),
    "binary": (False, True),
    "messages": (False, True),
    "origin": tuple(OPTIONS["origin"]),
    "publish_via_partition_root": (False, True),
    "publish_generated_columns": ("none", "stored"),
    "server": (None, 14, 13),
}
"""Values of those options of `Scenario` that only some servers or protocol versions support, by option name.

PostgreSQL 14 is the last server that sends empty transactions, and 13 the last without stream blocks.
"""

_SMALL_WORK_MEM: Final = 300
"""Value of logical_decoding_work_mem, in bytes. Only some random transactions are larger."""

_DATABASE_OPTIONS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "logical_decoding_work_mem": st.sampled_from((MIN_WORK_MEM, 0, _SMALL_WORK_MEM)),
    "seed": st.integers(0, (1 << 16) - 1),
}
"""Hypothesis strategies for the other options of `Scenario`, by option name."""

_MAX_PAYLOADS: Final = 2
_MIN_MESSAGES: Final = 2
"""Minimum number of messages in a stream to which a fault is applied."""


def scenarios(**options: Unpack[ScenarioOptions]) -> st.SearchStrategy[Scenario]:
    """Return a strategy of scenarios with up to three tables and three concurrent transactions.

    Scenarios shrink to few steps and tables, simple types, and protocol version 1 without options. Hypothesis
    prints a failing scenario as Python code.

    Args:
        options: Fixed options of `Scenario`. The other options are random.

    Raises:
        TypeError: `Scenario` has no such option.
        ValueError: No protocol version or server supports this combination of options.
    """
    fixed: dict[str, Any] = dict(options)
    unknown = fixed.keys() - _DEPENDENT_OPTIONS.keys() - _DATABASE_OPTIONS.keys()
    if unknown:
        raise TypeError(f"a Scenario has no option {', '.join(sorted(unknown))}")
    others = {
        name: st.just(fixed[name]) if name in fixed else values for name, values in _DATABASE_OPTIONS.items()
    }
    return _scenarios(st.sampled_from(_valid_options(fixed)), st.fixed_dictionaries(others))


def streams(**options: Unpack[ScenarioOptions]) -> st.SearchStrategy[Stream]:
    """Return a strategy of the streams that a server sends for random scenarios. Some streams are empty.

    Args:
        options: Fixed options of `Scenario`. The other options are random.

    Raises:
        TypeError: `Scenario` has no such option.
        ValueError: No protocol version or server supports this combination of options.
    """
    return scenarios(**options).map(Stream.of)


def broken_streams(**options: Unpack[ScenarioOptions]) -> st.SearchStrategy[Corruption]:
    """Return a strategy of streams of random scenarios, each with one random fault.

    Args:
        options: Fixed options of `Scenario`. The other options are random.

    Raises:
        TypeError: `Scenario` has no such option.
        ValueError: No protocol version or server supports this combination of options.
    """
    valid = streams(**options).filter(lambda stream: len(stream.messages) >= _MIN_MESSAGES)
    return valid.flatmap(corruptions)


class _DrawnRandom(Random):
    """A random number generator that draws from Hypothesis. It shrinks better than `st.randoms`."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, seq: Any) -> Any:
        return self._draw(st.sampled_from(seq))

    def randint(self, a: int, b: int) -> int:
        return self._draw(st.integers(a, b))


@st.composite
def _scenarios(
    draw: st.DrawFn, dependent: st.SearchStrategy[dict[str, Any]], others: st.SearchStrategy[dict[str, Any]]
) -> Scenario:
    options = draw(dependent) | draw(others)
    scenario = Scenario(**options)
    program = generate_program(_DrawnRandom(draw), scenario, draw(_payloads(scenario.options.proto_version)))
    note(format_program(program, options))
    return scenario


@cache
def _payloads(proto_version: int) -> st.SearchStrategy[list[Message]]:
    """Return a strategy of lists of messages that, like logical messages, carry a value and change no row.

    These are the messages with the role `payload` in the spec, except logical messages. The lists are empty
    if the protocol version has no such message.
    """
    made = strategies.VERSIONS[proto_version](False, "off")
    kinds = [kind.__name__ for kind in classes("payload") if kind is not LogicalMessage]
    drawn = [made[name] for name in kinds if name in made]
    return st.lists(st.one_of(drawn), max_size=_MAX_PAYLOADS) if drawn else st.just([])


def _valid_options(fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the valid combinations of `_DEPENDENT_OPTIONS` that have the values `fixed`, simplest first.

    Raises:
        ValueError: No protocol version or server supports this combination of options.
    """
    valid: list[dict[str, Any]] = []
    errors: list[ValueError] = []
    names = tuple(_DEPENDENT_OPTIONS)[::-1]  # proto_version last: `product` varies it fastest
    for values in product(*((fixed[name],) if name in fixed else _DEPENDENT_OPTIONS[name] for name in names)):
        options = dict(zip(names, values, strict=True))
        try:
            Scenario(**options)
            valid.append(options)
        except ValueError as error:
            errors.append(error)
    if not valid:
        raise errors[0]
    return valid
