"""Benchmark of the codecs and column decoders, with targets for their speed: part of `make bench`.

All implementations process the same messages (`streams.py`). The benchmark first checks their results, then
times them in alternation (`timing.py`). A target limits the ratio of two median times, because such a ratio
depends less on the machine than a time does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf
from typing import Final

import msgspec

from benchmarks import c_baseline, columnar, node, objects, peak_memory
from benchmarks.machine import FOLDER, machine
from benchmarks.results import Measured, Results, Times
from benchmarks.streams import Format, Shape, stream
from benchmarks.timing import Implementation, check_results, medians, prepare, run_in_turns
from logicalrep.compiled import HOW


class Target(msgspec.Struct, frozen=True):
    """Limit of the ratio of two implementations' times, for six columns in text format."""

    numerator: str
    """Name of the implementation whose time is the numerator of the ratio."""
    denominator: str
    """Name of the implementation whose time is the denominator of the ratio."""
    at_most: float = inf
    at_least: float = 0
    irregular: bool = False
    """Whether the limit is for the irregular stream."""

    @property
    def limit(self) -> str:
        """The limit in words, such as `at most 3`."""
        return f"at least {self.at_least:g}" if self.at_least else f"at most {self.at_most:g}"


TARGETS: Final = (
    Target("to cells", "C", at_most=3),
    Target("to cells", "C", at_most=3, irregular=True),
    Target("to types", "C", at_most=6),
    Target("pypgoutput", "to objects", at_least=30),
    Target("Node", "to objects", at_least=6),
    Target("from cells", "to cells", at_most=1),
)

MAX_TIME_GROWTH: Final = 1.2
"""Largest allowed ratio of the times per message of two streams, each of 10^5 to 10^7 messages."""

MAX_MEMORY_GROWTH: Final = 1.25
"""Largest allowed ratio of the peak memory for 10^7 messages to that for 10^5 messages."""

HEADLINE: Final = Shape(6, "text")
FORMATS: Final[tuple[Format, ...]] = ("text", "binary")
IRREGULAR: Final = Shape(6, "text", irregular=True)
SHAPES: Final = (*(Shape(columns, name) for name in FORMATS for columns in (2, 6, 20, 200)), IRREGULAR)

LENGTHS: Final = {10_000: 10, 100_000: 4, 1_000_000: 2, 10_000_000: 1}
"""Number of times that a stream is read in each round, by number of messages in the stream."""

SHORT: Final = 100_000
LONG: Final = 10_000_000
"""Number of messages of the longest stream. Targets limit how time and memory grow from SHORT to LONG."""

PATH: Final = FOLDER / "codec.json"
"""File for the benchmark's results, which `benchmarks.publish` reads."""

BATCHES: Final = 8
"""Number of batches that column implementations read in each round, so that a slow first one matters less."""

ROUNDS: Final = {"columns": 31, "objects": 7, "lengths": 3}


def main() -> int:
    """Run the benchmark; return 0, or 1 if a target is missed, or 2 if pypgoutput is not installed."""
    with ExitStack() as stack:
        try:
            others = OtherImplementations(stack)
        except ImportError as error:
            print(f"pypgoutput is missing ({error!r}): run `make bench`, which installs it", file=sys.stderr)
            return 2
        shapes = [measure_shape(shape, others) for shape in SHAPES]
        lengths = measure_lengths(others)
    memory = {messages: peak_memory.measure_peak(messages) for messages in (SHORT, LONG)}
    results = Results(f"{machine()}, {HOW}", shapes, lengths, memory)
    results.save(PATH)
    print(*report_lines(results), sep="\n")
    return 0 if all(met for _, met in check_targets(results)) else 1


def report_lines(results: Results) -> Iterator[str]:
    """Yield the lines of the benchmark's report: the tables of times, and each target as met or missed."""
    yield from results.lines()
    yield ""
    for text, met in check_targets(results):
        yield f"{text}: {'met' if met else 'MISSED'}"


class OtherImplementations:
    """The implementations other than logicalrep's that can run on this machine."""

    def __init__(self, stack: ExitStack) -> None:
        self._pypgoutput = objects.pypgoutput()
        self._walk = c_baseline.compiled()
        if self._walk is None:
            print(f"C is not measured: there is no C compiler ({c_baseline.COMPILER}).")
        modules = node.installed()
        if modules is None:
            print(f"{node.PACKAGE} is not measured: it needs node, npm and npm's registry.")
            self._node = []
        else:
            both = (node.implementation(modules, strings=strings) for strings in (True, False))
            self._node = [stack.enter_context(one) for one in both]

    def c_baseline(self, shape: Shape) -> list[Implementation]:
        """Return a list with the C function, or an empty list if there is no C compiler."""
        return [] if self._walk is None else [c_baseline.implementation(self._walk, shape.columns)]

    def decoders(self, shape: Shape) -> list[Implementation]:
        """Return the decoders of pypgoutput (for text format only) and of the npm package, if installed."""
        return [*([self._pypgoutput] if shape.format == "text" else []), *self._node]


def measure_shape(shape: Shape, others: OtherImplementations) -> Measured:
    """Return the times of all implementations for messages with this number of columns and format."""
    groups = {
        "columns": (BATCHES, [*others.c_baseline(shape), *columnar.implementations(shape)]),
        "objects": (1, [*objects.ours(), *objects.pure(), *others.decoders(shape)]),
    }
    batches = list(stream(shape, BATCHES * shape.batch_size))
    times: Times = {}
    for name, (count, implementations) in groups.items():
        check_results(implementations, batches[0])
        prepared = list(prepare(implementations, batches[:count]))
        measured = medians([run_in_turns(prepared, first) for first in range(ROUNDS[name])])
        times |= per_message(measured, sum(len(one.data) for one in batches[:count]))
    return Measured(shape, batches[0].message_size, times)


def measure_lengths(others: OtherImplementations) -> dict[int, Times]:
    """Return the times of decoding to columns and to objects, by number of messages per stream."""
    implementations = [*others.c_baseline(HEADLINE), *columnar.implementations(HEADLINE), objects.ours()[0]]
    rounds: dict[int, list[Times]] = {messages: [] for messages in LENGTHS}
    for _ in range(ROUNDS["lengths"]):
        for messages, times in LENGTHS.items():
            for first in range(times):
                batches = prepare(implementations, stream(HEADLINE, messages))
                rounds[messages].append(run_in_turns(batches, first))
    return {messages: per_message(medians(times), messages) for messages, times in rounds.items()}


def per_message(times: Times, messages: int) -> Times:
    """Convert each implementation's seconds for `messages` messages to nanoseconds per message."""
    return {name: taken / messages * 1e9 for name, taken in times.items()}


def check_targets(results: Results) -> Iterator[tuple[str, bool]]:
    """Yield for each target a text with the measured ratio, and True if it is met or was not measured."""
    for target in TARGETS:
        times = results.times(IRREGULAR if target.irregular else HEADLINE)
        text = f"{target.numerator} / {target.denominator}: {target.limit}"
        if target.irregular:
            text = f"irregular, {text}"
        if target.numerator in times and target.denominator in times:
            ratio = times[target.numerator] / times[target.denominator]
            yield f"{text}; {ratio:.2f}", target.at_least <= ratio <= target.at_most
        else:
            yield f"{text}; not measured", True
    for name in results.lengths[LONG]:
        long_times = [times[name] for messages, times in results.lengths.items() if messages >= SHORT]
        ratio = max(long_times) / min(long_times)
        if name != "C":
            limit = f"{name}, {SHORT:,} to {LONG:,} messages: at most {MAX_TIME_GROWTH}"
            yield f"{limit}; {ratio:.2f}", ratio <= MAX_TIME_GROWTH
    ratio = results.memory[LONG] / results.memory[SHORT]
    limit = f"memory, {SHORT:,} to {LONG:,} messages: at most {MAX_MEMORY_GROWTH}"
    yield f"{limit}; {ratio:.2f}", ratio <= MAX_MEMORY_GROWTH


if __name__ == "__main__":
    sys.exit(main())
