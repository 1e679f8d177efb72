"""Make recordings without a server: a SegmentWriter stores the messages of a capture or of a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from logicalrep import messages as m
from logicalrep.capturefile import CaptureFile
from logicalrep.messages import Message, XLogData
from logicalrep.recording import (
    Metadata,
    RecordingReader,
    SegmentReader,
    SegmentWriter,
    SessionStart,
    Source,
    list_segments,
    read_metadata,
)
from logicalrep.stream import Change, Transaction, Transactions, encode_for
from tests.codec import corpus

FIRST = SessionStart(session=1, number=1, position=0, lsn=0)
PARALLEL = Source(
    recording="7b0c3e0e-0000-4000-8000-000000000001",
    system_identifier="7",
    server_version="18.4",
    database="db",
    slot="slot",
    publications=("pub",),
    proto_version=4,
    options={"streaming": "parallel"},
    slot_two_phase=True,
)
"""`Source` of streams that tests make from messages: protocol version 4, streaming = parallel."""


def source(name: str) -> Source:
    """Return the `Source` of a capture: server version, protocol version and options."""
    header = corpus.read(name)[0]
    return msgspec.structs.replace(
        PARALLEL,
        server_version=header.server_version,
        proto_version=header.proto_version,
        options={key: str(value) for key, value in header.options.items()},
        slot_two_phase=header.slot_two_phase,
    )


def sent(name: str) -> list[XLogData]:
    """Return the messages of a capture in XLogData; LSNs are 0 if the capture has no LSNs."""
    return [
        line.envelope
        if isinstance(line.envelope, XLogData)
        else XLogData(wal_start=0, wal_end=0, send_time=0, data=line.data)
        for line in corpus.read(name)[1]
        if line.message is not None
    ]


def wrapped(*messages: Message, lsn: int = 0) -> list[XLogData]:
    """Return messages in XLogData, as a walsender sends them."""
    return [
        XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=encode_for(one, PARALLEL.proto_version))
        for one in messages
    ]


def write(
    folder: Path,
    source: Source,
    messages: Sequence[XLogData],
    cut: int | None = None,
    start: SessionStart = FIRST,
) -> list[Path]:
    """Record a session with a new segment after each `cut` messages; return the paths of all segments."""
    writer = SegmentWriter(folder, source, start)
    for first in range(0, len(messages), cut or len(messages)):
        writer.write(messages[first : first + cut] if cut else messages, 1_000_000 + first)
        writer.rotate()
    return list_segments(folder)


def record(folder: Path, *messages: Message, cut: int | None = None, lsn: int = 0) -> list[Metadata]:
    """Add a session with these messages to a recording; return the metadata of all segments."""
    last = read_metadata(list_segments(folder)[-1]) if any(folder.iterdir()) else None
    start = msgspec.structs.replace(FIRST, lsn=lsn)
    if last is not None:
        start = SessionStart(
            session=last.session + 1,
            number=last.number + 1,
            position=last.next_position,
            lsn=last.end_lsn,
            prepared=last.prepared,
        )
    return [read_metadata(path) for path in write(folder, PARALLEL, wrapped(*messages), cut, start)]


def stored(path: Path) -> list[bytes]:
    """Return the bytes of a recording's messages, without keyframes."""
    with RecordingReader(path) as segments:
        return [record.data for record in segments.records() if record.number is not None]


def decoded(path: Path) -> list[Message]:
    """Return the decoded messages of a segment, the keyframe first."""
    with RecordingReader(path) as segments:
        return [one.message for one in segments.messages() if one.message is not None]


def committed(path: Path) -> list[Transaction]:
    """Return the committed transactions of a recording or segment; Relation messages have no xid."""
    with RecordingReader(path) as segments:
        return [bare(transaction) for transaction in segments.transactions()]


def captured(name: str) -> list[Transaction]:
    """Return the committed transactions of a capture; Relation messages have no xid."""
    with CaptureFile(corpus.path(name)) as capture:
        transactions = Transactions(capture.decoder)
        fed = [transactions.feed(one.message) for one in capture.messages() if one.message is not None]
    return [bare(transaction) for transaction in fed if transaction is not None]


def bare(transaction: Transaction) -> Transaction:
    """Return the transaction with xid=None in all Relation messages, as keyframes store them."""
    changes = [msgspec.structs.replace(change, relations=_bare(change)) for change in transaction.changes]
    return msgspec.structs.replace(transaction, changes=changes)


def _bare(change: Change) -> tuple[m.Relation, ...]:
    return tuple(msgspec.structs.replace(relation, xid=None) for relation in change.relations)


class Row(NamedTuple):
    """A change in a segment, with its position and transaction."""

    position: int
    xid: int
    """Xid of the top-level transaction."""
    change: Change


def rows(path: Path) -> Iterator[Row]:
    """Yield the changes of a segment, read without other segments."""
    xid = None
    with SegmentReader(path) as segment:
        decoder = segment.decoder()
        for batch in segment.batches():
            columns = (batch["position"].to_pylist(), batch["data"].to_pylist())
            for position, data in zip(*columns, strict=True):
                message = decoder.decode(data)
                if isinstance(message, m.Begin | m.BeginPrepare | m.StreamStart):
                    xid = message.xid
                elif isinstance(message, m.Commit | m.Prepare | m.StreamStop):
                    xid = None
                oids = _oids(message)
                if oids is None:
                    continue
                assert xid is not None
                assert position is not None  # a keyframe has no changes
                change = Change(message, tuple(decoder.relations[oid] for oid in oids))  # type: ignore[arg-type]
                yield Row(position, xid, msgspec.structs.replace(change, relations=_bare(change)))


def _oids(message: Message) -> Iterable[int] | None:
    """Return the OIDs of the relations that a change affects; None if the message is not a change."""
    if isinstance(message, m.Insert | m.Update | m.Delete):
        return (message.relation_oid,)
    if isinstance(message, m.Truncate):
        return message.relation_oids
    if isinstance(message, m.LogicalMessage) and message.flags & m.MessageFlag.TRANSACTIONAL:
        return ()
    return None
