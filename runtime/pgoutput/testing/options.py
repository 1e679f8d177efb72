"""What may be said of a scenario."""

from __future__ import annotations

from typing import Literal, TypedDict

from pgoutput.messages import Streaming


class ScenarioOptions(TypedDict, total=False):
    """The options of a `Scenario`, as it has them."""

    proto_version: int
    streaming: Streaming
    two_phase: bool
    binary: bool
    messages: bool
    origin: Literal["any", "none"]
    publish_via_partition_root: bool
    logical_decoding_work_mem: int
    seed: int
