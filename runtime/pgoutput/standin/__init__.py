"""Stand-in server: serve a recorded or generated stream to real replication clients.

A stand-in server speaks PostgreSQL's frontend/backend protocol and streaming replication protocol, keeps
replication slots, and has no tables.

- `StandIn` runs a stand-in server in a thread, for tests. `serve` runs one in the calling asyncio
  task until that task is cancelled.
- `RecordedSource` serves a recording or a capture file. `GeneratedSource` serves a `StreamFactory`, such as
  `pgoutput.synth.Scenario`; `serve` and `StandIn` also take the factory itself. Implement `Source` to serve
  anything else.
- `PluginOptions` are the options that a client passes in START_REPLICATION.
- `Faults` are the errors that the server injects; `parse_faults` reads them from command line arguments.
"""

from pgoutput._extras import require

require("standin", "duckdb")

from pgoutput.standin.faults import Faults, parse_faults
from pgoutput.standin.recorded import RecordedSource
from pgoutput.standin.server import StandIn, serve
from pgoutput.standin.source import GeneratedSource, PluginOptions, Source, StreamFactory

__all__ = [
    "Faults",
    "GeneratedSource",
    "PluginOptions",
    "RecordedSource",
    "Source",
    "StandIn",
    "StreamFactory",
    "parse_faults",
    "serve",
]
