"""The recorder's memory does not grow with a transaction's size; `benchmarks.memory` tests 1 GB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.memory import LIMIT, OPTIONS, record, write
from tests.server import Server

MEGABYTE = 1 << 20

STREAMED, WHOLE = OPTIONS


@pytest.mark.parametrize(
    ("row", "names"),
    [(1_000, [STREAMED, WHOLE]), pytest.param(1_000_000, [STREAMED], marks=pytest.mark.nightly)],
)
def test_memory_does_not_depend_on_the_size_of_a_transaction(row: int, names: list[str]) -> None:
    """The least peak of two recorders counts, as other tests only add to a peak."""
    with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB") as server:
        small = [min(peaks) for peaks in _peaks(server, 10 * MEGABYTE, row, names)]
        for before, after in zip(small, _peaks(server, 100 * MEGABYTE, row, names), strict=True):
            # Beside other tests, more segments wait for the disk.
            assert any(peak < min(before, LIMIT) + 60 * MEGABYTE for peak in after)


def _peaks(server: Server, size: int, row: int, names: list[str]) -> list[Iterator[int]]:
    """Return for each of the named options the peaks of two recorders, which run when they are asked for."""
    slots = [[f"s_{size}_{row}_{number}_{time}" for time in range(2)] for number in range(len(names))]
    write(server, [one for pair in slots for one in pair], size, row)
    return [_record(server, pair, OPTIONS[name]) for pair, name in zip(slots, names, strict=True)]


def _record(server: Server, slots: list[str], options: list[str]) -> Iterator[int]:
    return (record(server, slot, options).peak for slot in slots)
