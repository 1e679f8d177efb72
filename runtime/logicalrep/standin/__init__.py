"""Stand-in server: serve a recorded or generated stream to real replication clients.

A stand-in server speaks PostgreSQL's frontend/backend protocol and streaming replication protocol, keeps
replication slots, and has no tables.

- `StandIn` runs a stand-in server in a thread, for tests. It serves a scenario or a `RecordedSource`.
- `RecordedSource` serves a recording or a capture file.
- `Faults` describes the errors that a stand-in server causes on purpose.
"""

from logicalrep._extras import require

require("standin", "duckdb")

from logicalrep.standin.faults import Faults, parse_faults as parse_faults
from logicalrep.standin.recorded import RecordedSource
from logicalrep.standin.server import StandIn
from logicalrep.standin.source import (
    PluginOptions as PluginOptions,
    Source as Source,
    StreamFactory as StreamFactory,
)

__all__ = [
    "Faults",
    "RecordedSource",
    "StandIn",
]
