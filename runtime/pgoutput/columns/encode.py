"""Inserts, updates and deletes of one relation, from columns.

The messages are those of every protocol version (logicalrep_write_insert, _update, _delete).
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from pgoutput.columns.batch import Columns, Masks, Tuple, encode_batch
from pgoutput.messages import Delete, Insert, Update

Xid: TypeAlias = int | pa.Array | None
"""Of the transaction or subtransaction, inside stream blocks only: of all messages, or of each."""


def encode_inserts(
    relation_oid: int, columns: Columns, *, unchanged: Masks | None = None, xid: Xid = None
) -> pa.BinaryArray:
    """The Insert of each row.

    Args:
        relation_oid: Of the relation.
        columns: The cells of the new rows, as many in each column, or values that text is made of.
        unchanged: Where they are UNCHANGED; the columns' own values do not matter there.
        xid: Inside a stream block, whose changes they are.

    Raises:
        EncodeError: What the codec refuses, or a value of more than 1 GB, or messages of more than 2 GB
            together: give fewer rows at a time.
        TypeError: A column is of another type.
        ValueError: Columns differ in length.
    """
    return encode_batch(Insert, xid=xid, relation_oid=relation_oid, new=Tuple(columns, unchanged))


def encode_updates(
    relation_oid: int,
    columns: Columns,
    *,
    key: Columns | None = None,
    old: Columns | None = None,
    unchanged: Masks | None = None,
    xid: Xid = None,
) -> pa.BinaryArray:
    """The Update of each row.

    Args:
        relation_oid: Of the relation.
        columns: The cells of the new rows.
        key: The replica identity of the old rows, NULL in the other columns, where it changed; it is sent
            with all rows of the batch, or with none.
        old: Instead of it the whole old rows, for REPLICA IDENTITY FULL.
        unchanged: As for `encode_inserts`.
        xid: Likewise.

    Raises:
        EncodeError: As `encode_inserts`.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    new = Tuple(columns, unchanged)
    before = {"key": _tuple(key), "old": _tuple(old)}
    return encode_batch(Update, xid=xid, relation_oid=relation_oid, **before, new=new)


def encode_deletes(
    relation_oid: int,
    *,
    key: Columns | None = None,
    old: Columns | None = None,
    xid: Xid = None,
) -> pa.BinaryArray:
    """The Delete of each row.

    Args:
        relation_oid: Of the relation.
        key: The replica identity of the rows, NULL in the other columns.
        old: Instead of it the whole rows, for REPLICA IDENTITY FULL.
        xid: As for `encode_inserts`.

    Raises:
        EncodeError: As `encode_inserts`.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    before = {"key": _tuple(key), "old": _tuple(old)}
    return encode_batch(Delete, xid=xid, relation_oid=relation_oid, **before)


def _tuple(columns: Columns | None) -> Tuple | None:
    return None if columns is None else Tuple(columns)
