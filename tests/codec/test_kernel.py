"""The compiled and the Python codecs return equal results of equal types, or raise equal errors."""

from __future__ import annotations

import gc
import inspect
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from logicalrep import compiled, envelope, messages as m
from logicalrep.errors import DecodeError, EncodeError
from logicalrep.messages import UNCHANGED, Message
from logicalrep.testing import streams
from logicalrep.versions import CODECS, Codec
from tests.codec import corpus, fuzz
from tests.codec.cases import CASES
from tests.codec.test_properties import ANYWHERE, GENERATED, damaged
from tests.effort import examples, mostly_nightly
from tests.messages import make_column, make_relation

pytestmark = pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")

CODEC_NAMES: dict[Codec, str] = {
    **{codec: f"v{version}" for version, codec in CODECS.items()},
    envelope: "envelope",
}


def pairs(codec: Codec) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return pairs of a codec's Python and compiled function, by function name (`decode`, `encode`)."""
    name = CODEC_NAMES[codec]
    return {
        what: (getattr(codec, f"pure_{what}"), getattr(compiled.kernel, f"{what}_{name}"))
        for what in ("decode", "encode")
    }


PAIRS = {codec: pairs(codec) for codec in CODEC_NAMES} if compiled.kernel else {}


def exact(value: object) -> object:
    """Return a value together with the types of all its parts, so that True and 1 compare as different."""
    if isinstance(value, msgspec.Struct):
        return type(value), *(exact(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        return type(value), *map(exact, value)
    return type(value), value


def outcome(function: Callable[..., object], *arguments: object) -> object:
    """Call a function; return its result with the types of all parts, or its error with attributes."""
    try:
        return exact(function(*arguments))
    except Exception as error:
        return type(error), str(error), vars(error), error.__suppress_context__


def assert_same(codec: Codec, what: str, *arguments: object) -> object:
    """Check that a codec's Python and compiled function have the same outcome; return the outcome."""
    pure, fast = (outcome(function, *arguments) for function in PAIRS[codec][what])
    assert pure == fast
    return pure


def assert_codecs_agree(codec: Codec, data: bytes, *context: object) -> None:
    """Check that the Python and the compiled codec decode `data` alike and encode the result alike."""
    assert_same(codec, "decode", data, *context)
    try:
        message = PAIRS[codec]["decode"][1](data, *context)
    except DecodeError:
        return
    assert exact(data) == assert_same(codec, "encode", message)


def test_the_installed_codecs_are_the_compiled_ones() -> None:
    for codec, name in CODEC_NAMES.items():
        for what in ("decode", "encode"):
            function = getattr(codec, what)
            assert function is getattr(compiled.kernel, f"{what}_{name}")
            pure = getattr(codec, f"pure_{what}")
            assert inspect.getdoc(pure) == inspect.getdoc(function)
            assert list(inspect.signature(pure).parameters) == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_kernel_and_python_agree_on_captured_messages(name: str) -> None:
    _, lines, samples = corpus.read(name)
    for sample in dict.fromkeys(samples):
        codec = CODECS[sample.version]
        assert_codecs_agree(codec, sample.data, sample.in_stream, sample.streaming)
        assert PAIRS[codec]["decode"][1](sample.data, sample.in_stream, sample.streaming) == sample.message
    for line in lines:
        if line.envelope is not None:
            assert_codecs_agree(envelope, line.record.data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_and_python_agree_on_every_case_in_every_context(case: Any) -> None:
    for codec, _, in_stream, streaming in ANYWHERE:
        assert_same(codec, "encode", case.message)
        for end in range(len(case.bytes) + 1):
            assert_codecs_agree(codec, case.bytes[:end], in_stream, streaming)
        assert_codecs_agree(codec, case.bytes + b"\0", in_stream, streaming)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_and_python_agree_on_every_flipped_bit(case: Any) -> None:
    codec = CODECS[max(case.versions)] if case.versions else envelope
    in_stream, streaming = case.where == "inside", case.streaming[-1]
    for at in range(min(len(case.bytes), 64)):
        for bit in range(8):
            data = bytearray(case.bytes)
            data[at] ^= 1 << bit
            assert_codecs_agree(codec, bytes(data), in_stream, streaming)


@settings(max_examples=examples(25), deadline=None)
@given(streams())
def test_kernel_and_python_agree_on_synthetic_streams(stream: Any) -> None:
    codec = CODECS[stream.options.proto_version]
    in_stream = False
    for data in stream.messages:
        in_stream = in_stream and data[:1] != m.StreamStop.wire_tag
        assert_codecs_agree(codec, data, in_stream, stream.options.streaming)
        in_stream = in_stream or data[:1] == m.StreamStart.wire_tag


@settings(max_examples=examples(200), deadline=None)
@given(damaged())
def test_kernel_and_python_agree_on_damaged_bytes(given: tuple[bytes, fuzz.Context]) -> None:
    data, (codec, _, in_stream, streaming) = given
    assert_codecs_agree(codec, data, in_stream, streaming)


@pytest.mark.parametrize("codec", CODEC_NAMES, ids=CODEC_NAMES.get)
@pytest.mark.parametrize("data", ["E", 69, None, [69], b"", bytearray(b"\0"), memoryview(b"E"), 3.5])
def test_kernel_and_python_agree_on_other_types_than_bytes(codec: Codec, data: object) -> None:
    for context in ((), (True,), (False, "on"), (True, "parallel"), (1, "off"), ("", "nothing")):
        assert_same(codec, "decode", data, *context)


def test_any_buffer_is_accepted() -> None:
    data = CODECS[4].encode(m.Insert(relation_oid=1, new=("a", b"b", None)))
    buffers = [bytearray(data), memoryview(data), memoryview(data + data)[: len(data)]]
    assert {assert_same(CODECS[4], "decode", buffer) for buffer in buffers} == {
        assert_same(CODECS[4], "decode", data)
    }
    backwards = memoryview(data[::-1])[::-1]  # not contiguous
    assert assert_same(CODECS[4], "decode", backwards) == assert_same(CODECS[4], "decode", data)


class Text(str):
    """A subclass of str, to compare how the codecs treat subclasses."""


class Number(int):
    """A subclass of int, to compare how the codecs treat subclasses."""


class Bytes(bytes):
    """A subclass of bytes, to compare how the codecs treat subclasses."""


class Row(tuple[Any, ...]):
    """A subclass of tuple, to compare how the codecs treat subclasses."""


class Cells(list[Any]):
    """A subclass of list, to compare how the codecs treat subclasses."""


class Index:
    """An object that is not an int but has `__index__`."""

    def __index__(self) -> int:
        return 1


class Broken:
    """An object whose methods raise."""

    def __index__(self) -> int:
        raise RuntimeError("broken")

    def __len__(self) -> int:
        raise RuntimeError("broken")


COLUMN = make_column("a", 23)
INVALID_VALUES: list[Any] = [
    None, UNCHANGED, True, False, 0, 1, -1, 2, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1, 10**5000, 1.0, 0.5, float("nan"),
    Decimal(1), "", "d", "f", "a", "a\0b", "é", "\U0001f600", "\udcff", "\udcc3\udca9", "\ud800", "é\udcff",
    b"", b"\xff", bytearray(b"a"), memoryview(b"a"), (), [], ("a",), ["a", None], [1, 2], (1, -1), {}, {1: 2},
    {"a"}, range(3), object(), Text("a"), Text("é"), Number(7), Number(-1), Index(), Broken(),
    Bytes(b"a"), Row(("a", Bytes(b"b"))), Cells(["a"]), (Text("é"), Bytes(b"")), ("x" * 700, b"y" * 999),
    m.ReplicaIdentity.FULL, m.ColumnFlag.KEY, m.StreamStop(),
    COLUMN, (COLUMN,), int, "x" * 600,
    ("a",) * 65_536, (None,) * 65_535,
]  # fmt: skip
"""Values that a caller might put into a field; most are invalid for most fields."""


@st.composite
def with_invalid_value(draw: st.DrawFn, whole: Any) -> Any:
    """Draw a copy of a message with an arbitrary value in one field, tuple item, or field of a column."""
    name = draw(st.sampled_from(whole.__struct_fields__))
    value = getattr(whole, name)
    if isinstance(value, tuple) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        nested = isinstance(value[at], msgspec.Struct) and draw(st.booleans())
        item = draw(with_invalid_value(value[at]) if nested else st.sampled_from(INVALID_VALUES))
        return replace(whole, **{name: (*value[:at], item, *value[at + 1 :])})
    return replace(whole, **{name: draw(st.sampled_from(INVALID_VALUES))})


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_kernel_and_python_agree_on_invalid_objects(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(GENERATED).flatmap(lambda messages: messages))
    codec = data.draw(st.sampled_from(list(CODEC_NAMES)))
    for _ in range(data.draw(st.integers(0, 2))):
        if message.__struct_fields__:
            message = data.draw(with_invalid_value(message))
    assert_same(codec, "encode", message)


@pytest.mark.parametrize("codec", CODEC_NAMES, ids=CODEC_NAMES.get)
def test_kernel_and_python_agree_on_invalid_values_of_every_field(codec: Codec) -> None:
    seen = set()
    for case in CASES:
        for name in case.message.__struct_fields__:
            for value in INVALID_VALUES:
                result = assert_same(codec, "encode", replace(case.message, **{name: value}))
                assert isinstance(result, tuple)
                seen.add(result[0])
    assert seen >= {bytes, EncodeError}


@pytest.mark.parametrize(
    "message", [*INVALID_VALUES, Message, Message(), m.Begin], ids=lambda one: type(one).__name__
)
def test_kernel_and_python_agree_on_other_types_than_messages(message: object) -> None:
    for codec in CODEC_NAMES:
        assert_same(codec, "encode", message)


def test_a_str_subclass_with_its_own_encode_is_accepted_or_refused() -> None:
    class Strange(str):
        def encode(self, *_: object) -> Any:
            return bytearray(b"strange")

    encode = PAIRS[CODECS[4]]["encode"][1]
    for text in (Strange("a"), Strange("\udcff"), Strange("\udcc3\udca9")):
        for message in (m.Insert(relation_oid=1, new=(text,)), m.Origin(origin_lsn=1, name=text)):
            with suppress(EncodeError):
                assert type(encode(message)) is bytes


def test_a_subclass_with_the_same_name_is_refused() -> None:
    begin = type("Begin", (m.Begin,), {})(final_lsn=1, commit_time=2, xid=3)
    column = type("RelationColumn", (m.RelationColumn,), {})(**msgspec.structs.asdict(COLUMN))
    for codec in CODEC_NAMES:
        assert_same(codec, "encode", begin)
        assert_same(
            codec,
            "encode",
            make_relation(column, namespace="", identity=m.ReplicaIdentity.FULL),
        )


@pytest.mark.slow
def test_the_kernel_leaks_no_memory_or_references() -> None:
    rows = ("text", "é", "\udcff", "t", "", b"raw", None, UNCHANGED, "x" * 3000)
    good: list[Message] = [case.message for case in CASES if 4 in case.versions]
    good += [
        m.Insert(relation_oid=2**31, new=rows),
        m.Update(relation_oid=7, new=rows, key=(None, "k")),
        m.Truncate(options=m.TruncateOption(0), relation_oids=tuple(range(300, 400))),
    ]
    wrong: list[Any] = [
        m.Insert(relation_oid=-1, new=rows),
        m.Insert(relation_oid=1, new=(*rows, 3)),  # type: ignore[arg-type]
        m.Begin(final_lsn=1, commit_time=2, xid=2**32),
    ]
    decode, encode = (PAIRS[CODECS[4]][what][1] for what in ("decode", "encode"))
    raw = [encode(message) for message in good]
    short = [data[:-1] for data in raw if len(data) > 1]

    def work() -> None:
        for message in good:
            encode(message)
        for data in raw:
            for streaming in ("off", "on", "parallel"):
                with suppress(DecodeError):
                    decode(data, False, streaming)
        for data in short[::7]:
            with pytest.raises(DecodeError):
                decode(data)
        for message in wrong:
            with pytest.raises(EncodeError):
                encode(message)

    def counts() -> list[int]:
        shared = (
            None,
            UNCHANGED,
            True,
            "",
            "t",
            m.Insert,
            m.RelationColumn,
            m.ReplicaIdentity.FULL,
            good,
            raw,
        )
        return [sys.getrefcount(one) for one in (*shared, *good, *raw, *rows)]

    for _ in range(20):
        work()
    gc.collect()
    before = counts()
    tracemalloc.start()
    try:
        work()
        start, _ = tracemalloc.get_traced_memory()
        times = 100_000 // (len(good) + 3 * len(raw) + len(short) // 7 + len(wrong))
        for _ in range(times):
            work()
        gc.collect()
        end, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert end - start < 20_000
    assert max(abs(new - old) for new, old in zip(counts(), before, strict=True)) < times // 10
