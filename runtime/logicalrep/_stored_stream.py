"""Common base of capture files and recordings: both store a stream as a sequence of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, Self

import msgspec

from logicalrep import envelope
from logicalrep.errors import DecodeError, RecordingError
from logicalrep.messages import Message, XLogData
from logicalrep.stream import StreamDecoder, Transaction, Transactions

Channel = Literal["data", "copydata", "sent"]
"""Content of a record: a pgoutput message (`data`), an envelope from the walsender (`copydata`) or an
envelope from the walsender's client (`sent`)."""


class Record(msgspec.Struct, frozen=True):
    """One record of a capture file or recording: the bytes of a message or envelope."""

    number: int | None
    """Line number in a capture file, from 1, or position in a recording; None for a message of a
    keyframe."""
    channel: Channel
    data: bytes


class DecodedRecord(msgspec.Struct, frozen=True):
    """One record of a capture file or recording, and the decoded message in it."""

    record: Record
    envelope: Message | None
    """The record's decoded envelope; None for the channel `data`, which has no envelopes."""
    message: Message | None
    """The record's decoded pgoutput message; None if the envelope contains no message."""

    @property
    def data(self) -> bytes:
        """Bytes of `message`; undefined if `message` is None."""
        return self.envelope.data if isinstance(self.envelope, XLogData) else self.record.data


class StoredStream(ABC):
    """An opened capture file or recording; a context manager.

    Attributes:
        path: Path of the file or folder, or location of a recording; error texts show it.
        decoder: Decoder of the messages, with the state after the last yielded message. A new decoder
            replaces it where the messages of a new connection begin.
        numbered_by: What `Record.number` is: "line" or "position".
    """

    numbered_by: ClassVar[str]
    path: object
    decoder: StreamDecoder

    def __init__(self, on_error: Callable[[RecordingError], None] | None) -> None:
        self._on_error = on_error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield the records in the order in which they are stored.

        Raises:
            RecordingError: A record cannot be read, and there is no callback `on_error`.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the file or folder, without suffixes."""

    @abstractmethod
    def close(self) -> None:
        """Close the open files."""

    def messages(self) -> Iterator[DecodedRecord]:
        """Yield the decoded records; while a record is yielded, `decoder` has the state after that record.

        Raises:
            RecordingError: A record cannot be read or decoded, and there is no callback `on_error`.
        """
        for record in self.records():
            try:
                yield self._decode(record)
            except DecodeError as error:
                self.report_error(record, error)

    def transactions(self) -> Iterator[Transaction]:
        """Yield the committed transactions, in the order of their commits.

        Open transactions are kept in memory.

        Raises:
            RecordingError: A record cannot be read or decoded, or a message is out of place, and there is no
                callback `on_error`.
        """
        decoder, transactions = self.decoder, Transactions(self.decoder)
        for decoded in self.messages():
            if decoder is not self.decoder:
                decoder = self.decoder
                transactions.reconnect(decoder)
            if decoded.message is None:
                continue
            try:
                transaction = transactions.feed(decoded.message)
            except DecodeError as error:
                self.report_error(decoded.record, error)
            else:
                if transaction is not None:
                    yield transaction

    def report_error(self, record: Record, error: DecodeError) -> None:
        """Pass a record's error to the callback `on_error` as a RecordingError; without a callback, raise it.

        Raises:
            RecordingError: There is no callback `on_error`.
        """
        self._report(self._error(record.number, str(error)))

    def _decode(self, record: Record) -> DecodedRecord:
        if record.channel == "data":
            return DecodedRecord(record, None, self.decoder.decode(record.data))
        outer = envelope.decode(record.data)
        inner = self.decoder.decode(outer.data) if isinstance(outer, XLogData) else None
        return DecodedRecord(record, outer, inner)

    def _report(self, error: RecordingError) -> None:
        if self._on_error is None:
            raise error
        self._on_error(error)

    @abstractmethod
    def _error(self, number: int | None, text: str) -> RecordingError: ...
