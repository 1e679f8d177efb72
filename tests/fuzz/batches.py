"""Fuzz targets for batches of messages, and for conversion of their cells to columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from logicalrep import catalog, compiled, messages as m
from logicalrep._index.kernel import KernelIndex
from logicalrep._index.pure import PureIndex
from logicalrep.columns import ColumnDecoder
from logicalrep.errors import DecodeError
from logicalrep.messages import Cell
from logicalrep.stream import StreamDecoder
from tests.codec import corpus
from tests.codec.cases import CONTEXTS
from tests.columns.test_index import TYPES, assert_same_columns, both
from tests.columns.unusual_cells import UNUSUAL_CELLS
from tests.columns.without_kernel import pure
from tests.fuzz.input_reader import InputReader, array, exact
from tests.values import binary_samples, text_samples
from tests.versions import OLDEST, PLAIN

_VERSIONS = [(version, *context) for version, contexts in CONTEXTS.items() for context in contexts]


def _batch(reader: InputReader) -> pa.Array | None:
    """Return an Arrow array of messages made from the input; None if the kernel refuses its offsets."""
    start, is_large, has_nulls = reader.integer() % 9, reader.boolean(), reader.boolean()
    rows = reader.integer() % 64
    offsets = reader.offsets(start + rows, np.int64 if is_large else np.int32)
    validity = reader.bitmap(start + rows) if has_nulls else None
    content = exact(reader.rest())
    try:
        compiled.kernel.Index(offsets[start:], content, validity, start, bytes(256), False, 0)  # type: ignore[union-attr]
    except (OverflowError, ValueError):
        return None
    return array(pa.large_binary() if is_large else pa.binary(), start, offsets, content, validity)


def _pack_batch(messages: list[bytes]) -> bytes:
    """Return the fuzzer input from which `_batch` reads the given messages."""
    return bytes([0, 1, 0, len(messages), 0]) + b"".join(
        [*(len(one).to_bytes(2) for one in messages), *messages]
    )


def index(data: bytes) -> None:
    """Fuzz target: index an arbitrary batch of messages and convert the cells to an arbitrary type."""
    reader = InputReader(data)
    version, begins_in_stream, streaming = reader.choice(_VERSIONS)
    type_, contexts = reader.choice(TYPES), reader.take(reader.integer() % 64)
    batch = _batch(reader)
    if batch is None:
        return
    in_stream = [bool(one) for one in contexts] if len(contexts) == len(batch) and version > 1 else None
    pure_index, fast = both(
        batch,
        version=version,
        streaming=streaming,
        two_phase=True,
        begins_in_stream=begins_in_stream and in_stream is None,
        in_stream=in_stream,
    )
    assert_same_columns(pure_index, fast, np.arange(-1, len(fast.kinds)), [type_])


_PLACES = {(version, streaming): i for i, (version, _, streaming) in reversed([*enumerate(_VERSIONS)])}


def _captured_sequences(size: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield an index in `_VERSIONS` and up to `size` consecutive messages, for up to 3 places per capture."""
    for name in corpus.CAPTURES:
        header, _, samples = corpus.read(name)
        starts = [i for i, one in enumerate(samples) if isinstance(one.message, m.Relation | m.StreamStart)]
        for at in starts[:3]:
            some = [one.data for one in samples[at : at + size] if len(one.data) < 400]
            yield _PLACES[header.proto_version, header.streaming], some


def batches() -> Iterator[bytes]:
    for i, (place, messages) in enumerate(_captured_sequences(6)):
        contexts = bytes(len(messages)) if i % 2 else b""
        yield bytes([place, i % len(TYPES), len(contexts)]) + contexts + _pack_batch(messages)


def columns(data: bytes) -> None:
    """Fuzz target: decode an arbitrary stream in two batches and convert all tuples to columns."""
    reader = InputReader(data)
    version, _, streaming = reader.choice(_VERSIONS)
    first = reader.integer() % 8
    batch = _batch(reader)
    if batch is None:
        return

    def decoded() -> list[Any]:
        decoder = ColumnDecoder(version, streaming=streaming, two_phase=True)
        return [_outcome(decoder, part) for part in (batch[:first], batch[first:])]

    with pure():
        wanted = decoded()
    assert decoded() == wanted


def _outcome(decoder: ColumnDecoder, batch: pa.Array) -> Any:
    """Decode a batch of messages; return the result (in which NaN equals NaN) or the error, as text."""
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
    for i, (place, messages) in enumerate(_captured_sequences(8)):
        yield bytes([place, i % 8]) + _pack_batch(messages)


def cells(data: bytes) -> None:
    """Fuzz target: convert arbitrary cells of a type. The last cell ends where the allocated memory ends."""
    reader = InputReader(data)
    type_ = reader.choice(TYPES)
    cells: list[Cell] = []
    while reader and len(cells) < 40:
        size = reader.integer()
        raw = reader.take(size & 0x7F)
        cells.append(raw if size & 0x80 else raw.decode("utf-8", "surrogateescape"))
    messages = [PLAIN.encode(m.Insert(relation_oid=1, new=(cell,))) for cell in cells]
    offsets = np.cumsum([0, *map(len, messages)], dtype=np.int32)
    batch = array(pa.binary(), 0, offsets, exact(b"".join(messages)), None)
    pure_index, fast = PureIndex(batch, StreamDecoder(OLDEST)), KernelIndex(batch, StreamDecoder(OLDEST))
    if (tuples := fast.tuples_in("new")) is None:
        assert not cells
    else:
        assert_same_columns(pure_index, fast, tuples.first, [type_])


def values() -> Iterator[bytes]:
    for i, (oid, _) in enumerate(TYPES):
        name = catalog.BY_OID[oid].name
        for cells in (
            text_samples.TEXTS.get(name, [])[:30],
            binary_samples.BYTES.get(name, [])[:30],
            UNUSUAL_CELLS,
        ):
            packed = b""
            for cell in cells:
                raw = cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell
                if isinstance(raw, bytes) and len(raw) < 128:
                    packed += bytes([len(raw) | 0x80 * isinstance(cell, bytes)]) + raw
            yield bytes([i]) + packed
