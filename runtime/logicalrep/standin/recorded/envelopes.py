"""Assign LSNs to messages that were recorded without XLogData envelopes, as a walsender would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from logicalrep._roles import ENDS, OPENERS, ROLES, End, read_end, tags
from logicalrep.standin.recorded.index import CHANGE_TAGS
from logicalrep.standin.recorded.recording import RecordedMessage, RecordedStream

_HAVE_LSN: Final = (*ENDS, "abort_streamed", "payload")
"""Roles of messages that contain their own LSN. Begin and Begin Prepare contain a later message's LSN."""

_OPENING_TAGS: Final = tags(*OPENERS)
_ORIGIN_TAGS: Final = tags("origin")
_DESCRIPTION_TAGS: Final = tags("relation", "type")
_UNCOUNTED_TAGS: Final = _OPENING_TAGS | _ORIGIN_TAGS | _DESCRIPTION_TAGS
"""Tags of the messages that get no LSN of their own, but the LSN 0 or the LSN of the next change."""


def assign_lsns(stream: RecordedStream, start_lsn: int) -> Iterator[RecordedMessage]:
    """Yield the messages of a stream with LSNs for their envelopes.

    A message that contains its own LSN gets that LSN: the end LSN of a commit, prepare or rollback, or the
    LSN of a Stream Abort or logical message. The changes before such a message get LSNs that rise by one. The
    last of these changes gets the LSN that is one below the commit LSN or prepare LSN, or, if the message
    contains neither, one below the message's LSN. The changes of a transaction therefore have different LSNs,
    which are lower than the commit LSN. A client can resume inside a transaction after the LSN of the last
    change that it has stored. The assigned LSNs are not lower than the server's, because each change takes at
    least one byte of WAL. As on a server, LSNs rise inside each stream block, but may be lower than the LSNs
    of earlier transactions.

    As in a walsender's stream, Origin and a message that opens a transaction or stream block have the LSN of
    the next change. The LSN is 0 for Relation, for Type, and for an opening message before an Origin message.

    The messages up to the next message with an LSN, such as those of one transaction, are kept in memory.

    Args:
        stream: A stream recorded without envelopes.
        start_lsn: Used only if no message of the stream contains an LSN: the last change then gets the LSN
            `start_lsn - 1`.
    """
    decoder, current = stream.decoder(), None
    ended = start_lsn
    waiting: list[RecordedMessage] = []
    for session, _, data in stream.messages():
        if session != current:
            decoder, current = stream.decoder(), session
        message = None if data[0] in CHANGE_TAGS else decoder.decode(data)
        end = read_end(message) if message is not None and ROLES[type(message)] in _HAVE_LSN else End()
        if not (end.lsn or end.end_lsn):
            waiting.append((session, 0, data))
            continue
        yield from _count_up(waiting, end.lsn or end.end_lsn)
        waiting.clear()
        ended = end.end_lsn or end.lsn
        yield session, ended, data
    yield from _count_up(waiting, ended)


def _count_up(messages: Sequence[RecordedMessage], before_lsn: int) -> Iterator[RecordedMessage]:
    """Yield the messages with new LSNs, which rise by one up to `before_lsn - 1`. LSNs below 1 become 1."""
    lsn = before_lsn - sum(data[0] not in _UNCOUNTED_TAGS for _, _, data in messages)
    for (session, _, data), following in zip_longest(messages, messages[1:]):
        tag = data[0]
        precedes_origin = tag in _OPENING_TAGS and following is not None and following[2][0] in _ORIGIN_TAGS
        yield session, 0 if tag in _DESCRIPTION_TAGS or precedes_origin else max(lsn, 1), data
        lsn += tag not in _UNCOUNTED_TAGS
