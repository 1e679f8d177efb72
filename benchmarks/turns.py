"""Who does the same work takes turns at it: what slows the machine slows all of them."""

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
"""Does the work once, and gives its seconds."""

Gives: TypeAlias = Literal["cells", "texts", "messages"]
"""What a result is: the cells of each tuple; those in text format whatever they were in; or the messages."""

Prepared: TypeAlias = Mapping[str, Run]
"""What each contestant does with a batch."""


class Contestant(msgspec.Struct, frozen=True):
    """One that reads or writes the messages of a batch."""

    name: str
    prepare: Callable[[Batch], Run]
    """Gets ready what a program would have at hand; its time does not count."""
    result: Callable[[Batch], list[Any]]
    """What it reads or writes, to compare it before it is measured."""
    gives: Gives = "cells"


def timed(work: Callable[[], object]) -> Run:
    """Some work in this process, and that its result is thrown away."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def check(contestants: Sequence[Contestant], batch: Batch) -> None:
    """Whether all of them read and write the same.

    Raises:
        SystemExit: One does not, and where.
    """
    as_text = msgspec.structs.replace(batch.shape, format="text")
    expected = {
        "cells": batch.rows(),
        "texts": streams.batch(as_text, batch.start, len(batch.data)).rows(),
        "messages": batch.data.to_pylist(),
    }
    for one in contestants:
        found = one.result(batch)
        for number, (got, wanted) in enumerate(zip_longest(found, expected[one.gives])):
            if got != wanted:
                raise SystemExit(f"{one.name}, {batch.shape}: {one.gives} {number}: {got}, not {wanted}")


def prepare(contestants: Sequence[Contestant], batches: Iterable[Batch]) -> Iterator[Prepared]:
    """Have them get ready for one batch after the other."""
    for batch in batches:
        yield {one.name: one.prepare(batch) for one in contestants}


def seconds(batches: Iterable[Prepared], first: int = 0) -> dict[str, float]:
    """What each takes for all batches.

    Args:
        batches: What is done with them.
        first: Who begins with the first batch. With each batch the next one begins.
    """
    taken: dict[str, float] = {}
    gc.collect()
    gc.disable()
    try:
        for number, runs in enumerate(batches, first):
            names = list(runs)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                taken[name] = taken.get(name, 0.0) + runs[name]()
    finally:
        gc.enable()
    return taken


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of what each has taken in all rounds."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
