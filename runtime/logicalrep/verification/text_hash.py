"""PostgreSQL's 64-bit hash of texts, for whole Arrow arrays: hash_bytes_extended in src/common/hashfn.c."""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep import compiled
from logicalrep._arrays import value_bytes, value_offsets

Hashes: TypeAlias = npt.NDArray[np.uint64]
_Words: TypeAlias = npt.NDArray[np.uint32]

_ROWS: Final = 1 << 14
"""Number of texts that are hashed together: their state fits into the processor's cache."""

_BLOCK: Final = 12
"""Number of bytes that are mixed into the hash's state at once."""

_START: Final = 0x9E3779B9 + 3923095

_TAIL_MASKS: Final = np.array(
    [[(1 << 8 * min(max(tail - first, 0), 4)) - 1 for tail in range(_BLOCK)] for first in (0, 4, 8)],
    np.uint32,
)
"""Masks for the three words after the last whole block, by word and number of remaining bytes."""


def hash_texts(texts: pa.StringArray) -> Hashes:
    """Return for each text what the server's `hashtextextended(text, 0)` returns, as unsigned integers.

    Args:
        texts: Texts without NULL.
    """
    hashes = np.empty(len(texts), np.uint64)
    if compiled.kernel is not None and len(texts):
        data = value_bytes(texts)
        compiled.kernel.hash_texts(data if len(data) else b"\0", value_offsets(texts), hashes)
        return hashes
    data = np.concatenate([value_bytes(texts), np.zeros(_BLOCK, np.uint8)])
    # `words[at]` has the four bytes from byte `at` on: a text can begin at any byte, so the words overlap.
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    offsets = value_offsets(texts).astype(np.int64)
    for first in range(0, len(texts), _ROWS):
        part = slice(first, first + _ROWS)
        starts = offsets[:-1][part]
        hashes[part] = _hash(words, starts, offsets[1:][part] - starts)
    return hashes


def md5_hashes(texts: pa.StringArray) -> Hashes:
    """Return for each text the first 8 bytes of its MD5 digest, as unsigned integers."""
    digests = (hashlib.md5(text.encode(), usedforsecurity=False).digest() for text in texts.to_pylist())
    return np.frombuffer(b"".join(one[:8] for one in digests), ">u8").astype(np.uint64)


def _hash(words: _Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    blocks = lengths // _BLOCK
    order = np.argsort(-blocks, kind="stable")  # longest first: the unfinished texts are always in front
    starts, lengths, blocks = starts[order], lengths[order], blocks[order]
    a = lengths.astype(np.uint32) + np.uint32(_START & 0xFFFFFFFF)
    b, c = a.copy(), a.copy()
    unfinished = (
        np.searchsorted(-blocks, -np.arange(1, int(blocks[0]) + 1), side="right") if len(blocks) else ()
    )
    for block, count in enumerate(unfinished):
        at = starts[:count] + _BLOCK * block
        _mix(a[:count], b[:count], c[:count], words[at], words[at + 4], words[at + 8])
    at = starts + _BLOCK * blocks
    tails = lengths % _BLOCK
    a += words[at] & _TAIL_MASKS[0][tails]
    b += words[at + 4] & _TAIL_MASKS[1][tails]
    c += (words[at + 8] & _TAIL_MASKS[2][tails]) << np.uint32(8)  # the lowest byte holds the length
    for target, other, bits in _FINAL_STEPS:
        state = {"a": a, "b": b, "c": c}
        state[target] ^= state[other]
        state[target] -= _rotated(state[other], bits)
    hashes = np.empty(len(order), np.uint64)
    hashes[order] = b.astype(np.uint64) << np.uint64(32) | c
    return hashes


_FINAL_STEPS: Final = (
    ("c", "b", 14),
    ("a", "c", 11),
    ("b", "a", 25),
    ("c", "b", 16),
    ("a", "c", 4),
    ("b", "a", 14),
    ("c", "b", 24),
)
"""The steps of the macro `final`: word to change, other word, and bits of the rotation."""


def _mix(a: _Words, b: _Words, c: _Words, *words: Any) -> None:
    """Add three words to the state and mix it, in place, as the macro `mix` does."""
    a += words[0]
    b += words[1]
    c += words[2]
    for bits in (4, 6, 8, 16, 19, 4):
        a -= c
        a ^= _rotated(c, bits)
        c += b
        a, b, c = b, c, a


def _rotated(word: _Words, bits: int) -> _Words:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)
