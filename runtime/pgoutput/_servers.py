"""The version of PostgreSQL that a synthetic stream reports as its server's version."""

from __future__ import annotations

from typing import Final

from pgoutput.versions import SERVERS

_MAJOR: Final = 18
_MINOR: Final = 4


def server_version(proto_version: int) -> str:
    """Return the server version that a synthetic stream reports: 18.4, or the first with `proto_version`."""
    needed = SERVERS[proto_version]
    return f"{_MAJOR}.{_MINOR}" if needed <= _MAJOR else f"{needed}.0"
