"""Read, write, record and replicate PostgreSQL's logical replication stream (the output plugin `pgoutput`).

================================================  ============================================================
modules                                           contents
================================================  ============================================================
`logicalrep.messages`                             a class for each message
`logicalrep.vN`, `logicalrep.envelope`            `decode` and `encode` of protocol version N, and of the
                                                  streaming replication protocol (XLogData, …)
`logicalrep.stream`                               `StreamDecoder`, `Transactions`, `Tables`: a stream's state
`logicalrep.stream.check`                         rules that every server's stream obeys
`logicalrep.values`                               values as Python objects, Arrow arrays and PostgreSQL's text
`logicalrep.columns`                              batches of messages as Arrow columns, and back
`logicalrep.capturefile`, `logicalrep.jsonlines`  messages as JSON lines in files, and as JSON objects
`logicalrep.recorder`                             `Recorder`: records a replication slot
`logicalrep.recording`                            recordings: folders of Parquet segments
`logicalrep.replica`                              Delta tables that follow a recording
`logicalrep.verification`                         proves that Delta tables equal the source
`logicalrep.spark`                                a data source, column functions, and `replicate`
`logicalrep.synth`, `logicalrep.synth.workload`   `Scenario`: synthetic streams with the expected rows of
                                                  their tables; large streams for load tests
`logicalrep.standin`                              a stand-in server for real replication clients
`logicalrep.vectors`                              test vectors for decoders in any language
`logicalrep.testing`, `logicalrep.strategies`     pytest fixtures, and Hypothesis strategies of streams and of
                                                  single messages of each protocol version
`logicalrep.schemas`                              Spark and Arrow schemas of the messages
`logicalrep.errors`, `logicalrep.wire`            all errors, also exported here; LSNs and timestamps
`logicalrep.versions`, `logicalrep.catalog`,      protocol versions and the servers that know them; built-in
`logicalrep.compiled`                             types; whether the compiled kernel is in use, and why not
================================================  ============================================================

A module or package is public if it is in this table. In a package, only the names in its `__all__` are
public. Everything else may change in any release.

The names that most programs begin with can also be imported from here, such as `logicalrep.decode`. Their
modules, and the packages that these need, are imported at the first access.
"""

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any, Final

from logicalrep.errors import (
    ChangesLost,
    ConnectionLost,
    DecodeError,
    EncodeError,
    LogicalrepError,
    MissingExtraError,
    RecordingError,
    RecordingInUse,
    ReplicaError,
    ReplicationError,
    ScenarioError,
    StreamError,
)

if TYPE_CHECKING:
    from logicalrep.capturefile import CaptureFile
    from logicalrep.columns import ColumnDecoder
    from logicalrep.recorder import Recorder
    from logicalrep.recording import Recording, RecordingReader
    from logicalrep.replica import replica_tables, replicate
    from logicalrep.standin import StandIn
    from logicalrep.stream import StreamDecoder, Tables, Transactions
    from logicalrep.synth import Scenario
    from logicalrep.synth.workload import Workload
    from logicalrep.verification import verify_tables
    from logicalrep.versions import decode, encode

# An editable install has the generated modules in a source root of their own.
__path__ = extend_path(__path__, __name__)

__version__ = "0.1.0"

__all__ = [
    "CaptureFile",
    "ChangesLost",
    "ColumnDecoder",
    "ConnectionLost",
    "DecodeError",
    "EncodeError",
    "LogicalrepError",
    "MissingExtraError",
    "Recorder",
    "Recording",
    "RecordingError",
    "RecordingInUse",
    "RecordingReader",
    "ReplicaError",
    "ReplicationError",
    "Scenario",
    "ScenarioError",
    "StandIn",
    "StreamDecoder",
    "StreamError",
    "Tables",
    "Transactions",
    "Workload",
    "__version__",
    "decode",
    "encode",
    "replica_tables",
    "replicate",
    "verify_tables",
]

_MODULES: Final = {
    "CaptureFile": "capturefile",
    "ColumnDecoder": "columns",
    "Recorder": "recorder",
    "Recording": "recording",
    "RecordingReader": "recording",
    "Scenario": "synth",
    "StandIn": "standin",
    "StreamDecoder": "stream",
    "Tables": "stream",
    "Transactions": "stream",
    "Workload": "synth.workload",
    "decode": "versions",
    "encode": "versions",
    "replica_tables": "replica",
    "replicate": "replica",
    "verify_tables": "verification",
}
"""Maps each name to the module that is imported at the first access to the name."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _MODULES.keys())
