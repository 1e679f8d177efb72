"""Results of the codec benchmark, as objects, JSON and text tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from benchmarks.streams import Shape

Times: TypeAlias = dict[str, float]
"""Nanoseconds per message, by name of the implementation."""


class Measured(msgspec.Struct, frozen=True):
    """Times of all implementations for streams of one shape."""

    shape: Shape
    size: float
    """Average size of a message, in bytes."""
    times: Times


class Results(msgspec.Struct, frozen=True):
    """Results of one run of the codec benchmark."""

    machine: str
    shapes: list[Measured]
    lengths: dict[int, Times]
    """Nanoseconds per message of each implementation, by number of messages in the stream."""
    memory: dict[int, int]
    """Peak resident memory in bytes, by number of messages in the stream."""

    def save(self, path: Path) -> None:
        """Write the results to a JSON file."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read results from a JSON file."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def times(self, shape: Shape) -> Times:
        """Return all implementations' times for streams of this shape."""
        (times,) = (one.times for one in self.shapes if one.shape == shape)
        return times

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text tables with the results."""
        yield f"{self.machine}. Nanoseconds per message:"
        yield ""
        shapes = [([*_described(one.shape), f"{one.size:.0f}"], one.times) for one in self.shapes]
        yield from _table(["format", "columns", "bytes"], shapes)
        yield ""
        yield from _table(["messages"], [([f"{length:,}"], times) for length, times in self.lengths.items()])
        yield ""
        for messages, peak in self.memory.items():
            yield f"Reading {messages:,} messages takes {peak / (1 << 20):.0f} MB of resident memory."


def _described(shape: Shape) -> tuple[str, str]:
    return ("irregular" if shape.irregular else shape.format), str(shape.columns)


def _table(heads: list[str], rows: list[tuple[list[str], Times]]) -> Iterator[str]:
    """Yield the lines of a text table: the text columns `heads`, then each implementation's times."""
    names = list(dict.fromkeys(name for _, times in rows for name in times))
    lines = [heads + names]
    lines += [cells + [_shown(times.get(name)) for name in names] for cells, times in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _shown(time: float | None) -> str:
    return "-" if time is None else f"{time:,.0f}"
