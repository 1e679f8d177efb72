"""One relation and the Delta table that follows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location
from pgoutput.replica.build import Builder
from pgoutput.replica.cells import Cells, spread
from pgoutput.replica.chunks import Chunk
from pgoutput.replica.convert import convert, refined
from pgoutput.replica.differences import Difference
from pgoutput.replica.files import File, Files, commit
from pgoutput.replica.find import Found, find_rows
from pgoutput.replica.fold import Fold, Key, Outcome
from pgoutput.replica.folders import find_table
from pgoutput.replica.properties import describe
from pgoutput.replica.rows import MOMENT, Layout, column_names, make_layout, read_layout

CHUNK_BITS: Final = 20
"""A transaction's version is the number of its batch, and in so many bits that of the chunk."""

_ATTEMPTS: Final = 5


class Replica:
    """A Delta table that is kept equal to a relation, or to its history.

    Args:
        target: Where tables lie.
        chunk: The first of the relation's chunks in a batch: a new table is made for it.
        query: Who writes. The transactions of a query are numbered, and none is made twice.
        recording: UUID of the recording; empty where the changes come from none.
        history: Whether the versions of rows are kept.

    Raises:
        ReplicaError: The target cannot be read, or holds something else.
    """

    def __init__(
        self, target: Location, chunk: Chunk, query: str, recording: str = "", *, history: bool
    ) -> None:
        self._history = history
        self._query = query
        layout = make_layout(chunk.columns, history=history)
        self._table = find_table(target, chunk, layout.schema, recording)

    def apply(self, chunk: Chunk, version: int) -> list[Difference]:
        """Apply the changes of a chunk in one commit, unless that was done before.

        Return why the table may differ from its source since this chunk, and did not before.

        Args:
            chunk: The chunk.
            version: Greater than that of the chunk before.

        Raises:
            ReplicaError: A row is to be found by a column that was never sent.
            deltalake.exceptions.CommitFailedError: Others change the table all the time.
        """
        differences: list[Difference] = []
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                done = self._table.transaction_version(self._query)
                if done is None or version > done:
                    differences += describe(self._table, self._layout(chunk), chunk)
                    layout = self._follow(chunk)
                    _Application(self._table, layout, chunk, Transaction(self._query, version)).run()
                return differences
            except CommitFailedError:
                # Another made the files fewer, or it is a worker of a Spark that was killed, still at work.
                if attempt == _ATTEMPTS:
                    raise
                self._table.update_incremental()
        raise AssertionError("unreachable")

    def _follow(self, chunk: Chunk) -> Layout:
        """Give the table the columns of the relation."""
        old = self._layout(chunk)
        new = make_layout(chunk.columns, history=self._history, old=old)
        self._allow(new.schema)
        added = [field for field in new.values if field.name not in new.sources]
        # REPLICA IDENTITY FULL: a row is not found by a column that nobody sent, so it has to say so.
        marked = bool(added) and len(chunk.keys) == len(chunk.columns)
        if not marked and _extends(new, old):
            if added:
                fields = Schema.from_arrow(pa.schema(added)).fields
                self._table.alter.add_columns([Field(one.name, one.type) for one in fields])
                self._table.update_incremental()
            if new.columns != old.columns:
                metadata = new.schema.field(new.rescued).metadata
                texts = {key.decode(): text.decode() for key, text in metadata.items()}
                self._table.alter.set_column_metadata(new.rescued, texts)
                self._table.update_incremental()
            return self._layout(chunk)
        files = Files(self._table, old.schema)
        target = Files(self._table, new.schema)
        batches = (convert(batch, old, new, chunk.columns) for file in files for batch in files.read(file))
        commit(self._table, target.write(batches), None, Schema.from_arrow(new.schema), None)
        return new

    def _layout(self, chunk: Chunk) -> Layout:
        """The columns of the table."""
        try:
            return read_layout(_arrow_schema(self._table))
        except ValueError as error:
            raise ReplicaError(
                f"{chunk.namespace}.{chunk.name}: the Delta table has {error}. "
                "Restore its version before these, or begin anew, with an empty target"
            ) from None

    def _allow(self, schema: pa.Schema) -> None:
        """Give the table the feature that timestamps without a time zone need, if there are any."""
        feature = TableFeatures.TimestampWithoutTimezone
        elements = [one.type.value_type if pa.types.is_list(one.type) else one.type for one in schema]
        needed = any(pa.types.is_timestamp(type_) and type_.tz is None for type_ in elements)
        if needed and "timestampNtz" not in (self._table.protocol().writer_features or ()):
            self._table.alter.add_feature(feature, allow_protocol_versions_increase=True)
            self._table.update_incremental()


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _extends(new: Layout, old: Layout) -> bool:
    """Whether columns stay what they are, but for those that are added."""
    had = {field.name: field.type for field in old.schema}
    kept = {field.name: field.type for field in new.schema if field.name in had}
    renamed = any(name != source for name, source in new.sources.items())
    return kept == had and old.rescued == new.rescued and not renamed and not refined(old, new)


class _Application:
    """A chunk, on its way into a table."""

    def __init__(self, table: DeltaTable, layout: Layout, chunk: Chunk, transaction: Transaction) -> None:
        self._table = table
        self._layout = layout
        self._chunk = chunk
        self._transaction = transaction
        self._files = Files(table, layout.schema)
        names = [column.name for column in chunk.columns]
        changes = chunk.changes
        old = spread(changes["before"].combine_chunks(), names)
        # What an update with REPLICA IDENTITY FULL did not send anew, it sent with the old row.
        new = spread(changes["after"].combine_chunks(), names)
        self._new = [after.otherwise(before) for after, before in zip(new, old, strict=True)]
        places = [names.index(name) for name in chunk.keys]
        in_table = column_names(chunk.columns)
        self._key = [(in_table[place], chunk.columns[place]) for place in places]
        self._unique = len(chunk.keys) < len(chunk.columns)
        self._operations: list[str] = changes["operation"].to_pylist()
        has_old = changes["before"].combine_chunks().is_valid().to_pylist()
        new_keys = _keys([self._new[place] for place in places], len(changes))
        old_keys = _keys([old[place] for place in places], len(changes))
        self._new_keys = new_keys
        self._old_keys = [
            old if there else new for there, old, new in zip(has_old, old_keys, new_keys, strict=True)
        ]

    def run(self) -> None:
        chunk = self._chunk
        found = self._find()
        outcome = Fold(
            found.keys,
            unique=self._unique,
            alike=(lambda key: self._refuse(found)) if self._unique else found.alike,
        ).apply(self._operations, self._old_keys, self._new_keys)
        builder = Builder(self._layout, chunk.columns, self._new, outcome, found.rows)
        removed: dict[str, list[int]] = {}
        for row in outcome.ended:
            if row < 0:
                file, place = found.places[-1 - row]
                removed.setdefault(file.path, []).append(place)
        batches = self._rows(builder, outcome, found)
        self._commit(batches, removed)

    def _find(self) -> Found:
        chunk, layout = self._chunk, self._layout
        touched: dict[Key, None] = {}
        findable = bool(chunk.keys) or not self._unique
        if findable and not chunk.truncates and "Snapshot" not in self._operations:
            touched = dict.fromkeys(chain(self._old_keys, self._new_keys))
        if layout.end is not None:
            columns = set(layout.schema.names)
        else:
            sent = pc.is_in(chunk.changes["operation"], pa.array(["Insert", "Update"])).combine_chunks()
            columns = {
                name
                for name, cells in zip(column_names(chunk.columns), self._new, strict=True)
                if pc.any(pc.and_not(sent, cells.sent)).as_py()
            }
        return find_rows(self._files, layout, self._key, list(touched), columns, unique=self._unique)

    def _refuse(self, found: Found) -> None:
        """See that a row that has no key that was sent is not one which is wanted."""
        if unknown := found.unknown():
            chunk = self._chunk
            names = ", ".join(self._key[at][1].name for at in unknown)
            raise ReplicaError(
                f"{chunk.namespace}.{chunk.name}: rows cannot be found by {names}: the key was altered, and "
                "the values that rows of the Delta table have there were never sent. "
                "Replicate anew, into an empty target"
            )

    def _rows(self, builder: Builder, outcome: Outcome, found: Found) -> Iterator[pa.RecordBatch]:
        """The rows that the commit adds."""
        layout = self._layout
        schema = layout.schema
        rows = outcome.lasting if layout.end is None else outcome.begun
        arrays = builder.build(rows)
        if layout.start is not None and layout.end is not None:
            moments = _moments(self._chunk.changes)
            arrays[layout.start] = moments.take(pa.array(rows, pa.int64()))
            arrays[layout.end] = moments.take(pa.array([outcome.ended.get(row) for row in rows], pa.int64()))
            closed = {-1 - row: change for row, change in outcome.ended.items() if row < 0}
            if closed:
                ends = moments.take(pa.array(closed.values(), pa.int64()))
                place = found.rows.schema.get_field_index(layout.end)
                taken = found.rows.take(pa.array(closed.keys(), pa.int64()))
                yield from (
                    taken.set_column(place, layout.end, ends).select(schema.names).cast(schema).to_batches()
                )
        yield pa.record_batch(
            [arrays[name].cast(schema.field(name).type) for name in schema.names], schema=schema
        )

    def _commit(self, added: Iterator[pa.RecordBatch], removed: dict[str, list[int]]) -> None:
        replaced: list[File] | None
        if self._chunk.truncates and self._layout.end is None:
            replaced, rest = None, iter(())
        elif self._chunk.truncates:
            replaced = list(self._files)
            rest = (batch for file in replaced for batch in self._closed(file))
        else:
            small = {file.path for file in self._files.small()}
            replaced = [file for file in self._files if file.path in removed or file.path in small]
            rest = (
                batch
                for file in replaced
                for batch in _without(self._files.read(file), removed.get(file.path, ()))
            )
        files = self._files.write(chain(added, rest))
        # Without files as well: a chunk that is not known to be made would change the columns again.
        commit(self._table, files, replaced, self._table.schema(), self._transaction)

    def _closed(self, file: File) -> Iterator[pa.RecordBatch]:
        """The rows of a file, ended by the truncate."""
        assert self._layout.end is not None
        place = self._layout.schema.get_field_index(self._layout.end)
        moment = _moments(self._chunk.changes)[0]
        for batch in self._files.read(file):
            ends = batch[self._layout.end]
            filled = pc.if_else(ends.is_valid(), ends, moment)
            yield batch.set_column(place, self._layout.schema.field(place), filled)


def _keys(columns: Sequence[Cells], rows: int) -> list[Key]:
    if not columns:
        return [()] * rows
    return list(zip(*(cells.texts.to_pylist() for cells in columns), strict=True))


def _moments(changes: pa.Table) -> pa.StructArray:
    """When each change was made."""
    columns = [changes[field.name].combine_chunks().cast(field.type) for field in MOMENT]
    return pa.StructArray.from_arrays(columns, fields=list(MOMENT))


def _without(batches: Iterator[pa.RecordBatch], places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Rows, but for those at some places."""
    gone = set(places)
    first = 0
    for batch in batches:
        if gone:
            kept = [place for place in range(batch.num_rows) if first + place not in gone]
            first += batch.num_rows
            batch = batch.take(pa.array(kept, pa.int64()))
        yield batch
