"""Read, write, record and replicate PostgreSQL's logical replication stream (the output plugin `pgoutput`).

============================================  ============================================================
modules                                       contents
============================================  ============================================================
`pgoutput.messages`                           a class for each message
`pgoutput.vN`, `pgoutput.envelope`            `decode` and `encode` of protocol version N, and of the
                                              streaming replication protocol (XLogData, …)
`pgoutput.stream`                             `StreamDecoder`, `Transactions`, `Tables`: a stream's state
`pgoutput.stream.check`                       rules that every server's stream obeys
`pgoutput.values`                             values as Python objects, Arrow arrays and PostgreSQL's text
`pgoutput.columns`                            batches of messages as Arrow columns, and back
`pgoutput.capturefile`, `pgoutput.jsonlines`  messages as JSON lines in files, and as JSON objects
`pgoutput.recorder`                           `Recorder`: records a replication slot
`pgoutput.recording`                          recordings: folders of Parquet segments
`pgoutput.replica`                            Delta tables that follow a recording
`pgoutput.verification`                       proves that Delta tables equal the source
`pgoutput.spark`                              the data source `pgoutput`, column functions, and `replicate`
`pgoutput.synth`, `pgoutput.synth.workload`   `Scenario`: synthetic streams with the expected rows of their
                                              tables; large streams for load tests
`pgoutput.standin`                            a stand-in server for real replication clients
`pgoutput.vectors`                            test vectors for decoders in any language
`pgoutput.testing`, `pgoutput.strategies`     pytest fixtures, and Hypothesis strategies of streams and of
                                              single messages of each protocol version
`pgoutput.schemas`                            Spark and Arrow schemas of the messages
`pgoutput.errors`, `pgoutput.wire`            all errors, also exported here; LSNs and timestamps
`pgoutput.versions`, `pgoutput.catalog`,      protocol versions and the servers that know them; built-in
`pgoutput.compiled`                           types; whether the compiled kernel is in use, and why not
============================================  ============================================================

A module or package is public if it is in this table. In a package, only the names in its `__all__` are
public. Everything else may change in any release.

The names that most programs begin with can also be imported from here, such as `pgoutput.decode`. Their
modules, and the packages that these need, are imported at the first access.
"""

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any, Final

from pgoutput.errors import (
    ChangesLost,
    ConnectionLost,
    DecodeError,
    EncodeError,
    MissingExtraError,
    PgoutputError,
    RecordingError,
    RecordingInUse,
    ReplicaError,
    ReplicationError,
    ScenarioError,
    StreamError,
)

if TYPE_CHECKING:
    from pgoutput.capturefile import CaptureFile
    from pgoutput.columns import ColumnDecoder
    from pgoutput.recorder import Recorder
    from pgoutput.recording import Recording, RecordingReader
    from pgoutput.replica import replica_tables, replicate
    from pgoutput.standin import StandIn
    from pgoutput.stream import StreamDecoder, Tables, Transactions
    from pgoutput.synth import Scenario
    from pgoutput.synth.workload import Workload
    from pgoutput.verification import verify_tables
    from pgoutput.versions import decode, encode

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
    "MissingExtraError",
    "PgoutputError",
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
