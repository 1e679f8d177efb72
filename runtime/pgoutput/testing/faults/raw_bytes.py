"""Faults in the bytes of a message."""

from __future__ import annotations

from typing import Final

from pgoutput.testing.faults.model import Fault, Messages, Stream


def _cut(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, stream.messages[position][:-1])


def _extend(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, stream.messages[position] + b"\0")


def _unknown_tag(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, b"\xff" + stream.messages[position][1:])


def _empty(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, b"")


def _flip(stream: Stream, position: int) -> Messages | None:
    byte, bit = divmod(position, 8)
    for number, data in enumerate(stream.messages):
        if byte < len(data):
            flipped = data[byte] ^ 1 << bit
            return stream.with_bytes(number, data[:byte] + bytes([flipped]) + data[byte + 1 :])
        byte -= len(data)
    return None


FAULTS: Final = (
    Fault(name="cut", doc="A message lacks its last byte.", apply=_cut),
    Fault(name="extend", doc="A message has an extra zero byte at its end.", apply=_extend),
    Fault(name="no-tag", doc="A message has an unknown tag.", apply=_unknown_tag),
    Fault(name="empty", doc="A message is empty.", apply=_empty),
    Fault(
        name="flip-bit",
        doc="A bit is flipped. Valid by chance in fields that no other field repeats: text, names, times, "
        "LSNs and xids.",
        apply=_flip,
        certain=False,
        unit="bit",
    ),
)
