"""Samples of values in binary format: edge cases and deterministic random values.

Tests send these samples to a server in binary format, so that the server gets exactly these bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

COUNT = 400
"""Number of random values that are generated for each type; some types have more."""

_RANDOM = Random(20)


def _packed(form: str, *values: int | float) -> list[bytes]:
    return [struct.pack(form, value) for value in values]


def _integers(bits: int, form: str) -> list[bytes]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    sizes = [_RANDOM.randrange(low, high) >> _RANDOM.randrange(bits) for _ in range(COUNT)]
    return _packed(form, 0, 1, -1, low, high, *sizes)


def _unsigned(bits: int, form: str) -> list[bytes]:
    return _packed(form, 0, 1, 2**bits - 1, *(_RANDOM.getrandbits(bits) for _ in range(COUNT)))


def _float4() -> Iterator[bytes]:
    for bits in (0, 1, 2, 3, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0xFF800000, 1 << 31):
        yield struct.pack(">I", bits)
    for exponent in range(
        1, 255
    ):  # powers of two, whose neighbours are not equally far, and those neighbours
        for bits in (exponent << 23, (exponent << 23) - 1, (exponent << 23) + 1):
            yield struct.pack(">I", bits)
    for _ in range(4 * COUNT):
        yield struct.pack(">I", _RANDOM.getrandbits(32))
    for _ in range(4 * COUNT):
        yield struct.pack(">f", _RANDOM.randrange(10**9) * 10.0 ** _RANDOM.randrange(-12, 12))
    for midpoint in _midpoints(24):
        yield struct.pack(">f", midpoint)
    for exponent in range(-45, 39):
        yield from (
            struct.pack(">f", float(f"{digits}e{exponent}")) for digits in (1, 2, 5, 9.5) if exponent < 38
        )


def _float8() -> Iterator[bytes]:
    for bits in (
        0,
        1,
        2,
        3,
        2**52 - 1,
        2**52,
        0x7FF0 << 48,
        0x7FF8 << 48,
        0xFFF0 << 48,
        1 << 63,
        0x7FEF << 48,
    ):
        yield struct.pack(">Q", bits)
    for exponent in range(1, 2047):
        yield from (struct.pack(">Q", (exponent << 52) + near) for near in (-1, 0, 1))
    for _ in range(4 * COUNT):
        yield struct.pack(">Q", _RANDOM.getrandbits(64))
    for _ in range(4 * COUNT):
        yield struct.pack(">d", _RANDOM.randrange(10**17) * 10.0 ** _RANDOM.randrange(-25, 25))
    for exponent in range(-323, 309):
        yield from (
            struct.pack(">d", float(f"{digits}e{exponent}")) for digits in ("1", "5", "9.99", "1.2345")
        )
    for midpoint in _midpoints(53):
        yield struct.pack(">d", midpoint)


def _midpoints(bits: int) -> Iterator[float]:
    """Yield numbers such as 1e23, whose midpoint to a neighbouring float has few decimal digits."""
    for power in range(1, 24):
        low = 2**bits // 5**power
        for _ in range(20 if low > 1 else 0):
            yield float((_RANDOM.randrange(low, 2 * low) | 1) * 10**power << _RANDOM.randrange(4))


def _clock() -> int:
    return _RANDOM.choice(
        (
            0,
            86_400_000_000,
            1,
            86_399_999_999,
            _RANDOM.randrange(86_400) * 10**6,
            _RANDOM.randrange(86_400 * 10**6),
        )
    )


def _zone() -> int:
    return _RANDOM.choice((0, 3600, -3600, 19_800, -19_800, 1, -1, _RANDOM.randrange(-57_599, 57_600)))


def _interval() -> bytes:
    def part(bits: int) -> int:
        return _RANDOM.choice(
            (0, 0, 1, -1, 12, -12, _RANDOM.getrandbits(bits - 1) >> _RANDOM.randrange(bits))
        )

    time = _RANDOM.choice((part(62), -part(62), 3600 * 10**6, -90 * 10**6, 500_000))
    return struct.pack(">qii", time, _RANDOM.choice((-1, 1)) * part(31), _RANDOM.choice((-1, 1)) * part(31))


_FIRST_MOMENT, _END_OF_MOMENTS = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_YEARS = 86_400_000_000 * 366 * 400


def _moments() -> list[bytes]:
    edges = (
        0,
        1,
        -1,
        _FIRST_MOMENT,
        _END_OF_MOMENTS - 1,
        2**63 - 1,
        -(2**63),
        -63_082_281_600_000_000,
        -63_082_281_600_000_001,
    )
    near = [
        _RANDOM.randrange(-5 * _YEARS, 5 * _YEARS) // 10**6 * 10 ** _RANDOM.choice((6, 5, 0))
        for _ in range(COUNT)
    ]
    far = [_RANDOM.randrange(_FIRST_MOMENT, _END_OF_MOMENTS) for _ in range(COUNT)]
    return _packed(">q", *edges, *(moment for moment in near if moment >= _FIRST_MOMENT), *far)


def _dates() -> list[bytes]:
    edges = (0, -1, 2**31 - 1, -(2**31), -2_451_545, 2_145_031_948, -730_119, -730_120, 2_921_939, 2_921_940)
    near = [_RANDOM.randrange(-1_500_000, 4_000_000) for _ in range(COUNT)]
    return _packed(">i", *edges, *near, *(_RANDOM.randrange(-2_451_545, 2_145_031_949) for _ in range(COUNT)))


BYTES: dict[str, list[bytes]] = {
    "bool": [b"\0", b"\1"],
    "bytea": [_RANDOM.randbytes(_RANDOM.randrange(20)) for _ in range(COUNT)],
    "char": [bytes([byte]) for byte in range(256)],
    "int2": _integers(16, ">h"),
    "int4": _integers(32, ">i"),
    "int8": _integers(64, ">q"),
    "oid": _unsigned(32, ">I"),
    "xid": _unsigned(32, ">I"),
    "cid": _unsigned(32, ">I"),
    "xid8": _unsigned(64, ">Q"),
    "pg_lsn": _unsigned(64, ">Q"),
    "float4": list(_float4()),
    "float8": list(_float8()),
    "date": _dates(),
    "timestamp": _moments(),
    "timestamptz": _moments(),
    "time": [struct.pack(">q", _clock()) for _ in range(COUNT)],
    "timetz": [struct.pack(">qi", _clock(), _zone()) for _ in range(COUNT)],
    "interval": [
        struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1),
        struct.pack(">qii", -(2**63), -(2**31), -(2**31)),
        struct.pack(">qii", -(2**63), 0, 0),
        struct.pack(">qii", 0, -(2**31), -(2**31)),
        struct.pack(">qii", 2**63 - 1, 2**31 - 1, -(2**31)),
        *(_interval() for _ in range(4 * COUNT)),
    ],
    "uuid": [_RANDOM.randbytes(16) for _ in range(COUNT)],
}
"""Samples in binary format, by type name."""
