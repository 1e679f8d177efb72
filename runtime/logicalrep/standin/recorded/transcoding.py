"""Convert a recorded stream to the stream that a server sends for options other than the recorded ones.

A streamed or prepared transaction that the client has not requested in this form is kept in memory until its
commit, and then sent as a whole. Two things differ from a server, because stream blocks lack the data: the
LSN in Origin is 0, and logical messages are sent even if their subtransaction was rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from logicalrep import messages
from logicalrep._build import builder, fitted
from logicalrep._offsets import layout_of
from logicalrep._roles import CHANGES, OPTIONS, ROLES, ROW_FIELDS, meaning_of, read_end
from logicalrep._servers import FIRST_WITHOUT_EMPTY
from logicalrep.messages import Message, TupleData
from logicalrep.standin.recorded.descriptions import Descriptions, outside_block
from logicalrep.standin.recorded.recording import RecordedMessage, RecordedStream
from logicalrep.standin.source import PluginOptions
from logicalrep.stream import TrackedTransaction, TransactionTracker, encode_for
from logicalrep.values import decode_binary, encode_binary


class TranscodedStream(RecordedStream, frozen=True, kw_only=True):
    """A recorded stream as a server sends it for `options`, which differ from the recorded options."""

    recorded: RecordedStream
    """The recorded stream."""

    def messages(self) -> Iterator[RecordedMessage]:
        """Return the converted messages in order. Their LSNs are 0 if the stream was recorded without LSNs.

        Raises:
            RecordingError: The recording cannot be read.
        """
        return _Transcoder(self.recorded, self.options).transcode(self.recorded.messages())


class _Transaction(TrackedTransaction):
    held: list[tuple[int, Message]] = msgspec.field(default_factory=list)
    """Pairs of LSN and message that are held back until the transaction's commit or prepare."""
    openers: list[tuple[int, Message]] = msgspec.field(default_factory=list)
    """Pairs of LSN and message at the beginning of the transaction or stream block that have not been sent.
    They are sent before the first change."""
    is_sent: bool = False
    """Whether a message of the transaction has been sent."""
    is_reduced: bool = False
    """Whether a logical message of the transaction is left out."""
    is_excluded: bool = False
    """Whether the transaction is left out because of its origin."""


class _Transcoder:
    def __init__(self, recorded: RecordedStream, options: PluginOptions) -> None:
        self._recorded = recorded
        self._options = options
        self._keeps_blocks = options.streaming != "off"
        self._converts_values = options.binary != recorded.options.binary
        self._refitted = _different(recorded.options.proto_version, options.proto_version)
        """Message classes whose fields differ between the recorded and the requested protocol version."""
        self._keeps_empty = int(recorded.server_version.partition(".")[0]) < FIRST_WITHOUT_EMPTY
        self._descriptions = Descriptions()
        self._tracker = TransactionTracker(self._new, lenient=True)

    def _new(self, xid: int, message: Message | None) -> _Transaction:
        return _Transaction(xid, message)

    def transcode(self, recorded: Iterator[RecordedMessage]) -> Iterator[RecordedMessage]:
        """Yield the converted messages of the stream."""
        decoder, current = self._recorded.decoder(), None
        for session, lsn, data in recorded:
            if session != current:
                decoder, current = self._recorded.decoder(), session
                self._tracker.reconnect()
                self._descriptions.forget_sent()
            for sent_lsn, message in self._transcode(lsn, decoder.decode(data)):
                self._descriptions.sent(message)
                yield session, sent_lsn, self._encode(message)

    def _transcode(self, lsn: int, message: Message) -> Iterator[tuple[int, Message]]:
        """Yield pairs of LSN and message to send when the recorded message `message` is read."""
        in_block = self._tracker.in_block
        event = self._tracker.feed(message)
        kind, transaction = event.kind, event.transaction
        self._descriptions.read(message)
        if kind == "emitted":
            if self._is_requested(message):
                yield lsn, message if self._keeps_blocks else outside_block(message)
        elif kind in ("began", "block_opened"):
            assert transaction is not None
            transaction.openers = [(lsn, message)]
        elif kind == "origin" and transaction is not None:
            transaction.is_excluded |= self._options.origin == "none"
            transaction.openers.append((lsn, message))
        elif transaction is None:
            if kind == "described" or self._keeps_blocks or kind != "ignored":
                yield lsn, message
        elif kind in ("changed", "described"):
            for one in self._known_changes(message):
                yield from self._change(lsn, one, transaction, in_block=in_block)
        elif kind == "block_closed":
            if self._keeps_blocks and not transaction.openers:
                yield lsn, message
        elif kind == "subtransaction_rolled_back":
            subxid = meaning_of(message, "subxid") or 0
            transaction.held = [one for one in transaction.held if not _is_change_of(one[1], subxid)]
            if transaction.is_sent:
                yield lsn, message
        else:
            yield from self._end(lsn, message, transaction)

    def _change(
        self, lsn: int, message: Message, transaction: _Transaction, *, in_block: bool
    ) -> Iterator[tuple[int, Message]]:
        if transaction.is_excluded:
            return
        if ROLES[type(message)] == "payload" and not self._is_requested(message):
            transaction.is_reduced = True
            return
        if self._converts_values:
            message = self._convert_values(message)
        is_prepared = ROLES[type(transaction.opener)] == "begin_prepare" if transaction.opener else False
        descriptions: Iterable[Message] = () if in_block else self._descriptions.missing(message)
        if (in_block and not self._keeps_blocks) or (is_prepared and not self._options.two_phase):
            transaction.held += [*((0, one) for one in descriptions), (lsn, message)]
            return
        yield from self._open(transaction)
        for one in descriptions:
            yield 0, one
        yield lsn, message

    def _is_requested(self, message: Message) -> bool:
        """Return whether the client's protocol version and its requested options include this message."""
        option = OPTIONS[type(message)]
        is_known = layout_of(type(message), self._options.proto_version) is not None
        return is_known and (option is None or bool(getattr(self._options, option)))

    def _known_changes(self, message: Message) -> list[Message]:
        """Return the change as messages that the client's protocol version defines.

        If the version lacks a message that inserts several rows, return an Insert for each of its rows. In
        all other cases, return only `message`.
        """
        version = self._options.proto_version
        if ROLES[type(message)] != "insert" or layout_of(type(message), version) is not None:
            return [message]
        insert, rows = builder("insert", version), meaning_of(message, "new")
        values = {name: meaning_of(message, name) for name in ("subxid", "relation")}
        return [insert(**values, new=row) for row in rows]

    def _open(self, transaction: _Transaction) -> Iterator[tuple[int, Message]]:
        """Yield pairs of LSN and message that open a transaction or stream block, unless already sent."""
        for lsn, opener in transaction.openers:
            if isinstance(opener, messages.StreamStart):
                opener = msgspec.structs.replace(opener, first_stream_segment=not transaction.is_sent)
            yield lsn, opener
        transaction.openers, transaction.is_sent = [], True

    def _end(self, lsn: int, message: Message, transaction: _Transaction) -> Iterator[tuple[int, Message]]:
        """Yield pairs of LSN and message to send when a transaction is committed, prepared or rolled back."""
        role, end = ROLES[type(message)], read_end(message)
        if transaction.is_excluded:
            return
        is_whole = not transaction.is_reduced or self._keeps_empty
        if (role == "commit" and is_whole) or (role == "prepare" and self._options.two_phase):
            yield from self._open(transaction)
        if role in ("prepare", "prepare_streamed") and not self._options.two_phase:
            return  # the transaction is sent with its commit
        if role in ("abort_streamed", "rollback_prepared") and not transaction.is_sent:
            return
        xid = transaction.xid
        ends: list[Message] = [message]
        if role == "rollback_prepared" and not self._options.two_phase:
            ends = [
                messages.StreamAbort(
                    xid=xid, subxid=xid, abort_lsn=end.lsn or end.end_lsn, abort_time=end.time
                )
            ]
        elif role == "commit_prepared" and not self._options.two_phase and transaction.is_sent:
            ends = [
                messages.StreamCommit(xid=xid, commit_lsn=end.lsn, end_lsn=end.end_lsn, commit_time=end.time)
            ]
        elif transaction.held or (not transaction.is_sent and self._is_reassembled(role)):
            if role == "prepare_streamed":
                opener: Message = messages.BeginPrepare(
                    prepare_lsn=end.lsn, end_lsn=end.end_lsn, prepare_time=end.time, xid=xid, gid=end.gid
                )
                ends = [
                    messages.Prepare(
                        prepare_lsn=end.lsn, end_lsn=end.end_lsn, prepare_time=end.time, xid=xid, gid=end.gid
                    )
                ]
            else:
                opener = messages.Begin(final_lsn=end.lsn, commit_time=end.time, xid=xid)
                ends = [messages.Commit(commit_lsn=end.lsn, end_lsn=end.end_lsn, commit_time=end.time)]
            yield from self._reassemble(transaction, opener)
        elif not transaction.is_sent:
            return
        for one in ends:
            yield lsn, fitted(one, self._options.proto_version)

    def _is_reassembled(self, role: str) -> bool:
        """Return whether to send the first and last message of a transaction whose changes are not sent.

        The transaction was streamed or prepared. The two messages are Begin Prepare and Prepare if the
        transaction ends with Stream Prepare, otherwise Begin and Commit.

        `role` is the role in the spec of the message that ends the transaction, such as `commit_streamed`.
        """
        if role == "prepare_streamed":
            return not self._keeps_blocks
        return role.startswith("commit_") and self._keeps_empty

    def _reassemble(self, transaction: _Transaction, opener: Message) -> Iterator[tuple[int, Message]]:
        """Yield the messages of a transaction that is sent as a whole, except the last one, with their LSNs.

        The messages are `opener` (Begin or Begin Prepare), Origin if there is one, and the changes in
        `transaction.held`, which were kept in memory until now.
        """
        first = next((lsn for lsn, _ in transaction.held if lsn), 0)
        yield 0 if transaction.origin is not None else first, fitted(opener, self._options.proto_version)
        if transaction.origin is not None:
            yield first, transaction.origin
        for lsn, message in transaction.held:
            yield lsn, outside_block(message)
        transaction.held, transaction.is_sent = [], True

    def _encode(self, message: Any) -> bytes:
        """Encode a message for the requested options."""
        if isinstance(message, messages.StreamAbort) and self._options.streaming != "parallel":
            message = msgspec.structs.replace(message, abort_lsn=None, abort_time=None)
        if type(message) in self._refitted:
            message = fitted(message, self._options.proto_version)
        return encode_for(message, self._options.proto_version)

    def _convert_values(self, message: Any) -> Message:
        """Return a change with values in the requested format, by the types in the last Relation message."""
        for name, is_list in ROW_FIELDS[type(message)]:
            value = getattr(message, name)
            if value is not None:
                relation = self._descriptions.relations[meaning_of(message, "relation")]
                rows = tuple(self._convert(cells, relation) for cells in (value if is_list else (value,)))
                message = msgspec.structs.replace(message, **{name: rows if is_list else rows[0]})
        converted: Message = message
        return converted

    def _convert(self, cells: TupleData, relation: messages.Relation) -> TupleData:
        """Return a row's cells in the requested format. Values of types that are not built in stay text."""
        convert = _to_binary if self._options.binary else _to_text
        columns = zip(cells, relation.columns, strict=True)
        return tuple(convert(cell, column.type_oid) for cell, column in columns)


def _different(one: int, other: int) -> set[type[Message]]:
    """Return the message classes whose fields differ between two protocol versions."""
    layouts = {kind: (layout_of(kind, one), layout_of(kind, other)) for kind in ROLES}
    return {kind for kind, (old, new) in layouts.items() if old and new and old.fields != new.fields}


def _to_text(cell: Any, type_oid: int) -> Any:
    return decode_binary(cell, type_oid) if isinstance(cell, bytes) else cell


def _to_binary(cell: Any, type_oid: int) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return encode_binary(cell, type_oid)
    except ValueError:
        return cell


def _is_change_of(message: Message, subxid: int) -> bool:
    return ROLES[type(message)] in CHANGES and meaning_of(message, "subxid") == subxid
