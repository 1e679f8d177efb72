"""Arbitrary bytes become text or hex: no exceptions, and no memory is allocated for wrong lengths."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import catalog
from logicalrep.capturefile import CaptureFile
from logicalrep.messages import Insert, Update
from logicalrep.values import arrow_type, decode_binary, to_arrow, to_text
from tests.codec import corpus
from tests.effort import examples

OIDS = [oid for builtin in catalog.TYPES for oid in (builtin.oid, builtin.array_oid) if oid] + [70000]
UNTYPED = 70000
"""OID of a type that is not built in."""

SMALL = st.integers(-2, 40)
NUMBERS = st.one_of(
    SMALL.map(lambda number: struct.pack(">i", number)),
    st.sampled_from(OIDS).map(lambda oid: struct.pack(">I", oid)),
    st.sampled_from([2**31 - 1, -(2**31), 2**30]).map(lambda number: struct.pack(">i", number)),
)
BYTES = st.lists(st.one_of(NUMBERS, st.binary(max_size=12)), max_size=12).map(b"".join)


@cache
def real_cells() -> dict[int, list[bytes]]:
    """Return the distinct binary cells of a capture file, by type OID."""
    cells: dict[int, set[bytes]] = {}
    with CaptureFile(corpus.path("pg18_p1_binary")) as capture:
        for line in capture.messages():
            if isinstance(line.message, Insert | Update):
                relation = capture.decoder.relations[line.message.relation_oid]
                for column, cell in zip(relation.columns, line.message.new, strict=True):
                    if isinstance(cell, bytes):
                        cells.setdefault(column.type_oid, set()).add(cell)
    return {oid: sorted(found) for oid, found in cells.items()}


def hexed(raw: bytes) -> str:
    """Return what stands for bytes without valid text."""
    return "\0\\x" + raw.hex()


def check(oid: int, cell: bytes) -> None:
    (text,) = to_text([cell], oid)
    assert text is not None
    text.encode()  # is UTF-8
    lost = "\0" in text
    try:
        raw = decode_binary(cell, oid).encode("utf-8", "surrogateescape")
    except ValueError:
        raw = cell
        assert lost
    assert text == hexed(raw) if lost else text.encode() == raw
    kept = text.removeprefix("\0")
    array, rescued = to_arrow([cell, None], oid)
    assert array.type == arrow_type(oid)
    assert array[0].is_valid != (0 in rescued)
    assert rescued in ([{0: kept}] if lost else [{}, {0: kept}])
    strings, rescued = to_arrow([cell], oid, type_=arrow_type(UNTYPED))
    assert strings.to_pylist() == [None if lost else text]
    assert rescued == ({0: kept} if lost else {})


@pytest.mark.parametrize("oid", OIDS)
@settings(max_examples=examples(25))
@given(cell=BYTES)
def test_arbitrary_bytes_become_text_or_hex(oid: int, cell: bytes) -> None:
    check(oid, cell)


@settings(max_examples=examples(400))
@given(data=st.data())
def test_damaged_real_values_become_text_or_hex(data: st.DataObject) -> None:
    oid = data.draw(st.sampled_from(sorted(real_cells())))
    cell = bytearray(data.draw(st.sampled_from(real_cells()[oid])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(cell)))
        size = data.draw(st.integers(0, 4))
        cell[at : at + size] = data.draw(st.one_of(NUMBERS, st.binary(max_size=4)))
    check(oid, bytes(cell))
    check(UNTYPED, bytes(cell))


HUGE = {
    "a long array": ("_int4", struct.pack(">iiIii", 1, 0, 23, 2**31 - 1, 1)),
    "a deep one": ("_int4", struct.pack(">iiI12i", 6, 0, 23, *[2**20, 1] * 6)),
    "a long empty one": ("_int4", struct.pack(">iiIiiii", 2, 0, 23, 2**31 - 1, 0, 0, 0)),
    "a polygon": ("polygon", struct.pack(">i", 2**31 - 1)),
    "a path": ("path", struct.pack(">Bi", 1, 2**31 - 1)),
    "bits": ("varbit", struct.pack(">i", 2**31 - 1)),
    "lexemes": ("tsvector", struct.pack(">i", 2**31 - 1)),
    "a query": ("tsquery", struct.pack(">i", 2**31 - 1) + b"\1\0\0a\0" * 99),
    "ranges": ("int4multirange", struct.pack(">i", 2**31 - 1)),
    "a snapshot": ("pg_snapshot", struct.pack(">iQQ", 2**31 - 1, 1, 2)),
    "a number": ("numeric", struct.pack(">HhHH", 65535, 0, 0, 0)),
    "columns": ("", struct.pack(">iIi", 2**31 - 1, 23, -1)),
    "statistics": ("pg_ndistinct", struct.pack("<IIId", 0xA352BFA4, 1, 2**32 - 1, 1) + b"\xff" * 4),
}


@pytest.mark.parametrize(("name", "data"), HUGE.values(), ids=HUGE)
def test_claimed_lengths_do_not_allocate_memory(name: str, data: bytes) -> None:
    oids = {"": UNTYPED}
    for builtin in catalog.TYPES:
        oids |= {builtin.name: builtin.oid, f"_{builtin.name}": builtin.array_oid}
    oid = oids[name]
    tracemalloc.start()
    (text,) = to_text([data], oid)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert text in (hexed(data), "{}")


def nested(depth: int) -> bytes:
    """Return `depth` nested records around quote characters; in text, each level doubles the quotes."""
    data = struct.pack(">iIi", 1, 25, 4) + b'""""'
    for _ in range(depth):
        data = struct.pack(">iIi", 1, UNTYPED, len(data)) + data
    return data


def test_deeply_nested_records_become_hex() -> None:
    assert to_text([nested(0), nested(1)], UNTYPED) == ['("""""""""")', '("(""' + '""""' * 4 + '"")")']
    for depth in (50, 5000):
        assert to_text([nested(depth)], UNTYPED) == [hexed(nested(depth))]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e300])
def test_statistics_with_invalid_numbers_become_hex(number: float) -> None:
    data = struct.pack("<IIIdIhh", 0xA352BFA4, 1, 1, number, 2, 1, 2)
    assert to_text([data], catalog.BY_NAME["pg_ndistinct"].oid) == [hexed(data)]


@pytest.mark.parametrize("oid", [0, 1, 24_000_000])
def test_bytes_with_impossible_type_oids_are_not_a_record(oid: int) -> None:
    """A record whose field has an OID that no type can have becomes hex."""
    data = struct.pack(">iIi", 1, oid, 1) + b"a"
    assert to_text([data], UNTYPED) == ["(a)" if oid > 1 else hexed(data)]


def test_a_deeply_nested_tsquery_does_not_exceed_the_recursion_limit() -> None:
    count = 100_000
    query = struct.pack(">i", count + 1) + b"\2\1" * count + b"\1\0\0a\0"
    begin = time.monotonic()
    assert to_text([query], catalog.BY_NAME["tsquery"].oid) == ["!" * count + "'a'"]
    assert time.monotonic() - begin < 120
