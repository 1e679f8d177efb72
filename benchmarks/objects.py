"""Who makes an object of each message, in this process: our codec, compiled and in Python, and pypgoutput."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.machine import FOLDER
from benchmarks.streams import Batch, Row
from benchmarks.turns import Contestant, Run, timed
from pgoutput import messages as m
from pgoutput import v4


def ours() -> list[Contestant]:
    """Our codec, as it is imported."""
    return [_decoder("to objects", v4.decode), _encoder("from objects", v4.encode)]


def pure() -> list[Contestant]:
    """Our codec in Python."""
    return [_decoder("to objects, pure", v4.pure_decode), _encoder("from objects, pure", v4.pure_encode)]


def pypgoutput() -> Contestant:
    """The other one in Python, from where `make bench` has installed it; it does not know the binary format.

    Raises:
        ImportError: It is not there.
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

    return Contestant("pypgoutput", lambda batch: _each(decode, batch.data.to_pylist()), result)


def _decoder(name: str, decode: Callable[[bytes], m.Message]) -> Contestant:
    def result(batch: Batch) -> list[Row]:
        read = map(decode, batch.data.to_pylist())
        tuples = (getattr(one, name, None) for one in read for name in ("key", "old", "new"))
        return [one for one in tuples if one is not None]

    return Contestant(name, lambda batch: _each(decode, batch.data.to_pylist()), result)


def _encoder(name: str, encode: Callable[[m.Message], bytes]) -> Contestant:
    def objects(batch: Batch) -> list[m.Message]:
        return [v4.decode(data) for data in batch.data.to_pylist()]

    return Contestant(
        name,
        lambda batch: _each(encode, objects(batch)),
        lambda batch: [encode(one) for one in objects(batch)],
        "messages",
    )


def _each(function: Callable[[Any], object], arguments: Iterable[Any]) -> Run:
    """Call it for each, and keep nothing."""

    def work() -> None:
        for one in arguments:
            function(one)

    return timed(work)
