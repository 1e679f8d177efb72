"""LSNs for messages that were recorded without their envelopes, as a walsender gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pgoutput import messages
from pgoutput.messages import Message
from pgoutput.standin.recorded.plan import CHANGES
from pgoutput.standin.recorded.recordings import Received, ServedRecording

_LSN_OF: Final[Mapping[type[Message], Callable[[Any], int | None]]] = {
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
"""The messages that say where they stand. What follows them stands there too, as far as anybody can know."""

_NOWHERE: Final = (messages.Relation, messages.Type)
_OPENING: Final = frozenset(b"BbS")
_ORIGIN: Final = messages.Origin.wire_tag


def with_lsns(recording: ServedRecording, start_lsn: int) -> Iterator[Received]:
    """The messages of a recording, with LSNs that are in them.

    Relation and Type have 0, and so has what opens a transaction or block and is followed by an Origin.

    Args:
        recording: One without envelopes.
        start_lsn: The LSN until one is known.
    """
    decoder, current, lsn = recording.decoder(), None, start_lsn
    held: Received | None = None
    for session, _, data in recording.received():
        if session != current:
            decoder, current = recording.decoder(), session
        if held is not None:
            yield (held[0], 0, held[2]) if data[:1] == _ORIGIN else held
            held = None
        here = lsn
        if data[0] not in CHANGES:
            message = decoder.decode(data)
            if isinstance(message, messages.LogicalMessage):
                here = message.lsn
            elif type(message) in _NOWHERE:
                here = 0
            elif type(message) in _LSN_OF:
                lsn = here = _LSN_OF[type(message)](message) or lsn
        if data[0] in _OPENING:
            held = session, here, data
        else:
            yield session, here, data
    if held is not None:
        yield held
