"""Layouts of message classes by protocol version, and the byte offsets of their fields."""

from __future__ import annotations

from functools import cache
from typing import Final

from logicalrep import _protocols
from logicalrep._layout import Message as Layout
from logicalrep.messages import Message

FIXED: Final = ("integer", "bool", "enum", "flags", "count", "length", "literal")
"""The kinds of fields that have the same number of bytes in all messages."""


@cache
def layout_of(kind: type[Message], proto_version: int) -> Layout | None:
    """Return the layout of a message class as sent to clients that requested a protocol version.

    None if such clients never receive the message. Servers send two-phase commit messages in all versions.
    """
    protocol = _protocols.VERSIONS[proto_version]
    foreign = (layout for layout in protocol.foreign if layout.name == kind.__name__)
    return protocol.by_name.get(kind.__name__) or next(foreign, None)


def offset_of(kind: type[Message], meaning: str, proto_version: int) -> int | None:
    """Return the byte offset of the field with the given meaning, from the start of the message.

    None if the protocol version has no such field, or the offset differs between messages of the class: the
    field or an earlier field is sent under a condition, or an earlier field has a variable width.

    Args:
        kind: The message class.
        meaning: Meaning of the field in the spec, such as `end_lsn`.
        proto_version: Protocol version that the client requested.
    """
    layout = layout_of(kind, proto_version)
    offset = 1
    for field in () if layout is None else layout.fields:
        if field.when is not None:
            return None
        if field.means == meaning:
            return offset
        if field.kind not in FIXED:
            return None
        offset += field.size
    return None
