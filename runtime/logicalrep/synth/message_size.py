"""The limit of a message's size, which a server reaches when it decodes a very large row."""

from __future__ import annotations

from typing import Any, Final

from logicalrep.errors import ScenarioError
from logicalrep.messages import Message
from logicalrep.stream import encode_for
from logicalrep.stream.check import HEADER_BYTES, MAX_BYTES as MAX_BYTES

_LARGE: Final = 1000


def check_message_size(message: Message, proto_version: int) -> None:
    """Refuse a message that a server cannot build.

    Raises:
        ScenarioError: The message and its header have too many bytes.
    """
    size = message_size(message, proto_version)
    if size >= MAX_BYTES:
        raise ScenarioError(
            f"{type(message).__name__}: string buffer exceeds maximum allowed length ({MAX_BYTES} bytes): "
            f"the message with its header has {size}; give smaller values"
        )


def message_size(message: Message, proto_version: int) -> int:
    """Return the number of bytes of a message in its envelope, without building them."""
    removed = 0

    def emptied(value: Any) -> Any:
        nonlocal removed
        if isinstance(value, tuple):
            return tuple(map(emptied, value))
        if isinstance(value, str | bytes) and len(value) > _LARGE:
            removed += len(value if isinstance(value, bytes) else value.encode())
            return value[:0]
        return value

    fields = {name: emptied(getattr(message, name)) for name in message.__struct_fields__}
    return HEADER_BYTES + removed + len(encode_for(type(message)(**fields), proto_version))
