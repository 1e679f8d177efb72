"""Expected values of the fields that `logicalrep._walk.walk` finds, looked up in the message object."""

from __future__ import annotations

import re
from typing import Any

from logicalrep.messages import Message

TUPLE_TAGS = {"key.tag": "K", "old.tag": "O", "new.tag": "N"}


def value_at(message: Message, path: str) -> Any:
    """Return the value that `walk` should find at a field path, such as `columns[0].name`."""
    if path == "tag":
        return message.wire_tag.decode()
    if path in TUPLE_TAGS:
        return TUPLE_TAGS[path]
    if path == "flags" and not hasattr(message, "flags"):
        return 0  # unused flags are on the wire only, and always 0
    value: Any = message
    for name, index, wire_only in re.findall(r"(\w+)(?:\[(\d+)\])?(?:\.(tag|count|length)$)?\.?", path):
        value = getattr(value, name)
        if index:
            value = value[int(index)]
        if wire_only == "tag":
            return "b" if isinstance(value, bytes) else "t"
        if wire_only:
            raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            return len(raw)
    return value
