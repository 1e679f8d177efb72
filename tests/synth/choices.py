"""Programs at random, and what is asked for when they are streamed."""

from __future__ import annotations

from typing import Any, Final

from pgoutput.synth import Scenario
from pgoutput.synth.scenario import WORK_MEM
from pgoutput.testing.programs import Program
from pgoutput.testing.random_programs import generate_program
from tests.synth.compare import RandomChoices

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


def chosen(seed: int, **options: Any) -> tuple[Scenario, Program]:
    """A scenario with a program at random: all is streamed, or only what is large, or very large."""
    work_mem = (WORK_MEM, 0, 300)[seed % 3]
    given: dict[str, Any] = {
        "seed": seed,
        "publish_via_partition_root": seed % 2 > 0,
        "logical_decoding_work_mem": work_mem,
    }
    scenario = Scenario(**given, **options)
    return scenario, generate_program(RandomChoices(str(seed)), scenario)
