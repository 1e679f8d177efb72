"""decode_xlog_data gives the results of the envelope codec, with and without the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from logicalrep import compiled, envelope
from logicalrep.columns import decode_xlog_data
from logicalrep.errors import DecodeError
from logicalrep.messages import PrimaryKeepalive, XLogData
from logicalrep.wire import Buffer
from tests.codec import corpus
from tests.columns import without_kernel

SENT = sorted({data for data, _ in corpus.envelopes()}, key=len)[:2_000]
"""The 2,000 shortest distinct envelopes in capture files, sent by servers or by their clients."""

DATA = bytes.fromhex("77 000000000163b1f0 000000000163b1f0 0002b7e1c0ffee00 53")
"""Bytes of an XLogData that contains a Stream Stop."""

KEEPALIVE = bytes.fromhex("6b 000000000163b228 0002b7e1c0ffee01 01")


def columns(payloads: Sequence[Buffer]) -> Any:
    made = decode_xlog_data(payloads)
    made.data.validate(full=True)
    return made.lsns.to_pylist(), made.data.to_pylist(), made.others


def objects(payloads: Sequence[Buffer]) -> Any:
    """Return the result that `decode_xlog_data` must have, computed with the envelope codec."""
    decoded = list(map(envelope.pure_decode, payloads))
    data = [one for one in decoded if isinstance(one, XLogData)]
    others = [
        (sum(isinstance(before, XLogData) for before in decoded[:row]), one)
        for row, one in enumerate(decoded)
        if not isinstance(one, XLogData)
    ]
    lsns = np.array([one.wal_start for one in data], np.uint64).view(np.int64)
    return lsns.tolist(), [one.data for one in data], others


def outcome(call: Callable[[Sequence[Buffer]], Any], payloads: Sequence[Buffer]) -> Any:
    try:
        return call(payloads)
    except DecodeError as error:
        return str(error), vars(error)
    except TypeError as error:
        return type(error), str(error)


def same(payloads: Sequence[Buffer]) -> Any:
    """Return the result of `decode_xlog_data`; check that kernel, pure Python and envelope codec agree."""
    made, wanted = outcome(columns, payloads), outcome(objects, payloads)
    with without_kernel.pure():
        assert outcome(columns, payloads) == made
    assert made == wanted
    return made


def test_xlog_data_and_keepalives_are_separated() -> None:
    keepalive = PrimaryKeepalive(wal_end=0x163B228, send_time=0x2B7E1C0FFEE01, reply_requested=True)
    payloads = [KEEPALIVE, DATA, DATA[:-1], KEEPALIVE, DATA + b"more"]
    wanted = ([0x163B1F0] * 3, [b"S", b"", b"Smore"], [(0, keepalive), (2, keepalive)])
    assert same(payloads) == wanted
    assert same([]) == ([], [], [])
    assert same([KEEPALIVE]) == ([], [], [(0, keepalive)])


def test_any_bytes_like_object_is_accepted() -> None:
    wanted = same([DATA, DATA, KEEPALIVE])
    wide = memoryview(DATA + bytes(2)).cast("I")
    assert same([wide]) == same([DATA + bytes(2)])
    assert same([bytearray(DATA), memoryview(DATA * 2)[:26], memoryview(KEEPALIVE)]) == wanted
    backwards = memoryview(DATA[::-1])[::-1]
    assert not backwards.contiguous
    assert same([backwards, DATA, KEEPALIVE]) == wanted


def test_an_lsn_of_2_to_the_63_is_negative() -> None:
    assert same([b"w" + b"\xff" * 8 + bytes(16)])[0] == [-1]


@pytest.mark.parametrize("bad", [b"", b"w", DATA[:24], b"?", DATA.upper(), KEEPALIVE[:-1], KEEPALIVE + b"x"])
def test_invalid_envelopes_give_the_codecs_error(bad: bytes) -> None:
    text, _ = same([DATA, KEEPALIVE, bad, b"?"])
    with pytest.raises(DecodeError) as error:
        envelope.pure_decode(bad)
    assert text == str(error.value)


def test_payloads_that_are_not_bytes_like_are_refused() -> None:
    assert same([DATA, 7])[0] is TypeError  # type: ignore[list-item]


@pytest.mark.skipif(compiled.kernel is None, reason=compiled.HOW)
def test_more_than_2_gb_is_refused_before_copying() -> None:
    large = np.zeros(1 << 30, np.uint8)  # untouched pages take no memory
    large[0] = ord("w")
    with pytest.raises(OverflowError, match="3 messages have 3221225397 bytes, more than 2 GB"):
        decode_xlog_data([large.data] * 3)


DAMAGED = st.builds(
    lambda data, at, new: data[: at % (len(data) + 1)] + new + data[at % (len(data) + 1) + len(new) :],
    st.sampled_from(SENT),
    st.integers(0, 60),
    st.binary(max_size=3),
)
CUT = st.builds(lambda data, at: data[: at % (len(data) + 1)], st.sampled_from(SENT), st.integers(0, 40))


@given(payloads=st.lists(st.sampled_from(SENT) | DAMAGED | CUT | st.binary(max_size=40), max_size=8))
def test_any_payloads_give_the_codecs_result(payloads: list[bytes]) -> None:
    same(payloads)


def test_envelopes_of_captures_give_the_codecs_result() -> None:
    same(SENT)
