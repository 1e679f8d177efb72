"""Encode messages for clients that requested a certain protocol version."""

from __future__ import annotations

from logicalrep._offsets import layout_of
from logicalrep.messages import Message
from logicalrep.versions import CODECS


def encode_for(message: Message, proto_version: int) -> bytes:
    """Encode a message as a client that requested this protocol version receives it.

    Two-phase commit messages are also encoded for versions that do not define them, because servers send them
    if the slot has two_phase set.

    Args:
        message: The message.
        proto_version: Protocol version of the client.

    Raises:
        EncodeError: The version does not define the message or one of its fields, or a value does not fit its
            field.
    """
    layout = layout_of(type(message), proto_version)
    version = proto_version if layout is None else max(proto_version, layout.since)
    return CODECS[version].encode(message)
