"""Random column values in the text format that a server writes, by type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import catalog
from logicalrep._type_modifiers import numeric_precision, string_length
from logicalrep.synth.workload.definition import ColumnShape
from logicalrep.values import decode_binary, encode_binary, from_arrow

IntArray: TypeAlias = npt.NDArray[Any]
"""NumPy array of integers or booleans."""
Random: TypeAlias = np.random.Generator
"""NumPy random generator."""
Draw: TypeAlias = Callable[[Random, int, ColumnShape], Sequence[str | None]]
"""Function that returns random values. Arguments: random generator, number of values, and the column."""

_WORDS: Final = (
    "order", "customer", "shipped", "delayed", "returned", "invoice", "paid", "open", "note", "call", "again",
)  # fmt: skip

_START_DAY: Final = 19_723
"""2024-01-01 in days since 1970, the earliest date."""
_DAY: Final = 86_400_000
"""A day in milliseconds."""


# Values made from numbers


def _timestamps(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts milliseconds after 2024-01-01 to timestamps of the type `kind`."""
    return lambda numbers: pc.multiply(pc.add(numbers, _START_DAY * _DAY), 1_000).cast(kind)


def _padded_number(prefix: str, width: int) -> Callable[[pa.Array], pa.Array]:
    return lambda numbers: pc.binary_join_element_wise(
        prefix, pc.utf8_lpad(numbers.cast(pa.string()), width, "0"), ""
    )


_FROM_NUMBERS: Final[Mapping[str, tuple[int, Callable[[pa.Array], pa.Array]]]] = {
    "int8": (100_000, lambda numbers: numbers),
    "int4": (100_000, lambda numbers: numbers),
    "oid": (100_000, lambda numbers: numbers),
    "int2": (10_000, lambda numbers: numbers),
    "timestamptz": (366 * _DAY, _timestamps(pa.timestamp("us", "UTC"))),
    "timestamp": (366 * _DAY, _timestamps(pa.timestamp("us"))),
    "date": (3_660, lambda numbers: pc.add(numbers, _START_DAY).cast(pa.int32()).cast(pa.date32())),
    **dict.fromkeys(("float4", "float8"), (1 << 20, lambda numbers: pc.divide(numbers.cast("double"), 8))),
}
"""By type name: exclusive limit of random numbers, and function that makes values from numbers."""

_KEY_TEXTS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "numeric": lambda numbers: numbers.cast(pa.string()),
    "uuid": _padded_number("00000000-0000-4000-8000-", 12),
    **dict.fromkeys(("text", "varchar", "name"), _padded_number("", 8)),
    "bytea": _padded_number("\\x", 16),
}
"""By type name: function that makes texts of values from numbers, for types not in `_FROM_NUMBERS`."""

KEY_TYPES: Final = ("int8", "int4", "oid", *_KEY_TEXTS, "timestamptz", "timestamp", "date")
"""Names of types with distinct values for distinct numbers, the most suitable types of keys first."""


def number_texts(type_name: str, numbers: pa.Array) -> pa.StringArray:
    """Return a value in text format for each number; the values are distinct for types in `KEY_TYPES`."""
    if type_name in _KEY_TEXTS:
        return _KEY_TEXTS[type_name](numbers)
    return from_arrow(_FROM_NUMBERS[type_name][1](numbers), catalog.BY_NAME[type_name].oid)


def type_name(column: ColumnShape) -> str:
    """Return the name of a column's type: "array" for any array, "text" for a type that is not built in."""
    if column.type_oid in catalog.BY_ARRAY_OID:
        return "array"
    type_ = catalog.BY_OID.get(column.type_oid)
    return "text" if type_ is None else type_.name


# Random values


def draw_values(random: Random, count: int, column: ColumnShape) -> pa.StringArray:
    """Return random values of a column in text format."""
    name = type_name(column)
    if name in _FROM_NUMBERS:
        values = number_texts(name, pa.array(random.integers(0, _FROM_NUMBERS[name][0], size=count)))
    else:
        draw = _DRAW.get(name) or _choose(*_examples(column.type_oid))
        values = pa.array(draw(random, count, column), pa.string())
    return pc.if_else(random.random(count) < column.nulls, pa.scalar(None, pa.string()), values)


def _sizes(random: Random, count: int, column: ColumnShape) -> IntArray:
    """Return random sizes of values of a column, in bytes."""
    bounds = column.sizes
    drawn = np.interp(random.random(count) * (len(bounds) - 1), np.arange(len(bounds)), bounds)
    return np.rint(drawn).astype(np.int64)


def _texts(random: Random, count: int, column: ColumnShape) -> list[str]:
    sizes = _sizes(random, count, column)
    longest = int(sizes.max(initial=0))
    words = " ".join(_WORDS[i] for i in random.integers(0, len(_WORDS), size=longest // 4 + 4_096).tolist())
    starts = random.integers(0, max(1, len(words) - longest), size=count).tolist()
    return [words[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)]


def _padded_texts(random: Random, count: int, column: ColumnShape) -> list[str]:
    texts, length = _texts(random, count, column), string_length(column.type_modifier)
    return texts if length < 0 else [text[:length].ljust(length) for text in texts]


def _numerics(random: Random, count: int, column: ColumnShape) -> list[str]:
    precision, scale = numeric_precision(column.type_modifier) or (9, 2)
    numbers = random.integers(0, 10 ** min(precision, 9), size=count).tolist()
    return [f"{number / 10**scale:.{max(scale, 0)}f}" for number in numbers]


def _uuids(random: Random, count: int, column: ColumnShape) -> list[str]:
    raw = random.bytes(16 * count)
    return [str(UUID(bytes=raw[i : i + 16], version=4)) for i in range(0, len(raw), 16)]


def _choose(*values: str | None) -> Draw:
    return lambda random, count, _: [values[i] for i in random.integers(0, len(values), size=count).tolist()]


_DRAW: Final[Mapping[str, Draw]] = {
    **dict.fromkeys(("text", "varchar", "name", "xml"), _texts),
    **dict.fromkeys(("json", "jsonb"), lambda *of: [f'{{"note": "{text[11:]}"}}' for text in _texts(*of)]),
    "bpchar": _padded_texts,
    "bytea": lambda random, count, column: [
        "\\x" + random.bytes(max(0, size - 2) // 2).hex() for size in _sizes(random, count, column).tolist()
    ],
    "numeric": _numerics,
    "bool": _choose("f", "t"),
    "uuid": _uuids,
    "money": _choose("$1.00", "$12.50"),
}
"""Functions that draw values of types that are not in `_FROM_NUMBERS`, by type name. Values of
other types are drawn from the `_EXAMPLES` that the type accepts."""

_EXAMPLES: Final = (
    "1", "101", "a", "{}", "empty", "00:00:01", "23:59:59.5", "23:59:59.5+01", "1 year 2 mons", "(0,1)",
    "(2,3),(0,1)", "[(0,1),(2,3)]", "((0,1),(2,3))", "{1,2,3}", "<(0,1),2>", "10.0.0.0/8", "192.168.0.1",
    "08:00:2b:01:02:03", "08:00:2b:01:02:03:04:05", "10:20:10,14", "16/B374D848", "'a'", "\\x00ff",
)  # fmt: skip


def _examples(type_oid: int) -> list[str | None]:
    """Return the texts in `_EXAMPLES` that are values of a type, or [None] (NULL) if there are none."""
    found: list[str | None] = []
    for text in _EXAMPLES:
        with suppress(ValueError):
            if decode_binary(encode_binary(text, type_oid), type_oid) == text:
                found.append(text)
    return found or [None]
