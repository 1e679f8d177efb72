"""What all recorded streams have in common, however they are stored: records, and messages in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from pgoutput import envelope
from pgoutput.errors import DecodeError, RecordingError
from pgoutput.messages import Message, XLogData
from pgoutput.stream import StreamDecoder, Transaction, Transactions

Channel = Literal["data", "copydata", "sent"]
"""What a record holds: a message of pgoutput, what a walsender sent, or what its client sent."""


class Record(msgspec.Struct, frozen=True):
    """A message as it is stored."""

    number: int | None
    """Where it stands: its line in a capture file, from 1; its position in a segment, None in a keyframe."""
    channel: Channel
    data: bytes


class Decoded(msgspec.Struct, frozen=True):
    """A record and what it says."""

    record: Record
    envelope: Message | None
    """The message of the replication protocol; None for the channel `data`."""
    message: Message | None
    """The message of pgoutput; None if the envelope holds none."""

    @property
    def data(self) -> bytes:
        """The bytes of `message`."""
        return self.envelope.data if isinstance(self.envelope, XLogData) else self.record.data


class StoredStream(ABC):
    """A recorded stream, opened; a context manager.

    Attributes:
        path: Where it is stored.
        decoder: Reads its messages; in the state that follows the last one. Where a new connection begins, so
            does a new decoder.
        numbered_by: What the number of a record counts.
    """

    numbered_by: ClassVar[str]
    path: Path
    decoder: StreamDecoder

    def __init__(self, on_bad: Callable[[RecordingError], None] | None) -> None:
        self._on_bad = on_bad

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """The records, in their order.

        Raises:
            RecordingError: One cannot be read.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """What to call it: the name of the file or folder, without suffixes."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def messages(self) -> Iterator[Decoded]:
        """The records, decoded; `decoder` is then in the state that follows.

        Raises:
            RecordingError: As `records`, or a message cannot be decoded.
        """
        for record in self.records():
            try:
                yield self._decode(record)
            except DecodeError as error:
                self.refuse(record, error)

    def transactions(self) -> Iterator[Transaction]:
        """What was committed, in the order of the commits.

        Transactions that have not ended are kept in memory.

        Raises:
            RecordingError: As `messages`, or a message stands where no server sends it.
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
                self.refuse(decoded.record, error)
            else:
                if transaction is not None:
                    yield transaction

    def refuse(self, record: Record, error: DecodeError) -> None:
        """Take note that a record cannot be decoded.

        Raises:
            RecordingError: Bad records are not to be skipped.
        """
        self._bad(self._error(record.number, str(error)))

    def _decode(self, record: Record) -> Decoded:
        if record.channel == "data":
            return Decoded(record, None, self.decoder.decode(record.data))
        outer = envelope.decode(record.data)
        inner = self.decoder.decode(outer.data) if isinstance(outer, XLogData) else None
        return Decoded(record, outer, inner)

    def _bad(self, error: RecordingError) -> None:
        if self._on_bad is None:
            raise error
        self._on_bad(error)

    @abstractmethod
    def _error(self, number: int | None, text: str) -> RecordingError: ...
