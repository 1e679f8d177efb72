"""Keyword arguments for the options of a scenario."""

from __future__ import annotations

from typing import Literal, TypedDict

from pgoutput.messages import Streaming


class ScenarioOptions(TypedDict, total=False):
    """Keyword arguments of `pgoutput.synth.Scenario`."""

    proto_version: int
    """Protocol version of pgoutput."""
    streaming: Streaming
    """Whether transactions in progress are streamed: off, on or parallel."""
    two_phase: bool
    """Whether transactions are sent when they are prepared."""
    binary: bool
    """Whether values are sent in binary format."""
    messages: bool
    """Whether logical decoding messages are sent."""
    origin: Literal["any", "none"]
    """Origin of the changes to send: any, or none for changes without a replication origin."""
    publish_via_partition_root: bool
    """Whether changes of partitions are published as changes of the partitioned table."""
    logical_decoding_work_mem: int
    """Size of a transaction from which it is streamed, in bytes."""
    seed: int
    """Seed of LSNs, xids, OIDs and times."""
