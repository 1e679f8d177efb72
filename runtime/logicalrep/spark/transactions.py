"""Encode rows of a DataFrame as transactions. The rows of each Arrow batch become one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import messages
from logicalrep._build import build
from logicalrep.columns import encode_deletes, encode_inserts, encode_updates
from logicalrep.jsonlines import to_json
from logicalrep.recording import (
    Metadata,
    SchemaVersion,
    SegmentFile,
    SegmentWriter,
    SessionStart,
    segment_name,
)
from logicalrep.spark.write_plan import STRIDE, SegmentPlan, WrittenTable
from logicalrep.values import from_arrow
from logicalrep.versions import CODECS
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

_OPERATIONS: Final = [role.capitalize() for role in ("insert", "update", "delete")]

_STEP: Final = 8
"""Distance between the LSNs of consecutive messages, in bytes (MAXALIGN)."""

_FIRST_XID: Final = 3
"""Smallest xid of a normal transaction (FirstNormalTransactionId)."""
_XIDS: Final = (1 << 32) - _FIRST_XID
"""Number of different xids that normal transactions can have."""
_XIDS_PER_PARTITION: Final = 1 << 20
"""Number of xids reserved for each Spark partition.

If a partition has more transactions, it also uses xids that are reserved for other partitions.
"""

_MAX_BYTES: Final = 64 << 20
"""Maximum size of a transaction's rows, in bytes: all messages must fit into one Arrow array."""


def write_partition(
    folder: Path, table: WrittenTable, plan: SegmentPlan, partition: int, batches: Iterator[pa.RecordBatch]
) -> Path:
    """Write the rows of a Spark partition as a segment; return the path of the segment.

    Args:
        folder: The temporary folder to write to.
        table: The table that the rows belong to.
        plan: The plan that gives the segment of each partition its number, position and LSN.
        partition: The number of the Spark partition.
        batches: The rows of the Spark partition.

    Raises:
        ValueError: A value, an operation or a key is invalid, or the partition has too many rows.
    """
    rows = chain.from_iterable(map(_split_batch, batches))
    start = plan.start_of(partition)
    path = folder / segment_name(start.number)
    batch = next(rows, None)
    if batch is None:
        return _write_empty_segment(path, table, plan, start)
    writer = SegmentWriter(folder, plan.source, start, segment_bytes=STRIDE)
    lsn, end = start.lsn, start.lsn + STRIDE
    encode = CODECS[table.proto_version].encode
    head: list[messages.Message] = [table.relation]
    received_at = pa.scalar(plan.time + EPOCH_UNIX_MICROSECONDS, pa.timestamp("us", tz="UTC"))
    for number in count(partition * _XIDS_PER_PARTITION):
        after = next(rows, None)
        changes = encode_rows(table, batch)
        commit_lsn = lsn + _STEP * (len(changes) + 1)
        if commit_lsn + _STEP > end:
            raise ValueError(
                f"partition {partition} of the DataFrame has too many rows: use more partitions, for example "
                "with repartition()"
            )
        # The last transaction of a segment ends at the start LSN of the next segment, because
        # `Recording.check` reports a segment with any other end LSN.
        end_lsn = end if after is None else commit_lsn + _STEP
        xid = _FIRST_XID + number % _XIDS
        begin = build("begin", table.proto_version, lsn=commit_lsn, time=plan.time, xid=xid)
        commit = build("commit", table.proto_version, lsn=commit_lsn, end_lsn=end_lsn, time=plan.time)
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


def _write_empty_segment(path: Path, table: WrittenTable, plan: SegmentPlan, start: SessionStart) -> Path:
    """Write a segment that has only a keyframe with the table's Relation message; return the segment's path.

    The segment has no transaction, because servers do not send empty transactions.
    """
    file = SegmentFile(path)
    file.add_keyframe([CODECS[table.proto_version].encode(table.relation)])
    return file.finish(
        Metadata(
            kind="stream",
            number=start.number,
            session=start.session,
            source=plan.source,
            first_position=start.position,
            messages=0,
            keyframe=1,
            start_lsn=start.lsn,
            end_lsn=start.lsn + STRIDE,
            relations=(SchemaVersion(start.position, start.lsn, to_json(table.relation)),),
        )
    )


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    parts = max(1, -(-batch.nbytes // _MAX_BYTES))
    size = -(-len(batch) // parts)
    yield from (batch.slice(at, size) for at in range(0, len(batch), size or 1))


def encode_rows(table: WrittenTable, batch: pa.RecordBatch) -> pa.BinaryArray:
    """Encode rows as Insert, Update and Delete messages, in order.

    Raises:
        ValueError: A value, an operation or a key is invalid.
    """
    cells = [
        _encode_cells(batch.column(at), column)
        for at, column in zip(table.indices, table.relation.columns, strict=True)
    ]
    for at in table.key:
        if cells[at].null_count:
            name = table.relation.columns[at].name
            raise ValueError(
                f"the column {name} is part of the key, but is NULL in some rows: remove these rows"
            )
    oid, version = table.relation.oid, table.proto_version
    if table.operation is None:
        return encode_inserts(oid, cells, proto_version=version)
    operations = batch.column(table.operation)
    codes = pc.index_in(operations.cast(pa.string()), value_set=pa.array(_OPERATIONS))
    if codes.null_count:
        wrong = operations.filter(codes.is_null())[0].as_py()
        name = batch.schema.names[table.operation]
        raise ValueError(
            f"each value of the column {name} must be one of {', '.join(_OPERATIONS)}, not {wrong!r}"
        )
    order = pc.array_sort_indices(codes)  # stable: rows of one operation stay in their order
    cells = [column.take(order) for column in cells]
    counts = np.bincount(np.asarray(codes), minlength=len(_OPERATIONS)).tolist()
    inserts, updates, deletes = _split_cells(cells, counts)
    keys = [
        column if at in table.key else pa.nulls(len(column), column.type) for at, column in enumerate(deletes)
    ]
    encoded = pa.concat_arrays(
        [
            encode_inserts(oid, inserts, proto_version=version),
            encode_updates(oid, updates, proto_version=version),
            encode_deletes(oid, key=keys, proto_version=version),
        ]
    )
    return encoded.take(
        pc.array_sort_indices(order)
    )  # the inverse permutation restores the order of the rows


def _split_cells(cells: list[pa.Array], counts: list[int]) -> Iterator[list[pa.Array]]:
    start = 0
    for size in counts:
        yield [column.slice(start, size) for column in cells]
        start += size


def _encode_cells(column: pa.Array, target: messages.RelationColumn) -> pa.Array:
    try:
        return from_arrow(column, target.type_oid, target.type_modifier)
    except ValueError as error:
        raise ValueError(f"the column {target.name}: {error}") from None
