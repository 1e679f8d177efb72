"""JavaScript decodes and encodes as Python does, and refuses the same bytes with the same errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logicalrep import messages
from logicalrep._stored_stream import DecodedRecord
from logicalrep.errors import DecodeError
from logicalrep.stream import StreamDecoder
from logicalrep.versions import CODECS
from tests.codec import corpus
from tests.codec.cases import CASES, CONTEXTS
from tests.effort import mostly_nightly
from tests.javascript.compare import Input, compare, expected, expected_error
from tests.javascript.inputs import damaged
from tests.javascript.peer import NODE, SOURCES, Peer
from tests.versions import CAPTURED, OLDEST


def requests(lines: list[DecodedRecord]) -> list[tuple[Any, ...]]:
    """Return the requests that decode the envelopes of a capture and the messages in them."""
    found: list[tuple[Any, ...]] = []
    for line in lines:
        if line.envelope is not None:
            found.append(("decode", "envelope", line.record.data.hex()))
        if line.message is not None:
            found.append(("feed", line.data.hex()))
    return found


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_captures_decode_and_encode_as_in_python(peer: Peer, name: str) -> None:
    header, lines, _ = corpus.read(name)
    options = {"streaming": header.streaming, "two_phase": header.slot_two_phase}
    assert peer.ask("open", header.proto_version, options) is None
    wanted = []
    for line in lines:
        if line.envelope is not None:
            wanted.append(expected(line.envelope, line.record.data))
        if line.message is not None:
            wanted.append(expected(line.message, line.data))
    assert wanted
    for found, want in zip(peer.ask_all(requests(lines)), wanted, strict=True):
        assert want == found


def test_every_case_decodes_and_encodes_as_in_python(peer: Peer) -> None:
    inputs: list[Input] = []
    for case in CASES:
        contexts = [
            (f"v{version}", in_stream, streaming)
            for version in case.versions
            for in_stream, streaming in CONTEXTS[version]
            if case.applies_in(in_stream, streaming)
        ]
        for name, in_stream, streaming in contexts or [("envelope", False, "off")]:
            inputs.append((name, case.bytes, in_stream, streaming))
    assert compare(peer, inputs) == {"accepted": len(inputs)}
    assert {name for name, *_ in inputs} == {"envelope", *(f"v{version}" for version in CAPTURED)}


def test_damaged_messages_decode_or_fail_as_in_python(peer: Peer) -> None:
    outcomes = compare(peer, damaged(Random(0), 5_000))
    assert min(outcomes["accepted"], outcomes["refused"]) > 500


@pytest.mark.nightly
def test_100_000_damaged_messages_decode_or_fail_as_in_python(peer: Peer) -> None:
    assert compare(peer, damaged(Random(1), 100_000)).total() == 100_000


def test_claimed_sizes_reserve_no_memory(peer: Peer) -> None:
    insert = "49000000014e"
    for data, field in (
        ("54ffffffff00", "relation_oids[0]"),
        (f"{insert}ffff", "new[0]"),
        (f"{insert}000174ffffffff61", "new[0]"),
        ("4d000000000000000000" + "00ffffffff61", "content"),
    ):
        with pytest.raises(DecodeError) as caught:
            CODECS[4].decode(bytes.fromhex(data))
        assert caught.value.field == field
        assert expected_error(caught.value) == peer.ask("decode", "v4", data, False, "off")
    used = f"process.memoryUsage.rss() - Number(globalThis.rss) < {64 * 2**20}"
    assert peer.ask("evaluate", "(globalThis.rss = process.memoryUsage.rss()) > 0")
    list(peer.ask_all([("decode", "v4", "54ffffffff00", False, "off")] * 1000))
    assert peer.ask("evaluate", used)


@pytest.mark.parametrize("text", ["é", "\ufffd", "\ufeffbom", "\U0001f600", "", "a\udcff", "\udc80\udcbfb"])
@pytest.mark.parametrize("length", [1, 9000])
def test_texts_survive(peer: Peer, text: str, length: int) -> None:
    message = messages.Insert(relation_oid=1, new=(text * length, None, messages.UNCHANGED, b"\0\xff"))
    data = CODECS[4].encode(message)
    assert expected(message, data) == peer.ask("decode", "v4", data.hex(), False, "off")


INVALID = (
    "c080",
    "c1bf",
    "e08080",
    "e09fbf",
    "eda080",
    "f08f8080",
    "f4908080",
    "f5808080",
    "f8",
    "80",
    "e282",
    "f09f98",
)
"""Bytes that are not UTF-8, as hex: overlong forms, surrogates, beyond U+10FFFF, and truncated ones."""


def test_bytes_that_are_not_utf8_survive(peer: Peer) -> None:
    texts = [bytes.fromhex(text) + end for text in INVALID for end in (b"", b"a", "\u20ac\ufffd".encode())]
    inputs: list[Input] = [
        (f"v{OLDEST}", b"I\0\0\0\1N\0\1t" + len(text).to_bytes(4) + text, False, "off") for text in texts
    ]
    assert compare(peer, inputs) == {"accepted": len(inputs)}


def test_stream_blocks_and_their_errors(peer: Peer) -> None:
    decoder = StreamDecoder(2, streaming="on", two_phase=True)
    assert peer.ask("open", 2, {"streaming": "on", "two_phase": True}) is None
    start, stop = messages.StreamStart(xid=7, first_stream_segment=True), messages.StreamStop()
    prepared = messages.CommitPrepared(commit_lsn=1, end_lsn=2, commit_time=3, xid=7, gid="gid")
    insert = messages.Insert(relation_oid=1, new=("a",), xid=7)
    sent = [CODECS[4].encode(one) for one in (stop, start, insert, start, prepared, stop, prepared)]
    opener, change, close = map(CODECS[4].encode, (start, insert, stop))
    sent += [opener[:-1], change, opener[:1], close, close, change]  # a damaged opener opens its block too
    for data in sent:
        try:
            want = expected(decoder.decode(data), data)
        except DecodeError as error:
            want = expected_error(error)
        assert want == peer.ask("feed", data.hex())


def test_texts_are_decoded_without_the_buffer_of_node() -> None:
    program = f"""
        delete globalThis.Buffer;
        const {{ v{OLDEST}: codec }} = await import("{SOURCES / "index.js"}");
        const cells = ["ascii", "é\\udcff", "\\ufeff", "", "é".repeat(9000)];
        const data = codec.encode({{ type: "Insert", relation_oid: 1, new: cells }});
        console.log(JSON.stringify(codec.decode(data).new) === JSON.stringify(cells));
    """
    command: list[str | Path] = [NODE, "--input-type=module", "--eval", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "true\n"
