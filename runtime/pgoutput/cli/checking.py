"""Whether recorded streams are legal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from pgoutput._stored_stream import Record, StoredStream
from pgoutput.capturefile import CaptureFile, Header
from pgoutput.cli.printing import printable
from pgoutput.jsonlines import to_json
from pgoutput.messages import Message, XLogData
from pgoutput.stream import StreamDecoder
from pgoutput.stream.check import RULES, Checker, CheckOptions
from pgoutput.versions import LATEST

if TYPE_CHECKING:
    from pgoutput.recording import RecordingReader, Source

RESUMED: Final = frozenset(
    (
        "description-in-transaction",
        "empty-transaction",
        "relation-in-block",
        "truncate-in-block",
        "type-before-relation",
    )
)
"""What does not hold where a recording goes on: what was stored before is left out, but for Relation
messages, and a keyframe stands for what came before."""

SNAPSHOT: Final = RESUMED | {"commit-order", "end-beyond-start", "xid-normal"}
"""What does not hold in snapshots, which are no server's transactions."""


class _Session(NamedTuple):
    """What came over one connection, or more of it."""

    options: CheckOptions
    without: Collection[str]
    begins: bool
    records: Iterator[Record]


def check_stream(console: Console, recorded: StoredStream, json: bool) -> bool:
    """Print what is illegal in a recorded stream, or that it is legal; say whether it is.

    Raises:
        RecordingError: It cannot be read.
    """
    illegal = messages = 0
    checker: Checker | None = None
    for session in _sessions(recorded):
        if checker is None:
            checker = Checker(session.options.proto_version)
        if session.begins:
            checker.reconnect(session.options, without=session.without)
        for record in session.records:
            if record.channel == "sent":
                continue
            messages += 1
            feed = checker.feed if record.channel == "data" else checker.feed_envelope
            violation = feed(record.data)
            if violation is None:
                continue
            illegal += 1
            if json:
                place = {"file": str(recorded.path), recorded.numbered_by: record.number}
                found = place | msgspec.structs.asdict(violation) | {"text": violation.text}
                sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
            else:
                place_ = "keyframe" if record.number is None else str(record.number)
                text = f"{recorded.path}:{place_}: {violation.text} ({violation.rule})"
                console.print(Text(printable(text)))
    if not json:
        said = f"illegal, {illegal} of {messages} messages" if illegal else f"legal, {messages} messages"
        console.print(Text(printable(f"{recorded.path}: {said}")))
    return not illegal


def show_rules(console: Console, json: bool) -> None:
    """Print every rule, with a stream that keeps it and one that breaks it."""
    for rule in RULES:
        examples = {"legal": rule.legal, "illegal": rule.illegal}
        if json:
            said = {"name": rule.name, "doc": rule.doc, "source": rule.source}
            options = {"options": msgspec.structs.asdict(rule.options)}
            shown = {name: [_as_json(one) for one in example] for name, example in examples.items()}
            sys.stdout.buffer.write(msgspec.json.encode(said | options | shown) + b"\n")
            continue
        console.print(Text.assemble((rule.name, "bold cyan"), f"  {rule.doc} ", (rule.source, "dim")))
        for name, example in examples.items():
            console.print(Text(f"  {name}", style="green" if name == "legal" else "red"))
            for one in example:
                console.print(Text(f"    {_shown(one)}", style="dim"))
        console.print()


def _sessions(recorded: StoredStream) -> Iterator[_Session]:
    if isinstance(recorded, CaptureFile):
        header = recorded.header
        options = _options(header, header.options, "publication_names" in header.options)
        yield _Session(options, (), True, recorded.records())
        return
    from pgoutput.recording import RecordingReader

    assert isinstance(recorded, RecordingReader)
    yield from _segments(recorded)


def _segments(recorded: RecordingReader) -> Iterator[_Session]:
    """The segments, one by one: each says how its session was asked for."""
    from pgoutput.recording import RecordingReader, read_metadata

    session: int | None = None
    for path in recorded.paths:
        metadata = read_metadata(path)
        source = metadata.source
        keyframe = session is None and metadata.keyframe > 0
        without: Collection[str] = ()
        if metadata.kind == "snapshot":
            without = SNAPSHOT
        elif keyframe or metadata.session > 1:
            without = RESUMED
        options = _options(source, source.options, bool(source.publications))
        with RecordingReader(path) as one:
            records = (record for record in one.records() if record.number is not None or keyframe)
            yield _Session(options, without, metadata.session != session, records)
        session = metadata.session


def _options(asked: Header | Source, said: Mapping[str, Any], known: bool) -> CheckOptions:
    """What a client asked for; of streams made by hand it is not known whether values may be binary."""
    return CheckOptions(
        proto_version=asked.proto_version,
        streaming=asked.streaming,
        two_phase=asked.slot_two_phase,
        binary=_is_on(said.get("binary")) if known else None,
        messages=_is_on(said.get("messages")) if known else None,
    )


def _is_on(value: object) -> bool:
    """Whether an option of START_REPLICATION says yes (defGetBoolean)."""
    return str(value).lower() in ("true", "on", "1")


def _as_json(one: Message | bytes) -> object:
    if isinstance(one, bytes):
        return {"binary": one.hex()}
    if isinstance(one, XLogData):
        return to_json(one) | {"data": to_json(StreamDecoder(LATEST).decode(one.data))}
    return to_json(one)


def _shown(one: Message | bytes) -> str:
    """A message of an example on one line, without what goes without saying."""
    fields = _as_json(one)
    assert isinstance(fields, dict)
    return printable(msgspec.json.encode(fields).decode())
