"""Tables of a workload: their columns, and the row pools from which random rows are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput._type_modifiers import numeric_modifier
from pgoutput.catalog import BY_NAME
from pgoutput.columns import Cells, encode_cells
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from pgoutput.synth.workload.definition import Range, Workload
from pgoutput.synth.workload.plan import Random

_FIRST_OID: Final = 16_384
_OIDS_PER_TABLE: Final = 6
"""Difference between OIDs of consecutive tables. Row types, TOAST tables and indexes have OIDs too."""

_POOL_VALUES: Final = 4_096
"""Maximum number of distinct values per column kind, and of rows per row pool."""

_POOL_BYTES: Final = 8 << 20
"""Approximate maximum size of all distinct values of the column kind `note` together, in bytes."""

_ALL_POOLS_BYTES: Final = 64 << 20
"""Approximate maximum size of all row pools, in bytes. Each pool has at least `_MIN_POOL_ROWS` rows."""

_MIN_POOL_ROWS: Final = 64
"""Minimum number of rows in a row pool."""

_WORDS: Final = (
    "order", "customer", "shipped", "delayed", "returned", "invoice", "paid", "open", "note", "call", "again",
)  # fmt: skip

_START: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""Earliest date and timestamp value."""
_NULL_INTERVAL: Final = 16
"""Interval of NULLs in column kinds with NULLs: one in this number of values is NULL."""


class ColumnKind(msgspec.Struct, frozen=True):
    """Kind of a non-key column in a workload: column name, type, and function that returns random values."""

    name: str
    type: str
    """Name of the type in pg_type."""
    draw_values: Callable[[Random, Range], list[str | None]]
    """Function that returns random values in text format; None is NULL. Arguments: the random generator, and
    the bounds of the size of text values."""
    modifier: int = -1
    """Type modifier (atttypmod), -1 for none."""


def _numbers(random: Random, low: int, high: int) -> list[int]:
    return random.integers(low, high, size=_POOL_VALUES).tolist()  # type: ignore[no-any-return]


def _with_nulls(values: Sequence[str]) -> list[str | None]:
    return [None if i % _NULL_INTERVAL == 0 else value for i, value in enumerate(values)]


def _texts(random: Random, sizes: Range) -> list[str | None]:
    count = max(64, min(_POOL_VALUES, int(_POOL_BYTES / max(sizes.mean, 1))))
    wanted = random.integers(sizes.first, sizes.last, size=count, endpoint=True).tolist()
    drawn = random.integers(0, len(_WORDS), size=sizes.last // 4 + 4_096).tolist()
    words = " ".join(_WORDS[i] for i in drawn)
    starts = random.integers(0, max(1, len(words) - sizes.last), size=count).tolist()
    return [words[start : start + size] for start, size in zip(starts, wanted, strict=True)]


def _amounts(random: Random, sizes: Range) -> list[str | None]:
    return _with_nulls([f"{cents // 100}.{cents % 100:02}" for cents in _numbers(random, 0, 10_000_000)])


def _timestamps(random: Random, sizes: Range) -> list[str | None]:
    times = (_START + timedelta(milliseconds=ms) for ms in _numbers(random, 0, 366 * 86_400_000))
    return [
        f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond:06}".rstrip("0").rstrip(".") + "+00" for time in times
    ]


def _dates(random: Random, sizes: Range) -> list[str | None]:
    return _with_nulls([f"{_START + timedelta(days=day):%Y-%m-%d}" for day in _numbers(random, 0, 3_660)])


def _uuids(random: Random, sizes: Range) -> list[str | None]:
    raw = random.bytes(16 * _POOL_VALUES)
    return [str(UUID(bytes=raw[i : i + 16], version=4)) for i in range(0, len(raw), 16)]


def _ratios(random: Random, sizes: Range) -> list[str | None]:
    return [repr(one / 1_024).removesuffix(".0") for one in _numbers(random, 1, 1 << 20)]


COLUMN_KINDS: Final = (
    ColumnKind("note", "text", _texts),
    ColumnKind("amount", "numeric", _amounts, modifier=numeric_modifier(10, 2)),
    ColumnKind("created_at", "timestamptz", _timestamps),
    ColumnKind("is_open", "bool", lambda random, _: ["ft"[one] for one in _numbers(random, 0, 2)]),
    ColumnKind("token", "uuid", _uuids),
    ColumnKind("quantity", "int4", lambda random, _: list(map(str, _numbers(random, -1_000, 100_000)))),
    ColumnKind("due_on", "date", _dates),
    ColumnKind("ratio", "float8", _ratios),
)
"""Kinds of non-key columns. The values are in the text format that a server writes."""


class WorkloadTable(msgspec.Struct, frozen=True):
    """A table of a workload. The int8 column `id` is its primary key."""

    relation: Relation
    kinds: tuple[int, ...]
    """Kind of each non-key column, as an index in `COLUMN_KINDS`."""


def make_tables(count: int) -> list[WorkloadTable]:
    """Return `count` tables of a workload. The columns of a table depend only on the table's number."""
    return [_table(number) for number in range(count)]


def _table(number: int) -> WorkloadTable:
    kinds = (0, *((number + i) % len(COLUMN_KINDS) for i in range(3 + number % 3)))
    columns = [_column("id", "int8", key=True)]
    for i, kind_index in enumerate(kinds):
        kind = COLUMN_KINDS[kind_index]
        name = kind.name if kinds.index(kind_index) == i else f"{kind.name}_{i}"
        columns.append(_column(name, kind.type, kind.modifier))
    oid, name = _FIRST_OID + _OIDS_PER_TABLE * number, f"table_{number + 1}"
    relation = Relation(
        oid=oid,
        namespace="public",
        name=name,
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=tuple(columns),
    )
    return WorkloadTable(relation, kinds)


def _column(name: str, type_: str, modifier: int = -1, key: bool = False) -> RelationColumn:
    return RelationColumn(
        flags=ColumnFlag(key), name=name, type_oid=BY_NAME[type_].oid, type_modifier=modifier
    )


@cache
def _values(value_sizes: Range, seed: int) -> tuple[pa.StringArray, ...]:
    """Return for each item of `COLUMN_KINDS` an array of the values that columns of this kind can have."""
    built = [
        kind.draw_values(np.random.default_rng([seed, 1, i]), value_sizes)
        for i, kind in enumerate(COLUMN_KINDS)
    ]
    return tuple(pa.array(values, pa.string()) for values in built)


class RowPool(msgspec.Struct, frozen=True):
    """Random rows without key. Each table draws the non-key cells of its rows from one row pool."""

    columns: list[pa.StringArray]
    """Values of each non-key column, in text format."""
    cells: Cells
    """The rows of the pool, each encoded as the cells of a tuple."""


@lru_cache(maxsize=1)
def make_pools(workload: Workload) -> list[RowPool]:
    """Return a row pool for each table of a workload."""
    values = _values(workload.value_sizes, workload.seed)
    affordable_rows = _ALL_POOLS_BYTES / workload.tables / workload.mean_message_bytes
    rows = max(_MIN_POOL_ROWS, min(_POOL_VALUES, int(affordable_rows)))
    built = []
    for number, table in enumerate(make_tables(workload.tables)):
        random = np.random.default_rng([workload.seed, 3, number])
        columns = [
            values[kind].take(pa.array(draw_indices(random, len(values[kind]), rows))) for kind in table.kinds
        ]
        built.append(RowPool(columns, encode_cells(columns)))
    return built


def draw_indices(random: Random, size: int, count: int) -> Any:
    """Return random indices from 0 to `size` - 1.

    Args:
        random: Random generator.
        size: Number of elements to choose from, at most 65,536.
        count: Number of indices to return.
    """
    return random.integers(0, size, size=count, dtype=np.uint16)
