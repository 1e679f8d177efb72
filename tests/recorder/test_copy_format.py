"""Rows of COPY, in text and binary format, become Insert messages with the same values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TypeAlias

import pytest
from hypothesis import example, given, strategies as st

from logicalrep import compiled
from logicalrep.columns import encode_inserts
from logicalrep.messages import Insert
from logicalrep.recorder.client.copy_data import CopiedRows
from logicalrep.recorder.snapshots.copy_format import copied_cells
from tests.versions import PLAIN

Value: TypeAlias = bytes | None
Row: TypeAlias = tuple[Value, ...]

# Escapes of CopyAttributeOutText, by byte.
ESCAPED = {8: b"\\b", 12: b"\\f", 10: b"\\n", 13: b"\\r", 9: b"\\t", 11: b"\\v", 92: b"\\\\"}
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(4) + struct.pack(">I", 3) + b"abc"  # with an extension

VALUES = (
    st.none()
    | st.binary(max_size=40)
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
        PLAIN.encode(
            Insert(
                relation_oid=7,
                new=tuple(
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
    parts = [data[first : first + size] for first in range(0, len(data), size)]
    batches = [CopiedRows(len(part), b"".join(part)) for part in parts]
    return [
        message
        for cells in copied_cells(batches, binary_columns, width)
        for message in encode_inserts(7, [cells]).to_pylist()
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


needs_kernel = pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")


@needs_kernel
@given(
    st.integers(1, 4).flatmap(lambda width: st.tuples(st.just(width), tables(width))),
    st.data(),
)
def test_the_kernel_refuses_truncated_and_miscounted_rows(
    found: tuple[int, list[Row]], choice: st.DataObject
) -> None:
    assert compiled.kernel is not None
    width, rows = found
    n = len(rows)
    text, binary = (b"".join(map(encode, rows)) for encode in (as_text, as_binary))
    cut = text[: choice.draw(st.integers(0, len(text) - 1))]
    for case in (cut, n, width), (text, n - 1, width), (text, n + 1, width), (text, n, width + 1):
        with pytest.raises(ValueError, match="bytes are not"):
            compiled.kernel.encode_text_rows(*case)
    ends = set(accumulate(len(as_binary(row)) for row in rows))
    size = choice.draw(st.integers(1, len(binary) - 1))
    for data, tags in (binary[:size], b"b" * width), (binary, b"b" * (width + 1)):
        if size not in ends or data is binary:
            with pytest.raises(ValueError, match="does not have"):
                compiled.kernel.encode_binary_rows(data, tags)


@needs_kernel
@given(st.binary(max_size=40), st.integers(-1, 5) | st.just(1 << 62), st.integers(0, 3))
def test_the_kernel_survives_any_bytes(data: bytes, rows: int, width: int) -> None:
    assert compiled.kernel is not None
    with suppress(ValueError):
        compiled.kernel.encode_text_rows(data, rows, width)
    with suppress(ValueError):
        compiled.kernel.encode_binary_rows(data, b"b" * width)


@needs_kernel
@given(st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=12), st.integers(0, 12))
def test_the_kernel_finds_whole_copy_data_messages(contents: list[bytes], rest: bytes, size: int) -> None:
    kernel = compiled.kernel
    assert kernel is not None
    whole = b"".join(b"d" + struct.pack(">i", 4 + len(one)) + one for one in contents)
    for cut in b"c" + rest, (b"d" + struct.pack(">i", 4 + size) + rest)[: 4 + size], b"d\0\0\0\3" + rest, b"":
        assert kernel.copy_data_end(whole + cut, 0) == (len(whole), len(contents))
        assert kernel.copy_data_end(whole + cut, len(whole)) == (len(whole), 0)
        if cut:
            with pytest.raises(ValueError, match=f"byte {len(whole)} is not the start"):
                kernel.copy_data_contents(whole + cut)
    assert bytes(kernel.copy_data_contents(whole)) == b"".join(contents)
