"""Our columns: messages to Arrow arrays, and Arrow arrays to messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from benchmarks.streams import Batch, Row, Shape
from benchmarks.turns import Contestant, Gives, timed
from pgoutput.columns.index import Index, Numbers
from pgoutput.columns.read import index_messages, read_column
from pgoutput.stream import StreamDecoder

Read: TypeAlias = Callable[[Index, Numbers, int], pa.Array]
"""The cells of these numbers, which are of this column."""

TUPLES: Final = ("key", "new")


def contestants(shape: Shape) -> list[Contestant]:
    """All of them, for messages of this shape."""
    types = shape.types

    def cells(index: Index, numbers: Numbers, column: int) -> pa.Array:
        return index.texts(numbers).array if shape.format == "text" else index.raw(numbers)

    def values(index: Index, numbers: Numbers, column: int) -> pa.Array:
        return read_column(index, numbers, types[column].oid, types[column].modifier)[0]

    return [
        _decoder("to cells", "cells", shape, cells),
        _decoder("to types", "texts", shape, values),
        Contestant(
            "from cells",
            lambda batch: timed(lambda: [part.encode() for part in batch.parts]),
            lambda batch: batch.joined([part.encode() for part in batch.parts]).to_pylist(),
            "messages",
        ),
    ]


def _decoder(name: str, gives: Gives, shape: Shape, read: Read) -> Contestant:
    decoder = StreamDecoder(4)
    decoder.decode(shape.relation)

    def tuples(batch: Batch) -> Iterator[tuple[Numbers, list[pa.Array]]]:
        """For each kind of tuples the messages that they stand in, and their columns."""
        index = index_messages(batch.data, decoder)
        for kind in TUPLES:
            first = index.first(kind)
            rows = np.flatnonzero(first >= 0)
            yield rows, [read(index, first[rows] + column, column) for column in range(shape.columns)]

    def result(batch: Batch) -> list[Row]:
        found: list[tuple[int, int, Row]] = []
        for place, (rows, columns) in enumerate(tuples(batch)):
            cells = zip(*(column.to_pylist() for column in columns), strict=True)
            found += zip(rows.tolist(), [place] * len(rows), cells, strict=True)
        found.sort(key=lambda row: row[:2])
        return [tuple(map(_text, cells)) for _, _, cells in found]

    return Contestant(name, lambda batch: timed(lambda: list(tuples(batch))), result, gives)


TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    int: str,
    Decimal: str,
    bool: lambda value: "t" if value else "f",
    datetime: lambda value: f"{value:%Y-%m-%d %H:%M:%S.%f}+00",
}
"""Values as the server's text, to compare them with the other format's."""


def _text(cell: Any) -> Any:
    return TEXTS[type(cell)](cell) if type(cell) in TEXTS else cell
