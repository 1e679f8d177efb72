"""Rows to transactions: each batch is one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import messages
from pgoutput.columns import encode_deletes, encode_inserts, encode_updates
from pgoutput.jsonlines import to_json
from pgoutput.recording import Metadata, SchemaVersion, SegmentFile, SegmentWriter, SessionStart, segment_name
from pgoutput.spark.target import STRIDE, Place, Target
from pgoutput.values import from_arrow
from pgoutput.versions import CODECS
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_OPERATIONS: Final = ("Insert", "Update", "Delete")

_STEP: Final = 8
"""Bytes of the WAL from one record to the next: its shortest one would be longer (MAXALIGN)."""

_FIRST_XID: Final = 3
_XIDS: Final = (1 << 32) - _FIRST_XID
"""FirstNormalTransactionId, and how many there are from it on."""
_XIDS_OF_PARTITION: Final = 1 << 20
"""Transactions of one partition that have xids of their own; then others have the same."""

_MOST_BYTES: Final = 64 << 20
"""A batch with more bytes becomes several transactions: the messages of one have to fit into an array."""


def write_partition(
    folder: Path, target: Target, place: Place, partition: int, batches: Iterator[pa.RecordBatch]
) -> Path:
    """Write the rows of a partition as a segment; give where it is.

    Args:
        folder: Where it is written.
        target: The table.
        place: Where it will go.
        partition: Its number.
        batches: The rows.

    Raises:
        ValueError: A value, an operation or a key cannot be, or there are too many rows.
    """
    rows = chain.from_iterable(map(_split, batches))
    start = place.start_of(partition)
    path = folder / segment_name(start.number)
    batch = next(rows, None)
    if batch is None:
        return _write_nothing(path, target, place, start)
    writer = SegmentWriter(folder, place.source, start, segment_bytes=STRIDE)
    lsn, end = start.lsn, start.lsn + STRIDE
    encode = CODECS[target.proto_version].encode
    head: list[messages.Message] = [target.relation]
    received_at = pa.scalar(place.time + EPOCH_UNIX_MICROSECONDS, pa.timestamp("us", tz="UTC"))
    for number in count(partition * _XIDS_OF_PARTITION):
        after = next(rows, None)
        changes = encode_rows(target, batch)
        commit_lsn = lsn + _STEP * (len(changes) + 1)
        if commit_lsn + _STEP > end:
            raise ValueError(f"partition {partition} has more rows than LSNs are set aside for it")
        end_lsn = (
            end if after is None else commit_lsn + _STEP
        )  # the last one ends where the next segment begins
        begin = messages.Begin(commit_lsn, place.time, _FIRST_XID + number % _XIDS)
        commit = messages.Commit(commit_lsn, end_lsn, place.time)
        before = pa.array(map(encode, [begin, *head]), pa.binary())
        data = pa.concat_arrays([before, changes, pa.array([encode(commit)], pa.binary())])
        lsns = [lsn + _STEP, *[0] * len(head)], range(lsn + _STEP, commit_lsn, _STEP), [end_lsn]
        writer.write_batch(
            pa.array(np.concatenate(lsns), pa.int64()), pa.repeat(received_at, len(data)), data
        )
        if after is None:
            break
        lsn, batch, head = end_lsn, after, []
    writer.rotate()
    return path


def _write_nothing(path: Path, target: Target, place: Place, start: SessionStart) -> Path:
    """A segment without messages, which says what the table is: servers send no empty transactions."""
    file = SegmentFile(path)
    file.add_keyframe([CODECS[target.proto_version].encode(target.relation)])
    return file.finish(
        Metadata(
            kind="stream",
            number=start.number,
            session=start.session,
            source=place.source,
            first_position=start.position,
            messages=0,
            keyframe=1,
            start_lsn=start.lsn,
            end_lsn=start.lsn + STRIDE,
            relations=(SchemaVersion(start.position, start.lsn, to_json(target.relation)),),
        )
    )


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    parts = max(1, -(-batch.nbytes // _MOST_BYTES))
    size = -(-len(batch) // parts)
    yield from (batch.slice(at, size) for at in range(0, len(batch), size or 1))


def encode_rows(target: Target, batch: pa.RecordBatch) -> pa.BinaryArray:
    """The messages of some rows, in their order.

    Raises:
        ValueError: A value, an operation or a key cannot be.
    """
    cells = [
        _cells(batch.column(at), column)
        for at, column in zip(target.places, target.relation.columns, strict=True)
    ]
    for at in target.key:
        if cells[at].null_count:
            raise ValueError(f"the column {target.names[at]} is of the key, and NULL in some rows")
    if target.operation is None:
        return encode_inserts(target.relation.oid, cells)
    kinds = batch.column(target.operation)
    codes = pc.index_in(kinds.cast(pa.string()), value_set=pa.array(_OPERATIONS))
    if codes.null_count:
        wrong = kinds.filter(codes.is_null())[0].as_py()
        name = batch.schema.names[target.operation]
        raise ValueError(f"the column {name} is one of {', '.join(_OPERATIONS)}, not {wrong!r}")
    order = pc.array_sort_indices(codes)  # those of one kind together, otherwise as they were
    cells = [column.take(order) for column in cells]
    counts = np.bincount(np.asarray(codes), minlength=len(_OPERATIONS)).tolist()
    inserts, updates, deletes = _slices(cells, counts)
    keys = [
        column if at in target.key else pa.nulls(len(column), column.type)
        for at, column in enumerate(deletes)
    ]
    oid = target.relation.oid
    encoded = pa.concat_arrays(
        [encode_inserts(oid, inserts), encode_updates(oid, updates), encode_deletes(oid, key=keys)]
    )
    return encoded.take(pc.array_sort_indices(order))  # the permutation's inverse


def _slices(cells: list[pa.Array], counts: list[int]) -> Iterator[list[pa.Array]]:
    start = 0
    for size in counts:
        yield [column.slice(start, size) for column in cells]
        start += size


def _cells(column: pa.Array, described: messages.RelationColumn) -> pa.Array:
    try:
        return from_arrow(column, described.type_oid, described.type_modifier)
    except ValueError as error:
        raise ValueError(f"the column {described.name}: {error}") from None
