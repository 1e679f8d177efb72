"""Transactions that make copied rows part of a recording.

The ranges of a table may have been copied from several snapshots. Each range of an earlier snapshot then has
a second copy, from the last snapshot, with the rows that were written after the earlier snapshot. A
copied row is superseded, and left out, in two cases: a later copy contains its key, or a change with its key
was recorded between the row's snapshot and the last snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep._arrays import binary_array, boolean_array, value_bytes, value_offsets
from logicalrep._build import build, fitted
from logicalrep._roles import field_name, has_role, meaning_of, tags
from logicalrep.columns import ColumnDecoder
from logicalrep.jsonlines import from_json
from logicalrep.messages import Message, Relation
from logicalrep.recorder.snapshots.changes_of_keys import Key, changes_of_keys, deletes, named_keys
from logicalrep.recorder.snapshots.copy_folder import CopiedRange, CopiedTable
from logicalrep.recorder.snapshots.row_keys import Keys, key_columns
from logicalrep.recording import PathOrUri, Recording, SegmentReader, Source, read_metadata, segment_name
from logicalrep.stream import Transaction, Transactions, encode_for
from logicalrep.wire import timestamp_now

_INSERTS: Final = sorted(tags("insert"))
"""First bytes of Insert messages."""


class CopiedTables(msgspec.Struct, frozen=True):
    """Tables whose rows were copied, and are not yet part of the recording."""

    folder: Path
    """Folder of the segments with the copied rows."""
    keys: dict[int, Keys]
    """Keys of the copied rows (None for all rows), by OID of each requested table."""
    tables: dict[int, CopiedTable]
    """The tables that were copied, by OID: the requested tables that are published."""
    left_out: set[int] = msgspec.field(default_factory=set)
    """OIDs of tables of which all rows must be copied, because the rows with given keys are not enough."""

    @property
    def stored(self) -> dict[int, Keys]:
        """Keys of the rows to store, by OID of the table: `keys` without the tables in `left_out`."""
        return {oid: keys for oid, keys in self.keys.items() if oid not in self.left_out}

    @property
    def complete(self) -> dict[int, CopiedTable]:
        """The tables of which all rows were copied, by OID."""
        return {oid: table for oid, table in self.tables.items() if self.keys[oid] is None}

    @property
    def lsn(self) -> int:
        """LSN of the last snapshot: at least one table has rows as of this LSN. 0 without tables."""
        return max((table.lsn for table in self.tables.values()), default=0)


def transactions_of(
    copied: CopiedTables, recording: PathOrUri, lsn: int, source: Source
) -> Iterator[pa.BinaryArray]:
    """Yield messages: for each copied table, a transaction that makes its rows part of a recording.

    A table whose rows were selected by keys is added to `copied.left_out` instead if the recorded changes do
    not suffice to update these rows to the end of the recording.

    Args:
        copied: The tables. All transactions with a commit LSN below `copied.lsn` are recorded.
        recording: Path or URL of the recording.
        lsn: End LSN of the last recorded transaction.
        source: Source of the stream.
    """
    version = source.proto_version
    now = timestamp_now()
    # The server's next transaction can have the commit LSN `end_lsn`, and can be recorded in part already.
    # Readers order changes by commit LSN, then by position: the copied rows need a lower commit LSN.
    end_lsn = max(lsn, copied.lsn)
    commit_lsn = end_lsn - 1
    begin = build("begin", version, lsn=commit_lsn, time=now)
    commit = build("commit", version, lsn=commit_lsn, end_lsn=end_lsn, time=now)
    changes = _RecordedChanges(recording, copied)
    for oid, table in copied.tables.items():
        first = copied.folder / segment_name(table.ranges[0].segments[0])
        described = read_metadata(first).relations[0]
        relation: Any = from_json(described.relation)
        keys, later = copied.keys[oid], changes.later.get(oid, [])
        if keys is None:
            gone: Iterable[Message] = (build("truncate", version, relations=(oid,)),)
            rows = _rows(copied.folder, table, changes.keys.get(oid, []), version)
            messages = _redescribed(relation, later)
        else:
            wanted: set[Key] = {tuple(value.encode() for value in key) for key in keys}
            changed = changes_of_keys(relation, wanted, later, version)
            if oid in copied.left_out or changed is None:
                copied.left_out.add(oid)
                continue
            gone = deletes(relation, changed.keys, version)
            rows = _rows_of_keys(copied.folder, table, wanted, version) if changed.keeps_copied else iter(())
            messages = iter(changed.changes)
        yield _encoded((begin, *map(from_json, described.types), relation, *gone), version)
        yield from rows
        yield _encoded(messages, version)
        yield _encoded((commit,), version)


def _rows(
    folder: Path, table: CopiedTable, changed: list[tuple[int, Key]], version: int
) -> Iterator[pa.BinaryArray]:
    """Yield the Insert messages of a table's rows as of its last snapshot.

    Args:
        folder: Folder of the segments.
        table: The copied ranges.
        changed: Commit LSN and row key of each change between the table's first and last snapshot.
        version: Protocol version.
    """
    superseded: set[Key] = set()
    first = {one.place: one for one in reversed(table.ranges)}
    for lsn, ranges in groupby(sorted(table.ranges, key=lambda one: -one.lsn), lambda one: one.lsn):
        superseded.update(key for changed_lsn, key in changed if changed_lsn >= lsn)
        changed = [one for one in changed if one[0] < lsn]
        for one in ranges:
            is_update = first[one.place] is not one
            for data, decoder in _messages(folder, one, version):
                if not (superseded or is_update):
                    yield _inserts(data)
                    continue
                rows, keys = _keyed_rows(data, decoder)
                kept = [row for row, key in zip(rows, keys, strict=True) if key not in superseded]
                if is_update:
                    superseded.update(keys)
                yield data.take(pa.array(kept, pa.int64()))


def _rows_of_keys(folder: Path, table: CopiedTable, keys: set[Key], version: int) -> Iterator[pa.BinaryArray]:
    """Yield the Insert messages of the copied rows whose keys are in `keys`, one row for each key.

    The server may also have returned rows with other keys that it treats as equal, such as 1.00 for 1.0.
    """
    missing = set(keys)
    for one in table.ranges:
        for data, decoder in _messages(folder, one, version):
            kept = []
            for row, key in zip(*_keyed_rows(data, decoder), strict=True):
                if key in missing:
                    missing.remove(key)
                    kept.append(row)
            yield data.take(pa.array(kept, pa.int64()))


def _messages(
    folder: Path, copied: CopiedRange, version: int
) -> Iterator[tuple[pa.BinaryArray, ColumnDecoder]]:
    """Yield arrays of the messages of a copied range's segments, each with the decoder of its segment."""
    for number in copied.segments:
        with SegmentReader(folder / segment_name(number)) as segment:
            decoder = ColumnDecoder(version)
            for batch in segment.batches():
                yield batch["data"], decoder


def _keyed_rows(data: pa.BinaryArray, decoder: ColumnDecoder) -> tuple[list[int], list[Key]]:
    """Return the index in `data` of each Insert message, and the key of each inserted row."""
    rows: list[int] = []
    keys: list[Key] = []
    for of_relation in decoder.decode(data).relations:
        cells = of_relation.new.raw()
        columns = [cells.column(n).to_pylist() for n in key_columns(of_relation.relation)]
        rows += of_relation.new.rows.to_pylist()
        keys += zip(*columns, strict=True)
    return rows, keys


def _encoded(messages: Iterable[Message], version: int) -> pa.BinaryArray:
    return binary_array([encode_for(fitted(message, version), version) for message in messages])


def _inserts(data: pa.BinaryArray) -> pa.BinaryArray:
    first_bytes = value_bytes(data)[value_offsets(data)[:-1]]
    return data.filter(boolean_array(np.isin(first_bytes, _INSERTS)))


def _redescribed(relation: Message, changes: Iterable[tuple[Relation, Message]]) -> Iterator[Message]:
    """Yield the change messages, each preceded by its Relation message if that differs from the last one.

    `changes` has pairs of Relation message and change. `relation` is the last Relation message before them.
    """
    for described, change in changes:
        if described != relation:
            yield described
            relation = described
        yield change


class _RecordedChanges:
    """The recorded changes of copied tables since the first snapshot that their rows were copied from.

    Attributes:
        keys: Commit LSN and row key of each change before the table's last snapshot, by OID of the table.
        later: Relation and change message of each change since the last snapshot, by OID of the table.

    Args:
        recording: Path or URL of the recording.
        copied: The copied tables.

    Raises:
        RecordingError: A segment cannot be read.
    """

    def __init__(self, recording: PathOrUri, copied: CopiedTables) -> None:
        self.keys: dict[int, list[tuple[int, Key]]] = {}
        self.later: dict[int, list[tuple[Relation, Message]]] = {}
        since = {oid: min(one.lsn for one in table.ranges) for oid, table in copied.tables.items()}
        if not since:
            return
        for transaction in _later_transactions(Recording(recording, may_be_empty=True), min(since.values())):
            if not transaction.xid:  # copied rows, not changes of the source
                continue
            lsn = transaction.commit_lsn
            for change in transaction.changes:
                for relation in change.relations:
                    oid = relation.oid
                    if oid in since and lsn >= copied.tables[oid].lsn:
                        described, message = (_of_relation(one, oid) for one in (relation, change.message))
                        self.later.setdefault(oid, []).append((described, message))
                    elif oid in since and lsn >= since[oid]:
                        keys = named_keys(change.message, key_columns(relation))
                        self.keys.setdefault(oid, []).extend((lsn, key) for key in keys)


def _of_relation(message: Any, oid: int) -> Any:
    """Return a copy of a message without `subxid`; a Truncate is reduced to the relation `oid`."""
    values = {"subxid": None, "relations": (oid,)}
    names = {meaning: field_name(type(message), meaning) for meaning in values}
    fields = {name: values[meaning] for meaning, name in names.items() if name is not None}
    return msgspec.structs.replace(message, **fields)


def _later_transactions(recording: Recording, lsn: int) -> Iterator[Transaction]:
    """Yield the recorded transactions with a commit LSN of at least `lsn`, in commit order.

    Transactions of copied rows are yielded without the rows, which may be millions.
    """
    begin = last = recording.numbers[-1] if recording.numbers else 0
    for number in reversed(recording.numbers):
        (metadata,) = recording.metadata([number])
        if metadata.end_lsn < lsn:
            break
        earlier = [one for end in metadata.ends if (end.lsn or 0) >= lsn for one in end.segments]
        begin = min(begin, number, *earlier)
    else:
        recording.check_begins_before(lsn)
    transactions: Transactions | None = None
    session, is_copy = 0, False
    for number in recording.numbers[recording.numbers.index(begin) :] if last else ():
        with SegmentReader(recording.path(number)) as segment:
            is_first = transactions is None
            if transactions is None:
                decoder = segment.decoder()
                transactions = Transactions(decoder)
            elif segment.metadata.session != session:
                decoder = segment.decoder()
                transactions.reconnect(decoder)
                is_copy = False
            session = segment.metadata.session
            for batch in segment.batches():
                if not is_first:  # the keyframe repeats earlier messages
                    batch = batch.filter(batch["position"].is_valid())
                for data in batch["data"].to_pylist():
                    message = decoder.decode(data)
                    if has_role(message, "begin", "commit"):
                        is_copy = has_role(message, "begin") and not meaning_of(message, "xid")
                    if is_copy and has_role(message, "insert"):
                        continue
                    transaction = transactions.feed(message)
                    if transaction is not None and transaction.commit_lsn >= lsn:
                        yield transaction
