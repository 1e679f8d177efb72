"""Fuzz targets: functions that raise if the kernel and the Python implementation disagree on an input.

The seeds of each target are made from the captures of real servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.fuzz import batches, encoding, single


class Target(NamedTuple):
    """A fuzz target: what to run on each input, and the initial inputs."""

    run: Callable[[bytes], None]
    """Function that takes one input and raises if the kernel and the Python implementation disagree."""
    seeds: Callable[[], Iterator[bytes]]
    """Function that yields the initial inputs."""


TARGETS = {
    "decode": Target(single.decode, single.messages),
    "envelopes": Target(single.envelopes, single.payloads),
    "index": Target(batches.index, batches.batches),
    "columns": Target(batches.columns, batches.streams),
    "cells": Target(batches.cells, batches.values),
    "encode": Target(encoding.encode, encoding.arrays),
}
