"""The checker detects every fault in real streams, unless the result is legal for a known reason."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings

from logicalrep import messages as m
from logicalrep.errors import DecodeError
from logicalrep.stream.check import CheckOptions, Violation, samples as s
from logicalrep.testing.faults import FAULTS, Corruption, Fault, Stream, corruptions
from tests.check.legal_by_chance import (
    why_drop_is_legal,
    why_flip_is_legal,
    why_repeat_is_legal,
    why_swap_is_legal,
)
from tests.check.streams import check_options, make_checker
from tests.codec.corpus import read
from tests.effort import examples
from tests.versions import WRITTEN, WRITTEN_CODEC

NAMES = (
    "pg10_p1",
    "pg14_p2_stream_msg",
    "pg15_p1_on_2pc_slot",
    "pg16_p4_par_2pc",
    "pg18_p1_binary",
    "pg18_p4_par_msg",
    "pg18_ws_p4_par_2pc_msg",
)
"""Names of capture files to corrupt. Each stream option is on in some files and off in others."""

GENERIC = {"drop": why_drop_is_legal, "repeat": why_repeat_is_legal, "swap": why_swap_is_legal}
BY_NAME = {fault.name: fault for fault in FAULTS}


@cache
def stream(name: str) -> Stream:
    header, _, samples = read(name)
    return Stream(tuple(sample.data for sample in samples), check_options(header))


TWO_PREPARED = Stream(
    tuple(
        map(
            WRITTEN_CODEC.encode,
            (
                *s.PREPARED,
                *s.BLOCK,
                m.StreamPrepare(prepare_lsn=4_000, end_lsn=4_048, prepare_time=0, xid=s.TOP, gid="h"),
            ),
        )
    ),
    CheckOptions(proto_version=WRITTEN, streaming="on", two_phase=True),
)
"""A stream with two prepared transactions at the same time, which no capture file contains."""


def first_violation(messages: tuple[bytes, ...], options: CheckOptions) -> Violation | None:
    checker = make_checker(options)
    return next((found for data in messages if (found := checker.feed(data)) is not None), None)


def positions(fault: Fault, tested: Stream, count: int) -> list[int]:
    """Return up to `count` positions in a stream where a fault can be applied; deterministic."""
    order = random.Random(fault.name).sample(range(fault.size(tested)), fault.size(tested))
    found = (position for position in order if fault.apply(tested, position) is not None)
    return [position for position, _ in zip(found, range(count), strict=False)]


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.certain], ids=lambda fault: fault.name)
def test_certain_faults_are_detected(fault: Fault) -> None:
    made = 0
    for tested in (*map(stream, NAMES), TWO_PREPARED):
        for position in positions(fault, tested, 2):
            messages = fault.apply(tested, position)
            assert messages is not None
            assert first_violation(messages, tested.options) is not None, (position, tested.places[position])
            made += 1
    assert made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", GENERIC)
def test_a_dropped_repeated_or_swapped_message_is_detected_or_legal_by_chance(kind: str, name: str) -> None:
    tested = stream(name)
    caught = legal = 0
    for position in positions(BY_NAME[kind], tested, 40):
        messages = BY_NAME[kind].apply(tested, position)
        assert messages is not None
        if first_violation(messages, tested.options) is not None:
            caught += 1
        else:
            why = GENERIC[kind](tested, position)
            assert why is not None, (position, tested.places[position : position + 2])
            legal += 1
    assert caught
    assert legal


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_detected_or_legal_by_chance(name: str) -> None:
    tested = stream(name)
    caught = 0
    for number, byte, bit in some_bits(tested, 100):
        position = 8 * (sum(map(len, tested.messages[:number])) + byte) + bit
        messages = BY_NAME["flip-bit"].apply(tested, position)
        assert messages is not None
        if first_violation(messages, tested.options) is not None:
            caught += 1
        else:
            why = why_flip_is_legal(tested, number, byte)
            assert why is not None, (number, byte, bit, tested.places[number])
    assert caught


def some_bits(tested: Stream, count: int) -> list[tuple[int, int, int]]:
    """Return random bits as (message number, byte, bit), evenly distributed over the message types."""
    generator = random.Random(count)
    by_kind: dict[type, list[int]] = {}
    for number, place in enumerate(tested.places):
        by_kind.setdefault(type(place.message), []).append(number)
    numbers = [generator.choice(list(by_kind.values())) for _ in range(count)]
    bits = []
    for number in map(generator.choice, numbers):
        bits.append((number, generator.randrange(len(tested.messages[number])), generator.randrange(8)))
    return bits


def test_a_fault_does_not_modify_the_original_stream() -> None:
    tested = stream("pg18_p4_par_msg")
    before = tested.messages
    assert first_violation(before, tested.options) is None
    for fault in FAULTS:
        for position in positions(fault, tested, 2):
            assert fault.apply(tested, position) != before
    assert tested.messages is before


def test_faults_have_unique_names_and_descriptions() -> None:
    assert len(BY_NAME) == len(FAULTS)
    for fault in FAULTS:
        assert fault.doc.endswith(".")
        assert fault.certain or "Valid by chance" in fault.doc


# Strategy


SMALL = Stream(
    tuple(
        map(WRITTEN_CODEC.encode, (*s.transaction(s.RELATION, s.INSERT, s.DELETE), *s.BLOCK, s.STREAM_COMMIT))
    ),
    CheckOptions(proto_version=WRITTEN, streaming="on", two_phase=True, binary=False),
)


@given(corruptions(SMALL))
def test_a_corruption_is_the_result_of_its_fault(corruption: Corruption) -> None:
    fault = BY_NAME[corruption.fault]
    assert fault.apply(SMALL, corruption.position) == corruption.stream.messages
    assert fault.certain == corruption.certain
    assert corruption.stream.options == SMALL.options
    if corruption.certain:
        assert first_violation(corruption.stream.messages, SMALL.options) is not None


@settings(max_examples=examples(20))
@given(corruptions(stream("pg16_p4_par_2pc")))
def test_corruptions_of_a_real_stream(corruption: Corruption) -> None:
    assert corruption.stream.messages != stream("pg16_p4_par_2pc").messages
    if corruption.certain:
        assert first_violation(corruption.stream.messages, corruption.stream.options) is not None


def test_a_stream_that_cannot_be_decoded_is_rejected() -> None:
    with pytest.raises(DecodeError):
        corruptions(Stream((b"B\0",), CheckOptions()))
