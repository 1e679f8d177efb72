"""Stream options: the options of START_REPLICATION."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgoutput.messages import Streaming
from pgoutput.versions import CODECS, LATEST_RELEASED, OPTIONS


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a client passes to START_REPLICATION, under the server's names.

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
        for name, value in self.non_default().items():
            if value not in OPTIONS[name]:
                raise ValueError(f"{name} is one of {', '.join(OPTIONS[name])}, not {value!r}")
            needed = OPTIONS[name][value].proto_version
            if self.proto_version < needed:
                raise ValueError(
                    f"{name} = {value} needs protocol version {needed}, not {self.proto_version}"
                )

    def non_default(self) -> dict[str, str]:
        """Return the options that differ from their default, except proto_version, as text by option name."""
        return {
            name: value if isinstance(value, str) else "on"
            for name in OPTIONS
            if (value := getattr(self, name)) != _DEFAULTS[name]
        }


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(StreamOptions)}
