"""Encode messages for clients that requested a certain protocol version."""

from __future__ import annotations

from pgoutput import _protocols
from pgoutput.messages import Message
from pgoutput.versions import CODECS


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
    name = type(message).__name__
    since = (foreign.since for foreign in _protocols.VERSIONS[proto_version].foreign if foreign.name == name)
    return CODECS[next(since, proto_version)].encode(message)
