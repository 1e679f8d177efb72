"""Random column values in the text format that a server writes, by type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

from pgoutput import catalog
from pgoutput._type_modifiers import numeric_precision
from pgoutput.synth.workload.definition import ColumnShape

Random: TypeAlias = np.random.Generator
"""NumPy random generator."""
Draw: TypeAlias = Callable[[Random, int, ColumnShape], Sequence[str]]
"""Function that returns random values. Arguments: random generator, number of values, and the column."""

_WORDS: Final = (
    "order", "customer", "shipped", "delayed", "returned", "invoice", "paid", "open", "note", "call", "again",
)  # fmt: skip

_START: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""Earliest date and timestamp value."""


def draw_values(random: Random, count: int, column: ColumnShape) -> list[str | None]:
    """Return random values of a column in text format, None for NULL."""
    type_ = catalog.BY_OID.get(column.type_oid)
    draw = _DRAW.get(type_.name if type_ else "text") or _constants(column.type_oid)
    values: list[str | None] = list(draw(random, count, column))
    for i in np.flatnonzero(random.random(count) < column.nulls).tolist():
        values[i] = None
    return values


def draw_sizes(random: Random, count: int, column: ColumnShape) -> npt.NDArray[Any]:
    """Return random sizes of values of a column, in bytes."""
    bounds = column.sizes
    drawn = np.interp(random.random(count) * (len(bounds) - 1), np.arange(len(bounds)), bounds)
    return np.rint(drawn).astype(np.int64)


def _texts(random: Random, count: int, column: ColumnShape) -> list[str]:
    sizes = draw_sizes(random, count, column)
    longest = int(sizes.max(initial=0))
    words = " ".join(_WORDS[i] for i in random.integers(0, len(_WORDS), size=longest // 4 + 4_096).tolist())
    starts = random.integers(0, max(1, len(words) - longest), size=count).tolist()
    return [words[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)]


def _padded(random: Random, count: int, column: ColumnShape) -> list[str]:
    width = max(column.type_modifier - 4, 1)
    return [text[:width].ljust(width) for text in _texts(random, count, column)]


def _bytes(random: Random, count: int, column: ColumnShape) -> list[str]:
    sizes = [max(0, size - 2) // 2 for size in draw_sizes(random, count, column).tolist()]
    return ["\\x" + random.bytes(size).hex() for size in sizes]


def _json(random: Random, count: int, column: ColumnShape) -> list[str]:
    return [f'{{"note": "{text[11:]}"}}' for text in _texts(random, count, column)]


def _numerics(random: Random, count: int, column: ColumnShape) -> list[str]:
    precision, scale = numeric_precision(column.type_modifier) or (9, 2)
    digits = min(precision, 9)
    numbers = random.integers(0, 10**digits, size=count).tolist()
    return [f"{number / 10**scale:.{max(scale, 0)}f}" for number in numbers]


def _numbers(low: int, high: int) -> Draw:
    return lambda random, count, _: list(map(str, random.integers(low, high, size=count).tolist()))


def _times(form: str, suffix: str = "") -> Draw:
    def draw(random: Random, count: int, column: ColumnShape) -> list[str]:
        times = (
            _START + timedelta(milliseconds=ms)
            for ms in random.integers(0, 366 * 86_400_000, size=count).tolist()
        )
        return [f"{time:{form}}.{time.microsecond:06}".rstrip("0").rstrip(".") + suffix for time in times]

    return draw


def _dates(random: Random, count: int, column: ColumnShape) -> list[str]:
    return [
        f"{_START + timedelta(days=day):%Y-%m-%d}" for day in random.integers(0, 3_660, size=count).tolist()
    ]


def _uuids(random: Random, count: int, column: ColumnShape) -> list[str]:
    raw = random.bytes(16 * count)
    return [str(UUID(bytes=raw[i : i + 16], version=4)) for i in range(0, len(raw), 16)]


def _ratios(random: Random, count: int, column: ColumnShape) -> list[str]:
    return [repr(one / 1_024).removesuffix(".0") for one in random.integers(1, 1 << 20, size=count).tolist()]


def _choose(*values: str) -> Draw:
    return lambda random, count, _: [values[i] for i in random.integers(0, len(values), size=count).tolist()]


_DRAW: Final[Mapping[str, Draw]] = {
    **dict.fromkeys(("text", "varchar", "name", "xml"), _texts),
    **dict.fromkeys(("json", "jsonb"), _json),
    "bpchar": _padded,
    "bytea": _bytes,
    "numeric": _numerics,
    "int2": _numbers(-1_000, 10_000),
    **dict.fromkeys(("int4", "int8"), _numbers(-1_000, 100_000)),
    "oid": _numbers(1, 100_000),
    **dict.fromkeys(("float4", "float8"), _ratios),
    "bool": _choose("f", "t"),
    "uuid": _uuids,
    "date": _dates,
    "time": _times("%H:%M:%S"),
    "timestamp": _times("%Y-%m-%d %H:%M:%S"),
    "timestamptz": _times("%Y-%m-%d %H:%M:%S", "+00"),
    "timetz": _times("%H:%M:%S", "+00"),
    "interval": _choose("00:00:01", "1 day", "1 year 2 mons", "3 days 04:05:06"),
    "inet": _choose("192.168.0.1", "10.0.0.0/8", "::1"),
    "cidr": _choose("10.0.0.0/8", "192.168.0.0/16"),
    "macaddr": _choose("08:00:2b:01:02:03", "08:00:2b:01:02:04"),
    "money": _choose("$1.00", "$12.50"),
    "bit": _choose("1", "0"),
    "varbit": _choose("1", "01", "101"),
    "point": _choose("(0,0)", "(1,2.5)"),
}
"""Functions that draw values, by type name."""


def _constants(type_oid: int) -> Draw:
    """Return the function for a type without random values: NULL-free constants that the type accepts."""
    return _choose("{}") if type_oid in catalog.BY_ARRAY_OID else _choose("empty")
