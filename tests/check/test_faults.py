"""The checker sees every corruption of real streams, unless it is legal by chance, and it can be told why."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings

from pgoutput import messages as m
from pgoutput import v4
from pgoutput.errors import DecodeError
from pgoutput.stream.check import CheckOptions, Violation
from pgoutput.stream.check import samples as s
from pgoutput.testing.faults import FAULTS, Corruption, Fault, Stream, corruptions
from tests.check.chance import why_dropped, why_flipped, why_repeated, why_swapped
from tests.check.streams import checker, options
from tests.codec.corpus import read
from tests.effort import examples

NAMES = (
    "pg10_p1",
    "pg14_p2_stream_msg",
    "pg15_p1_on_2pc_slot",
    "pg16_p4_par_2pc",
    "pg18_p1_binary",
    "pg18_p4_par_msg",
    "pg18_ws_p4_par_2pc_msg",
)
"""Captures of which corruptions are made: with and without each of the options."""

GENERIC = {"drop": why_dropped, "repeat": why_repeated, "swap": why_swapped}
BY_NAME = {fault.name: fault for fault in FAULTS}


@cache
def stream(name: str) -> Stream:
    header, _, samples = read(name)
    return Stream(tuple(sample.data for sample in samples), options(header))


TWO_PREPARED = Stream(
    tuple(map(v4.encode, (*s.PREPARED, *s.BLOCK, m.StreamPrepare(4_000, 4_048, 0, s.TOP, "h")))),
    CheckOptions(streaming="on", two_phase=True),
)
"""No capture has two prepared transactions at once."""


def first(messages: tuple[bytes, ...], asked: CheckOptions) -> Violation | None:
    held = checker(asked)
    return next((found for data in messages if (found := held.feed(data)) is not None), None)


def positions(fault: Fault, of: Stream, count: int) -> list[int]:
    """Some positions at which it is a fault, the same ones each time."""
    order = random.Random(fault.name).sample(range(fault.size(of)), fault.size(of))
    found = (position for position in order if fault.make(of, position) is not None)
    return [position for position, _ in zip(found, range(count), strict=False)]


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.certain], ids=lambda fault: fault.name)
def test_what_is_certainly_illegal_is_seen(fault: Fault) -> None:
    made = 0
    for of in (*map(stream, NAMES), TWO_PREPARED):
        for position in positions(fault, of, 2):
            messages = fault.make(of, position)
            assert messages is not None
            assert first(messages, of.options) is not None, (position, of.places[position])
            made += 1
    assert made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", GENERIC)
def test_what_is_dropped_repeated_or_swapped_is_seen_or_legal_by_chance(kind: str, name: str) -> None:
    of = stream(name)
    caught = legal = 0
    for position in positions(BY_NAME[kind], of, 40):
        messages = BY_NAME[kind].make(of, position)
        assert messages is not None
        if first(messages, of.options) is not None:
            caught += 1
        else:
            why = GENERIC[kind](of, position)
            assert why is not None, (position, of.places[position : position + 2])
            legal += 1
    assert caught
    assert legal


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_seen_or_legal_by_chance(name: str) -> None:
    of = stream(name)
    caught = 0
    for number, byte, bit in some_bits(of, 100):
        messages, data = flipped(of, number, byte, bit)
        if first(messages, of.options) is not None:
            caught += 1
        else:
            why = why_flipped(of, number, byte, data)
            assert why is not None, (number, byte, bit, of.places[number])
    assert caught


def some_bits(of: Stream, count: int) -> list[tuple[int, int, int]]:
    """Bits of the stream, as many of each kind of message: rows are most of it."""
    chosen = random.Random(count)
    by_kind: dict[type, list[int]] = {}
    for number, place in enumerate(of.places):
        by_kind.setdefault(type(place.message), []).append(number)
    numbers = [chosen.choice(list(by_kind.values())) for _ in range(count)]
    bits = []
    for number in map(chosen.choice, numbers):
        bits.append((number, chosen.randrange(len(of.messages[number])), chosen.randrange(8)))
    return bits


def flipped(of: Stream, number: int, byte: int, bit: int) -> tuple[tuple[bytes, ...], bytes]:
    """The messages with this bit flipped, and the one in which it is."""
    position = 8 * (sum(map(len, of.messages[:number])) + byte) + bit
    messages = BY_NAME["flip-bit"].make(of, position)
    assert messages is not None
    return messages, messages[number]


def test_a_fault_changes_the_stream_and_keeps_the_legal_one() -> None:
    of = stream("pg18_p4_par_msg")
    before = of.messages
    assert first(before, of.options) is None
    for fault in FAULTS:
        for position in positions(fault, of, 2):
            assert fault.make(of, position) != before
    assert of.messages is before


def test_faults_have_names_of_their_own_and_say_what_they_are() -> None:
    assert len(BY_NAME) == len(FAULTS)
    for fault in FAULTS:
        assert fault.doc.endswith(".")
        assert fault.certain or "legal by chance" in fault.doc


# The strategy


SMALL = Stream(
    tuple(map(v4.encode, (*s.transaction(s.RELATION, s.INSERT, s.DELETE), *s.BLOCK, s.STREAM_COMMIT))),
    CheckOptions(streaming="on", two_phase=True, binary=False),
)


@given(corruptions(SMALL))
def test_a_corruption_is_made_as_its_fault_says(corruption: Corruption) -> None:
    fault = BY_NAME[corruption.fault]
    assert fault.make(SMALL, corruption.position) == corruption.stream.messages
    assert fault.certain == corruption.certain
    assert corruption.stream.options == SMALL.options
    if corruption.certain:
        assert first(corruption.stream.messages, SMALL.options) is not None


@settings(max_examples=examples(20))
@given(corruptions(stream("pg16_p4_par_2pc")))
def test_corruptions_of_a_real_stream_are_drawn(corruption: Corruption) -> None:
    assert corruption.stream.messages != stream("pg16_p4_par_2pc").messages
    if corruption.certain:
        assert first(corruption.stream.messages, corruption.stream.options) is not None


def test_a_stream_that_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(DecodeError):
        corruptions(Stream((b"B\0",), CheckOptions()))
