"""Types of the keyword arguments of `logicalrep.synth.Scenario`."""

from __future__ import annotations

from typing import Literal, TypedDict

from logicalrep.messages import Streaming


class ScenarioOptions(TypedDict, total=False):
    """Keyword arguments of `logicalrep.synth.Scenario`, which documents them."""

    server: int
    """Major version of the server. Strategies draw a random version by default."""
    proto_version: int
    """Protocol version. Strategies draw a random released version by default."""
    streaming: Streaming
    two_phase: bool
    binary: bool
    messages: bool
    origin: Literal["any", "none"]
    publish_via_partition_root: bool
    publish_generated_columns: Literal["none", "stored"]
    logical_decoding_work_mem: int
    seed: int
