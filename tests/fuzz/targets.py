"""What the fuzzer is pointed at: what the kernel does with any bytes at all, Python does as well.

A target takes what a fuzzer gives, and raises where that is not so. It has seeds, made of what servers sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.fuzz import batches, encoding, single


class Target(NamedTuple):
    """What is fuzzed."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


TARGETS = {
    "decode": Target(single.decode, single.messages),
    "envelopes": Target(single.envelopes, single.payloads),
    "index": Target(batches.index, batches.batches),
    "columns": Target(batches.columns, batches.streams),
    "cells": Target(batches.cells, batches.values),
    "encode": Target(encoding.encode, encoding.arrays),
}
