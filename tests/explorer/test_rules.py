"""The protocol explorer reports the same errors and broken rules as Python, also in damaged streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from logicalrep import _protocols, envelope
from logicalrep.capturefile import Header
from logicalrep.errors import DecodeError
from logicalrep.messages import Message
from logicalrep.stream.check import RULES, Checker, CheckOptions
from logicalrep.stream.encoder import encode_for
from logicalrep.versions import CODECS
from tests.check.streams import check_options, make_checker
from tests.codec import corpus
from tests.effort import examples
from tests.explorer.peer import ask
from tests.javascript.compare import NAMES, javascript_text
from tests.javascript.inputs import damaged

Records = list[tuple[str, bytes]]
"""Messages with their channels, as in a capture file."""

ALL: Final = {rule.name for rule in RULES}
MESSAGES: Final = examples(1000)
STREAMS: Final = examples(800)
MOST_BYTES: Final = 1000
"""Size of the longest message in a damaged stream."""


def own_rules() -> set[str]:
    """Return the names of the rules that the page checks."""
    (listed,) = ask([{"command": "rules"}])
    return {*listed["decoder"], *listed["order"]}


def find(checker: Checker, records: Records) -> list[list[Any]]:
    """Return position, rule and text of each violation that `logicalrep check` finds.

    For messages of the client, which `logicalrep check` leaves out, the error of `logicalrep inspect` counts.
    """
    found = []
    for position, (channel, data) in enumerate(records):
        if channel == "sent":
            try:
                envelope.decode(data)
            except DecodeError as error:
                found.append([position, "envelope", javascript_text(str(error))])
            continue
        violation = checker.feed(data) if channel == "data" else checker.feed_envelope(data)
        if violation is not None:
            found.append([position, violation.rule, javascript_text(violation.because)])
    return found


def request(options: CheckOptions, records: Records) -> dict[str, Any]:
    """Return the command that checks a stream."""
    return {
        "command": "check",
        "version": options.proto_version,
        "streaming": options.streaming,
        "twoPhase": options.two_phase,
        "messages": [(channel, data.hex()) for channel, data in records],
    }


def test_errors_of_damaged_messages_are_those_of_python() -> None:
    inputs = list(damaged(Random(0), MESSAGES))
    requests = [
        {
            "command": "explain",
            "version": int(name[1:]) if name.startswith("v") else None,
            "data": data.hex(),
            "inStream": in_stream,
            "streaming": streaming,
        }
        for name, data, in_stream, streaming in inputs
    ]
    refused = 0
    for one, answer in zip(inputs, ask(requests), strict=True):
        name, data, in_stream, streaming = one
        expected = None
        try:
            NAMES[name].decode(data, in_stream, streaming)
        except DecodeError as error:
            expected = [javascript_text(str(error)), error.message, error.field, error.offset]
            refused += 1
        assert answer == expected, one
    assert MESSAGES / 4 < refused < MESSAGES


def test_a_field_that_is_encoded_again_without_change_gives_the_same_bytes() -> None:
    samples = corpus.distinct_samples()[::20]
    requests = [
        {
            "command": "reencode",
            "version": sample.version,
            "data": sample.data.hex(),
            "inStream": sample.in_stream,
            "streaming": sample.streaming,
        }
        for sample in samples
    ]
    for sample, answer in zip(samples, ask(requests), strict=True):
        assert set(answer) == {sample.data.hex()}, sample.message


def test_every_rule_is_checked_by_the_page_or_listed_as_the_command_lines() -> None:
    (listed,) = ask([{"command": "rules"}])
    order = [rule.name for rule in RULES]
    own = [*listed["decoder"], *listed["order"]]
    others = [name for names in listed["commandLine"].values() for name in names]
    assert sorted(own + others) == sorted(order)
    assert own == [name for name in order if name in own]


def test_examples_of_rules_are_legal_and_illegal() -> None:
    own = own_rules()
    rules = [rule for rule in RULES if rule.name in own]
    requests = [
        request(rule.options, [_record(one, rule.options.proto_version) for one in example])
        for rule in rules
        for example in (rule.legal, rule.illegal)
    ]
    answers = iter(ask(requests))
    for rule in rules:
        assert next(answers) == []
        assert [name for _, name, _ in next(answers)] == [rule.name]


def _record(one: Message | bytes, version: int) -> tuple[str, bytes]:
    if isinstance(one, bytes):
        return "data", one
    if type(one).__name__ in _protocols.ENVELOPE.by_name:
        return "copydata", envelope.encode(one)
    return "data", encode_for(one, version)


def test_example_streams_are_legal() -> None:
    (examples,) = ask([{"command": "examples"}])
    for one in examples:
        options = CheckOptions(
            proto_version=one["version"], streaming=one["streaming"], two_phase=one["two_phase"]
        )
        records = [("data", bytes.fromhex(data)) for data in one["messages"]]
        assert find(make_checker(options), records) == []
        assert ask([request(options, records)]) == [[]]


def test_broken_rules_of_damaged_streams_are_those_of_check() -> None:
    own = own_rules()
    random = Random(0)
    streams = [*_damaged_examples(), *(_damaged_stream(random) for _ in range(STREAMS))]
    answers = ask(request(options, records) for options, records in streams)
    seen: Counter[str] = Counter()
    for (options, records), found in zip(streams, answers, strict=True):
        checker = Checker(
            options.proto_version,
            streaming=options.streaming,
            two_phase=options.two_phase,
            without=ALL - own,
        )
        assert found == find(checker, records), (options, records)
        # With all rules, a message may break another rule first, and is reported once.
        known = [one for one in find(make_checker(options), records) if one[1] in own]
        assert all(one in found for one in known), (options, records)
        seen.update(rule for _, rule, _ in found)
    assert seen.keys() == own


def _damaged_examples() -> Iterator[tuple[CheckOptions, Records]]:
    """Yield the examples of the rules with each message dropped or repeated."""
    for rule in RULES:
        for example in (rule.legal, rule.illegal):
            records = [_record(one, rule.options.proto_version) for one in example]
            yield rule.options, records
            for i in range(len(records)):
                yield rule.options, records[:i] + records[i + 1 :]
                yield rule.options, records[: i + 1] + records[i:]


def _damaged_stream(random: Random) -> tuple[CheckOptions, Records]:
    """Return a part of a capture in which messages are dropped, repeated, moved, changed or cut."""
    header, lines, _ = corpus.read(random.choice(corpus.CAPTURES))
    short = [line.record for line in lines if len(line.record.data) <= MOST_BYTES]
    start = random.choice((0, random.randrange(len(short))))
    part = short[start : start + random.randint(10, 80)]
    records: Records = [(record.channel, record.data) for record in part]
    for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
        _damage(random, records)
    return _options(random, header), records


def _options(random: Random, header: Header) -> CheckOptions:
    """Return the options of a capture; rarely others, which forbid some of its messages."""
    options = check_options(header)
    if random.random() < 0.9:
        return options
    return CheckOptions(proto_version=random.choice([*CODECS]), two_phase=random.random() < 0.5)


def _damage(random: Random, records: Records) -> None:
    if not records:
        return
    tag = random.choice(sorted({data[:1] for _, data in records}))  # rare messages break most rules
    at = random.choice([i for i, (_, data) in enumerate(records) if data[:1] == tag])
    channel, data = records[at]
    changed = bytearray(data)
    match random.choice(("drop", "repeat", "move", "flip", "flip", "set", "cut")):
        case "drop":
            del records[at]
        case "repeat":
            records.insert(random.choice((at, random.randrange(len(records)))), records[at])
        case "move":
            records.insert(random.randrange(len(records)), records.pop(at))
        case "flip" if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
            records[at] = channel, bytes(changed)
        case "set" if changed:
            changed[random.randrange(len(changed))] = random.choice(b"\0\1\x7f\xffBCRIY'\"\n")
            records[at] = channel, bytes(changed)
        case _:
            records[at] = channel, data[: random.randrange(len(data) + 1)]
