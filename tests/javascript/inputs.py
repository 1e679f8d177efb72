"""Damaged messages of all protocol versions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from tests.codec import fuzz
from tests.javascript.compare import Input


def damaged(random: Random, count: int) -> Iterator[Input]:
    """Yield damaged messages, as `tests.codec.fuzz` makes them."""
    for data, (_, layout, in_stream, streaming) in islice(fuzz.inputs(random, *fuzz.seeds()), count):
        yield f"v{layout.version}" if layout.version else "envelope", data, in_stream, streaming
