"""What the kernel does with any bytes at all, Python does as well.

A target takes what a fuzzer gives, and raises where a promise is broken. It has seeds, made of what servers
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pgoutput import catalog, compiled, v1
from pgoutput import columns as c
from pgoutput import messages as m
from pgoutput.columns.kernel import KernelIndex
from pgoutput.columns.pure import PureIndex
from pgoutput.messages import Cell
from pgoutput.stream import StreamDecoder
from tests.codec import corpus, fuzz
from tests.codec.cases import CONTEXTS
from tests.codec.test_kernel import assert_both_ways
from tests.columns.odd import ODD
from tests.columns.test_envelopes import SENT
from tests.columns.test_envelopes import same as same_envelopes
from tests.columns.test_index import TYPES, assert_same_columns, both
from tests.columns.ways import outcome, pure
from tests.fuzz.source import Source, array, exact, is_sound
from tests.values import in_binary, in_text

_VERSIONS = [(version, *context) for version, contexts in CONTEXTS.items() for context in contexts]
_CODECS = [*fuzz.VERSIONED, fuzz.OUTER]
_MOST = (1 << 31) - 1


class Target(NamedTuple):
    """What is fuzzed."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def _decode(data: bytes) -> None:
    """A message, or none, in one of the contexts."""
    source = Source(data)
    context = source.choice(_CODECS)
    message = source.rest()
    assert_both_ways(context[0], message, *context[2:])
    fuzz.accepts(message, context)


def _messages() -> Iterator[bytes]:
    inner, outer = fuzz.seeds()
    for i, message in enumerate(inner[::5]):
        yield bytes([i % len(fuzz.VERSIONED)]) + message
    for message in outer[::50]:
        yield bytes([len(fuzz.VERSIONED)]) + message


def _index(data: bytes) -> None:
    """A batch of messages, and its cells as of some type."""
    source = Source(data)
    version, begins_in_stream, streaming = source.choice(_VERSIONS)
    type_ = source.choice(TYPES)
    start, is_large, has_contexts, has_nulls = source.integer() % 9, *(source.boolean() for _ in range(3))
    rows = source.integer() % 64
    offsets = source.offsets(start + rows, np.int64 if is_large else np.int32)
    validity = source.bitmap(start + rows) if has_nulls else None
    contexts = [source.boolean() for _ in range(rows)] if has_contexts and version > 1 else None
    content = exact(source.rest())
    assert compiled.kernel is not None
    try:
        compiled.kernel.Index(offsets[start:], content, validity, start, bytes(256), False, 0)
    except (OverflowError, ValueError):  # offsets that lie: there is no such array
        return
    pure_index, fast = both(
        array(pa.large_binary() if is_large else pa.binary(), start, offsets, content, validity),
        version=version,
        streaming=streaming,
        two_phase=is_large,
        begins_in_stream=begins_in_stream and contexts is None,
        in_stream=contexts,
    )
    numbers = np.arange(-1, len(fast.kinds))
    assert_same_columns(pure_index, fast, numbers[:: -1 if has_nulls else 1].copy(), [type_])


def _batches() -> Iterator[bytes]:
    place = {(version, streaming): i for i, (version, _, streaming) in reversed([*enumerate(_VERSIONS)])}
    for i, name in enumerate(corpus.CAPTURES):
        header, _, samples = corpus.read(name)
        for at in range(0, len(samples), 40):
            some = [sample.data for sample in samples[at : at + 6] if len(sample.data) < 400]
            head = [
                place[header.proto_version, header.streaming],
                (i + at) % len(TYPES),
                0,
                1,
                0,
                0,
                len(some),
                0,
            ]
            yield bytes(head) + b"".join(len(one).to_bytes(2) for one in some) + b"".join(some)


def _cells(data: bytes) -> None:
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


def _values() -> Iterator[bytes]:
    for i, (oid, _) in enumerate(TYPES):
        name = catalog.BY_OID[oid].name
        for cells in (in_text.TEXTS.get(name, [])[:30], in_binary.BYTES.get(name, [])[:30], ODD):
            packed = b""
            for cell in cells:
                raw = cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell
                if isinstance(raw, bytes) and len(raw) < 128:
                    packed += bytes([len(raw) | 0x80 * isinstance(cell, bytes)]) + raw
            yield bytes([i]) + packed


def _encode(data: bytes) -> None:
    """Columns to messages; arrays that keep no rules are refused."""
    source = Source(data)
    kind, rows = source.integer() % len(_CALLS), source.integer() % 16
    xid = [None, 7, pa.array([source.integer(4) for _ in range(rows)], pa.int64())][source.integer() % 3]
    columns, masks = [], []
    for _ in range(1 + source.integer() % 4):
        if (column := _column(source, rows)) is None:
            return
        columns.append(column)
        start = source.integer() % 9
        mask = pa.Array.from_buffers(
            pa.bool_(), rows, [None, pa.py_buffer(source.bitmap(start + rows))], offset=start
        )
        masks.append(mask if source.boolean() else None)

    def call() -> pa.Array:
        return _CALLS[kind](columns, masks, xid)

    with pure():
        wanted = outcome(call)
    assert outcome(call) == wanted
    if wanted[0] == pa.binary() and kind < _CHANGES:
        _, fast = both(pa.array(wanted[1], pa.binary()), version=4, in_stream=[xid is not None] * rows)
        assert not fast.errors


def _column(source: Source, rows: int) -> pa.Array | None:
    """An array, or None where its offsets lie; the kernel has looked at it."""
    type_ = source.choice([pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
    is_large = type_ in (pa.large_string(), pa.large_binary())
    start, has_nulls, is_cell = source.integer() % 9, source.boolean(), source.boolean()
    offsets = source.offsets(start + rows, np.int64 if is_large else np.int32)
    validity = source.bitmap(start + rows) if has_nulls else None
    content = exact(source.take(source.integer(2)))
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


def _columns() -> Iterator[bytes]:
    texts = [b"", b"a", b"0123456789abcdef", "\xe9".encode() * 9, b"x" * 40]
    for kind in range(len(_CALLS)):
        for type_ in range(4):
            sizes = b"".join(len(one).to_bytes(2) for one in texts)
            content = b"".join(texts)
            column = bytes([type_, 0, 0, 0, 0]) + sizes + len(content).to_bytes(2) + content + b"\0\5\1"
            yield bytes([kind, len(texts)]) + bytes(4 * len(texts)) + bytes([kind % 3, 1]) + 2 * column


def _envelopes(data: bytes) -> None:
    """What a walsender sends, a CopyData each."""
    source = Source(data)
    payloads: list[Any] = []
    while source:
        is_exact, payload = source.boolean(), source.take(source.integer())
        payloads.append(exact(payload) if is_exact else payload)
    same_envelopes(payloads)


def _payloads() -> Iterator[bytes]:
    sent = [one for one in SENT[::20] if len(one) < 256]
    for at in range(0, len(sent), 3):
        yield b"".join(bytes([i & 1, len(one)]) + one for i, one in enumerate(sent[at : at + 3]))


TARGETS = {
    "decode": Target(_decode, _messages),
    "index": Target(_index, _batches),
    "cells": Target(_cells, _values),
    "encode": Target(_encode, _columns),
    "envelopes": Target(_envelopes, _payloads),
}
