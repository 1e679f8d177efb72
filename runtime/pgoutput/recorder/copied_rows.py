"""Transactions that make copied rows part of a recording.

Rows may have been copied from several snapshots. The ranges of such a table were copied again from its last
snapshot, without the rows that were older than the snapshot before. A row is then superseded if a later copy
has its key, or if a recorded change between its snapshot and the last one names its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput._arrays import binary_array, boolean_array, value_bytes, value_offsets
from pgoutput._build import build, fitted
from pgoutput._roles import field_name, tags, tuples
from pgoutput.columns import ColumnDecoder
from pgoutput.jsonlines import from_json
from pgoutput.messages import ColumnFlag, Message, Relation
from pgoutput.recorder.copy_folder import CopiedTable
from pgoutput.recording import Recording, SegmentReader, Source, read_metadata, segment_name
from pgoutput.stream import Transaction, Transactions, encode_for
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, UNCHANGED

_INSERTS: Final = sorted(tags("insert"))
"""First bytes of the messages with copied rows."""

Key: TypeAlias = tuple[object, ...]
"""Cells of the columns of the replica identity, as bytes."""


class CopiedTables(msgspec.Struct, frozen=True):
    """Tables whose rows were copied, and are not yet part of the recording."""

    folder: Path
    """Folder of the segments with the copied rows."""
    requested: frozenset[int]
    """OIDs of the tables that were requested."""
    tables: dict[int, CopiedTable]
    """The tables that were copied, by OID: the requested tables that are published."""

    @property
    def lsn(self) -> int:
        """Transactions with a commit LSN before this one are contained in the rows of some table."""
        return max((table.lsn for table in self.tables.values()), default=0)


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
    changes = _RecordedChanges(recording, copied)
    for oid, table in copied.tables.items():
        first = copied.folder / segment_name(table.ranges[0].segments[0])
        described = read_metadata(first).relations[0]
        relation = from_json(described.relation)
        truncate = build("truncate", version, relations=(oid,))
        types = map(from_json, described.types)
        yield _encoded((begin, *types, relation, truncate), version)
        yield from _rows(copied.folder, table, changes.keys.get(oid, []), version)
        yield _encoded(_redescribed(relation, changes.later.get(oid, ())), version)
        yield _encoded((commit,), version)


def _rows(
    folder: Path, table: CopiedTable, changed: list[tuple[int, Key]], version: int
) -> Iterator[pa.BinaryArray]:
    """Yield the Insert messages of a table's rows as of its last snapshot.

    Args:
        folder: Folder of the segments.
        table: The copied ranges.
        changed: Keys of the changes between the table's first and last snapshot, with their commit LSN.
        version: Protocol version.
    """
    superseded: set[Key] = set()
    first = {one.place: one for one in reversed(table.ranges)}
    for lsn, ranges in groupby(sorted(table.ranges, key=lambda one: -one.lsn), lambda one: one.lsn):
        superseded.update(key for changed_lsn, key in changed if changed_lsn >= lsn)
        changed = [one for one in changed if one[0] < lsn]
        for one in ranges:
            is_update = first[one.place] is not one
            for number in one.segments:
                with SegmentReader(folder / segment_name(number)) as segment:
                    decoder = ColumnDecoder(version)
                    for batch in segment.batches():
                        data = batch["data"]
                        if not (superseded or is_update):
                            yield _inserts(data)
                            continue
                        rows, keys = _keyed_rows(data, decoder)
                        kept = [row for row, key in zip(rows, keys, strict=True) if key not in superseded]
                        if is_update:
                            superseded.update(keys)
                        yield data.take(pa.array(kept, pa.int64()))


def _keyed_rows(data: pa.BinaryArray, decoder: ColumnDecoder) -> tuple[list[int], list[Key]]:
    """Return the row numbers of the Insert messages, and the keys of the inserted rows."""
    rows: list[int] = []
    keys: list[Key] = []
    for of_relation in decoder.decode(data).relations:
        cells = of_relation.new.raw()
        columns = [cells.column(n).to_pylist() for n in _key_columns(of_relation.relation)]
        rows += of_relation.new.rows.to_pylist()
        keys += zip(*columns, strict=True)
    return rows, keys


def _key_columns(relation: Relation) -> list[int]:
    return [n for n, column in enumerate(relation.columns) if column.flags & ColumnFlag.KEY]


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


class _RecordedChanges:
    """The recorded changes of copied tables since the first snapshot that their rows were copied from.

    Attributes:
        keys: By OID, commit LSN and key of each row that was changed before the table's last snapshot.
        later: By OID, the changes that the last snapshot does not contain, with their relation.

    Args:
        recording: Folder of the recording.
        copied: The copied tables.

    Raises:
        RecordingError: A segment cannot be read.
    """

    def __init__(self, recording: Path, copied: CopiedTables) -> None:
        self.keys: dict[int, list[tuple[int, Key]]] = {}
        self.later: dict[int, list[tuple[Relation, Message]]] = {}
        since = {oid: min(one.lsn for one in table.ranges) for oid, table in copied.tables.items()}
        if not since:
            return
        for transaction in _later_transactions(Recording(recording, may_be_empty=True), min(since.values())):
            if not transaction.xid:  # copied rows; the stream has all later changes
                continue
            lsn = transaction.commit_lsn
            for change in transaction.changes:
                for relation in change.relations:
                    oid = relation.oid
                    if oid in since and lsn >= copied.tables[oid].lsn:
                        described, message = (_of_relation(one, oid) for one in (relation, change.message))
                        self.later.setdefault(oid, []).append((described, message))
                    elif oid in since and lsn >= since[oid]:
                        keys = _keys(change.message, _key_columns(relation))
                        self.keys.setdefault(oid, []).extend((lsn, key) for key in keys)


def _keys(message: Message, columns: list[int]) -> Iterator[Key]:
    """Yield the keys that a change names; an unchanged cell has the value of the tuple before."""
    before: list[object] = []
    for _, cells in tuples(message):
        key: list[object] = [cells[column] for column in columns]
        if before:
            key = [old if cell is UNCHANGED else cell for old, cell in zip(before, key, strict=True)]
        yield tuple(_encoded_cell(cell) for cell in key)
        before = key


def _encoded_cell(cell: object) -> object:
    return cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell


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
