"""What a client asks for in START_REPLICATION."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgoutput.messages import Streaming
from pgoutput.versions import CODECS, LATEST_RELEASED, OPTIONS


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a stream, named as START_REPLICATION has them.

    Raises:
        ValueError: The protocol version does not have one of them.
    """

    proto_version: int = LATEST_RELEASED
    streaming: Streaming = "off"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Literal["any", "none"] = "any"

    def __post_init__(self) -> None:
        if self.proto_version not in CODECS:
            known = ", ".join(map(str, CODECS))
            raise ValueError(f"there is no protocol version {self.proto_version!r}; there are {known}")
        for name, value in self.asked().items():
            if value not in OPTIONS[name]:
                raise ValueError(f"{name} is one of {', '.join(OPTIONS[name])}, not {value!r}")
            needed = OPTIONS[name][value].proto_version
            if self.proto_version < needed:
                raise ValueError(
                    f"{name} = {value} needs protocol version {needed}, not {self.proto_version}"
                )

    def asked(self) -> dict[str, str]:
        """The options but for the version, as text; those that are left at their default are not there."""
        return {
            name: value if isinstance(value, str) else "on"
            for name in OPTIONS
            if (value := getattr(self, name)) != _DEFAULTS[name]
        }


_DEFAULTS = {
    name: field.default for name, field in ((f.name, f) for f in msgspec.structs.fields(StreamOptions))
}
