"""Fuzz target for encoding Arrow columns as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from logicalrep import columns as c, compiled
from tests.columns.test_index import both
from tests.columns.without_kernel import outcome, pure
from tests.fuzz.input_reader import InputReader, array, exact, is_sound

_MOST = (1 << 31) - 1


def encode(data: bytes) -> None:
    """Fuzz target: encode arbitrary Arrow columns as messages. Inputs with invalid arrays are skipped."""
    reader = InputReader(data)
    kind, rows = reader.integer() % len(_CALLS), reader.integer() % 16
    xid = [None, 7, pa.array([reader.integer(4) for _ in range(rows)], pa.int64())][reader.integer() % 3]
    columns, masks = [], []
    for _ in range(1 + reader.integer() % 4):
        if (column := _column(reader, rows)) is None:
            return
        columns.append(column)
        start = reader.integer() % 9
        mask = pa.Array.from_buffers(
            pa.bool_(), rows, [None, pa.py_buffer(reader.bitmap(start + rows))], offset=start
        )
        masks.append(mask if reader.boolean() else None)

    def call() -> pa.Array:
        return _CALLS[kind](columns, masks, xid)

    with pure():
        wanted = outcome(call)
    assert outcome(call) == wanted
    if wanted[0] == pa.binary() and kind < _CHANGES:
        _, fast = both(pa.array(wanted[1], pa.binary()), version=4, in_stream=[xid is not None] * rows)
        assert not fast.errors


def _column(reader: InputReader, rows: int) -> pa.Array | None:
    """Return an Arrow array made from the input, after passing it to the kernel; None if invalid."""
    type_ = reader.choice([pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
    is_large = type_ in (pa.large_string(), pa.large_binary())
    start, has_nulls, is_cell = reader.integer() % 9, reader.boolean(), reader.boolean()
    offsets = reader.offsets(start + rows, np.int64 if is_large else np.int32)
    validity = reader.bitmap(start + rows) if has_nulls else None
    content = exact(reader.take(reader.integer(2)))
    is_refused = False
    if not is_large:
        part = start, [validity, offsets, content], *((ord("t"), has_nulls, None) if is_cell else ())
        try:
            compiled.kernel.join_parts([part], rows, _MOST)  # type: ignore[union-attr]
        except ValueError:
            is_refused = True
    try:
        made = array(type_, start, offsets, content, validity)
    except pa.ArrowInvalid:
        return None
    assert not is_refused or not is_sound(made)
    return made if is_sound(made) else None


_CHANGES = 4
_CALLS: list[Callable[[list[Any], list[Any], Any], pa.Array]] = [
    lambda columns, masks, xid: c.encode_inserts(1, columns, unchanged=masks, xid=xid),
    lambda columns, masks, xid: c.encode_updates(2, columns[:1], old=columns, unchanged=masks[:1], xid=xid),
    lambda columns, masks, xid: c.encode_updates(2, columns, key=[c.encode_cells(columns)], xid=xid),
    lambda columns, _, xid: c.encode_deletes(3, key=columns, xid=xid),
    lambda columns, *_: c.encode_copy_data(columns[0]),
    lambda columns, _, xid: c.encode_xlog_data(xid, np.arange(len(columns[0])), columns[0]),
]


def arrays() -> Iterator[bytes]:
    texts = [b"", b"a", b"0123456789abcdef", "\xe9".encode() * 9, b"x" * 40]
    for kind in range(len(_CALLS)):
        for type_ in range(4):
            sizes = b"".join(len(one).to_bytes(2) for one in texts)
            content = b"".join(texts)
            column = bytes([type_, 0, 0, 0, 0]) + sizes + len(content).to_bytes(2) + content + b"\0\5\1"
            yield bytes([kind, len(texts)]) + bytes(4 * len(texts)) + bytes([kind % 3, 1]) + 2 * column
