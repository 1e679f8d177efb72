"""Checker of a stream: applies the rules to each message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

from logicalrep import _protocols, envelope
from logicalrep._roles import has_role, meaning_of
from logicalrep._rules import Breach
from logicalrep._walk import walk
from logicalrep.errors import DecodeError, EncodeError
from logicalrep.messages import Message, PrimaryKeepalive, PrimaryStatusUpdate, Streaming, XLogData
from logicalrep.stream.check.model import Rule, Violation
from logicalrep.stream.check.options import CheckOptions
from logicalrep.stream.check.rules import ENVELOPE, MESSAGE, RULES, XID_IN_BLOCKS
from logicalrep.stream.check.state import CheckedStream, OpenBlock
from logicalrep.stream.decoder import StreamDecoder
from logicalrep.stream.encoder import encode_for
from logicalrep.versions import CODECS
from logicalrep.wire import Buffer

_RuleCheck: TypeAlias = tuple[Callable[..., Breach | None], str]
"""Check function and name of a rule, as a pair."""


class Checker:
    """Checks the messages of a stream against `RULES`, one after the other.

    A stream may end anywhere, because a connection may break. An invalid message also updates the
    checker's state, so that most errors are reported only once.

    Attributes:
        fed: Number of messages and envelopes that have been checked.

    Args:
        proto_version: Protocol version that the client requested.
        streaming: Option `streaming` that the client requested.
        two_phase: Whether the slot has two_phase set.
        binary: Option `binary` that the client requested; None if unknown.
        messages: Option `messages` that the client requested; None if unknown.
        without: Names of rules that are not checked, for example because a recorder leaves out messages.

    Raises:
        ValueError: The protocol version or a rule is unknown, or the version does not support `streaming`.
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
        self.fed: int = 0
        self._state = CheckedStream(options)
        self._connect(options, without)

    def reconnect(self, options: CheckOptions, *, without: Collection[str] = ()) -> None:
        """Continue with the messages of a new connection. Forget everything except prepared transactions.

        Args:
            options: Options of the new connection.
            without: Names of rules that are not checked.

        Raises:
            ValueError: The protocol version or a rule is unknown, or the version does not support
                `streaming`.
        """
        self._connect(options, without)
        self._state.connect(options)

    def leave_out(self, without: Collection[str]) -> None:
        """From the next message on, check all rules except those in `without`.

        Args:
            without: Names of rules that are not checked.

        Raises:
            ValueError: A rule is unknown.
        """
        self._select_rules(self._state.options, without)

    def feed(self, data: Buffer | Message) -> Violation | None:
        """Check the next message and return its first violation, or None if no rule is violated.

        Args:
            data: A pgoutput message or its bytes, or a decoded envelope such as XLogData.

        Raises:
            TypeError: The argument is neither a message nor bytes-like.
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
        """Check the next envelope, given as bytes. Return its first violation, or None."""
        try:
            outer = envelope.decode(data)
        except DecodeError as error:
            self.fed += 1
            return Violation(ENVELOPE, self.fed - 1, error.offset, error.message, error.field, str(error))
        return self.feed(outer)

    def _connect(self, options: CheckOptions, without: Collection[str]) -> None:
        self._decoder = StreamDecoder(
            options.proto_version, streaming=options.streaming, two_phase=options.two_phase
        )
        self._select_rules(options, without)

    def _select_rules(self, options: CheckOptions, without: Collection[str]) -> None:
        unknown = set(without) - {rule.name for rule in RULES}
        if unknown:
            raise ValueError(
                f"there is no rule {', '.join(sorted(unknown))}; logicalrep.stream.check.RULES has all rules"
            )
        kept = [
            rule for rule in RULES if rule.name not in without and (rule.when is None or rule.when(options))
        ]
        messages = [rule for rule in kept if not rule.envelope]
        self._rules = (
            _rules_by_message(rule for rule in messages if not rule.in_blocks),
            _rules_by_message(messages),
        )
        """Rules that apply outside stream blocks, and rules that apply inside them."""
        self._envelope_rules = _rules_by_message(rule for rule in kept if rule.envelope)

    def _feed(self, data: bytes, outer: XLogData | None) -> Violation | None:
        state, in_stream = self._state, self._decoder.in_stream
        state.size = len(data)
        message: Message
        try:
            message = self._decoder.decode(data)
        except DecodeError as error:
            self._decoder.in_stream = in_stream  # the xid of the block that a damaged opener opens is unknown
            found = self._handle_undecodable(data, error)
            if isinstance(found, Violation):
                return found
            message, violation = found
        else:
            violation = None
        kind = type(message)
        if outer is not None and violation is None:
            for check_rule, name in self._envelope_rules.get(kind, ()):
                breach = check_rule(state, outer, message)
                if breach is not None:
                    violation = self._at(name, breach, message, data, outer)
                    break
        if violation is None:
            for check_rule, name in self._rules[self._decoder.in_stream].get(kind, ()):
                breach = check_rule(state, message)
                if breach is not None:
                    violation = self._at(name, breach, message, data, None)
                    break
        if violation is not None:
            self._suppress_repeats(message)
        state.apply(message)
        if outer is not None:
            state.apply_envelope(outer, message)
        self._decoder.in_stream = state.open is not None and state.open.streamed is not None
        return violation

    def _handle_undecodable(
        self, data: bytes, error: DecodeError
    ) -> Violation | tuple[Message, Violation | None]:
        """Return a violation for a message that the decoder rejects, or a pair of message and violation.

        The message is decoded again: as inside a stream block if none is open, otherwise as outside. What is
        returned depends on the decoded message:

        - A message that opens or closes a stream block: the message and None, because a rule reports the
          violation later.
        - Stream Abort of a subtransaction: the message and None, because PostgreSQL 18.0 to 18.4 send such
          messages (bug 19616).
        - A message that has an xid only inside stream blocks: the message and a violation.
        - A message that still cannot be decoded, or any other message: only a violation. This includes the
          messages that open or close stream blocks, if the protocol version has no stream blocks.
        """
        state = self._state
        version = state.options.proto_version
        codec = CODECS[max(version, _FIRST_WITH_BLOCKS)]
        try:
            message: Any = codec.decode(data, not self._decoder.in_stream, state.options.streaming)
        except DecodeError:
            return Violation(MESSAGE, state.number, error.offset, error.message, error.field, str(error))
        if has_role(message, "open_block", "close_block") and version >= _FIRST_WITH_BLOCKS:
            return message, None  # a rule about stream blocks reports the violation later
        if has_role(message, "abort_streamed") and meaning_of(message, "subxid") != meaning_of(
            message, "xid"
        ):
            return message, None  # PostgreSQL 18.0 to 18.4 send this Stream Abort (bug 19616)
        if (field := _XIDS_IN_BLOCKS.get(type(message))) is not None:
            name, xid = type(message).__name__, getattr(message, field)
            if xid is None:
                because = f"a stream block is open, but {name} has no xid"
            else:
                because = f"no stream block is open, but {name} has an xid, {xid}"
                if state.open is None and version >= _FIRST_WITH_BLOCKS:
                    state.open_block(xid)
            return message, Violation(XID_IN_BLOCKS, state.number, 1, name, field, because)
        return Violation(MESSAGE, state.number, error.offset, error.message, error.field, str(error))

    def _at(
        self, rule: str, breach: Breach, message: Message, data: bytes, outer: XLogData | None
    ) -> Violation:
        """Return the Violation for a message that violates the rule with the name `rule`.

        Args:
            rule: Name of the rule.
            breach: Path of the invalid field (`tag` for the whole message), and the reason.
            message: The message.
            data: Bytes of the message.
            outer: Envelope of the message if the rule is about envelopes, otherwise None.
        """
        path, text = breach
        if outer is not None and path != "tag":
            protocol, raw, in_stream = _protocols.ENVELOPE, envelope.encode(outer), False
        else:
            # A Stream Abort is accepted even if the client's protocol version lacks it (bug 19616). If the
            # version lacks the message, use the first version that has it.
            since = _protocols.ALL_VERSIONS.by_name[type(message).__name__].since
            protocol = _protocols.VERSIONS[max(self._state.options.proto_version, since)]
            raw, in_stream = data, self._decoder.in_stream
        name = type(outer if raw is not data else message).__name__
        pieces = walk(protocol, raw, in_stream, self._state.options.streaming)
        byte = 0
        with suppress(DecodeError):  # if the message is not valid at this point, report its first byte
            byte = next((piece.start for piece in pieces if piece.path == path), 0)
        field = None if path == "tag" else path
        where = f"{name}.{field}" if field else name
        return Violation(rule, self._state.number, byte, name, field, f"{where}: {text}")

    def _suppress_repeats(self, message: Any) -> None:
        """Change the state so that an invalid message does not cause violations in later messages.

        Changes of the message's relations are not checked until the next Relation message of the relation.
        After a Relation or Type message outside transactions, a transaction counts as open, as if its Begin
        were missing.
        """
        if has_role(message, "relation", "type") and self._state.open is None:
            self._state.open = OpenBlock(None)
        if (oid := meaning_of(message, "relation")) is not None:
            self._state.ignored_oids.add(oid)
        self._state.ignored_oids.update(meaning_of(message, "relations") or ())


_FIRST_WITH_BLOCKS: Final = 2
"""First protocol version with stream blocks."""

_XIDS_IN_BLOCKS: Final = {
    _protocols.CLASSES[message.name]: field.name
    for message in _protocols.ALL_VERSIONS.messages
    for field in message.members
    if field.when == "in_stream"
}
"""Name of the xid field that messages contain only inside stream blocks, by message class."""


def _rules_by_message(rules: Iterable[Rule]) -> dict[type[Message], tuple[_RuleCheck, ...]]:
    table: dict[type[Message], tuple[_RuleCheck, ...]] = {}
    for rule in rules:
        for message in rule.on if rule.check is not None else ():
            assert rule.check is not None
            table[message] = (*table.get(message, ()), (rule.check, rule.name))
    return table


def check(messages: Iterable[Buffer | Message], options: CheckOptions) -> Iterator[Violation]:
    """Yield the violations of a stream, at most one per message.

    Args:
        messages: Messages, their bytes, or decoded envelopes, in stream order.
        options: Options that the client requested.

    Raises:
        ValueError: The protocol version is unknown, or does not support `streaming`.
    """
    checker = Checker(options.proto_version)
    checker.reconnect(options)
    for message in messages:
        violation = checker.feed(message)
        if violation is not None:
            yield violation
