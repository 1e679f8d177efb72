"""Rows of COPY, in text and binary format, become Insert messages with the same values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import example, given
from hypothesis import strategies as st

from pgoutput import v1
from pgoutput.columns import encode_inserts
from pgoutput.messages import Insert
from pgoutput.recorder import copy_format

Value: TypeAlias = bytes | None
Row: TypeAlias = tuple[Value, ...]

# Escapes of CopyAttributeOutText, by byte.
ESCAPED = {8: b"\\b", 12: b"\\f", 10: b"\\n", 13: b"\\r", 9: b"\\t", 11: b"\\v", 92: b"\\\\"}
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(4) + struct.pack(">I", 3) + b"abc"  # with an extension

VALUES = (
    st.none()
    | st.binary(max_size=6)
    | st.sampled_from([b"\\N", b"N", b"\\", b"a\tb\n", "é€".encode(), b"\xff"])
)


def tables(width: int) -> st.SearchStrategy[list[Row]]:
    return st.lists(st.tuples(*[VALUES] * width), min_size=1, max_size=12)


def as_text(row: Row) -> bytes:
    """Return a row in text format (CopyOneRowTo)."""
    cells = [rb"\N" if v is None else b"".join(ESCAPED.get(b, bytes([b])) for b in v) for v in row]
    return b"\t".join(cells) + b"\n"


def as_binary(row: Row) -> bytes:
    """Return a row in binary format (CopyOneRowTo)."""
    cells = [struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in row]
    return struct.pack(">h", len(row)) + b"".join(cells)


def inserts(rows: Sequence[Row], binary_columns: Sequence[bool]) -> list[bytes]:
    """Return the Insert messages of rows, as a walsender sends them."""
    return [
        v1.encode(
            Insert(
                7,
                tuple(
                    value if value is None or stays else value.decode("utf-8", "surrogateescape")
                    for value, stays in zip(row, binary_columns, strict=True)
                ),
            )
        )
        for row in rows
    ]


def read(
    data: Sequence[bytes], binary_columns: Sequence[bool] | None, width: int, size: int = 2
) -> list[bytes]:
    batches = [list(data[first : first + size]) for first in range(0, len(data), size)]
    return [
        message
        for rows in (batches if binary_columns is None else copy_format.without_framing(batches))
        for message in encode_inserts(7, copy_format.cell_columns(rows, binary_columns, width)).to_pylist()
    ]


@given(st.integers(0, 4).flatmap(lambda width: st.tuples(st.just(width), tables(width))))
@example((1, [(None,), (b"\\N",), (b"",)]))
@example((0, [(), ()]))
def test_rows_in_text_format(found: tuple[int, list[Row]]) -> None:
    width, rows = found
    rows = [tuple(None if v is None else v.replace(b"\0", b"") for v in row) for row in rows]
    assert read([as_text(row) for row in rows], None, width) == inserts(rows, [False] * width)


@given(
    st.lists(st.booleans(), max_size=4).flatmap(lambda stay: st.tuples(st.just(stay), tables(len(stay)))),
    st.booleans(),
    st.integers(1, 5),
)
def test_rows_in_binary_format(found: tuple[list[bool], list[Row]], together: bool, size: int) -> None:
    """The header of COPY's binary format arrives together with the first row, or alone."""
    stay, rows = found
    sent = [as_binary(row) for row in rows]
    sent = [HEADER + sent[0], *sent[1:]] if together else [HEADER, *sent]
    assert read([*sent, b"\xff\xff"], stay, len(stay), size) == inserts(rows, stay)


def test_an_empty_table() -> None:
    assert read([], None, 2) == []
    assert read([HEADER, b"\xff\xff"], [True], 1) == []
    assert read([HEADER + b"\xff\xff"], [True], 1) == []
