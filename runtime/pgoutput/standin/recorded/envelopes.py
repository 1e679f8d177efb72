"""Assign LSNs to messages that were recorded without XLogData envelopes, as a walsender would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pgoutput import messages
from pgoutput.messages import Message
from pgoutput.standin.recorded.index import CHANGE_TAGS
from pgoutput.standin.recorded.recording import RecordedMessage, RecordedStream

_LSN_FIELDS: Final[Mapping[type[Message], Callable[[Any], int | None]]] = {
    messages.Begin: lambda message: message.final_lsn,
    messages.BeginPrepare: lambda message: message.prepare_lsn,
    messages.Commit: lambda message: message.end_lsn,
    messages.Prepare: lambda message: message.end_lsn,
    messages.StreamCommit: lambda message: message.end_lsn,
    messages.StreamPrepare: lambda message: message.end_lsn,
    messages.CommitPrepared: lambda message: message.end_lsn,
    messages.RollbackPrepared: lambda message: message.rollback_end_lsn,
    messages.StreamAbort: lambda message: message.abort_lsn,
}
"""Functions that return the LSN that a message contains, by message class. Messages without an LSN get the
LSN of the last earlier message of one of these classes."""

_WITHOUT_LSN: Final = (messages.Relation, messages.Type)
_OPENING_TAGS: Final = frozenset(b"BbS")
_ORIGIN_TAG: Final = messages.Origin.wire_tag


def assign_lsns(stream: RecordedStream, start_lsn: int) -> Iterator[RecordedMessage]:
    """Yield the messages of a stream with LSNs for their envelopes.

    A message gets the LSN that it contains, or else the LSN of the last earlier message that contains one.

    As in a walsender's stream, the LSN is 0 for Relation, for Type, and for a message that opens a
    transaction or stream block if an Origin message follows.

    Args:
        stream: A stream recorded without envelopes.
        start_lsn: LSN for messages that precede the first message with an LSN.
    """
    decoder, current, lsn = stream.decoder(), None, start_lsn
    opening: RecordedMessage | None = None
    for session, _, data in stream.messages():
        if session != current:
            decoder, current = stream.decoder(), session
        if opening is not None:
            yield (opening[0], 0, opening[2]) if data[:1] == _ORIGIN_TAG else opening
            opening = None
        message_lsn = lsn
        if data[0] not in CHANGE_TAGS:
            message = decoder.decode(data)
            if isinstance(message, messages.LogicalMessage):
                message_lsn = message.lsn
            elif type(message) in _WITHOUT_LSN:
                message_lsn = 0
            elif type(message) in _LSN_FIELDS:
                lsn = message_lsn = _LSN_FIELDS[type(message)](message) or lsn
        if data[0] in _OPENING_TAGS:
            opening = session, message_lsn, data
        else:
            yield session, message_lsn, data
    if opening is not None:
        yield opening
