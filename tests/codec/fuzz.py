"""Feed damaged and random bytes to every codec.

A codec must decode an input to a message that encodes to the same bytes, or raise DecodeError.

python -m tests.codec.fuzz 1000000        a million inputs
python -m tests.codec.fuzz 1000000 7      a million inputs with seed 7
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from logicalrep import _protocols, envelope
from logicalrep._layout import Protocol
from logicalrep._walk import walk
from logicalrep.errors import DecodeError
from logicalrep.messages import Streaming
from logicalrep.versions import CODECS, Codec
from tests.codec import corpus
from tests.codec.cases import CASES, CONTEXTS

Context = tuple[Codec, Protocol, bool, Streaming]

VERSIONED: list[Context] = [
    (CODECS[version], _protocols.VERSIONS[version], in_stream, streaming)
    for version, contexts in CONTEXTS.items()
    for in_stream, streaming in contexts
]
OUTER: Context = (envelope, _protocols.ENVELOPE, False, "off")
BOUNDARIES = bytes([0x00, 0x01, 0x7F, 0x80, 0xFF, *b"NKOntub"])
MAX_BYTES = 4096  # longer messages are omitted, because shorter ones find the same errors


def accepts(data: bytes, context: Context) -> bool:
    """Return whether the codec decodes `data`. Fail if the decoded message does not encode to `data`."""
    codec, layout, in_stream, streaming = context
    try:
        message = codec.decode(data, in_stream, streaming)
    except DecodeError as error:
        if "please report" in str(error) or not 0 <= error.offset <= len(
            data
        ):  # `walk` disagrees with the codec
            raise AssertionError((data.hex(), context, error)) from error
        return False
    encoded = codec.encode(message)
    assert data == encoded, (data.hex(), context, message)
    end = 0
    for piece in walk(layout, data, in_stream, streaming):
        assert end == piece.start, (data.hex(), context, piece)
        end = piece.end
    assert len(data) == end, (data.hex(), context)
    return True


def _flip(random: Random, data: bytearray, _: bytes) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, data: bytearray, _: bytes) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice(BOUNDARIES)


def _insert(random: Random, data: bytearray, _: bytes) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.randbytes(random.choice((1, 1, 2, 4, 8)))


def _delete(random: Random, data: bytearray, _: bytes) -> None:
    at = random.randint(0, len(data))
    del data[at : at + random.choice((1, 1, 2, 4, 8))]


def _truncate(random: Random, data: bytearray, _: bytes) -> None:
    del data[random.randint(0, len(data)) :]


def _splice(random: Random, data: bytearray, other: bytes) -> None:
    data[random.randint(0, len(data)) :] = other[random.randint(0, len(other)) :]


def _randomize(random: Random, data: bytearray, _: bytes) -> None:
    data[1:] = random.randbytes(random.randrange(40))


def _leave(random: Random, data: bytearray, _: bytes) -> None:
    """Leave the bytes unchanged: the randomly chosen codec and context may not fit the message."""


MUTATIONS: tuple[Callable[[Random, bytearray, bytes], None], ...] = (
    _flip,
    _overwrite,
    _insert,
    _delete,
    _truncate,
    _splice,
    _randomize,
    _leave,
)


def seeds() -> tuple[list[bytes], list[bytes]]:
    """Return two lists: the pgoutput messages, and the envelopes, of captures and cases, except long ones."""
    inner = {sample.data for sample in corpus.distinct_samples()} | {c.bytes for c in CASES if c.versions}
    outer = {data for data, _ in corpus.envelopes()} | {c.bytes for c in CASES if not c.versions}
    return _short(inner), _short(outer)


def _short(messages: set[bytes]) -> list[bytes]:
    return sorted(data for data in messages if len(data) <= MAX_BYTES)


def inputs(random: Random, inner: list[bytes], outer: list[bytes]) -> Iterator[tuple[bytes, Context]]:
    """Yield damaged or random bytes with a codec and context, endlessly."""
    while True:
        of_envelope = random.random() < 0.05
        group = outer if of_envelope else inner
        if random.random() < 0.05:
            data = bytearray(random.randbytes(random.randrange(60)))
        else:
            data = bytearray(random.choice(group))
            for _ in range(random.choice((1, 1, 1, 2, 3))):
                random.choice(MUTATIONS)(random, data, random.choice(group))
        yield bytes(data), OUTER if of_envelope else random.choice(VERSIONED)


def fuzz(count: int, seed: int) -> Counter[str]:
    """Decode `count` inputs; return the number of inputs by codec and outcome (accepted or refused)."""
    counts: Counter[str] = Counter()
    stream = inputs(Random(seed), *seeds())
    for _ in range(count):
        data, context = next(stream)
        accepted = accepts(data, context)
        counts[f"{context[1].label}: {'accepted' if accepted else 'refused'}"] += 1
    return counts


def main() -> None:
    """Fuzz with the number of inputs and the seed from the command line; print the results."""
    count, seed = ([int(argument) for argument in sys.argv[1:]] + [100_000, 0][len(sys.argv) - 1 :])[:2]
    start = time.perf_counter()
    counts = fuzz(count, seed)
    print(f"{count} inputs from seed {seed} in {time.perf_counter() - start:.0f} s, all as promised:")
    for what, number in sorted(counts.items()):
        print(f"{number:9}  {what}")


if __name__ == "__main__":
    main()
