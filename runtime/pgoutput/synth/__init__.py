"""Streams that no server sent: databases made up for tests, and what a server would send of them."""

from pgoutput._extras import require

require("synth", "numpy", "pyarrow")

from pgoutput.synth.options import StreamOptions
from pgoutput.synth.recorded import write_capture_file, write_recording
from pgoutput.synth.scenario import Scenario
from pgoutput.synth.tables import ScenarioTable
from pgoutput.synth.transaction import Savepoint, Transaction
from pgoutput.synth.truth import Committed

__all__ = [
    "Committed",
    "Savepoint",
    "Scenario",
    "ScenarioTable",
    "StreamOptions",
    "Transaction",
    "write_capture_file",
    "write_recording",
]
