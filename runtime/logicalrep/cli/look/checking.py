"""The command `logicalrep check`: prints the messages of a stream that violate a rule."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from logicalrep._stored_stream import Record, StoredStream
from logicalrep._text import counted
from logicalrep.capturefile import CaptureFile, Header
from logicalrep.cli.common.printing import print_json, printable
from logicalrep.jsonlines import to_json
from logicalrep.messages import Message, XLogData
from logicalrep.stream import StreamDecoder
from logicalrep.stream.check import RULES, Checker, CheckOptions
from logicalrep.versions import LATEST_RELEASED

if TYPE_CHECKING:
    from logicalrep.recording import Source

RESUMED: Final = frozenset(
    (
        "description-in-transaction",
        "empty-transaction",
        "relation-in-block",
        "truncate-in-block",
        "type-before-relation",
    )
)
"""Names of the rules that are not checked where a session continues a recording or starts at a keyframe.

There, legal streams would violate these rules. After a reconnection, the server sends some messages again, of
which the recorder stores only the Relation messages. A keyframe replaces the messages before its segment.
"""

SNAPSHOT: Final = RESUMED | {"commit-order", "end-beyond-start", "xid-normal"}
"""Names of the rules that are not checked in a snapshot: its transactions are made by the recorder."""


class _Session(NamedTuple):
    """A part of a stream that is checked: a whole capture file, or one segment of a recording."""

    options: CheckOptions
    disabled_rules: Collection[str]
    starts: bool
    """True for a capture file and for the first segment of a session, False for further segments."""
    records: Iterator[Record]


def check_stream(console: Console, stream: StoredStream, json: bool) -> bool:
    """Print the messages of a stream that violate a rule; return True if there are none.

    Raises:
        RecordingError: The stream cannot be read.
    """
    illegal = messages = 0
    checker: Checker | None = None
    for session in _sessions(stream):
        if checker is None:
            checker = Checker(session.options.proto_version)
        if session.starts:
            checker.reconnect(session.options, without=session.disabled_rules)
        else:
            checker.leave_out(session.disabled_rules)
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
                place = {"file": str(stream.path), stream.numbered_by: record.number}
                found = place | msgspec.structs.asdict(violation) | {"text": violation.text}
                print_json(found)
            else:
                number = "keyframe" if record.number is None else str(record.number)
                text = f"{stream.path}:{number}: {violation.text} ({violation.rule})"
                console.print(Text(printable(text)))
    if not json:
        number = counted(messages, "message")
        verdict = f"illegal, {illegal:,} of {number}" if illegal else f"legal, {number}"
        console.print(Text(printable(f"{stream.path}: {verdict}")))
    return not illegal


def show_rules(console: Console, json: bool) -> None:
    """Print every rule, with an example stream that obeys the rule and an example that violates the rule."""
    for rule in RULES:
        examples = {"legal": rule.legal, "illegal": rule.illegal}
        if json:
            described = {"name": rule.name, "doc": rule.doc, "source": rule.source}
            options = {"options": msgspec.structs.asdict(rule.options)}
            encoded = {name: [_as_json(one) for one in example] for name, example in examples.items()}
            print_json(described | options | encoded)
            continue
        console.print(Text.assemble((rule.name, "bold cyan"), f"  {rule.doc} ", (rule.source, "dim")))
        for name, example in examples.items():
            console.print(Text(f"  {name}", style="green" if name == "legal" else "red"))
            for one in example:
                console.print(Text(f"    {_line(one)}", style="dim"))
        console.print()


def _sessions(stream: StoredStream) -> Iterator[_Session]:
    """Yield a capture file, or each segment of a recording, with the options to check it with."""
    if isinstance(stream, CaptureFile):
        header = stream.header
        options = _options(header, header.options, "publication_names" in header.options)
        yield _Session(options, (), True, stream.records())
        return
    from logicalrep.recording import RecordingReader, read_metadata

    assert isinstance(stream, RecordingReader)
    session: int | None = None
    session_rules: frozenset[str] = frozenset()
    for path in stream.paths:
        metadata = read_metadata(path)
        source = metadata.source
        keyframe = session is None and metadata.keyframe > 0
        if metadata.session != session:
            session_rules = RESUMED if keyframe or metadata.session > 1 else frozenset()
        disabled_rules = SNAPSHOT if metadata.kind == "snapshot" else session_rules
        options = _options(source, source.options, bool(source.publications))
        with RecordingReader(path) as segment:
            records = (record for record in segment.records() if record.number is not None or keyframe)
            yield _Session(options, disabled_rules, metadata.session != session, records)
        session = metadata.session


def _options(stream: Header | Source, options: Mapping[str, Any], known: bool) -> CheckOptions:
    """Return the options with which a stream is checked.

    Args:
        stream: Header of the capture file, or source in the segment's metadata.
        options: Values of the options of START_REPLICATION, by option name.
        known: Whether a client sent `options` to a server. If not, the stream is synthetic, and `options` do
            not tell whether it has binary values and logical messages.
    """
    return CheckOptions(
        proto_version=stream.proto_version,
        streaming=stream.streaming,
        two_phase=stream.slot_two_phase,
        binary=_is_on(options.get("binary")) if known else None,
        messages=_is_on(options.get("messages")) if known else None,
    )


def _is_on(value: object) -> bool:
    """Return whether the value of a START_REPLICATION option means true, as in defGetBoolean."""
    return str(value).lower() in ("true", "on", "1")


def _as_json(one: Message | bytes) -> object:
    if isinstance(one, bytes):
        return {"binary": one.hex()}
    if isinstance(one, XLogData):
        return to_json(one) | {"data": to_json(StreamDecoder(LATEST_RELEASED).decode(one.data))}
    return to_json(one)


def _line(one: Message | bytes) -> str:
    """Return a message from a rule's example as one line of JSON."""
    fields = _as_json(one)
    assert isinstance(fields, dict)
    return printable(msgspec.json.encode(fields).decode())
