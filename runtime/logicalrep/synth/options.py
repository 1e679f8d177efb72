"""Stream options: the options of START_REPLICATION."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from logicalrep import _protocols
from logicalrep.messages import Streaming
from logicalrep.stream import StreamDecoder
from logicalrep.versions import CODECS, LATEST_RELEASED, OPTIONS, SERVERS


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a client passes to START_REPLICATION, under the server's names.

    `two_phase` is also a flag of the slot. The server follows that flag in every protocol version.

    Raises:
        ValueError: The protocol version is unknown, or does not support an option value.
    """

    proto_version: int = LATEST_RELEASED
    """Version of the logical replication protocol."""
    streaming: Streaming = "off"
    """Whether large transactions are sent while in progress: `off`, `on` or `parallel`."""
    two_phase: bool = False
    """Whether prepared transactions are sent at PREPARE TRANSACTION."""
    binary: bool = False
    """Whether values are sent in binary format where their type has one."""
    messages: bool = False
    """Whether logical messages (pg_logical_emit_message) are sent."""
    origin: Literal["any", "none"] = "any"
    """`any` sends all changes; `none` skips changes replicated from another node."""

    def __post_init__(self) -> None:
        if self.proto_version not in CODECS:
            known = ", ".join(map(str, CODECS))
            raise ValueError(f"there is no protocol version {self.proto_version!r}; there are {known}")
        for name, value in _non_default(msgspec.structs.asdict(self)).items():
            if value not in OPTIONS[name]:
                raise ValueError(f"{name} is one of {', '.join(OPTIONS[name])}, not {value!r}")
            needed = OPTIONS[name][value].proto_version
            if self.proto_version < needed and name not in _slot_flags(self.proto_version):
                raise ValueError(
                    f"{name} = {value} needs protocol version {needed}, not {self.proto_version}"
                )

    def requested(self) -> dict[str, str]:
        """Return the options of START_REPLICATION that differ from their default, as text by option name.

        `proto_version` is left out, and so are options that the protocol version lacks. The slot may still
        have such an option (`two_phase`).
        """
        return {
            name: value
            for name, value in _non_default(msgspec.structs.asdict(self)).items()
            if OPTIONS[name][value].proto_version <= self.proto_version
        }

    def decoder(self) -> StreamDecoder:
        """Return a new decoder for streams with these options."""
        return StreamDecoder(self.proto_version, streaming=self.streaming, two_phase=self.two_phase)


def _slot_flags(proto_version: int) -> set[str | None]:
    """Return the names of options that servers read from the slot, because the protocol version lacks them.

    The set may also contain None, which is no option's name and has no effect: some messages that the version
    lacks do not depend on an option.
    """
    return {message.option for message in _protocols.VERSIONS[proto_version].foreign}


def require_server(server: int, options: Mapping[str, Any]) -> None:
    """Check that servers of a major version accept options (fields of `StreamOptions`).

    Raises:
        ValueError: Only later servers accept the protocol version or an option.
    """
    version = int(options.get("proto_version", 0))
    needs = {f"{name} = {value}": OPTIONS[name].get(value) for name, value in _non_default(options).items()}
    firsts = {text: need.server for text, need in needs.items() if need is not None}
    if version in SERVERS:
        firsts[f"protocol version {version}"] = SERVERS[version]
    for text, first in firsts.items():
        if server < first:
            raise ValueError(
                f"PostgreSQL {server} has no {text}, which needs PostgreSQL {first}; choose a later server "
                "or leave the option out"
            )


def _non_default(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that differ from their default, except proto_version, as text by option name."""
    return {
        name: value if isinstance(value, str) else "on"
        for name, default in _DEFAULTS.items()
        if name in OPTIONS and (value := options.get(name, default)) != default
    }


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(StreamOptions)}
