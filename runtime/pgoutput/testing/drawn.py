"""Hypothesis strategies of whole scenarios, of their streams, and of such with a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeVar, Unpack

import msgspec
from hypothesis import note
from hypothesis import strategies as st

from pgoutput.synth import MIN_WORK_MEM, Scenario, StreamOptions
from pgoutput.testing.chosen import make
from pgoutput.testing.faults import Corruption, Stream, corruptions
from pgoutput.testing.options import ScenarioOptions
from pgoutput.testing.written import as_python
from pgoutput.versions import CODECS, OPTIONS

T = TypeVar("T")

_ASKED: Final[Mapping[str, Sequence[Any]]] = {
    "proto_version": tuple(CODECS),
    "streaming": tuple(OPTIONS["streaming"]),
    "two_phase": (False, True),
    "binary": (False, True),
    "messages": (False, True),
    "origin": tuple(OPTIONS["origin"]),
}
"""What clients ask for."""

_LITTLE: Final = 300
"""Bytes that some transactions fit into, and others do not."""

_MADE: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "publish_via_partition_root": st.booleans(),
    "logical_decoding_work_mem": st.sampled_from((MIN_WORK_MEM, 0, _LITTLE)),
    "seed": st.integers(0, (1 << 16) - 1),
}
"""How servers are set up."""

_SHORTEST: Final = 2
"""Messages of a stream that is corrupted."""


def scenarios(**options: Unpack[ScenarioOptions]) -> st.SearchStrategy[Scenario]:
    """A strategy of scenarios: up to three tables of many shapes, up to three transactions at a time.

    They shrink to few steps and tables, plain types, and protocol version 1 without options. The one with
    which a test fails in the end is shown as Python.

    Args:
        options: Those of `Scenario` that are not to be drawn.

    Raises:
        TypeError: There is no such option.
        ValueError: No protocol version has these options together.
    """
    given: dict[str, Any] = dict(options)
    unknown = given.keys() - _ASKED.keys() - _MADE.keys()
    if unknown:
        raise TypeError(f"a scenario has no option {', '.join(sorted(unknown))}")
    made = {name: st.just(given[name]) if name in given else made for name, made in _MADE.items()}
    return _scenarios(st.sampled_from(_legal(given)), st.fixed_dictionaries(made))


def streams(**options: Unpack[ScenarioOptions]) -> st.SearchStrategy[Stream]:
    """A strategy of streams that a server would send: those of `scenarios`. Some are empty.

    Raises:
        TypeError: As `scenarios`.
        ValueError: As `scenarios`.
    """
    return scenarios(**options).map(Stream.of)


def broken_streams(**options: Unpack[ScenarioOptions]) -> st.SearchStrategy[Corruption]:
    """A strategy of such streams with one fault: any of their `corruptions`.

    Raises:
        TypeError: As `scenarios`.
        ValueError: As `scenarios`.
    """
    legal = streams(**options).filter(lambda stream: len(stream.messages) >= _SHORTEST)
    return legal.flatmap(corruptions)


class _Drawn:
    """Choices that Hypothesis makes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        return self._draw(st.sampled_from(options))

    def integer(self, least: int, most: int) -> int:
        """A number; both bounds are included."""
        return self._draw(st.integers(least, most))


@st.composite
def _scenarios(
    draw: st.DrawFn, asked: st.SearchStrategy[StreamOptions], made: st.SearchStrategy[dict[str, Any]]
) -> Scenario:
    given = msgspec.structs.asdict(draw(asked)) | draw(made)
    scenario = Scenario(**given)
    program = make(_Drawn(draw), scenario)
    note(as_python(program, given))
    return scenario


def _legal(given: Mapping[str, Any]) -> list[StreamOptions]:
    """What clients may ask for that has these options; the simplest first."""
    legal: list[StreamOptions] = []
    refused: list[ValueError] = []
    names = tuple(_ASKED)[::-1]  # what stands last in a product changes first: the version
    for values in product(*((given[name],) if name in given else _ASKED[name] for name in names)):
        asked = dict(zip(names, values, strict=True))
        try:
            legal.append(StreamOptions(**asked))
        except ValueError as error:
            refused.append(error)
    if not legal:
        raise refused[0]
    return legal
