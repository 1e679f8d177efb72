"""Messages to the bytes of a stream."""

from __future__ import annotations

from pgoutput import _protocols
from pgoutput.messages import Message
from pgoutput.versions import CODECS


def encode_for(message: Message, proto_version: int) -> bytes:
    """The bytes of a message as a client of this version gets them.

    The messages of two-phase commit reach clients of versions that do not have them; they look as in the
    version that does.

    Raises:
        EncodeError: The message, or one of its fields, does not exist in this version, or a value does not
            fit its field.
    """
    name = type(message).__name__
    since = (foreign.since for foreign in _protocols.VERSIONS[proto_version].foreign if foreign.name == name)
    return CODECS[next(since, proto_version)].encode(message)
