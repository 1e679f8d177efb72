"""All faults, and a Hypothesis strategy of them."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from pgoutput.testing.faults import fields, raw, rows, structure
from pgoutput.testing.faults.model import Corruption, Fault, Stream

FAULTS: Final = (*structure.FAULTS, *fields.FAULTS, *rows.FAULTS, *raw.FAULTS)
"""Every way to corrupt a stream in one place."""


def corruptions(stream: Stream) -> st.SearchStrategy[Corruption]:
    """A strategy of the stream with one fault: any of `FAULTS`, anywhere.

    A corruption that is `certain` is illegal, others may be legal by chance.

    Args:
        stream: A legal stream, of two messages or more.

    Raises:
        DecodeError: A message of it cannot be decoded.
    """
    possible = [fault for fault in FAULTS if _positions(fault, stream)]
    return st.sampled_from(possible).flatmap(lambda fault: _of_fault(fault, stream))


def _of_fault(fault: Fault, stream: Stream) -> st.SearchStrategy[Corruption]:
    def corrupt(position: int) -> Corruption:
        messages = fault.make(stream, position)
        assert messages is not None  # it is a position of those
        return Corruption(fault.name, position, Stream(messages, stream.options), fault.certain)

    return st.sampled_from(_positions(fault, stream)).map(corrupt)


def _positions(fault: Fault, stream: Stream) -> range | list[int]:
    """Where it is a fault."""
    if fault.unit == "bit":
        return range(fault.size(stream))
    found: dict[str, list[int]] = stream.__dict__.setdefault("_positions", {})  # made once for each stream
    if fault.name not in found:
        found[fault.name] = [i for i in range(fault.size(stream)) if fault.make(stream, i) is not None]
    return found[fault.name]
