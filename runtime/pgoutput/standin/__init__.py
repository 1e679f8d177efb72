"""A server that is none: it serves a recorded or made stream to real replication clients.

`StandIn` runs it in a thread, for tests; `serve` until it is cancelled. What it serves is a `Source`: a
`RecordedSource` for recordings, a `StreamsSource` for what makes streams. `Faults` says what goes wrong.
"""

from pgoutput.standin.faults import Faults, parse_faults
from pgoutput.standin.recorded.source import RecordedSource
from pgoutput.standin.server import StandIn, serve
from pgoutput.standin.source import Source, Streams, StreamsSource, Wanted

__all__ = [
    "Faults",
    "RecordedSource",
    "Source",
    "StandIn",
    "Streams",
    "StreamsSource",
    "Wanted",
    "parse_faults",
    "serve",
]
