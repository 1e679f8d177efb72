"""Committed changes of one relation and schema version, with an Arrow column for each column of the relation.

Replicas read changes in this form. The view `changes` has the same changes as rows that users can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import Mask, Numbers, mask_bits, struct_from_columns, value_bytes, value_offsets

COMMON: Final = ("operation", "commit_lsn", "commit_time", "xid", "position", "sequence")
"""Columns of the view `changes` that the rows of `RelationChanges` have too."""

_TEXT: Final = pa.string()

_NUMBERS: Final = pa.list_(pa.field("element", pa.int32(), nullable=False))

_METADATA: Final = b"logicalrep.relation"
"""Key in the metadata of an Arrow schema; the value is the `ChangedRelation` as JSON."""

_PRIME: Final = np.uint64(1099511628211)  # the prime of the hash function FNV


class Column(msgspec.Struct, frozen=True):
    """A column of a relation."""

    name: str
    type_oid: int
    """OID of the type (pg_attribute.atttypid); of the base type for a domain."""
    type_modifier: int
    """Type modifier (pg_attribute.atttypmod)."""


class AlteredNames(msgspec.Struct, frozen=True):
    """What ALTER TABLE did to the columns of a relation: their earlier names, and values of added columns."""

    earlier: dict[str, str]
    """Earlier name of each column, by present name, without added columns."""
    values: dict[str, str | None]
    """Known values of existing rows in added columns, as text, by name of the column."""
    generated: frozenset[str]
    """Names of the generated columns."""


class ChangedRelation(msgspec.Struct, frozen=True):
    """The relation that changes belong to, as it was when the changes were made."""

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    """Names of the columns of the relation's replica identity."""
    alteration: AlteredNames | None = None
    """What ALTER TABLE did to the columns, if an ALTER TABLE is the only change: `columns` are then all
    columns after it. None for changes of rows."""
    incomplete: str | None = None
    """Why the recording lacks rows or changes of the relation; None if it lacks none."""
    following_columns: tuple[str, ...] = ()
    """Names of altered columns whose values in existing rows follow from earlier values."""


class RelationChanges(NamedTuple):
    """Committed changes of one relation and schema version."""

    relation: ChangedRelation
    rows: pa.RecordBatch
    """One row per change: some columns of the view `changes`, and the following.

    - `old`, `new`: Structs with the old and the new tuple, NULL without the tuple. Field i has the text of
      column i, from 0; NULL if the value is NULL or was not sent.
    - `key_only`: Whether only the columns of the replica identity were sent in the old tuple.
    - `unchanged`: Indices of the columns that were not sent in the new tuple, because they are unchanged.
    """

    def with_rows(self, rows: pa.RecordBatch) -> RelationChanges:
        """Return `rows` as changes of the same relation and schema version."""
        return RelationChanges(self.relation, rows)


def change_rows(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return a record batch for `RelationChanges.rows`, given its columns by name."""
    names = (*COMMON, "old", "new", "key_only", "unchanged")
    return pa.record_batch([columns[name] for name in names], names)


def altered_changes(
    relation: ChangedRelation, values: Mapping[str, Any], columns: Mapping[str, pa.Array]
) -> RelationChanges:
    """Return `RelationChanges` that contain nothing but an ALTER TABLE.

    Args:
        relation: The relation after the ALTER TABLE.
        values: `before`, `after` and `unchanged` of the row of the ALTER TABLE in the view `changes`.
        columns: The columns named in `COMMON` (`operation`, `commit_lsn` and others), as arrays with one row.
    """
    names = AlteredNames(
        dict(values["before"] or ()), dict(values["after"] or ()), frozenset(values["unchanged"])
    )
    tuples = {
        "old": pa.nulls(1, pa.struct([])),
        "new": pa.nulls(1, pa.struct([])),
        "key_only": pa.array([False]),
        "unchanged": pa.array([[]], _NUMBERS),
    }
    altered = msgspec.structs.replace(relation, alteration=names)
    return RelationChanges(altered, change_rows({**columns, **tuples}))


def tuple_type(columns: int) -> pa.DataType:
    """Return the type of `old` and `new` in `RelationChanges.rows`, for a relation with `columns` columns."""
    return pa.struct([pa.field(str(number), _TEXT) for number in range(columns)])


def tuple_array(texts: Sequence[pa.StringArray], missing: Mask) -> pa.StructArray:
    """Return tuples as structs of text, given their columns; a struct is NULL where `missing` is true."""
    valid = mask_bits(~missing) if missing.any() else None
    return struct_from_columns(tuple_type(len(texts)), len(missing), texts, valid)


def number_lists(mask: Mask) -> pa.ListArray:
    """Return for each row of a mask the indices of the columns where the mask is true."""
    offsets = np.concatenate(([0], np.cumsum(mask.sum(axis=1)))).astype(np.int32)
    numbers = pa.array(np.nonzero(mask)[1].astype(np.int32))
    return pa.ListArray.from_arrays(pa.array(offsets), numbers, type=_NUMBERS)


class ColumnCells(msgspec.Struct, frozen=True):
    """The cells of one column in the old tuples, or in the new tuples, of several changes."""

    texts: pa.StringArray
    """The column's value in each change, as text; NULL if the value is NULL or was not sent."""
    sent: Mask
    """For each change, whether a value was sent; NULL counts as a value."""

    def coalesce(self, other: ColumnCells) -> ColumnCells:
        """Return these cells; where a change sent no cell, take the cell of the same change from `other`."""
        if not (other.sent & ~self.sent).any():
            return self
        texts = pc.if_else(pa.array(self.sent), self.texts, other.texts)
        return ColumnCells(texts, self.sent | other.sent)


def old_columns(relation: ChangedRelation, rows: pa.Table | pa.RecordBatch) -> list[ColumnCells]:
    """Return the cells of each column in the old tuples of changes.

    Args:
        relation: The relation of the changes.
        rows: The changes, with the columns `old` and `key_only` of `RelationChanges.rows`.
    """
    tuples = _combined(rows["old"])
    exists = np.asarray(tuples.is_valid())
    whole = exists & ~np.asarray(_combined(rows["key_only"]))
    return [
        ColumnCells(texts, exists if column.name in relation.keys else whole)
        for column, texts in zip(relation.columns, tuples.flatten(), strict=True)
    ]


def new_columns(relation: ChangedRelation, rows: pa.Table | pa.RecordBatch) -> list[ColumnCells]:
    """Return the cells of each column in the new tuples of changes.

    Args:
        relation: The relation of the changes.
        rows: The changes, with the columns `new` and `unchanged` of `RelationChanges.rows`.
    """
    tuples, unchanged = _combined(rows["new"]), _combined(rows["unchanged"])
    exists = np.asarray(tuples.is_valid())
    sent = [exists] * len(relation.columns)
    if len(numbers := unchanged.flatten()):
        row_of = np.repeat(np.arange(len(exists)), np.diff(unchanged.offsets.to_numpy()))
        column_of = np.asarray(numbers)
        for column in np.unique(column_of).tolist():
            sent[column] = exists.copy()
            sent[column][row_of[column_of == column]] = False
    return [ColumnCells(texts, mask) for texts, mask in zip(tuples.flatten(), sent, strict=True)]


def _combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def pack_changes(changes: RelationChanges) -> bytes:
    """Return changes as bytes: an Arrow IPC stream with one batch, and the relation in its metadata."""
    sink = pa.BufferOutputStream()
    schema = changes.rows.schema.with_metadata({_METADATA: msgspec.json.encode(changes.relation)})
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(changes.rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_changes(data: bytes) -> RelationChanges:
    """Return changes from the result of `pack_changes`."""
    with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
        (rows,) = stream
    relation = msgspec.json.decode(rows.schema.metadata[_METADATA], type=ChangedRelation)
    return RelationChanges(relation, rows.replace_schema_metadata(None))


def split_by_key(changes: RelationChanges, parts: int) -> Iterator[tuple[int, RelationChanges]]:
    """Divide changes into parts by key, so that all changes with the same key are in one part.

    The key of a change is in its old tuple, or in its new tuple if no old tuple was sent. An update that
    changes the key of a row has an old tuple, so it is in the part of the old key.

    Args:
        changes: The changes.
        parts: Number of parts.

    Yields:
        The number of a part, and its changes in unchanged order.
    """
    relation, rows = changes
    hashes = np.zeros(rows.num_rows, np.uint64)
    has_old = rows["old"].is_valid()
    tuples = zip(relation.columns, rows["old"].flatten(), rows["new"].flatten(), strict=True)
    for column, old, new in tuples if relation.alteration is None else ():
        if column.name in relation.keys:
            hashes = hashes * _PRIME + _hash_texts(pc.if_else(has_old, old, new))
    numbers = ((hashes >> np.uint64(33)) % np.uint64(parts)).astype(np.int64)
    for part, divided in grouped_rows(numbers, rows):
        yield part, changes.with_rows(divided)


def grouped_rows(numbers: Numbers, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each number in `numbers`, with the rows that have the number, in unchanged order.

    Args:
        numbers: A number for each row.
        rows: The rows.
    """
    if len(numbers) and (numbers == numbers[0]).all():
        yield int(numbers[0]), rows
        return
    order = np.argsort(numbers, kind="stable")
    for selected in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else ():
        yield int(numbers[selected[0]]), rows.take(pa.array(selected))


def _hash_texts(texts: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Return a hash of each text, the same in every process; NULL has the hash of an empty text."""
    offsets = value_offsets(texts).astype(np.int64)
    values = value_bytes(texts)[offsets[0] : offsets[-1]].astype(np.uint64)
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    powers = np.cumprod(np.full(lengths.max(initial=0) + 1, _PRIME))
    values *= powers[np.arange(len(values)) - np.repeat(starts, lengths)]
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values)))
    mixed: npt.NDArray[np.uint64] = (
        sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64)
    ) * _PRIME
    return mixed
