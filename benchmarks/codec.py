"""Measures the codec against its promises: `make bench`.

Decoding is measured beside the decoders of pypgoutput, the other pure-Python ones, on the same bytes: rows of
six text columns, messages of about 88 bytes. Encoding is measured beside our own decoding. Only ratios count:
of the medians of rounds that take turns within one run, so that a slow machine slows all of them.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from pgoutput import messages as m
from pgoutput import v4

DECODE_AT_LEAST = 4.0
"""How many times as fast as pypgoutput we decode, at least."""
ENCODE_AT_MOST = 1.2
"""How many times as long as decoding encoding takes, at most."""

ROUNDS = 41
CALLS = 2000

ROW = ("4711", "Ada Lovelace", "ada@example.org", "2026-03-01", "12.50", "true")
SHORT = ("4711", "Ada", "ada@ex.org", "2026-03-01", "12.50", "t")
KEY = ("4711", None, None, None, None, None)
MESSAGES: dict[str, m.Message] = {
    "Insert": m.Insert(16_384, ROW),
    "Update": m.Update(16_384, SHORT, key=KEY),
    "Delete": m.Delete(16_384, old=ROW),
}


def theirs() -> Any:
    """pypgoutput, from where `make bench` has installed it."""
    sys.path.insert(0, os.environ["PGOUTPUT_BENCH_PATH"])
    import pypgoutput

    return pypgoutput


def round_of(function: Callable[[Any], object], argument: object) -> float:
    """Seconds that many calls take."""
    start = time.perf_counter()
    for _ in range(CALLS):
        function(argument)
    return time.perf_counter() - start


def medians(candidates: dict[str, tuple[Callable[[Any], object], object]]) -> dict[str, float]:
    """Microseconds a call: the median of rounds that take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for name, (function, argument) in candidates.items():
                times[name].append(round_of(function, argument))
    finally:
        gc.enable()
    return {name: statistics.median(rounds) / CALLS * 1e6 for name, rounds in times.items()}


def check_same(name: str, message: Any, other: Any) -> None:
    """Whether both decoders have read the same row."""
    for mine, their in (("new", "new_tuple"), ("key", "old_tuple"), ("old", "old_tuple")):
        cells = getattr(message, mine, None)
        if cells is not None:
            found = tuple(column.col_data for column in getattr(other, their).column_data)
            if cells != found:
                raise SystemExit(f"{name}: pypgoutput reads {found}, not {cells}")


def main() -> int:
    """Print the table; 1 if a promise is broken."""
    try:
        pypgoutput = theirs()
    except (KeyError, ImportError) as error:
        print(f"pypgoutput is not there ({error!r}); run `make bench`, which installs it", file=sys.stderr)
        return 2
    print("         bytes   decode   encode  pypgoutput  pypgoutput/decode  encode/decode")
    kept = True
    for name, message in MESSAGES.items():
        data = v4.encode(message)
        decoder = getattr(pypgoutput, name)
        check_same(name, v4.decode(data), decoder(data))
        found = medians(
            {"decode": (v4.decode, data), "other": (decoder, data), "encode": (v4.encode, message)}
        )
        faster, longer = found["other"] / found["decode"], found["encode"] / found["decode"]
        kept = kept and faster >= DECODE_AT_LEAST and longer <= ENCODE_AT_MOST
        print(
            f"{name:8} {len(data):5} {found['decode']:5.2f} µs {found['encode']:5.2f} µs "
            f"{found['other']:8.2f} µs {faster:18.1f} {longer:14.2f}"
        )
    print(
        f"Promised: decode at least {DECODE_AT_LEAST:g} times as fast as pypgoutput, "
        f"encode at most {ENCODE_AT_MOST:g} times as long as decode: {'kept' if kept else 'BROKEN'}."
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
