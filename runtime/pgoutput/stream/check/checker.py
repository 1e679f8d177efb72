"""Whether a stream is one that a server sends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

from pgoutput import _protocols, envelope
from pgoutput._walk import walk
from pgoutput.errors import DecodeError, EncodeError
from pgoutput.messages import (
    Delete,
    Insert,
    LogicalMessage,
    Message,
    PrimaryKeepalive,
    PrimaryStatusUpdate,
    Relation,
    StreamAbort,
    Streaming,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    XLogData,
)
from pgoutput.stream.check.model import Fault, Rule, Violation
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.rules import ENVELOPE, MESSAGE, RULES, XID_IN_BLOCKS
from pgoutput.stream.check.state import Open, State
from pgoutput.stream.decoder import StreamDecoder
from pgoutput.stream.encoder import encode_for
from pgoutput.versions import CODECS, LATEST
from pgoutput.wire import Buffer

_Held: TypeAlias = tuple[Callable[..., Fault | None], str]
"""What says how a rule is broken, and the rule's name."""


class Checker:
    """Holds the messages of a stream against `RULES`, one after the other.

    A stream may stop anywhere, as a connection may break. After a violation the checker goes on as a lenient
    reader would, so that what follows from the same fault is told once, mostly.

    Attributes:
        fed: How many messages were fed.

    Args:
        proto_version: The protocol version that the client asked for.
        streaming: The option `streaming` that it asked for.
        two_phase: Whether its slot has the two_phase flag set.
        binary: The option `binary`; None if it is not known.
        messages: The option `messages`, likewise.
        without: Names of rules that do not hold for what is checked: recorders leave messages out.

    Raises:
        ValueError: There is no such version, it is too old for this `streaming`, or there is no such rule.
    """

    def __init__(
        self,
        proto_version: int,
        *,
        streaming: Streaming = "off",
        two_phase: bool = False,
        binary: bool | None = None,
        messages: bool | None = None,
        without: Collection[str] = (),
    ) -> None:
        options = CheckOptions(
            proto_version=proto_version,
            streaming=streaming,
            two_phase=two_phase,
            binary=binary,
            messages=messages,
        )
        self.fed = 0
        self._state = State(options)
        self._connect(options, without)

    def reconnect(self, options: CheckOptions, *, without: Collection[str] = ()) -> None:
        """Go on with the messages of a new connection: only what is prepared stays.

        Args:
            options: What its client asked for.
            without: As for the class.

        Raises:
            ValueError: As for the class.
        """
        self._connect(options, without)
        self._state.connect(options)

    def feed(self, data: Buffer | Message) -> Violation | None:
        """Take the next message; give the first rule that it breaks, if it does.

        Args:
            data: A message of pgoutput, or its bytes; or what a walsender sent around one, decoded.

        Raises:
            TypeError: It is neither.
        """
        number = self._state.number = self.fed
        self.fed += 1
        if type(data) is bytes:
            return self._feed(data, None)
        if isinstance(data, XLogData):
            return self._feed(data.data, data)
        if not isinstance(data, Message):
            return self._feed(bytes(memoryview(data)), None)
        if isinstance(data, PrimaryKeepalive | PrimaryStatusUpdate):
            return None
        name = type(data).__name__
        if name in _protocols.ENVELOPE.by_name:
            return Violation(ENVELOPE, number, 0, name, None, f"a server does not send {name}")
        try:
            raw = encode_for(data, self._state.options.proto_version)
        except EncodeError as error:
            return Violation(MESSAGE, number, 0, name, error.field, str(error))
        return self._feed(raw, None)

    def feed_envelope(self, data: Buffer) -> Violation | None:
        """Take what a walsender sent, as bytes; as `feed` otherwise."""
        try:
            outer = envelope.decode(data)
        except DecodeError as error:
            self.fed += 1
            return Violation(ENVELOPE, self.fed - 1, error.offset, error.message, error.field, str(error))
        return self.feed(outer)

    def _connect(self, options: CheckOptions, without: Collection[str]) -> None:
        unknown = set(without) - {rule.name for rule in RULES}
        if unknown:
            raise ValueError(f"there is no rule {', '.join(sorted(unknown))}")
        self._decoder = StreamDecoder(
            options.proto_version, streaming=options.streaming, two_phase=options.two_phase
        )
        kept = [rule for rule in RULES if rule.name not in without]
        self._rules = _by_message(rule for rule in kept if not rule.envelope)
        self._envelope_rules = _by_message(rule for rule in kept if rule.envelope)

    def _feed(self, data: bytes, outer: XLogData | None) -> Violation | None:
        state = self._state
        message: Message
        try:
            message = self._decoder.decode(data)
        except DecodeError as error:
            found = self._otherwise(data, error)
            if isinstance(found, Violation):
                return found
            message, violation = found
        else:
            violation = None
        kind = type(message)
        if outer is not None and violation is None:
            for held, name in self._envelope_rules.get(kind, ()):
                fault = held(state, outer, message)
                if fault is not None:
                    violation = self._at(name, fault, message, data, outer)
                    break
        if violation is None:
            for held, name in self._rules.get(kind, ()):
                fault = held(state, message)
                if fault is not None:
                    violation = self._at(name, fault, message, data, None)
                    break
        if violation is not None:
            self._excuse(message)
        state.take(message)
        if outer is not None:
            state.take_envelope(outer, message)
        self._decoder.in_stream = state.open is not None and state.open.work is not None
        return violation

    def _otherwise(self, data: bytes, error: DecodeError) -> Violation | tuple[Message, Violation | None]:
        """What bytes are that cannot be decoded where they stand: a message of elsewhere, or none."""
        state = self._state
        version = state.options.proto_version
        codec = CODECS[max(version, _FIRST_WITH_BLOCKS)]
        try:
            message: Any = codec.decode(data, not self._decoder.in_stream, state.options.streaming)
        except DecodeError:
            return Violation(MESSAGE, state.number, error.offset, error.message, error.field, str(error))
        if isinstance(message, StreamStart | StreamStop) and version >= _FIRST_WITH_BLOCKS:
            return message, None  # its rule says what is wrong
        if isinstance(message, StreamAbort) and message.subxid != message.xid:
            return message, None  # servers send it to clients of version 1 as well (bug 19616)
        if isinstance(message, _WITH_XID):
            name = type(message).__name__
            if message.xid is None:
                because = f"a stream block is open, but {name} has no xid"
            else:
                because = f"no stream block is open, but {name} has an xid, {message.xid}"
                if state.open is None and version >= _FIRST_WITH_BLOCKS:
                    state.open_block(message.xid)
            return message, Violation(XID_IN_BLOCKS, state.number, 1, name, "xid", because)
        return Violation(MESSAGE, state.number, error.offset, error.message, error.field, str(error))

    def _at(
        self, rule: str, fault: Fault, message: Message, data: bytes, outer: XLogData | None
    ) -> Violation:
        """The violation, with the place of the field in the bytes."""
        path, text = fault
        if outer is not None and path != "tag":
            protocol, raw, in_stream = _protocols.ENVELOPE, envelope.encode(outer), False
        else:
            protocol, raw, in_stream = _protocols.VERSIONS[LATEST], data, self._decoder.in_stream
        name = type(outer if raw is not data else message).__name__
        pieces = walk(protocol, raw, in_stream, self._state.options.streaming)
        byte = 0
        with suppress(DecodeError):  # of a message of elsewhere, whose tag is at fault
            byte = next((piece.start for piece in pieces if piece.path == path), 0)
        field = None if path == "tag" else path
        where = f"{name}.{field}" if field else name
        return Violation(rule, self._state.number, byte, name, field, f"{where}: {text}")

    def _excuse(self, message: Any) -> None:
        """Do not tell of the same relation, or of a Begin that did not come, again."""
        if isinstance(message, Relation | Type) and self._state.open is None:
            self._state.open = Open(None)
        for name in ("relation_oid", "relation_oids"):
            value = getattr(message, name, ())
            self._state.excused.update((value,) if isinstance(value, int) else value)


_FIRST_WITH_BLOCKS: Final = 2
"""The protocol version."""

_WITH_XID: Final = (Relation, Type, Insert, Update, Delete, Truncate, LogicalMessage)
"""Messages that have an xid in blocks."""


def _by_message(rules: Iterable[Rule]) -> dict[type[Message], tuple[_Held, ...]]:
    table: dict[type[Message], tuple[_Held, ...]] = {}
    for rule in rules:
        for message in rule.on if rule.broken is not None else ():
            assert rule.broken is not None
            table[message] = (*table.get(message, ()), (rule.broken, rule.name))
    return table


def check(messages: Iterable[Buffer | Message], options: CheckOptions) -> Iterator[Violation]:
    """What is illegal in a stream: at most one violation for each message.

    Args:
        messages: As `Checker.feed` takes them, in their order.
        options: What the client asked for.

    Raises:
        ValueError: There is no such version, or it is too old for this `streaming`.
    """
    checker = Checker(
        options.proto_version,
        streaming=options.streaming,
        two_phase=options.two_phase,
        binary=options.binary,
        messages=options.messages,
    )
    for message in messages:
        violation = checker.feed(message)
        if violation is not None:
            yield violation
