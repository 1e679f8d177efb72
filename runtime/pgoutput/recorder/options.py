"""The options of START_REPLICATION, by what the server can do."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgoutput.errors import ReplicationError
from pgoutput.messages import Streaming
from pgoutput.versions import LATEST_RELEASED, OPTIONS, SERVERS


class RecorderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask the server for. None leaves the choice to the server's version."""

    proto_version: int | None = None
    """The protocol version; the newest that the server speaks if it is None."""
    streaming: Streaming | None = None
    """Whether large transactions come while they are in progress; as far as the version can if it is None."""
    two_phase: bool = False
    """Whether transactions come when they are prepared. The slot must have been created so."""
    binary: bool = False
    """Whether values come in binary format, where their type has one."""
    messages: bool = False
    """Whether the messages of pg_logical_emit_message come."""
    origin: Literal["any", "none"] | None = None
    """`none`: only changes that come from no other server."""

    def negotiate(self, server_version: int) -> tuple[int, dict[str, str]]:
        """The protocol version and the other options for a server.

        Args:
            server_version: Its major version.

        Raises:
            ReplicationError: The server, or the protocol version, is too old for an option.
        """
        newest = max((v for v, server in SERVERS.items() if server <= server_version), default=0)
        newest = min(newest, LATEST_RELEASED)
        proto_version = newest if self.proto_version is None else self.proto_version
        if proto_version not in SERVERS:
            known = ", ".join(map(str, SERVERS))
            raise ReplicationError(f"there is no protocol version {proto_version}; there are {known}")
        if proto_version > newest:
            raise ReplicationError(
                f"protocol version {proto_version} needs PostgreSQL {SERVERS[proto_version]}, the server is "
                f"{server_version}: ask for {newest}, or leave the version out"
            )
        wanted = {
            "streaming": self.streaming or self._most_streaming(proto_version),
            "two_phase": "on" if self.two_phase else "off",
            "binary": "on" if self.binary else "off",
            "messages": "on" if self.messages else "off",
            "origin": self.origin,
        }
        options = {name: value for name, value in wanted.items() if value not in (None, "off")}
        for name, value in options.items():
            need = OPTIONS[name][str(value)]
            if need.server > server_version:
                raise ReplicationError(
                    f"{name} = {value} needs PostgreSQL {need.server}, the server is {server_version}: "
                    "leave it out"
                )
            if need.proto_version > proto_version:
                raise ReplicationError(
                    f"{name} = {value} needs protocol version {need.proto_version}, not {proto_version}: "
                    "leave it out, or ask for that version"
                )
        return proto_version, {name: str(value) for name, value in options.items()}

    @staticmethod
    def _most_streaming(proto_version: int) -> str:
        return [value for value, need in OPTIONS["streaming"].items() if need.proto_version <= proto_version][
            -1
        ]
