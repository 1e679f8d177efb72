"""Benchmark implementations that use `logicalrep.columns`: messages to Arrow batches, and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from benchmarks.streams import Batch, Row, Shape
from benchmarks.timing import Implementation, ResultKind, timed
from logicalrep.columns import ColumnDecoder, DecodedBatch, Tuples

Read: TypeAlias = Callable[[Tuples], pa.RecordBatch]


def implementations(shape: Shape) -> list[Implementation]:
    """Return three implementations for this shape of messages: `to cells`, `to types` and `from cells`."""
    read_cells = Tuples.texts if shape.format == "text" else Tuples.raw
    return [
        _decoder("to cells", "cells", shape, read_cells),
        _decoder("to types", "texts", shape, lambda tuples: tuples.values()[0]),
        Implementation(
            "from cells",
            lambda batch: timed(lambda: [part.encode() for part in batch.parts]),
            lambda batch: batch.joined([part.encode() for part in batch.parts]).to_pylist(),
            "messages",
        ),
    ]


def _decoder(name: str, kind: ResultKind, shape: Shape, read: Read) -> Implementation:
    decoder = ColumnDecoder(4)
    decoder.decode(pa.array([shape.relation], pa.binary()))

    def tuples(decoded: DecodedBatch) -> list[tuple[Tuples, pa.RecordBatch]]:
        kinds = (kind for relation in decoded.relations for kind in (relation.key, relation.new))
        return [(kind, read(kind)) for kind in kinds]

    def result(batch: Batch) -> list[Row]:
        rows: list[tuple[int, int, Row]] = []
        for place, (kind, read) in enumerate(tuples(decoder.decode(batch.data))):
            cells = zip(*(column.to_pylist() for column in read.columns), strict=True)
            rows += zip(kind.rows.to_pylist(), [place] * len(kind), cells, strict=True)
        rows.sort(key=lambda row: row[:2])
        return [tuple(map(_text, cells)) for _, _, cells in rows]

    return Implementation(name, lambda batch: timed(lambda: tuples(decoder.decode(batch.data))), result, kind)


TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    int: str,
    Decimal: str,
    bool: lambda value: "t" if value else "f",
    datetime: lambda value: f"{value:%Y-%m-%d %H:%M:%S.%f}+00",
}
"""Functions that convert a value to PostgreSQL's text format, by Python type of the value."""


def _text(cell: Any) -> Any:
    return TEXTS[type(cell)](cell) if type(cell) in TEXTS else cell
