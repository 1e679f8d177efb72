"""Faults in the bytes of a message."""

from __future__ import annotations

from typing import Final

from logicalrep import _protocols
from logicalrep.testing.faults.model import Messages, Stream, fault

_OPEN_ENDED: Final = {
    one.name for one in _protocols.ALL_VERSIONS.messages for last in one.fields[-1:] if last.kind == "rest"
}
"""Names of the messages whose last field takes all remaining bytes: removed or extra bytes are no fault."""


def _has_end(stream: Stream, position: int) -> bool:
    return type(stream.places[position].message).__name__ not in _OPEN_ENDED


@fault("cut", "A message lacks its last byte.")
def _cut(stream: Stream, position: int) -> Messages | None:
    short = stream.messages[position][:-1]
    return stream.with_bytes(position, short) if _has_end(stream, position) else None


@fault("extend", "A message has an extra zero byte at its end.")
def _extend(stream: Stream, position: int) -> Messages | None:
    long = stream.messages[position] + b"\0"
    return stream.with_bytes(position, long) if _has_end(stream, position) else None


@fault("no-tag", "A message has an unknown tag.")
def _unknown_tag(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, b"\xff" + stream.messages[position][1:])


@fault("empty", "A message is empty.")
def _empty(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, b"")


@fault(
    "flip-bit",
    "A bit is flipped. Valid by chance in fields that no other field repeats: text, names, times, LSNs and "
    "xids.",
    certain=False,
    unit="bit",
)
def _flip(stream: Stream, position: int) -> Messages | None:
    byte, bit = divmod(position, 8)
    for number, data in enumerate(stream.messages):
        if byte < len(data):
            flipped = data[byte] ^ 1 << bit
            return stream.with_bytes(number, data[:byte] + bytes([flipped]) + data[byte + 1 :])
        byte -= len(data)
    return None
