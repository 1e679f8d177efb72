"""Encode columns as messages: Insert, Update and Delete of one relation, Begin and Commit.

The encoded bytes are the same in every released protocol version. Fields that a later version adds are zero
or empty.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from logicalrep.columns.assembly import IntegerArray
from logicalrep.columns.batch_encoder import Columns, Masks, TupleColumns, encode_role
from logicalrep.versions import LATEST_RELEASED

Xid: TypeAlias = int | pa.Array | None
"""Xid of the (sub)transaction, one for all messages or one for each; None outside stream blocks."""


def encode_inserts(
    relation_oid: int,
    columns: Columns,
    *,
    unchanged: Masks | None = None,
    xid: Xid = None,
    proto_version: int = LATEST_RELEASED,
) -> pa.BinaryArray:
    """Return an Insert message for each row (logicalrep_write_insert).

    Args:
        relation_oid: OID of the relation.
        columns: The new rows, by column: strings for cells in text format, binary for cells in binary
            format; values of other types are encoded as PostgreSQL's text.
        unchanged: For each column a mask that is true where the cell is UNCHANGED (the column's value is then
            ignored), or None if no cell of the column is UNCHANGED.
        xid: Xid of the (sub)transaction, one for all messages or one for each; None outside stream blocks.
        proto_version: Protocol version of the messages.

    Raises:
        EncodeError: The codec refuses a value, a value is longer than 1 GB, or the messages have more than
            2 GB together: pass fewer rows at a time.
        TypeError: PostgreSQL has no type for the values of a column.
        ValueError: The columns have different lengths.
    """
    new = TupleColumns(columns, unchanged)
    return encode_role("insert", proto_version, subxid=xid, relation=relation_oid, new=new)


def encode_updates(
    relation_oid: int,
    columns: Columns,
    *,
    key: Columns | None = None,
    old: Columns | None = None,
    unchanged: Masks | None = None,
    xid: Xid = None,
    proto_version: int = LATEST_RELEASED,
) -> pa.BinaryArray:
    """Return an Update message for each row (logicalrep_write_update).

    Args:
        relation_oid: OID of the relation.
        columns: The new rows, by column: strings for cells in text format, binary for cells in binary
            format; values of other types are encoded as PostgreSQL's text.
        key: The key tuples of the old rows, with NULL in the columns outside the replica identity. A server
            sends a key tuple only if the key changed; here either all rows of the batch have a key tuple, or
            none has.
        old: The whole old rows, in place of `key`, for REPLICA IDENTITY FULL.
        unchanged: For each column a mask that is true where the new cell is UNCHANGED, or None if no cell of
            the column is UNCHANGED.
        xid: Xid of the (sub)transaction, one for all messages or one for each; None outside stream blocks.
        proto_version: Protocol version of the messages.

    Raises:
        EncodeError: The codec refuses a value, a value is longer than 1 GB, or the messages have more than
            2 GB together: pass fewer rows at a time.
        TypeError: PostgreSQL has no type for the values of a column.
        ValueError: The columns have different lengths.
    """
    new = TupleColumns(columns, unchanged)
    before = {"key": _tuple(key), "old": _tuple(old)}
    return encode_role("update", proto_version, subxid=xid, relation=relation_oid, **before, new=new)


def encode_deletes(
    relation_oid: int,
    *,
    key: Columns | None = None,
    old: Columns | None = None,
    xid: Xid = None,
    proto_version: int = LATEST_RELEASED,
) -> pa.BinaryArray:
    """Return a Delete message for each row (logicalrep_write_delete).

    Args:
        relation_oid: OID of the relation.
        key: The key tuples of the deleted rows, with NULL in the columns outside the replica identity.
        old: The whole deleted rows, in place of `key`, for REPLICA IDENTITY FULL.
        xid: Xid of the (sub)transaction, one for all messages or one for each; None outside stream blocks.
        proto_version: Protocol version of the messages.

    Raises:
        EncodeError: The codec refuses a value, a value is longer than 1 GB, or the messages have more than
            2 GB together: pass fewer rows at a time.
        TypeError: PostgreSQL has no type for the values of a column.
        ValueError: The columns have different lengths.
    """
    before = {"key": _tuple(key), "old": _tuple(old)}
    return encode_role("delete", proto_version, subxid=xid, relation=relation_oid, **before)


def encode_begins(
    final_lsns: IntegerArray,
    commit_times: IntegerArray,
    xids: IntegerArray,
    *,
    proto_version: int = LATEST_RELEASED,
) -> pa.BinaryArray:
    """Return a Begin message for each transaction (logicalrep_write_begin).

    Args:
        final_lsns: Commit LSN of each transaction.
        commit_times: Commit time of each transaction, in microseconds since 2000-01-01 00:00 UTC.
        xids: Xid of each transaction.
        proto_version: Protocol version of the messages.

    Raises:
        EncodeError: A number does not fit into its field.
        TypeError: An array does not hold integers.
        ValueError: The arrays have different lengths.
    """
    return encode_role("begin", proto_version, lsn=final_lsns, time=commit_times, xid=xids)


def encode_commits(
    commit_lsns: IntegerArray,
    end_lsns: IntegerArray,
    commit_times: IntegerArray,
    *,
    proto_version: int = LATEST_RELEASED,
) -> pa.BinaryArray:
    """Return a Commit message for each transaction (logicalrep_write_commit).

    Args:
        commit_lsns: Commit LSN of each transaction.
        end_lsns: LSN of the end of each transaction.
        commit_times: Commit time of each transaction, in microseconds since 2000-01-01 00:00 UTC.
        proto_version: Protocol version of the messages.

    Raises:
        EncodeError: A number does not fit into its field.
        TypeError: An array does not hold integers.
        ValueError: The arrays have different lengths.
    """
    return encode_role("commit", proto_version, lsn=commit_lsns, end_lsn=end_lsns, time=commit_times)


def _tuple(columns: Columns | None) -> TupleColumns | None:
    return None if columns is None else TupleColumns(columns)
