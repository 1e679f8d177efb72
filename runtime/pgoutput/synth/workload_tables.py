"""The tables of a workload: their shapes, and the values in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput.catalog import BY_NAME
from pgoutput.columns import Cells, encode_cells
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from pgoutput.synth.workload import Range, Workload

Random: TypeAlias = np.random.Generator

_FIRST_OID: Final = 16_384
_OIDS: Final = 6
"""A table takes that many: it has a row type, its array type, TOAST and indexes."""

_POOL: Final = 4_096
"""Different values of a kind."""

_POOL_BYTES: Final = 8 << 20

_POOLS_BYTES: Final = 64 << 20
"""Of the rows of all tables, about; but each has some."""

_LEAST_ROWS: Final = 64

_WORDS: Final = (
    "order", "customer", "shipped", "delayed", "returned", "invoice", "paid", "open", "note", "call", "again",
)  # fmt: skip

_MOMENT: Final = datetime(2024, 1, 1, tzinfo=UTC)
_NULLS: Final = 16
"""One value of so many is NULL, in kinds that have such."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of column."""

    name: str
    type: str
    make: Callable[[Random, Workload], list[str | None]]
    """Values in text format."""
    modifier: int = -1


def _numbers(random: Random, low: int, high: int) -> list[int]:
    return random.integers(low, high, size=_POOL).tolist()  # type: ignore[no-any-return]


def _with_nulls(values: Sequence[str]) -> list[str | None]:
    return [None if i % _NULLS == 0 else value for i, value in enumerate(values)]


def _texts(random: Random, workload: Workload) -> list[str | None]:
    sizes = workload.value_sizes
    count = max(64, min(_POOL, int(_POOL_BYTES / max(sizes.mean, 1))))
    wanted = random.integers(sizes.first, sizes.last, size=count, endpoint=True).tolist()
    drawn = random.integers(0, len(_WORDS), size=sizes.last // 4 + 4_096).tolist()
    words = " ".join(_WORDS[i] for i in drawn)
    starts = random.integers(0, max(1, len(words) - sizes.last), size=count).tolist()
    return [words[start : start + size] for start, size in zip(starts, wanted, strict=True)]


def _amounts(random: Random, workload: Workload) -> list[str | None]:
    return _with_nulls([f"{cents // 100}.{cents % 100:02}" for cents in _numbers(random, 0, 10_000_000)])


def _moments(random: Random, workload: Workload) -> list[str | None]:
    times = (_MOMENT + timedelta(milliseconds=ms) for ms in _numbers(random, 0, 366 * 86_400_000))
    return [
        f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond:06}".rstrip("0").rstrip(".") + "+00" for time in times
    ]


def _days(random: Random, workload: Workload) -> list[str | None]:
    return _with_nulls([f"{_MOMENT + timedelta(days=day):%Y-%m-%d}" for day in _numbers(random, 0, 3_660)])


def _uuids(random: Random, workload: Workload) -> list[str | None]:
    raw = random.bytes(16 * _POOL)
    return [str(UUID(bytes=raw[i : i + 16], version=4)) for i in range(0, len(raw), 16)]


def _ratios(random: Random, workload: Workload) -> list[str | None]:
    return [repr(one / 1_024).removesuffix(".0") for one in _numbers(random, 1, 1 << 20)]


KINDS: Final = (
    Kind("note", "text", _texts),
    Kind("amount", "numeric", _amounts, modifier=(10 << 16 | 2) + 4),
    Kind("created_at", "timestamptz", _moments),
    Kind("is_open", "bool", lambda random, _: ["ft"[one] for one in _numbers(random, 0, 2)]),
    Kind("token", "uuid", _uuids),
    Kind("quantity", "int4", lambda random, _: list(map(str, _numbers(random, -1_000, 100_000)))),
    Kind("due_on", "date", _days),
    Kind("ratio", "float8", _ratios),
)
"""The kinds of columns besides the key. In text format a server writes all of them as they are made here."""


class WorkloadTable(msgspec.Struct, frozen=True):
    """A table: its key is `id`, an int8."""

    relation: Relation
    kinds: tuple[int, ...]
    """Of the columns behind the key; places in `KINDS`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its truth: what is on the wire, as text."""
        return pa.schema([(column.name, pa.string()) for column in self.relation.columns])


def make_tables(count: int) -> list[WorkloadTable]:
    """The tables of a workload, each of a shape that follows from its number."""
    return [_table(number) for number in range(count)]


def _table(number: int) -> WorkloadTable:
    kinds = (0, *((number + i) % len(KINDS) for i in range(3 + number % 3)))
    columns = [RelationColumn(ColumnFlag.KEY, "id", BY_NAME["int8"].oid, -1)]
    for i, place in enumerate(kinds):
        kind = KINDS[place]
        name = kind.name if kinds.index(place) == i else f"{kind.name}_{i}"
        columns.append(RelationColumn(ColumnFlag(0), name, BY_NAME[kind.type].oid, kind.modifier))
    oid, name = _FIRST_OID + _OIDS * number, f"table_{number + 1}"
    return WorkloadTable(Relation(oid, "public", name, ReplicaIdentity.DEFAULT, tuple(columns)), kinds)


@cache
def _values(value_sizes: Range, seed: int) -> tuple[pa.StringArray, ...]:
    """Some values of each kind; those of rows are drawn from them."""
    workload = Workload(value_sizes=value_sizes, large=0)
    made = [kind.make(np.random.default_rng([seed, 1, i]), workload) for i, kind in enumerate(KINDS)]
    return tuple(pa.array(values, pa.string()) for values in made)


class Pool(msgspec.Struct, frozen=True):
    """Rows of a table but for their keys. Those of a workload are drawn from them."""

    columns: list[pa.StringArray]
    cells: Cells
    """The same on the wire."""


@lru_cache(maxsize=1)
def make_pools(workload: Workload) -> list[Pool]:
    """A pool for each table."""
    values = _values(workload.value_sizes, workload.seed)
    room = _POOLS_BYTES / workload.tables / workload.message_bytes
    rows = max(_LEAST_ROWS, min(_POOL, int(room)))
    made = []
    for number, table in enumerate(make_tables(workload.tables)):
        random = np.random.default_rng([workload.seed, 3, number])
        columns = [values[kind].take(pa.array(draw(random, len(values[kind]), rows))) for kind in table.kinds]
        made.append(Pool(columns, encode_cells(columns)))
    return made


def draw(random: Random, size: int, count: int) -> Any:
    """Places in something of this size, at random."""
    return random.integers(0, size, size=count, dtype=np.uint16)
