"""What must be known of a recording before it is served: where its transactions end, what is in it at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from pgoutput import messages
from pgoutput.errors import DecodeError, RecordingError
from pgoutput.jsonlines import from_json
from pgoutput.messages import Message
from pgoutput.standin.recorded.recordings import ServedRecording

CHANGES: Final = frozenset(b"IUDT")
"""First bytes of the messages that pass without being decoded."""

VOID: Final = -1
"""Before any LSN: a transaction that its session did not finish, and that a later one has again."""

_EVER: Final = 1 << 64


class Plan(msgspec.Struct):
    """What is known of a recording. Positions count its messages, from 0."""

    start_lsn: int = _EVER
    """Before everything."""
    end_lsn: int = 0
    """Nothing ends later."""
    tags: set[int] = set()
    """The first bytes of its messages."""
    fates: dict[int, int] = {}
    """Of transactions whose first message does not say it, by its position: the LSN at which they ended.
    Clients that have come further have them, or need them no more."""
    stop: int = _EVER
    """The position of what the recording does not have to its end: half a transaction, half a block."""
    relations: dict[int, messages.Relation] = {}
    """As they were last, by OID."""
    has_lsns: bool = False
    """Whether the envelopes were recorded."""


def plan(recording: ServedRecording) -> Plan:
    """What is known of a recording: from what its segments say of themselves, if that is enough.

    Raises:
        RecordingError: It cannot be read, or what is in it is no stream.
    """
    return _from_index(recording) or _from_messages(recording)


def _from_index(recording: ServedRecording) -> Plan | None:
    """The plan of a recording of one session, whose transactions all came whole, and have committed."""
    metadata = recording.metadata
    ended = {end.begin for one in metadata for end in one.ends if end.type == "Commit"}
    others = [end for one in metadata for end in one.ends if end.type != "Commit"]
    begun = {part.begin for one in metadata for part in one.parts}
    if not metadata or others or begun - ended or len({one.session for one in metadata}) > 1:
        return None
    relations = [from_json(epoch.relation) for one in metadata for epoch in one.relations]
    asked = recording.asked
    end_lsn = max(metadata[-1].end_lsn, 2)
    return Plan(
        start_lsn=max(min(metadata[0].start_lsn, end_lsn - 1), 1),
        end_lsn=end_lsn,
        # Without reading all of it, nobody knows whether there are logical messages and origins.
        tags=set(b"BCIUDTRY" + b"M" * asked.messages + b"O" * (asked.origin == "any")),
        relations={one.oid: one for one in relations if isinstance(one, messages.Relation)},
        has_lsns=any(lsn for _, lsn, _ in islice(recording.received(), 1000)),
    )


def _from_messages(recording: ServedRecording) -> Plan:
    """Read a recording once.

    Raises:
        RecordingError: It cannot be read, or what is in it is no stream.
    """
    planner = _Planner()
    decoder, current = recording.decoder(), None
    found = planner.plan
    tags = found.tags
    for position, (session, lsn, data) in enumerate(recording.received()):
        if session != current:
            planner.reconnect()
            decoder, current = recording.decoder(), session
        if lsn:
            found.has_lsns = True
            if lsn > found.end_lsn:
                found.end_lsn = lsn
        if not (data and data[0] in CHANGES):
            try:
                planner.feed(decoder.decode(data), position)
            except DecodeError as error:
                raise RecordingError(f"{recording.path}: message {position + 1}: {error}") from None
        tags.add(data[0])
    return planner.finish()


class _Planner:
    def __init__(self) -> None:
        self.plan = Plan()
        self._position = 0
        self._open: int | None = None
        """The position of a transaction, or block, that has begun."""
        self._is_block = False
        self._streamed: dict[int, int] = {}
        self._late: dict[str, int] = {}
        self._ended_lsn = 0
        self._effects: Mapping[type[Message], Callable[[Any], None]] = {
            messages.Begin: self._begin,
            messages.BeginPrepare: self._begin_prepare,
            messages.Commit: self._commit,
            messages.Prepare: self._prepare,
            messages.StreamStart: self._stream_start,
            messages.StreamStop: self._stream_stop,
            messages.StreamCommit: self._stream_commit,
            messages.StreamPrepare: self._stream_prepare,
            messages.StreamAbort: self._stream_abort,
            messages.CommitPrepared: self._commit_prepared,
            messages.RollbackPrepared: self._rollback_prepared,
            messages.LogicalMessage: self._logical_message,
            messages.Relation: self._relation,
        }

    def feed(self, message: Message, position: int) -> None:
        self._position = position
        effect = self._effects.get(type(message))
        if effect is not None:
            effect(message)

    def reconnect(self) -> None:
        """What has not ended, the next session has again."""
        if self._open is not None and not self._is_block:
            self.plan.fates[self._open] = VOID
        self.plan.fates.update(dict.fromkeys(self._streamed.values(), VOID))
        self._streamed.clear()
        self._open = None

    def finish(self) -> Plan:
        found = self.plan
        if self._open is not None:
            found.stop = self._open
        found.end_lsn = max(found.end_lsn, self._ended_lsn, 2)
        found.start_lsn = max(min(found.start_lsn, found.end_lsn) - 1, 1)
        return found

    def _begin(self, message: messages.Begin) -> None:
        self._open, self._is_block = self._position, False
        self._begins(message.final_lsn)

    def _begin_prepare(self, message: messages.BeginPrepare) -> None:
        self._open, self._is_block = self._position, False
        self._begins(message.prepare_lsn)
        if message.end_lsn <= self._ended_lsn:
            # It was prepared before the slot sent such, and comes when it is committed
            # (ReorderBufferFinishPrepared): until then no client has it.
            self._late[message.gid] = self._position

    def _commit(self, message: messages.Commit) -> None:
        self._open = None
        self._ends(message.end_lsn)

    def _prepare(self, message: messages.Prepare) -> None:
        self._open = None
        self._ends(message.end_lsn)

    def _stream_start(self, message: messages.StreamStart) -> None:
        self._open, self._is_block = self._position, True
        if message.first_segment:
            self._streamed[message.xid] = self._position

    def _stream_stop(self, message: messages.StreamStop) -> None:
        self._open = None

    def _stream_commit(self, message: messages.StreamCommit) -> None:
        self._finish_streamed(message.xid, message.commit_lsn)
        self._begins(message.commit_lsn)
        self._ends(message.end_lsn)

    def _stream_prepare(self, message: messages.StreamPrepare) -> None:
        self._finish_streamed(message.xid, message.prepare_lsn)
        self._begins(message.prepare_lsn)
        self._ends(message.end_lsn)

    def _stream_abort(self, message: messages.StreamAbort) -> None:
        if message.subxid == message.xid:  # only some say where they stand: behind what ended last
            self._finish_streamed(message.xid, self._ended_lsn)

    def _commit_prepared(self, message: messages.CommitPrepared) -> None:
        self._finish_late(message.gid, message.commit_lsn)
        self._begins(message.commit_lsn)
        self._ends(message.end_lsn)

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> None:
        self._finish_late(message.gid, message.rollback_end_lsn)
        self._begins(message.rollback_end_lsn)
        self._ends(message.rollback_end_lsn)

    def _logical_message(self, message: messages.LogicalMessage) -> None:
        if not message.flags & messages.MessageFlag.TRANSACTIONAL:
            self._begins(message.lsn)
            self._ends(message.lsn)

    def _relation(self, message: messages.Relation) -> None:
        self.plan.relations[message.oid] = message

    def _finish_streamed(self, xid: int, lsn: int) -> None:
        if xid in self._streamed:
            self.plan.fates[self._streamed.pop(xid)] = lsn

    def _finish_late(self, gid: str, lsn: int) -> None:
        if gid in self._late:
            self.plan.fates[self._late.pop(gid)] = lsn

    def _begins(self, lsn: int) -> None:
        self.plan.start_lsn = min(self.plan.start_lsn, lsn)

    def _ends(self, lsn: int) -> None:
        self._ended_lsn = max(self._ended_lsn, lsn)
