"""The recorder's memory does not grow with a transaction's size; `benchmarks.memory` tests 1 GB."""

from __future__ import annotations

from benchmarks.memory import LIMIT, OPTIONS, record, write
from tests.server import Server

MEGABYTE = 1 << 20

STREAMED, WHOLE = OPTIONS
ROWS = {1_000: [STREAMED, WHOLE], 1_000_000: [STREAMED]}


def test_memory_does_not_depend_on_the_size_of_a_transaction() -> None:
    with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB") as server:
        for row, names in ROWS.items():
            small, large = (_peaks(server, size * MEGABYTE, row, names) for size in (10, 100))
            for before, after in zip(small, large, strict=True):
                # Beside other tests, more segments wait for the disk.
                assert after < before + 60 * MEGABYTE
                assert after < LIMIT + 60 * MEGABYTE


def _peaks(server: Server, size: int, row: int, names: list[str]) -> list[int]:
    """Return the peak for each of the named options: the least of two, as other tests only add to it."""
    slots = [[f"s_{size}_{row}_{number}_{time}" for time in range(2)] for number in range(len(names))]
    write(server, [one for pair in slots for one in pair], size, row)
    return [
        min(record(server, slot, OPTIONS[name]).peak for slot in pair)
        for pair, name in zip(slots, names, strict=True)
    ]
