"""Tables of a workload: their columns, and the row pools from which random rows are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep import catalog
from logicalrep._arrays import from_buffers
from logicalrep._type_modifiers import numeric_modifier
from logicalrep.catalog import BY_NAME
from logicalrep.columns import Cells, Columns, encode_cells
from logicalrep.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from logicalrep.synth.workload.definition import ColumnShape, Profile, TableShape, Workload
from logicalrep.synth.workload.values import (
    KEY_TYPES,
    IntArray,
    Random,
    draw_values,
    number_texts,
    type_name,
)
from logicalrep.values import encode_binary

_FIRST_OID: Final = 131_072
"""OID of the first table, greater than the OIDs of the tables of varied transactions."""
_OIDS_PER_TABLE: Final = 6

_POOL_VALUES: Final = 4_096
"""Maximum number of distinct values per column, and of rows per row pool."""
_MIN_POOL_ROWS: Final = 64
"""Minimum number of distinct values per column, and of rows per row pool."""

_POOL_BYTES: Final = 8 << 20
"""Approximate maximum size of all distinct values of a column together, in bytes."""

_ALL_POOLS_BYTES: Final = 64 << 20
"""Approximate maximum size of all row pools, in bytes. Each pool has at least `_MIN_POOL_ROWS` rows."""

_NULLS: Final = 1 / 16
"""Fraction of NULLs in the nullable columns of the default tables."""

_COLUMNS: Final = (
    ("note", "text", -1, 0),
    ("amount", "numeric", numeric_modifier(10, 2), _NULLS),
    ("created_at", "timestamptz", -1, 0),
    ("is_open", "bool", -1, 0),
    ("token", "uuid", -1, 0),
    ("quantity", "int4", -1, 0),
    ("due_on", "date", -1, _NULLS),
    ("ratio", "float8", -1, 0),
)
"""Name, type, type modifier and fraction of NULLs of the non-key columns of the default tables."""


def table_shapes(profile: Profile) -> tuple[TableShape, ...]:
    """Return the tables of a profile: its `shapes`, or default tables if it has none.

    A default table has the primary key `id`. Its other columns depend only on the table's number.
    """
    return profile.shapes or tuple(_default_shape(profile, number) for number in range(profile.tables))


def _default_shape(profile: Profile, number: int) -> TableShape:
    kinds = (0, *((number + i) % len(_COLUMNS) for i in range(3 + number % 3)))
    sizes = (profile.value_sizes.first, profile.value_sizes.last)
    columns = [ColumnShape(name="id", type_oid=BY_NAME["int8"].oid, key=True)]
    for i, kind in enumerate(kinds):
        name, type_, modifier, nulls = _COLUMNS[kind]
        columns.append(
            ColumnShape(
                name=name if kinds.index(kind) == i else f"{name}_{i}",
                type_oid=BY_NAME[type_].oid,
                type_modifier=modifier,
                nulls=nulls,
                sizes=sizes,
            )
        )
    return TableShape(
        name=f"table_{number + 1}", columns=tuple(columns), replica_identity=profile.replica_identity
    )


class WorkloadTable(msgspec.Struct, frozen=True):
    """A table of a workload: its Relation message, and the shape of its values."""

    relation: Relation
    shape: TableShape


def make_tables(profile: Profile) -> list[WorkloadTable]:
    """Return the tables of a profile, with their OIDs and Relation messages."""
    return [_table(number, shape) for number, shape in enumerate(table_shapes(profile))]


def _table(number: int, shape: TableShape) -> WorkloadTable:
    columns = tuple(
        RelationColumn(
            flags=ColumnFlag(shape.identifies(column)),
            name=column.name,
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
        )
        for column in shape.columns
    )
    relation = Relation(
        oid=_FIRST_OID + _OIDS_PER_TABLE * number,
        namespace=shape.namespace,
        name=shape.name,
        replica_identity=ReplicaIdentity[shape.replica_identity.upper()],
        columns=columns,
    )
    return WorkloadTable(relation, shape)


_INTEGER_BYTES: Final = {"int8": 8, "int4": 4, "oid": 4}
"""Size in binary format of the types of integer keys, in bytes."""


def unique_column(shape: TableShape) -> int | None:
    """Return the index of a key column with a distinct value in each row; None if there is none."""
    possible = [i for i, one in enumerate(shape.columns) if one.key and type_name(one) in KEY_TYPES]
    return min(possible, key=lambda i: KEY_TYPES.index(type_name(shape.columns[i])), default=None)


class RowPool(msgspec.Struct, frozen=True):
    """Random rows of a table, from which the rows in messages are drawn.

    A value of the unique column, if any, is made from the row's number in the table. The other key columns
    take their values from the pool row with this number, modulo the pool's size. An update keeps the row's
    number, and therefore never changes the key.
    """

    shape: TableShape
    unique: int | None
    """Index of the column with a distinct value in each row, or None."""
    values: list[pa.DictionaryArray]
    """Values of each column in text format."""
    runs: list[tuple[bool, int, Cells]]
    """Runs of neighbouring columns, as (whether key columns, index of the first column, encoded cells)."""
    binary: bool
    """Whether the cells have binary format."""

    def __len__(self) -> int:
        return len(self.values[0]) if self.values else _MIN_POOL_ROWS

    def columns(self, numbers: IntArray, drawn: IntArray | None) -> Columns:
        """Return the cells of rows by column, as the encoders of `logicalrep.columns` take them.

        Args:
            numbers: Number of each row in its table.
            drawn: For each row, index of the pool row with the values outside the key. None gives NULL
                outside the key, as in key tuples.
        """
        nulls = pa.nulls(len(numbers), pa.string())
        columns: list[pa.Array | Cells] = []
        for is_key, first, cells in self.runs:
            if first == self.unique:
                columns.append(self._unique_cells(numbers))
            elif is_key or drawn is not None:
                columns.append(cells.take(pa.array(numbers % len(self) if is_key else drawn)))
            else:
                columns += [nulls] * cells.columns
        return columns

    def texts(self, numbers: IntArray, drawn: IntArray) -> Iterator[pa.Array]:
        """Yield the values of rows in text format, column by column.

        Args:
            numbers: Number of each row in its table.
            drawn: For each row, index of the pool row with the values outside the key.
        """
        for i, (column, values) in enumerate(zip(self.shape.columns, self.values, strict=True)):
            if i == self.unique:
                yield self._unique_texts(numbers)
            else:
                yield values.take(pa.array(numbers % len(self) if column.key else drawn))

    def _unique_texts(self, numbers: IntArray) -> pa.StringArray:
        assert self.unique is not None
        return number_texts(type_name(self.shape.columns[self.unique]), pa.array(numbers))

    def _unique_cells(self, numbers: IntArray) -> pa.Array:
        assert self.unique is not None
        if not self.binary:
            return self._unique_texts(numbers)
        column = self.shape.columns[self.unique]
        size = _INTEGER_BYTES.get(type_name(column))
        if size is None:
            return _to_binary(self._unique_texts(numbers), column.type_oid)
        offsets = np.arange(len(numbers) + 1, dtype=np.int32) * size
        return from_buffers(pa.binary(), len(numbers), offsets, numbers.astype(f">i{size}").view(np.uint8))


def _to_binary(values: pa.StringArray, type_oid: int) -> pa.Array:
    """Return values in binary format; unchanged if their type has none."""
    type_ = catalog.BY_OID.get(type_oid)
    if type_ is not None and type_.send == "none":
        return values
    encode = str.encode if type_ is None else partial(encode_binary, type_oid=type_oid)
    return pa.array([None if text is None else encode(text) for text in values.to_pylist()], pa.binary())


@lru_cache(maxsize=1)
def make_pools(workload: Workload) -> list[RowPool]:
    """Return a row pool for each table of a workload."""
    shapes = table_shapes(workload)
    affordable_rows = _ALL_POOLS_BYTES / len(shapes) / workload.mean_message_bytes
    rows = max(_MIN_POOL_ROWS, min(_POOL_VALUES, int(affordable_rows)))
    kinds: dict[ColumnShape, pa.StringArray] = {}
    pools = []
    for number, shape in enumerate(shapes):
        random = np.random.default_rng([workload.seed, 3, number])
        values = []
        for column in shape.columns:
            kind = msgspec.structs.replace(column, name="", key=False)
            if kind not in kinds:
                kinds[kind] = _draw_kind(kind, workload.seed, len(kinds))
            values.append(kinds[kind].take(pa.array(draw_indices(random, len(kinds[kind]), rows))))
        pools.append(_make_pool(shape, values, workload.binary))
    return pools


def _draw_kind(column: ColumnShape, seed: int, number: int) -> pa.StringArray:
    """Return random values for all columns that have the type, sizes and fraction of NULLs of `column`.

    `seed` is the seed of the workload. `number` distinguishes the combinations of type, sizes and fraction.
    """
    affordable = int(_POOL_BYTES * len(column.sizes) / max(sum(column.sizes), 1))
    count = max(_MIN_POOL_ROWS, min(_POOL_VALUES, affordable))
    return draw_values(np.random.default_rng([seed, 1, number]), count, column)


def _make_pool(shape: TableShape, values: list[pa.StringArray], binary: bool) -> RowPool:
    unique, columns = unique_column(shape), shape.columns
    sent = [
        _to_binary(array, column.type_oid) if binary else array
        for column, array in zip(columns, values, strict=True)
    ]
    runs = []
    for (is_key, _), run in groupby(range(len(sent)), lambda i: (columns[i].key, i == unique)):
        first, *others = run
        runs.append((is_key, first, encode_cells(sent[first : first + 1 + len(others)])))
    return RowPool(shape, unique, [array.dictionary_encode() for array in values], runs, binary)


def draw_indices(random: Random, size: int, count: int) -> Any:
    """Return `count` random indices of an array with `size` elements; `size` is at most 65,536."""
    return random.integers(0, size, size=count, dtype=np.uint16)
