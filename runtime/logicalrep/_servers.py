"""PostgreSQL versions: which one a synthetic stream reports, and what servers of a version send."""

from __future__ import annotations

from typing import Final

from logicalrep import _protocols
from logicalrep._roles import classes
from logicalrep.versions import LATEST_RELEASED, SERVERS

_MAJOR: Final = 18
_MINOR: Final = 4

MAJOR_VERSIONS: Final = range(min(SERVERS.values()), max(19, *SERVERS.values()) + 1)
"""The major versions of PostgreSQL whose streams the package knows."""

FIRST_WITHOUT_EMPTY: Final = 15
"""First major version of PostgreSQL that does not send transactions without changes."""


def newest_version(major: int) -> int:
    """Return the newest released protocol version that servers of a major version speak.

    Raises:
        ValueError: The major version is not in `MAJOR_VERSIONS`.
    """
    if major not in MAJOR_VERSIONS:
        first, last = MAJOR_VERSIONS[0], MAJOR_VERSIONS[-1]
        raise ValueError(
            f"server must be a major version of PostgreSQL from {first} to {last}, not {major!r}"
        )
    spoken = (version for version, first in SERVERS.items() if first <= major and version <= LATEST_RELEASED)
    return max(spoken)


def default_server(proto_version: int) -> int:
    """Return the default major version of the server that a synthetic stream imitates.

    It is 18, or a later version if only later servers have `proto_version`. For an unknown `proto_version` it
    is 18.
    """
    return max(_MAJOR, SERVERS.get(proto_version, 0))


def server_version(major: int) -> str:
    """Return the server version that a synthetic stream reports for a major version, such as 18.4 for 18."""
    return f"{major}.{_MINOR if major == _MAJOR else 0}"


def first_server(role: str) -> int:
    """Return the first major version of PostgreSQL that sends messages with the role `role`.

    A role is what a message does in a stream, such as `truncate`.
    """
    servers = (_protocols.ALL_VERSIONS.by_name[kind.__name__].server for kind in classes(role))
    return min(int(server.partition("+")[0]) for server in servers)
