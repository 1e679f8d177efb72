"""Streaming replication protocol of a stand-in server.

- `ReplicationExecutor` executes the replication commands of a connection, including START_REPLICATION.
- `Terminated` is raised when the connection must be closed without an error message.
- `parse_boolean` and `parse_identifier_list` parse the values of options as a server does.
"""

from logicalrep.standin.replication.executor import ReplicationExecutor as ReplicationExecutor
from logicalrep.standin.replication.plugin_options import (
    parse_boolean as parse_boolean,
    parse_identifier_list as parse_identifier_list,
)
from logicalrep.standin.replication.walsender import Terminated as Terminated
