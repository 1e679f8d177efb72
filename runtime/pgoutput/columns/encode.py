"""Inserts, updates and deletes of one relation, from columns.

What is the same in all messages of a batch is taken from the codec; here it is joined with the cells. The
messages are those of every protocol version (logicalrep_write_insert, _update, _delete).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput import messages
from pgoutput.columns.cells import Bytes, Cells, cells, join
from pgoutput.errors import EncodeError
from pgoutput.versions import CODECS, LATEST

Masks: TypeAlias = Sequence[pa.BooleanArray | None]
"""For each column where its cells are UNCHANGED; None: nowhere."""

Columns: TypeAlias = Sequence[pa.Array | Cells]
"""The cells of rows, by column; `Cells` are those of several."""

Xid: TypeAlias = int | pa.Array | None
"""Of the transaction or subtransaction, inside stream blocks only: of all messages, or of each."""


def encode_inserts(
    relation_oid: int, columns: Columns, *, unchanged: Masks | None = None, xid: Xid = None
) -> pa.BinaryArray:
    """The Insert of each row.

    Args:
        relation_oid: Of the relation.
        columns: The cells of the new rows, as many in each column.
        unchanged: Where they are UNCHANGED; the columns' own values do not matter there.
        xid: Inside a stream block, whose changes they are.

    Raises:
        EncodeError: What the codec refuses, or a value of more than 1 GB, or messages of more than 2 GB
            together: give fewer rows at a time.
        TypeError: A column is of another type.
        ValueError: Columns differ in length.
    """
    new = _Tuple("new", columns, unchanged)
    return _encode(messages.Insert(relation_oid, new.sample), [new], xid)


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
    new = _Tuple("new", columns, unchanged)
    before = list(_before(key, old))
    given: dict[str, Any] = {one.field: one.sample for one in before}
    return _encode(messages.Update(relation_oid, new=new.sample, **given), [*before, new], xid)


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
    before = list(_before(key, old))
    given: dict[str, Any] = {one.field: one.sample for one in before}
    return _encode(messages.Delete(relation_oid, **given), before, xid)


class _Tuple(msgspec.Struct, frozen=True):
    """The columns of one tuple of the messages."""

    field: str
    columns: Columns
    unchanged: Masks | None = None

    @property
    def sample(self) -> tuple[None, ...]:
        """A tuple of as many cells, each of one byte."""
        width = sum(one.columns if isinstance(one, Cells) else 1 for one in self.columns)
        return (None,) * width

    @property
    def rows(self) -> set[int]:
        """The lengths of the columns."""
        masks = [mask for mask in self.unchanged or () if mask is not None]
        return {len(column) for column in (*self.columns, *masks)}

    def parts(self) -> Iterator[bytes | Bytes]:
        """What stands on the wire, in its order."""
        masks = self.unchanged or [None] * len(self.columns)
        for i, (column, mask) in enumerate(zip(self.columns, masks, strict=True)):
            yield from cells(column, mask, f"{self.field}[{i}]")


def _before(key: Columns | None, old: Columns | None) -> Iterator[_Tuple]:
    if key is not None:
        yield _Tuple("key", key)
    if old is not None:
        yield _Tuple("old", old)


def _encode(sample: messages.Message, tuples: Sequence[_Tuple], xid: Xid) -> pa.BinaryArray:
    """The messages that are `sample` but for their cells and xid."""
    rows, name = _rows(tuples, xid), type(sample).__name__
    fixed = _between(sample, tuples, xid)
    parts: list[bytes | Bytes] = []
    try:
        for before, one in zip(fixed, tuples, strict=True):
            own_xids = isinstance(xid, pa.Array) and not parts
            parts.append(_with_xids(before, xid) if own_xids else before)
            parts.extend(one.parts())
        return join(parts, rows)
    except EncodeError as error:
        where = f"{name}." if error.field else f"{name}: "
        raise EncodeError(f"{where}{error}", message=name, field=error.field) from None


def _rows(tuples: Sequence[_Tuple], xid: Xid) -> int:
    lengths = set().union(*(one.rows for one in tuples))
    if isinstance(xid, pa.Array):
        lengths.add(len(xid))
    if len(lengths) > 1:
        raise ValueError(f"columns have different lengths: {', '.join(map(str, sorted(lengths)))}")
    return lengths.pop() if lengths else 0


def _between(sample: messages.Message, tuples: Sequence[_Tuple], xid: Xid) -> list[bytes]:
    """What stands before the cells of each tuple, as the codec writes it.

    Raises:
        EncodeError: The codec refuses it.
    """
    if xid is not None:
        one = 0 if isinstance(xid, pa.Array) else xid
        sample = msgspec.structs.replace(sample, xid=one)
    encoded = CODECS[LATEST if xid is not None else 1].encode(sample)
    fixed: list[bytes] = []
    end = len(encoded)
    for one in reversed(tuples):
        end -= len(one.sample)
        start = end - _BEFORE_CELLS if len(fixed) < len(tuples) - 1 else 0
        fixed.insert(0, encoded[start:end])
        end = start
    return fixed


_BEFORE_CELLS: Final = 3
"""Bytes before the cells of a second tuple: its tag, and the number of columns."""


def _with_xids(fixed: bytes, xids: pa.Array) -> Bytes:
    """The first bytes of messages that each have their own xid."""
    made = np.tile(np.frombuffer(fixed, np.uint8), (len(xids), 1))
    values = np.asarray(xids)
    if xids.null_count or not pa.types.is_integer(xids.type):
        raise TypeError(f"xids are integers without NULL, not {xids.type}")
    wrong = np.flatnonzero((values < 0) | (values >= 1 << 32))
    if wrong.size:
        row = int(wrong[0])
        text = f"xid: row {row}: {int(values[row])} does not fit into Int32 (TransactionId)"
        raise EncodeError(text, field="xid")
    made[:, 1:5] = values.astype(">u4").view(np.uint8).reshape(-1, 4)
    return Bytes.fixed(made)
