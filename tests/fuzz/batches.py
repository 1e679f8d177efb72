"""Batches of messages, and their cells by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput import catalog, compiled, v1
from pgoutput import messages as m
from pgoutput._index import KernelIndex, PureIndex
from pgoutput.columns import ColumnDecoder
from pgoutput.errors import DecodeError
from pgoutput.messages import Cell
from pgoutput.stream import StreamDecoder
from tests.codec import corpus
from tests.codec.cases import CONTEXTS
from tests.columns.test_index import TYPES, assert_same_columns, both
from tests.columns.unusual_cells import UNUSUAL_CELLS
from tests.columns.without_kernel import pure
from tests.fuzz.source import Source, array, exact
from tests.values import in_binary, in_text

_VERSIONS = [(version, *context) for version, contexts in CONTEXTS.items() for context in contexts]


def _batch(source: Source) -> pa.Array | None:
    """A batch of messages, or None where its offsets lie; the kernel has looked at them."""
    start, is_large, has_nulls = source.integer() % 9, source.boolean(), source.boolean()
    rows = source.integer() % 64
    offsets = source.offsets(start + rows, np.int64 if is_large else np.int32)
    validity = source.bitmap(start + rows) if has_nulls else None
    content = exact(source.rest())
    try:
        compiled.kernel.Index(offsets[start:], content, validity, start, bytes(256), False, 0)  # type: ignore[union-attr]
    except (OverflowError, ValueError):
        return None
    return array(pa.large_binary() if is_large else pa.binary(), start, offsets, content, validity)


def _packed(messages: list[bytes]) -> bytes:
    """Bytes that are read as this batch."""
    return bytes([0, 1, 0, len(messages), 0]) + b"".join(
        [*(len(one).to_bytes(2) for one in messages), *messages]
    )


def index(data: bytes) -> None:
    """A batch of messages, and its cells as of some type."""
    source = Source(data)
    version, begins_in_stream, streaming = source.choice(_VERSIONS)
    type_, contexts = source.choice(TYPES), source.take(source.integer() % 64)
    batch = _batch(source)
    if batch is None:
        return
    given = [bool(one) for one in contexts] if len(contexts) == len(batch) and version > 1 else None
    pure_index, fast = both(
        batch,
        version=version,
        streaming=streaming,
        two_phase=True,
        begins_in_stream=begins_in_stream and given is None,
        in_stream=given,
    )
    assert_same_columns(pure_index, fast, np.arange(-1, len(fast.kinds)), [type_])


_PLACES = {(version, streaming): i for i, (version, _, streaming) in reversed([*enumerate(_VERSIONS)])}


def _windows(size: int) -> Iterator[tuple[int, list[bytes]]]:
    """Some messages that follow each other, of every capture, and where their version and option stand."""
    for name in corpus.CAPTURES:
        header, _, samples = corpus.read(name)
        starts = [i for i, one in enumerate(samples) if isinstance(one.message, m.Relation | m.StreamStart)]
        for at in starts[:3]:
            some = [one.data for one in samples[at : at + size] if len(one.data) < 400]
            yield _PLACES[header.proto_version, header.streaming], some


def batches() -> Iterator[bytes]:
    for i, (place, messages) in enumerate(_windows(6)):
        contexts = bytes(len(messages)) if i % 2 else b""
        yield bytes([place, i % len(TYPES), len(contexts)]) + contexts + _packed(messages)


def columns(data: bytes) -> None:
    """A stream in two batches, and all of its tuples."""
    source = Source(data)
    version, _, streaming = source.choice(_VERSIONS)
    first = source.integer() % 8
    batch = _batch(source)
    if batch is None:
        return

    def decoded() -> list[Any]:
        decoder = ColumnDecoder(version, streaming=streaming, two_phase=True)
        return [_outcome(decoder, part) for part in (batch[:first], batch[first:])]

    with pure():
        wanted = decoded()
    assert decoded() == wanted


def _outcome(decoder: ColumnDecoder, batch: pa.Array) -> Any:
    """What a decoder makes of it; as text, in which NaN is NaN."""
    try:
        decoded = decoder.decode(batch)
    except DecodeError as error:
        return type(error), str(error), vars(error)
    tables = [decoded.headers]
    rescued = []
    for one in decoded.relations:
        for tuples in one.new, one.old, one.key:
            values, left = tuples.values()
            tables += [tuples.kinds(), tuples.raw(), tuples.texts(), values]
            rescued += [tuples.rows.to_pylist(), left]
    for table in tables:
        table.validate(full=True)
    return [one.relation for one in decoded.relations], [repr(one.to_pylist()) for one in tables], rescued


def streams() -> Iterator[bytes]:
    for i, (place, messages) in enumerate(_windows(8)):
        yield bytes([place, i % 8]) + _packed(messages)


def cells(data: bytes) -> None:
    """Cells of a type, each at the end of a message, the last one at the end of memory."""
    source = Source(data)
    type_ = source.choice(TYPES)
    cells: list[Cell] = []
    while source and len(cells) < 40:
        size = source.integer()
        raw = source.take(size & 0x7F)
        cells.append(raw if size & 0x80 else raw.decode("utf-8", "surrogateescape"))
    messages = [v1.encode(m.Insert(1, (cell,))) for cell in cells]
    offsets = np.cumsum([0, *map(len, messages)], dtype=np.int32)
    batch = array(pa.binary(), 0, offsets, exact(b"".join(messages)), None)
    pure_index, fast = PureIndex(batch, StreamDecoder(1)), KernelIndex(batch, StreamDecoder(1))
    assert_same_columns(pure_index, fast, fast.first("new"), [type_])


def values() -> Iterator[bytes]:
    for i, (oid, _) in enumerate(TYPES):
        name = catalog.BY_OID[oid].name
        for cells in (in_text.TEXTS.get(name, [])[:30], in_binary.BYTES.get(name, [])[:30], UNUSUAL_CELLS):
            packed = b""
            for cell in cells:
                raw = cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell
                if isinstance(raw, bytes) and len(raw) < 128:
                    packed += bytes([len(raw) | 0x80 * isinstance(cell, bytes)]) + raw
            yield bytes([i]) + packed
