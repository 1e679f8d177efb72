"""Snapshots of single tables that are copied while the stream is recorded.

A thread copies the rows of the tables as of the consistent point of a temporary slot. When all transactions
that committed before that point are recorded, the session adds one transaction per table to the recording: a
Truncate, the copied rows, and the table's later changes that are recorded already. From there on the
recording has all rows of the table, and a reader needs to know nothing of the snapshot.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Queue, SimpleQueue
from threading import Event as Flag
from threading import Semaphore, Thread
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput._arrays import binary_array, boolean_array, value_bytes, value_offsets
from pgoutput._build import build, fitted
from pgoutput._roles import field_name, tags
from pgoutput._text import one_line
from pgoutput.errors import ConnectionLost, PgoutputError, ReplicationError
from pgoutput.jsonlines import from_json
from pgoutput.messages import Message, Relation
from pgoutput.recorder.connection import Connection, Interrupted
from pgoutput.recorder.events import Event
from pgoutput.recorder.slot_wait import SlotWait
from pgoutput.recorder.slots import create_temporary_slot
from pgoutput.recorder.snapshot import SchemaChanged, TableCopy
from pgoutput.recording import (
    Metadata,
    Recording,
    SegmentReader,
    Source,
    list_segments,
    read_metadata,
    segment_name,
)
from pgoutput.stream import Transaction, Transactions, encode_for
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_ATTEMPTS: Final = 5
"""Largest number of attempts to copy tables; an attempt fails if a table is altered meanwhile."""

_RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts if the connection is lost."""

_INSERTS: Final = sorted(tags("insert"))
"""First bytes of the messages with copied rows."""


class CopiedTables(msgspec.Struct, frozen=True):
    """Tables whose rows were copied, and are not yet part of the recording."""

    folder: Path
    """Folder of the segments with the copied rows."""
    requested: frozenset[int]
    """OIDs of the tables that were requested."""
    oids: frozenset[int]
    """OIDs of the tables that were copied: the requested tables that are published."""
    lsn: int
    """Transactions with a commit LSN before this one are contained in the rows."""


class TableSnapshots:
    """A thread that copies tables on request, one group of tables after the other; a context manager.

    Attributes:
        failures: OIDs and reason, for each group of tables that could not be copied.

    Args:
        dsn: DSN of the server that streams, and of no other server.
        source: Server, slot, publications and options of the stream.
        folder: Folder for the copied rows, which is removed afterwards.
        report: Called with events, from several threads.
        segment_bytes: Size of a segment's messages, in bytes.
    """

    def __init__(
        self, dsn: str, source: Source, folder: Path, report: Callable[[Event], None], segment_bytes: int
    ) -> None:
        self._dsn, self._source, self._folder = dsn, source, folder
        self._report, self._segment_bytes = report, segment_bytes
        self._requests: Queue[frozenset[int] | None] = Queue()
        self._requested: set[int] = set()
        """OIDs of all tables that were requested and not stored; also of those that could not be copied."""
        self._failed: set[int] = set()
        """OIDs of the tables that could not be copied."""
        self.failures: SimpleQueue[tuple[frozenset[int], str]] = SimpleQueue()
        self._copied: CopiedTables | None = None
        self._stored = Semaphore(0)
        """Released when `copied` is stored, or never will be."""
        self._stop = Flag()
        self._thread = Thread(target=self._run, name="pgoutput-tables", daemon=True)

    def __enter__(self) -> TableSnapshots:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop copying, and remove rows that are not part of the recording."""
        self._stop.set()
        self._stored.release()
        self._requests.put(None)
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def request(self, oids: Iterable[int], *, retry: bool = False) -> None:
        """Have tables copied, unless they were requested before and are not stored.

        Args:
            oids: OIDs of the tables.
            retry: Whether to try tables again that could not be copied in this session.
        """
        wanted = frozenset(oids)
        if retry:
            self._requested -= wanted & self._failed
            self._failed -= wanted
        if new := wanted - self._requested:
            self._requested |= new
            self._requests.put(new)

    @property
    def is_copying(self) -> bool:
        """Whether tables were requested that are neither stored nor failed."""
        return bool(self._requested - self._failed)

    @property
    def copied(self) -> CopiedTables | None:
        """Tables that wait to be added to the recording, or None."""
        return self._copied

    def stored(self) -> None:
        """Note that the tables in `copied` are part of the recording; the next group can be copied."""
        assert self._copied is not None
        self._requested -= self._copied.requested
        self._copied = None
        self._stored.release()

    def _run(self) -> None:
        while (oids := self._requests.get()) is not None and not self._stop.is_set():
            try:
                self._copied = self._copy(oids)
            except (Interrupted, ConnectionLost):  # the tables are requested again
                self._stop.wait(_RETRY_SECONDS)
                self._requested -= oids
            except (PgoutputError, OSError) as error:
                if len(oids) > 1:  # the other tables can be copied without the one that has failed
                    for oid in oids:
                        self._requests.put(frozenset([oid]))
                    continue
                self._failed |= oids
                self.failures.put((oids, one_line(error)))
            else:
                self._stored.acquire()

    def _copy(self, oids: frozenset[int]) -> CopiedTables:
        for attempts_left in reversed(range(_ATTEMPTS)):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            try:
                return self._copy_once(oids)
            except SchemaChanged as error:
                if not attempts_left:
                    raise ReplicationError(f"the tables cannot be copied: {error}") from None
        raise AssertionError

    def _copy_once(self, oids: frozenset[int]) -> CopiedTables:
        with Connection(self._dsn, stop=self._stop.is_set) as holder:
            with Connection(self._dsn, replication=True, stop=self._stop.is_set) as slot_connection:
                with SlotWait(self._dsn, slot_connection.backend_pid, self._report):
                    lsn, snapshot = create_temporary_slot(slot_connection, self._stop.is_set)
                holder.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                holder.query(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                snapshot = str(holder.query("SELECT pg_export_snapshot()")[0][0])
            # The connection has ended, and with it the slot, which would retain WAL while tables are copied.
            copy = TableCopy(self._dsn, self._source, self._folder, snapshot, lsn, oids)
            copied = copy.run(self._report, self._stop.is_set, self._segment_bytes)
        return CopiedTables(self._folder, oids, copied, lsn)


def transactions_of(
    copied: CopiedTables, recording: Path, lsn: int, source: Source
) -> Iterator[pa.BinaryArray]:
    """Yield the messages of the transactions that make copied tables part of a recording, one per table.

    Args:
        copied: The tables. All transactions with a commit LSN below `copied.lsn` are recorded.
        recording: Folder of the recording.
        lsn: End LSN of the last recorded transaction.
        source: Source of the stream.
    """
    version = source.proto_version
    now = time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
    # Later transactions have higher commit LSNs, also one whose commit record begins at the end LSN: it may
    # have been streamed before, and readers order the changes of equal commit LSNs by position.
    end_lsn = max(lsn, copied.lsn)
    commit_lsn = end_lsn - 1
    begin = build("begin", version, lsn=commit_lsn, time=now)
    commit = build("commit", version, lsn=commit_lsn, end_lsn=end_lsn, time=now)
    segments: dict[int, list[Metadata]] = {}
    for path in list_segments(copied.folder) if copied.oids else ():
        metadata = read_metadata(path)
        segments.setdefault(metadata.relations[0].relation["oid"], []).append(metadata)
    later = _later_changes(recording, copied)
    for oid, parts in segments.items():
        described = parts[0].relations[0]
        relation = from_json(described.relation)
        truncate = build("truncate", version, relations=(oid,))
        types = map(from_json, described.types)
        yield _encoded((begin, *types, relation, truncate), version)
        for part in sorted(parts, key=lambda one: one.number):
            with SegmentReader(copied.folder / segment_name(part.number)) as segment:
                for batch in segment.batches():
                    yield _inserts(batch["data"])
        yield _encoded(_redescribed(relation, later.get(oid, ())), version)
        yield _encoded((commit,), version)


def _encoded(messages: Iterable[Message], version: int) -> pa.BinaryArray:
    return binary_array([encode_for(fitted(message, version), version) for message in messages])


def _inserts(data: pa.BinaryArray) -> pa.BinaryArray:
    first_bytes = value_bytes(data)[value_offsets(data)[:-1]]
    return data.filter(boolean_array(np.isin(first_bytes, _INSERTS)))


def _redescribed(relation: Message, changes: Iterable[tuple[Relation, Message]]) -> Iterator[Message]:
    """Yield changes, and before them the relation's description where it differs from the last one."""
    for described, change in changes:
        if described != relation:
            yield described
            relation = described
        yield change


def _later_changes(recording: Path, copied: CopiedTables) -> dict[int, list[tuple[Relation, Message]]]:
    """Return the recorded changes that the copied rows do not contain, with their relation, by relation OID.

    Raises:
        RecordingError: A segment cannot be read.
    """
    changes: dict[int, list[tuple[Relation, Message]]] = {}
    for transaction in _later_transactions(Recording(recording, may_be_empty=True), copied.lsn):
        for change in transaction.changes:
            for relation in change.relations:
                if relation.oid in copied.oids:
                    described, message = (
                        _of_relation(one, relation.oid) for one in (relation, change.message)
                    )
                    changes.setdefault(relation.oid, []).append((described, message))
    return changes


def _of_relation(message: Any, oid: int) -> Any:
    """Return a message as it is sent outside stream blocks, and for one relation only."""
    values = {"subxid": None, "relations": (oid,)}
    names = {meaning: field_name(type(message), meaning) for meaning in values}
    fields = {name: values[meaning] for meaning, name in names.items() if name is not None}
    return msgspec.structs.replace(message, **fields)


def _later_transactions(recording: Recording, lsn: int) -> Iterator[Transaction]:
    """Yield the recorded transactions with a commit LSN of at least `lsn`, in commit order."""
    begin = last = recording.numbers[-1] if recording.numbers else 0
    for number in reversed(recording.numbers):
        (metadata,) = recording.metadata([number])
        if metadata.end_lsn < lsn:
            break
        earlier = [one for end in metadata.ends if (end.lsn or 0) >= lsn for one in end.segments]
        begin = min(begin, number, *earlier)
    transactions: Transactions | None = None
    session = 0
    for number in recording.numbers[recording.numbers.index(begin) :] if last else ():
        with SegmentReader(recording.path(number)) as segment:
            is_first = transactions is None
            if transactions is None:
                decoder = segment.decoder()
                transactions = Transactions(decoder)
            elif segment.metadata.session != session:
                decoder = segment.decoder()
                transactions.reconnect(decoder)
            session = segment.metadata.session
            for batch in segment.batches():
                if not is_first:  # the keyframe repeats what came before
                    batch = batch.filter(batch["position"].is_valid())
                for data in batch["data"].to_pylist():
                    transaction = transactions.feed(decoder.decode(data))
                    if transaction is not None and transaction.commit_lsn >= lsn:
                        yield transaction
