"""Read, write, record and replicate PostgreSQL's logical replication stream (the output plugin `pgoutput`).

===========================  ==========================================================================
module                       contents
===========================  ==========================================================================
`pgoutput.messages`          a class for each message
`pgoutput.vN`                `decode` and `encode` of protocol version N
`pgoutput.envelope`          `decode` and `encode` of the streaming replication protocol (XLogData, …)
`pgoutput.stream`            `StreamDecoder`, `Transactions`, `Tables`: classes that keep a stream's state
`pgoutput.stream.check`      rules that every server's stream obeys
`pgoutput.values`            column values as Python objects, Arrow arrays and PostgreSQL's text
`pgoutput.columns`           batches of messages as Arrow columns, and back
`pgoutput.capturefile`       capture files: messages as JSON lines
`pgoutput.jsonlines`         messages as JSON objects, and back
`pgoutput.recorder`          `Recorder`: records a replication slot
`pgoutput.recording`         recordings: folders of Parquet segments
`pgoutput.views`             a recording as rows: messages, changes, one table, the schema
`pgoutput.replica`           Delta tables that follow a recording
`pgoutput.verification`      proves that Delta tables equal the source
`pgoutput.spark`             the PySpark data source `pgoutput`, column functions, and `replicate`
`pgoutput.synth`             `Scenario`: synthetic streams, and the expected rows of their tables
`pgoutput.synth.workload`    large synthetic streams for load tests
`pgoutput.standin`           a stand-in server for real replication clients
`pgoutput.vectors`           test vectors for decoders in any language
`pgoutput.testing`           Hypothesis strategies of streams, and pytest fixtures
`pgoutput.strategies`        Hypothesis strategies of single messages, for each protocol version
`pgoutput.schemas`           Spark and Arrow schemas of the messages
`pgoutput.errors`            all errors, also exported here
`pgoutput.wire`              LSNs, timestamps, and the marker `UNCHANGED`
`pgoutput.versions`          protocol versions, options, and the servers that know them
`pgoutput.catalog`           PostgreSQL's built-in types
`pgoutput.compiled`          whether the compiled kernel is in use, and why not
===========================  ==========================================================================

A module or package is public if this table names it. Of a package, only the names in its `__all__` are
public. Everything else may change in any release.
"""

from pkgutil import extend_path

from pgoutput.errors import (
    ChangesLost,
    ConnectionLost,
    DecodeError,
    EncodeError,
    PgoutputError,
    RecordingError,
    RecordingInUse,
    ReplicaError,
    ReplicationError,
    ScenarioError,
    StreamError,
)

# An editable install has the generated modules in a source root of their own.
__path__ = extend_path(__path__, __name__)

__version__ = "0.1.0"

__all__ = [
    "ChangesLost",
    "ConnectionLost",
    "DecodeError",
    "EncodeError",
    "PgoutputError",
    "RecordingError",
    "RecordingInUse",
    "ReplicaError",
    "ReplicationError",
    "ScenarioError",
    "StreamError",
    "__version__",
]
