"""Benchmark implementations that make an object of each message: logicalrep and pypgoutput."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.machine import FOLDER
from benchmarks.streams import Batch, Row
from benchmarks.timing import Implementation, Run, timed
from logicalrep import messages as m, v4


def ours() -> list[Implementation]:
    """Return logicalrep's decoder and encoder as imported: compiled if the kernel is installed."""
    return [_decoder("to objects", v4.decode), _encoder("from objects", v4.encode)]


def pure() -> list[Implementation]:
    """Return logicalrep's decoder and encoder in pure Python."""
    return [_decoder("to objects, pure", v4.pure_decode), _encoder("from objects, pure", v4.pure_encode)]


def pypgoutput() -> Implementation:
    """Return the decoder of the package pypgoutput, which does not support the binary format.

    Raises:
        ImportError: `make bench` has not installed pypgoutput.
    """
    sys.path.insert(0, str(FOLDER))
    try:
        import pypgoutput
    finally:
        del sys.path[0]
    classes = (pypgoutput.Begin, pypgoutput.Insert, pypgoutput.Update, pypgoutput.Delete, pypgoutput.Commit)
    decoders = {ord(one.__name__[0]): one for one in classes}

    def decode(data: bytes) -> Any:
        return decoders[data[0]](data)

    def result(batch: Batch) -> list[Row]:
        read = map(decode, batch.data.to_pylist())
        tuples = (getattr(one, name, None) for one in read for name in ("old_tuple", "new_tuple"))
        return [tuple(cell.col_data for cell in one.column_data) for one in tuples if one is not None]

    return Implementation("pypgoutput", lambda batch: _call_for_each(decode, batch.data.to_pylist()), result)


def _decoder(name: str, decode: Callable[[bytes], m.Message]) -> Implementation:
    def result(batch: Batch) -> list[Row]:
        read = map(decode, batch.data.to_pylist())
        tuples = (getattr(one, name, None) for one in read for name in ("key", "old", "new"))
        return [one for one in tuples if one is not None]

    return Implementation(name, lambda batch: _call_for_each(decode, batch.data.to_pylist()), result)


def _encoder(name: str, encode: Callable[[m.Message], bytes]) -> Implementation:
    def objects(batch: Batch) -> list[m.Message]:
        return [v4.decode(data) for data in batch.data.to_pylist()]

    return Implementation(
        name,
        lambda batch: _call_for_each(encode, objects(batch)),
        lambda batch: [encode(one) for one in objects(batch)],
        "messages",
    )


def _call_for_each(function: Callable[[Any], object], arguments: Iterable[Any]) -> Run:
    """Return a function that calls `function` with each argument and returns the seconds that this took."""

    def work() -> None:
        for one in arguments:
            function(one)

    return timed(work)
