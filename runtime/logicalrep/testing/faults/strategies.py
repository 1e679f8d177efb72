"""Hypothesis strategy that applies a random fault to a stream."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from logicalrep.testing.faults import fields, raw_bytes, rows, sequence
from logicalrep.testing.faults.model import Corruption, Fault, Stream

FAULTS: Final = tuple(
    one
    for module in (sequence, fields, rows, raw_bytes)
    for one in vars(module).values()
    if isinstance(one, Fault)
)
"""All kinds of faults."""


def corruptions(stream: Stream) -> st.SearchStrategy[Corruption]:
    """Return a Hypothesis strategy that applies one random fault at a random position of `stream`.

    If `Corruption.certain` is true, the stream is invalid; otherwise the stream may be valid by chance.

    Args:
        stream: A valid stream of at least two messages.

    Raises:
        DecodeError: A message of the stream cannot be decoded.
    """
    possible = [fault for fault in FAULTS if _positions(fault, stream)]
    return st.sampled_from(possible).flatmap(lambda fault: _corruptions_of_fault(fault, stream))


def _corruptions_of_fault(fault: Fault, stream: Stream) -> st.SearchStrategy[Corruption]:
    def corrupt(position: int) -> Corruption:
        messages = fault.apply(stream, position)
        assert messages is not None
        return Corruption(fault.name, position, Stream(messages, stream.options), fault.certain)

    return st.sampled_from(_positions(fault, stream)).map(corrupt)


def _positions(fault: Fault, stream: Stream) -> range | list[int]:
    """Return all positions of the stream at which the fault is possible."""
    if fault.unit == "bit":
        return range(fault.size(stream))
    found: dict[str, list[int]] = stream.__dict__.setdefault("_positions", {})  # cached in the stream
    if fault.name not in found:
        found[fault.name] = [i for i in range(fault.size(stream)) if fault.apply(stream, i) is not None]
    return found[fault.name]
