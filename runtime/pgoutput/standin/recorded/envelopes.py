"""Assign LSNs to messages that were recorded without XLogData envelopes, as a walsender would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pgoutput._roles import ENDS, OPENERS, ROLES, meaning_of, tags
from pgoutput.standin.recorded.index import CHANGE_TAGS
from pgoutput.standin.recorded.recording import RecordedMessage, RecordedStream

_HAVE_LSN: Final = ("begin", "begin_prepare", "abort_streamed")
_LSN_MEANINGS: Final = dict.fromkeys(ENDS, "end_lsn") | dict.fromkeys(_HAVE_LSN, "lsn")
"""By role of a message: meaning of the field with the LSN for the message's envelope. Messages without an LSN
get the LSN of the last earlier message with one of these roles."""

_OPENING_TAGS: Final = tags(*OPENERS)
_ORIGIN_TAGS: Final = tags("origin")


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
            yield (opening[0], 0, opening[2]) if data[0] in _ORIGIN_TAGS else opening
            opening = None
        message_lsn = lsn
        if data[0] not in CHANGE_TAGS:
            message = decoder.decode(data)
            role = ROLES[type(message)]
            if role == "payload":
                message_lsn = meaning_of(message, "lsn") or lsn
            elif role in ("relation", "type"):
                message_lsn = 0
            elif role in _LSN_MEANINGS:
                lsn = message_lsn = meaning_of(message, _LSN_MEANINGS[role]) or lsn
        if data[0] in _OPENING_TAGS:
            opening = session, message_lsn, data
        else:
            yield session, message_lsn, data
    if opening is not None:
        yield opening
