"""Types of the keyword arguments of `pgoutput.synth.Scenario`."""

from __future__ import annotations

from typing import Literal, TypedDict

from pgoutput.messages import Streaming


class ScenarioOptions(TypedDict, total=False):
    """Keyword arguments of `pgoutput.synth.Scenario`."""

    server: int
    """Major version of the PostgreSQL server; if it is not given, a random version."""
    proto_version: int
    """Protocol version of the stream; if it is not given, a random released version."""
    streaming: Streaming
    """Whether large transactions are sent while in progress: `off`, `on` or `parallel`."""
    two_phase: bool
    """Whether prepared transactions are sent at PREPARE TRANSACTION."""
    binary: bool
    """Whether values are sent in binary format."""
    messages: bool
    """Whether logical messages (pg_logical_emit_message) are sent."""
    origin: Literal["any", "none"]
    """`any` sends all changes; `none` skips changes replicated from another node."""
    publish_via_partition_root: bool
    """Whether changes of partitions are published as changes of the partitioned table."""
    publish_generated_columns: Literal["none", "stored"]
    """`stored` publishes generated columns of tables without column list."""
    logical_decoding_work_mem: int
    """Memory limit of unsent changes, in bytes; if exceeded, the largest transaction is streamed."""
    seed: int
    """Seed of the scenario's LSNs, xids, OIDs and times."""
