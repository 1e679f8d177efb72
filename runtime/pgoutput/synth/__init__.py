"""Streams that no server sent: databases made up for tests, and what a server would send of them."""

from pgoutput.synth.options import Options
from pgoutput.synth.recorded import write_capture, write_segments
from pgoutput.synth.scenario import Scenario
from pgoutput.synth.tables import Table
from pgoutput.synth.transaction import Savepoint, Transaction
from pgoutput.synth.truth import Committed

__all__ = [
    "Committed",
    "Options",
    "Savepoint",
    "Scenario",
    "Table",
    "Transaction",
    "write_capture",
    "write_segments",
]
