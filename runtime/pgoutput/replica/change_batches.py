"""Arrow batches of changes as binary values; Spark moves few large rows faster than many small ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import Numbers, value_bytes, value_offsets
from pgoutput.replica.chunks import is_constant, split_by_columns
from pgoutput.replica.rows.cells import columns_of_maps
from pgoutput.views import BATCHES, CHANGES

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")

_OF_RELATION: Final = ("relation", "key_columns", "columns", "incomplete")
"""Columns of the view `changes` that are usually equal for all changes of a relation."""

_PRIME: Final = np.uint64(1099511628211)  # that of the hash function FNV


def pack_by_relation(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes, as rows of the view `changes`, as rows of the view `batches`: one for each relation."""
    relations = list(split_by_relation(changes))
    oids = pa.array([oid for oid, _ in relations], pa.int64())
    data = pa.array([pack_changes(rows) for _, rows in relations], pa.binary())
    return pa.record_batch([oids, data], schema=BATCHES)


def pack_changes(changes: pa.RecordBatch) -> bytes:
    """Return changes as the field `data` of the view `batches`."""
    common = [name for name in _OF_RELATION if is_constant(changes[name])]
    sink = pa.BufferOutputStream()
    for rows in (changes.select(common).slice(0, 1), changes.drop_columns(common)):
        with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as stream:
            stream.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_changes(data: bytes) -> pa.RecordBatch:
    """Return changes from the field `data` of the view `batches`, as rows of the view `changes`."""
    source = pa.BufferReader(data)
    (common,), (rows,) = (list(pa.ipc.open_stream(source)) for _ in range(2))
    repeated = common.take(pa.array(np.zeros(rows.num_rows, np.int64)))
    columns = [(repeated if name in repeated.schema.names else rows)[name] for name in CHANGES.names]
    return pa.record_batch(columns, schema=CHANGES)


def split_by_relation(changes: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the OID and the changes of each relation of an Arrow batch, in unchanged order."""
    oids = pc.struct_field(changes["relation"], "oid").to_numpy()
    if not len(oids):
        return
    if (oids == oids[0]).all():
        yield int(oids[0]), changes
        return
    yield from _split(oids, changes)


def split_by_key(changes: pa.RecordBatch, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide changes of one relation by their old keys.

    Only an update that moves a row has another new key.

    Args:
        changes: Rows of the view `changes`.
        parts: Number of parts.

    Yields:
        The number of a part, and its changes in unchanged order; all changes of a key have the same number.
    """
    for rows in split_by_columns(changes):
        names = rows["key_columns"][0].as_py()
        old, new = (columns_of_maps(rows[name], names) for name in ("before", "after"))
        has_old = rows["before"].is_valid()
        hashes = np.zeros(rows.num_rows, np.uint64)
        for before, after in zip(old, new, strict=True):
            hashes = hashes * _PRIME + _hash_texts(pc.if_else(has_old, before.texts, after.texts))
        yield from _split(((hashes >> np.uint64(33)) % np.uint64(parts)).astype(np.int64), rows)


def _split(numbers: Numbers, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each number, in unchanged order."""
    order = np.argsort(numbers, kind="stable")
    for selected in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        yield int(numbers[selected[0]]), rows.take(pa.array(selected))


def _hash_texts(texts: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Return a hash of each text, which is the same in every process; that of an empty text for NULL."""
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
