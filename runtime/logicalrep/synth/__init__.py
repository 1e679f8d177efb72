"""Synthetic databases, and the messages that PostgreSQL would send for their transactions.

A `Scenario` is a synthetic database that a test changes step by step. The scenario yields the stream of the
database's transactions, and the rows of all tables after each commit. `logicalrep.synth.workload` generates
large streams for load tests.
"""

from logicalrep._extras import require

require("synth", "numpy", "pyarrow")

from logicalrep.synth.export import write_capture_file, write_recording
from logicalrep.synth.options import StreamOptions as StreamOptions
from logicalrep.synth.scenario import MIN_WORK_MEM as MIN_WORK_MEM, Scenario
from logicalrep.synth.tables import ScenarioTable
from logicalrep.synth.transaction import ScenarioTransaction, TransactionScope as TransactionScope

__all__ = [
    "Scenario",
    "ScenarioTable",
    "ScenarioTransaction",
    "write_capture_file",
    "write_recording",
]
