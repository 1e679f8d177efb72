"""KernelIndex and PureIndex of a batch of messages are equal, also for invalid messages."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import _protocols, catalog, compiled, messages as m, v2
from logicalrep._arrays import Numbers
from logicalrep._index import MessageIndex, read_column, read_texts
from logicalrep._index.kernel import KernelIndex
from logicalrep._index.pure import PureIndex
from logicalrep.messages import Cell, Streaming
from logicalrep.stream import StreamDecoder
from logicalrep.testing import Stream, streams
from logicalrep.values import arrow_type
from logicalrep.versions import CODECS, OPTIONS
from tests.codec import corpus, fuzz
from tests.columns.unusual_cells import UNUSUAL_CELLS
from tests.effort import examples, mostly_nightly
from tests.messages import start_block
from tests.values import binary_samples, text_samples
from tests.versions import OLDEST, PLAIN

pytestmark = pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")

FIELDS = {field.name: field for message in _protocols.ALL_VERSIONS.messages for field in message.members}
TUPLES = [name for name, field in FIELDS.items() if field.kind == "tuple"]
STRINGS = [name for name, field in FIELDS.items() if field.kind in ("string", "bytes")]
NUMBERS = [name for name, field in FIELDS.items() if field.kind in ("integer", "bool", "enum", "flags")]
TYPES = [(one.oid, -1) for one in catalog.TYPES] + [
    (1700, (precision << 16 | scale & 0x7FF) + 4)
    for precision, scale in [(1, 0), (4, 4), (12, 2), (18, 0), (18, 18), (19, 2), (38, 10), (3, -2), (2, 5)]
]
"""Pairs of type OID and type modifier: all built-in types, and numeric with several modifiers."""


def contents(index: MessageIndex) -> dict[str, Any]:
    """Return the contents of an index, except typed values, in a form that can be compared."""
    everything = np.arange(len(index.kinds))
    texts = index.texts(everything)
    rows = np.array([-1, *everything[2:] - 2])  # rows of three columns
    return {
        "tags": index.tags.tolist(),
        "kinds": index.kinds.tolist(),
        "errors": {row: (type(one), str(one), vars(one)) for row, one in index.errors.items()},
        "fields": {name: [list(part) for part in masked(index, name)] for name in NUMBERS},
        "strings": {name: comparable(index.strings(name)) for name in STRINGS},
        "tuples": {name: [part.tolist() for part in tuples_in(index, name)] for name in TUPLES},
        "messages": index.messages(np.flatnonzero(index.tags).tolist()),
        "cells": index.cells(everything),
        "raw": index.raw(everything).to_pylist(),
        "texts": comparable(texts),
        "raw columns": [column.to_pylist() for column in index.raw_columns(rows, 3)],
        "text columns": [comparable(column) for column in index.text_columns(rows, 3)],
    }


def tuples_in(index: MessageIndex, name: str) -> tuple[Numbers, Numbers]:
    """Return for each message the first cell (-1 without a tuple) and the width of its tuple `name`."""
    tuples = index.tuples_in(name)
    if tuples is None:
        return np.full(len(index), -1, np.int64), np.zeros(len(index), np.int64)
    assert tuples.counts is None
    return tuples.first, tuples.widths


def masked(index: MessageIndex, name: str) -> tuple[list[int], list[bool]]:
    values, there = index.field(name)
    return np.where(there, values, 0).tolist(), there.tolist()


def comparable(texts: tuple[pa.Array, Any]) -> tuple[Any, ...]:
    array, left = texts
    array.validate(full=True)
    return array.to_pylist(), left.tolist()


def both(
    data: pa.Array,
    *,
    version: int,
    streaming: Streaming = "off",
    two_phase: bool = False,
    begins_in_stream: bool = False,
    in_stream: Sequence[bool] | None = None,
) -> tuple[PureIndex, KernelIndex]:
    """Return PureIndex and KernelIndex of a batch of messages, after checking that both are equal."""
    decoders = []
    for _ in range(2):
        decoder = StreamDecoder(version, streaming=streaming, two_phase=two_phase)
        decoder.in_stream = begins_in_stream
        decoders.append(decoder)
    pure, fast = PureIndex(data, decoders[0], in_stream), KernelIndex(data, decoders[1], in_stream)
    assert contents(fast) == contents(pure)
    states = [(one.in_stream, one.relations, one.types) for one in decoders]
    assert states[0] == states[1]
    return pure, fast


def assert_same_columns(
    pure: MessageIndex, fast: MessageIndex, numbers: Any, types: Sequence[tuple[int, int]]
) -> None:
    """Assert that PureIndex and KernelIndex read the same values from cells, for each given type."""
    for type_oid, modifier in types:
        expected, rescued = read_column(pure, numbers, type_oid, modifier)
        array, left = read_column(fast, numbers, type_oid, modifier)
        array.validate(full=True)
        assert array.type == expected.type
        assert left == rescued, (type_oid, modifier)
        assert same_values(array, expected), (type_oid, modifier)
        oids = np.full(len(numbers), type_oid)
        assert read_texts(fast, numbers, oids).equals(read_texts(pure, numbers, oids)), type_oid


def same_values(a: pa.Array, b: pa.Array) -> bool:
    """Return whether two arrays have equal values; NaN equals NaN, and -0.0 differs from 0.0."""
    return len(a) == len(b) and list(map(repr, a.to_pylist())) == list(map(repr, b.to_pylist()))


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_indexes_of_captures_are_equal(name: str) -> None:
    header, _, samples = corpus.read(name)
    data = pa.array([sample.data for sample in samples], pa.binary())
    pure, fast = both(data, version=header.proto_version, streaming=header.streaming, two_phase=True)
    assert not fast.errors
    columns: dict[int, tuple[m.RelationColumn, ...]] = {}
    cells: dict[tuple[int, int], list[int]] = {}
    for row, message in enumerate(fast.messages(range(len(fast)))):
        if isinstance(message, m.Relation):
            columns[message.oid] = message.columns
        elif isinstance(message, m.Insert | m.Update | m.Delete):
            for tuple_ in TUPLES:
                if (first := int(tuples_in(fast, tuple_)[0][row])) >= 0:
                    for place, column in enumerate(columns[message.relation_oid]):
                        key = column.type_oid, column.type_modifier
                        cells.setdefault(key, []).append(first + place)
    for key, numbers in cells.items():
        assert_same_columns(pure, fast, np.array([-1, *numbers]), [key])


@settings(max_examples=examples(25))
@given(streams())
def test_indexes_of_scenarios_are_equal(stream: Stream) -> None:
    both(
        pa.array(stream.messages, pa.large_binary()),
        version=stream.options.proto_version,
        streaming=stream.options.streaming,
        two_phase=True,
    )


@settings(max_examples=examples(20))
@given(st.randoms(use_true_random=False), st.sampled_from([*CODECS]), st.booleans(), st.data())
def test_indexes_of_damaged_batches_are_equal(
    source: random.Random, version: int, begins_in_stream: bool, data: st.DataObject
) -> None:
    inner, outer = fuzz.seeds()
    batch = [one for _, (one, _) in zip(range(40), fuzz.inputs(source, inner, outer), strict=False)]
    rows: list[bytes | None] = [None if source.random() < 0.05 else one for one in batch]
    array = pa.array(rows, data.draw(st.sampled_from([pa.binary(), pa.large_binary()])))
    start = source.randrange(len(array))
    in_stream = None
    if version > 1 and data.draw(st.booleans()):
        in_stream = [source.random() < 0.5 for _ in range(len(array) - start)]
    both(
        array[start:],
        version=version,
        streaming=data.draw(
            st.sampled_from(
                [one for one, need in OPTIONS["streaming"].items() if need.proto_version <= version]
            )
        ),
        begins_in_stream=begins_in_stream and version > 1,
        in_stream=in_stream,
    )


@pytest.mark.parametrize("rows", [[], [None], [v2.encode(start_block(7))], [b"?"]])
@pytest.mark.parametrize("began", [False, True])
def test_in_stream_can_be_given_for_each_message(rows: list[bytes | None], began: bool) -> None:
    decoder = StreamDecoder(2, streaming="on")
    for make in (PureIndex, KernelIndex):
        decoder.in_stream = began
        make(pa.array(rows, pa.binary()), decoder, [not began] * len(rows))
        assert decoder.in_stream == began


def index_of(cells: Sequence[Cell]) -> tuple[PureIndex, KernelIndex]:
    """Return PureIndex and KernelIndex of a batch of Insert messages with one cell each."""
    data = pa.array([PLAIN.encode(m.Insert(relation_oid=1, new=(cell,))) for cell in cells], pa.binary())
    return both(data, version=OLDEST)


def assert_same_values(cells: Sequence[Cell], types: Sequence[tuple[int, int]]) -> None:
    pure, fast = index_of(cells)
    numbers, _ = tuples_in(fast, "new")
    assert_same_columns(pure, fast, numbers, types)
    assert_same_columns(pure, fast, numbers[::-1].copy(), types[:1])


def test_unusual_cells_are_read_equally_as_every_type() -> None:
    assert_same_values(UNUSUAL_CELLS, [*TYPES, (1007, -1), (99999, -1)])


@pytest.mark.parametrize("name", sorted(text_samples.TEXTS))
def test_text_values_are_read_equally(name: str) -> None:
    builtin = catalog.BY_NAME[name]
    assert_same_values(text_samples.TEXTS[name], [type_ for type_ in TYPES if type_[0] == builtin.oid])


@pytest.mark.parametrize("name", sorted(binary_samples.BYTES))
def test_binary_values_are_read_equally(name: str) -> None:
    builtin = catalog.BY_NAME[name]
    assert_same_values(
        list(binary_samples.BYTES[name]), [type_ for type_ in TYPES if type_[0] == builtin.oid]
    )


TYPED = [type_ for type_ in TYPES if arrow_type(*type_) != pa.string()]
NEAR = "0123456789-+.:eE TZ\\xatfNI"


@settings(max_examples=examples(40))
@given(st.lists(st.text(NEAR, max_size=24) | st.binary(max_size=17), min_size=1, max_size=20))
def test_nearly_valid_texts_are_read_equally(cells: list[Cell]) -> None:
    assert_same_values(cells, TYPED)


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from([one for one in UNUSUAL_CELLS if isinstance(one, str | bytes)]), min_size=1),
    st.data(),
)
def test_values_with_one_changed_character_are_read_equally(
    cells: list[str | bytes], data: st.DataObject
) -> None:
    changed: list[Cell] = []
    for cell in cells:
        at = data.draw(st.integers(0, len(cell)))
        new = data.draw(st.sampled_from(NEAR)) if isinstance(cell, str) else data.draw(st.binary(max_size=1))
        changed.append(cell[:at] + new + cell[at + data.draw(st.integers(0, 1)) :])  # type: ignore[operator]
    assert_same_values(changed, TYPED)


def test_an_empty_batch_has_an_empty_index() -> None:
    for type_ in pa.binary(), pa.large_binary():
        both(pa.array([], type_), version=OLDEST)
        both(pa.array([b"E", None], type_)[:0], version=OLDEST)
        both(pa.nulls(3, type_), version=OLDEST)


def test_no_cells_can_be_read_from_a_batch_without_cells() -> None:
    data = pa.array([PLAIN.encode(m.Begin(final_lsn=1, commit_time=2, xid=3))], pa.binary())
    assert_same_columns(*both(data, version=OLDEST), np.array([-1, -1]), [*TYPES, (1007, -1)])


def test_invalid_offsets_are_refused() -> None:
    for offsets in ([0, 5], [0, 99], [3, 1, 4], [-1, 4], [0, -1, 4], [2**31 - 1, 4]):
        for wide in np.int32, np.int64:
            with pytest.raises(ValueError, match="not inside the content"):
                compiled.kernel.Index(  # type: ignore[union-attr]
                    np.array(offsets, wide), np.zeros(4, np.uint8), None, 0, bytes(256), False, 0
                )


def test_texts_are_checked_by_cell_not_by_column() -> None:
    """A character that is divided between two cells is valid in neither."""
    halves = [half.decode("utf-8", "surrogateescape") for half in (b"a\xc3", b"\xb6b", b"\xb6", b"a\xc3")]
    for cells in (halves[:2], halves[2:], ["ö", *halves], ["ö" * 40, None, "x" * 33, ""]):
        pure, fast = index_of(cells)
        for index in pure, fast:
            array, left = index.texts(np.arange(len(cells)))
            expected = [None if cell in halves else cell for cell in cells]
            assert array.to_pylist() == expected
            assert left.tolist() == [row for row, cell in enumerate(cells) if cell in halves]


@pytest.mark.nightly
def test_columns_of_more_than_2_gb_are_refused() -> None:
    """The size of the cells makes the buffer grow just before it has 2 GB, so that it could pass them."""
    size = next(size for size in range(1_000_000, 2_000_000) if 1 <= 2**31 % size < 36)
    _, fast = index_of(["x" * size])
    for read in fast.raw, fast.texts:
        with pytest.raises(OverflowError, match="a column of these messages has more than 2 GB"):
            read(np.zeros(2**31 // size + 3, np.int64))


def test_out_of_range_cell_numbers_are_refused() -> None:
    _, fast = index_of(["a", "b"])
    for read in fast.raw, fast.texts:
        with pytest.raises(IndexError, match="there is no cell 2: there are 2"):
            read(np.array([0, 2]))
    for columns in fast.raw_columns, fast.text_columns:
        assert len(columns(np.array([0]), 2)) == 2
        with pytest.raises(IndexError, match="there is no cell 2: there are 2"):
            columns(np.array([0, 1]), 2)
    with pytest.raises(IndexError, match="there is no cell 7"):
        fast.column(np.array([7]), pa.int32(), None)


@pytest.mark.parametrize("length", [21, 4000, 2**31 - 1, 2**32 - 1])
def test_messages_changed_after_indexing_are_refused(length: int) -> None:
    message = PLAIN.encode(m.Insert(relation_oid=1, new=("a" * 20,)))
    shared = bytearray(message)
    buffers = [None, pa.py_buffer(np.array([0, len(message)], np.int32)), pa.py_buffer(shared)]
    index = KernelIndex(pa.Array.from_buffers(pa.binary(), 1, buffers), StreamDecoder(OLDEST))
    shared[-24:-20] = length.to_bytes(4)  # the length in front of the cell
    for read in (
        index.texts,
        index.raw,
        lambda numbers: index.column(numbers, pa.int32(), None),
    ):
        with pytest.raises(ValueError, match="have changed since they were indexed"):
            read(np.array([0]))


def test_kernel_objects_cannot_be_pickled() -> None:
    _, fast = index_of(["a"])
    for one in fast._index, fast._index.kinds():
        with pytest.raises(TypeError, match="pickle"):
            copy.deepcopy(one)
