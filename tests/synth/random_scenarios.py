"""Random scenarios and the stream options to test them with."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from logicalrep.synth import MIN_WORK_MEM, Scenario
from logicalrep.synth.programs import Program, generate_program
from tests.versions import OLDEST

OPTION_SETS: Final[tuple[dict[str, Any], ...]] = (
    {"proto_version": OLDEST},
    {"proto_version": OLDEST, "two_phase": True, "binary": True, "messages": True},
    {"proto_version": 2, "streaming": "on", "messages": True},
    {"proto_version": 2, "streaming": "on", "binary": True},
    {"proto_version": 3, "two_phase": True},
    {"proto_version": 3, "two_phase": True, "streaming": "on", "messages": True},
    {"proto_version": 4, "streaming": "parallel"},
    {"proto_version": 4, "streaming": "parallel", "two_phase": True, "binary": True, "messages": True},
)
"""Sets of stream options, at least one set for each protocol version."""


def random_scenario(seed: int, **options: Any) -> tuple[Scenario, Program]:
    """Return a random scenario and the program (sequence of database operations) that it has run.

    The seed also decides which transactions are streamed, if streaming is on: all, large or very large ones.
    """
    work_mem = (MIN_WORK_MEM, 0, 300)[seed % 3]
    given: dict[str, Any] = {
        "seed": seed,
        "publish_via_partition_root": seed % 2 > 0 and options.get("server") not in (10, 11, 12),
        "logical_decoding_work_mem": work_mem,
    }
    scenario = Scenario(**given, **options)
    return scenario, generate_program(Random(str(seed)), scenario)
