"""Measurement of implementations in alternation, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

import msgspec

from benchmarks import streams
from benchmarks.streams import Batch

Run: TypeAlias = Callable[[], float]
"""A function that decodes or encodes one batch once and returns how many seconds this took."""

ResultKind: TypeAlias = Literal["cells", "texts", "messages"]
"""Kind of a result: each tuple's cells, each tuple's cells converted to text format, or encoded messages."""

Prepared: TypeAlias = Mapping[str, Run]
"""For one batch: the function to time of each implementation, by name of the implementation."""


class Implementation(msgspec.Struct, frozen=True):
    """An implementation that decodes or encodes the messages of a batch."""

    name: str
    prepare: Callable[[Batch], Run]
    """A function that prepares a batch as input, which is not timed, and returns the function to time."""
    result: Callable[[Batch], list[Any]]
    """A function that returns the decoded or encoded batch, for comparison with the expected result."""
    result_kind: ResultKind = "cells"


def timed(work: Callable[[], object]) -> Run:
    """Return a function that calls `work`, drops its result, and returns how many seconds the call took."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def check_results(implementations: Sequence[Implementation], batch: Batch) -> None:
    """Check that all implementations return the expected result for a batch.

    Raises:
        SystemExit: A result is not as expected; the text names the implementation and the first wrong item.
    """
    as_text = msgspec.structs.replace(batch.shape, format="text")
    expected = {
        "cells": batch.rows(),
        "texts": streams.batch(as_text, batch.start, len(batch.data)).rows(),
        "messages": batch.data.to_pylist(),
    }
    for one in implementations:
        pairs = zip_longest(one.result(batch), expected[one.result_kind])
        for number, (actual, right) in enumerate(pairs):
            if actual != right:
                where = f"{one.name}, {batch.shape}: {one.result_kind} {number}"
                raise SystemExit(f"{where}: {actual}, not {right}")


def prepare(implementations: Sequence[Implementation], batches: Iterable[Batch]) -> Iterator[Prepared]:
    """Yield for each batch the function to time of each implementation, by name of the implementation."""
    for batch in batches:
        yield {one.name: one.prepare(batch) for one in implementations}


def run_in_turns(batches: Iterable[Prepared], first: int = 0) -> dict[str, float]:
    """Run all implementations on all batches; return the total seconds of each implementation, by name.

    Args:
        batches: For each batch, the function to time of each implementation, by name of the implementation.
        first: Index of the implementation that runs first on the first batch. On each further batch, the
            next implementation runs first.
    """
    totals: dict[str, float] = {}
    gc.collect()
    gc.disable()
    try:
        for number, runs in enumerate(batches, first):
            names = list(runs)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                totals[name] = totals.get(name, 0.0) + runs[name]()
    finally:
        gc.enable()
    return totals


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each implementation's median of its seconds in all rounds, by name of the implementation."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
