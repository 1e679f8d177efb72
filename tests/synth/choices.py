"""Programs at random, and what is asked for when they are streamed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pgoutput.synth import Scenario
from pgoutput.testing.chosen import make
from pgoutput.testing.programs import Program

T = TypeVar("T")

ASKED: Final[tuple[dict[str, Any], ...]] = (
    {"proto_version": 1},
    {"proto_version": 1, "binary": True, "messages": True},
    {"proto_version": 2, "streaming": "on", "messages": True},
    {"proto_version": 2, "streaming": "on", "binary": True},
    {"proto_version": 3, "two_phase": True},
    {"proto_version": 3, "two_phase": True, "streaming": "on", "messages": True},
    {"proto_version": 4, "streaming": "parallel"},
    {"proto_version": 4, "streaming": "parallel", "two_phase": True, "binary": True, "messages": True},
)
"""Options of every version."""


class Random:
    """Choices of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)


def chosen(seed: int, **options: Any) -> tuple[Scenario, Program]:
    """A scenario with a program at random; half of them send each change in a block of its own."""
    given = {"seed": seed, "publish_via_partition_root": seed % 4 > 1} | options
    if seed % 2:
        given |= {"logical_decoding_work_mem": 0}
    scenario = Scenario(**given)
    return scenario, make(Random(seed), scenario)
