"""Measures the codec and the columns against what is promised of them: `make bench`.

All read the same bytes (`streams.py`) and take turns at it within one run, after it was compared what they
read (`turns.py`). Only ratios of their medians are promised, so that they mean the same on a slow machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf
from typing import Final

import msgspec

from benchmarks import climit, columnar, node, objects, resident
from benchmarks.machine import FOLDER, machine
from benchmarks.results import Measured, Results, Times
from benchmarks.streams import Format, Shape, stream
from benchmarks.turns import Contestant, check, medians, prepare, seconds
from pgoutput.compiled import HOW


class Promise(msgspec.Struct, frozen=True):
    """How the times of two relate, on the stream with six columns in text format."""

    one: str
    other: str
    at_most: float = inf
    at_least: float = 0

    @property
    def limit(self) -> str:
        """What is promised."""
        return f"at least {self.at_least:g}" if self.at_least else f"at most {self.at_most:g}"


PROMISES: Final = (
    Promise("to cells", "C", at_most=3),
    Promise("to types", "C", at_most=6),
    Promise("pypgoutput", "to objects", at_least=30),
    Promise("Node", "to objects", at_least=6),
    Promise("from cells", "to cells", at_most=1),
)

FLAT: Final = 1.2
"""How much the time per message of our columns and objects may differ between 10^5 and 10^7 messages."""

MEMORY: Final = 1.25
"""How many times the memory for 10^5 messages 10^7 may take."""

HEADLINE: Final = Shape(6, "text")
FORMATS: Final[tuple[Format, ...]] = ("text", "binary")
SHAPES: Final = tuple(Shape(columns, name) for name in FORMATS for columns in (2, 6, 20, 200))

LENGTHS: Final = {10_000: 10, 100_000: 4, 1_000_000: 2, 10_000_000: 1}
"""Messages of streams, and how often each stream is read in a round."""

SHORT: Final = 100_000
LONG: Final = 10_000_000
"""From the one length to the other nothing changes."""

PATH: Final = FOLDER / "codec.json"
"""What was measured, for `benchmarks.publish`."""

BATCHES: Final = 8
"""That columns are measured on, in each round."""

ROUNDS: Final = {"columns": 31, "objects": 7, "lengths": 3}


def main() -> int:
    """Print the tables, and what of the promises is kept; 1 if one is broken."""
    with ExitStack() as stack:
        try:
            others = Others(stack)
        except ImportError as error:
            print(f"pypgoutput is missing ({error!r}): run `make bench`, which installs it", file=sys.stderr)
            return 2
        shapes = [measure_shape(shape, others) for shape in SHAPES]
        lengths = measure_lengths(others)
    memory = {messages: resident.peak(messages) for messages in (SHORT, LONG)}
    results = Results(f"{machine()}, {HOW}", shapes, lengths, memory)
    results.save(PATH)
    print(*told(results), sep="\n")
    return 0 if all(kept for _, kept in outcomes(results)) else 1


def told(results: Results) -> Iterator[str]:
    """The tables, and what of the promises is kept."""
    yield from results.lines()
    yield ""
    for text, kept in outcomes(results):
        yield f"{text}: {'kept' if kept else 'BROKEN'}"


class Others:
    """Those that are not ours, as far as the machine has them."""

    def __init__(self, stack: ExitStack) -> None:
        self._pypgoutput = objects.pypgoutput()
        self._walk = climit.compiled()
        if self._walk is None:
            print(f"Without the limit: there is no {climit.COMPILER} to compile it.")
        modules = node.installed()
        if modules is None:
            print(f"Without {node.PACKAGE}: it needs node and npm, and is fetched from npm's registry.")
            self._node = []
        else:
            both = (node.contestant(modules, strings=strings) for strings in (True, False))
            self._node = [stack.enter_context(one) for one in both]

    def limit(self, shape: Shape) -> list[Contestant]:
        """The walk in C."""
        return [] if self._walk is None else [climit.contestant(self._walk, shape.columns)]

    def decoders(self, shape: Shape) -> list[Contestant]:
        """Those that make objects; pypgoutput does not know the binary format."""
        return [*([self._pypgoutput] if shape.format == "text" else []), *self._node]


def measure_shape(shape: Shape, others: Others) -> Measured:
    """All that there is; the columns on several batches, so that what is measured is no first time."""
    groups = {
        "columns": (BATCHES, [*others.limit(shape), *columnar.contestants(shape)]),
        "objects": (1, [*objects.ours(), *objects.pure(), *others.decoders(shape)]),
    }
    some = list(stream(shape, BATCHES * shape.batch_size))
    times: Times = {}
    for name, (count, contestants) in groups.items():
        check(contestants, some[0])
        ready = list(prepare(contestants, some[:count]))
        found = medians([seconds(ready, first) for first in range(ROUNDS[name])])
        times |= per_message(found, sum(len(one.data) for one in some[:count]))
    return Measured(shape.columns, shape.format, some[0].message_size, times)


def measure_lengths(others: Others) -> dict[int, Times]:
    """What has to be fast on streams of any length."""
    contestants = [*others.limit(HEADLINE), *columnar.contestants(HEADLINE), objects.ours()[0]]
    rounds: dict[int, list[Times]] = {messages: [] for messages in LENGTHS}
    for _ in range(ROUNDS["lengths"]):
        for messages, times in LENGTHS.items():
            for first in range(times):
                batches = prepare(contestants, stream(HEADLINE, messages))
                rounds[messages].append(seconds(batches, first))
    return {messages: per_message(medians(found), messages) for messages, found in rounds.items()}


def per_message(times: Times, messages: int) -> Times:
    """Seconds as nanoseconds a message."""
    return {name: taken / messages * 1e9 for name, taken in times.items()}


def outcomes(results: Results) -> Iterator[tuple[str, bool]]:
    """What was promised and what was measured, and whether it is kept; what could not be measured is."""
    times = results.times(HEADLINE.columns, HEADLINE.format)
    for one in PROMISES:
        text = f"{one.one} / {one.other}: {one.limit}"
        if one.one in times and one.other in times:
            ratio = times[one.one] / times[one.other]
            yield f"{text}; {ratio:.2f}", one.at_least <= ratio <= one.at_most
        else:
            yield f"{text}; not measured", True
    for name in results.lengths[LONG]:
        found = [times[name] for messages, times in results.lengths.items() if messages >= SHORT]
        ratio = max(found) / min(found)
        if name != "C":
            yield f"{name}, {SHORT:,} to {LONG:,} messages: at most {FLAT}; {ratio:.2f}", ratio <= FLAT
    ratio = results.memory[LONG] / results.memory[SHORT]
    yield f"memory, {SHORT:,} to {LONG:,} messages: at most {MEMORY}; {ratio:.2f}", ratio <= MEMORY


if __name__ == "__main__":
    sys.exit(main())
