"""Decode batches of messages to Arrow: a row for each message, and each relation's tuples by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logicalrep import _protocols, _roles
from logicalrep._arrays import Numbers
from logicalrep._changes import change_error
from logicalrep._index import (
    BatchVersions,
    MessageIndex,
    SchemaTracker,
    TupleLocations,
    index_messages,
    letters,
    message_columns,
    read_column,
    read_text_columns,
    tag_mask,
)
from logicalrep.errors import DecodeError
from logicalrep.messages import Relation, RelationColumn, Streaming
from logicalrep.schemas import arrow as schemas
from logicalrep.stream import StreamDecoder
from logicalrep.values import Rescued
from logicalrep.wire import stored_name

_TUPLES: Final = {
    field.name
    for message in _protocols.ALL_VERSIONS.messages
    for field in message.members
    if field.holds_tuples
}

HEADERS: Final = pa.schema([field for field in schemas.MESSAGES if field.name not in _TUPLES])
"""Schema of `DecodedBatch.headers`, one row per message: the columns of `logicalrep.schemas.arrow.MESSAGES`
except those of tuples. In the row of a NULL message, all columns are NULL."""


class Tuples:
    """The new, old or key tuples of one relation in a batch, read by column on demand.

    The methods return record batches with a row for each tuple and the columns of the relation. Bytes of a
    column name that are not valid UTF-8 are escaped.

    Attributes:
        rows: Row of each tuple's message in `DecodedBatch.headers`, as an array of int64.
    """

    def __init__(self, index: MessageIndex, relation: Relation, rows: Numbers, first: Numbers) -> None:
        self.rows: pa.Array = pa.array(rows, pa.int64())
        self._index = index
        self._relation = relation
        self._first = first

    def __len__(self) -> int:
        return len(self._first)

    def kinds(self) -> pa.RecordBatch:
        """Return the tag of each cell: n (NULL), u (unchanged), t (text) or b (binary)."""
        return self._batch([letters(self._index.kinds[numbers]) for numbers in self._cells()])

    def raw(self) -> pa.RecordBatch:
        """Return the bytes of each cell as sent, in text or in binary format; NULL and UNCHANGED are NULL."""
        return self._batch(self._index.raw_columns(self._first, len(self._relation.columns)))

    def texts(self) -> pa.RecordBatch:
        """Return each cell as PostgreSQL's text, as `logicalrep.values.to_text` does; UNCHANGED is NULL."""
        type_oids = [column.type_oid for column in self._relation.columns]
        return self._batch(read_text_columns(self._index, self._first, type_oids))

    def values(self) -> tuple[pa.RecordBatch, Mapping[str, Rescued]]:
        """Return the cells as typed values, and the rescued values, as `logicalrep.values.to_arrow` does.

        Returns:
            A record batch with the types that `logicalrep.values.arrow_type` gives, and the rescued values: a
            dict from column name to a dict from row of the record batch to the value's text.
        """
        rescued: dict[str, Rescued] = {}

        def read(numbers: Numbers, column: RelationColumn) -> pa.Array:
            array, lost = read_column(self._index, numbers, column.type_oid, column.type_modifier)
            texts: Rescued = {row: text for row, text in lost.items() if text is not None}
            if texts:  # a text of None stands for an UNCHANGED cell
                rescued[stored_name(column.name)] = texts
            return array

        return self._batch(list(map(read, self._cells(), self._relation.columns))), rescued

    def _cells(self) -> Iterator[Numbers]:
        """Yield for each column an array: the index of each tuple's cell among all cells of the batch."""
        return (self._first + column for column in range(len(self._relation.columns)))

    def _batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            columns, [stored_name(column.name) for column in self._relation.columns]
        )


class RelationTuples(NamedTuple):
    """The tuples of one schema version of a relation in a batch.

    `new`, `old` and `key` have the tuples of these kinds. Key tuples have NULL in the columns outside the
    replica identity.
    """

    relation: Relation
    """The Relation message, with domains replaced by their base types, and without xid."""
    new: Tuples
    old: Tuples
    key: Tuples


class DecodedBatch:
    """A decoded batch of messages.

    Attributes:
        relations: The tuples of each relation with changes in the batch, separately for each schema version,
            in the order of first appearance.
    """

    def __init__(self, index: MessageIndex, relations: list[RelationTuples]) -> None:
        self._index = index
        self.relations = relations

    @cached_property
    def headers(self) -> pa.RecordBatch:
        """One row per message, in the columns of `HEADERS`."""
        return pa.record_batch(message_columns(self._index, HEADERS), schema=HEADERS)


class ColumnDecoder:
    """Decodes the messages of one connection into columns, batch by batch in the order of the stream.

    ::

        decoder = ColumnDecoder(4, streaming="parallel")
        for data in batches:  # arrays of messages
            decoded = decoder.decode(data)
            print(decoded.headers["type"].value_counts())
            for tuples in decoded.relations:
                print(tuples.relation.name, tuples.new.texts().num_rows)

    Args:
        proto_version: Protocol version of the stream.
        streaming: The option `streaming` of START_REPLICATION.
        two_phase: Whether the slot sends prepared transactions, whatever the protocol version.

    Raises:
        ValueError: The protocol version is unknown, or does not support this value of `streaming`.
    """

    def __init__(self, proto_version: int, *, streaming: Streaming = "off", two_phase: bool = False) -> None:
        self._decoder = StreamDecoder(proto_version, streaming=streaming, two_phase=two_phase)
        self._tracker = SchemaTracker(lambda relation: relation)

    def decode(self, data: pa.Array | pa.ChunkedArray) -> DecodedBatch:
        """Decode the next batch of messages of the connection.

        Args:
            data: One message per row, binary or large_binary; a NULL row has no message.

        Raises:
            DecodeError: A message is invalid, or is a change whose relation is unknown or has more or fewer
                columns than the change has cells. The error names the row of the first such message. No
                message of the batch is returned. The next batch can be decoded: its changes can refer to
                valid Relation messages of this batch.
            TypeError: The data is not binary.
        """
        index, known, found, errors = self._read(data)
        if errors:
            row = min(errors)
            raise _in_row(row, errors[row])
        return DecodedBatch(index, list(_relations(index, known.values, found)))

    def find_error(self, data: pa.Array | pa.ChunkedArray) -> tuple[int, DecodeError] | None:
        """Check the next batch of messages of the connection, as `decode` does, but without making columns.

        Args:
            data: One message per row, binary or large_binary; a NULL row has no message.

        Returns:
            The row of the first invalid message, and its error; None if all messages are valid.

        Raises:
            TypeError: The data is not binary.
        """
        index, _, _, errors = self._read(data)
        for row in np.flatnonzero(_IS_TRUNCATE[index.tags]).tolist():
            (message,) = index.messages([row])
            for oid in _roles.meaning_of(message, "relations"):
                if oid not in self._tracker:
                    errors.setdefault(row, change_error(message, oid, None))
        return min(errors.items(), key=itemgetter(0)) if errors else None

    def _read(
        self, data: pa.Array | pa.ChunkedArray
    ) -> tuple[MessageIndex, BatchVersions[Relation], dict[str, TupleLocations], dict[int, DecodeError]]:
        index = index_messages(_array(data), self._decoder)
        known = self._tracker.advance(index)
        found = {
            meaning: known.versions.find_tuples(index, meaning) for meaning in RelationTuples._fields[1:]
        }
        errors = dict(index.errors)
        # An unknown relation has the schema version -1. As an index, -1 finds the last width, which is -1: no
        # tuple has this width.
        widths = np.array([*(len(relation.columns) for relation in known.values), -1], np.int64)
        for tuples in found.values():
            errors.update(_first_misfit(index, known.values, widths, tuples))
        return index, known, found, errors


_IS_TRUNCATE: Final = tag_mask("truncate")


def _first_misfit(
    index: MessageIndex, relations: Sequence[Relation], widths: Numbers, tuples: TupleLocations
) -> dict[int, DecodeError]:
    """Return {row: error} for the first tuple with another number of cells than its relation; {} if none."""
    wrong = widths[tuples.versions] != tuples.widths
    if not wrong.any():
        return {}
    row, version = (int(numbers[wrong.argmax()]) for numbers in (tuples.rows, tuples.versions))
    (message,) = index.messages([row])
    oid = _roles.meaning_of(message, "relation")
    return {row: change_error(message, oid, None if version < 0 else relations[version])}


def _array(data: pa.Array | pa.ChunkedArray) -> pa.Array:
    if data.type not in (pa.binary(), pa.large_binary()):
        raise TypeError(f"expected messages as an Arrow array of binary, found {data.type}")
    return data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data


def _in_row(row: int, error: DecodeError) -> DecodeError:
    """Return a copy of the error, with the row number at the start of the text."""
    text = f"row {row}: {error}"
    return type(error)(text, message=error.message, field=error.field, offset=error.offset)


def _relations(
    index: MessageIndex, relations: Sequence[Relation], found: Mapping[str, TupleLocations]
) -> Iterator[RelationTuples]:
    """Yield the tuples of each schema version of each relation, in the order of their first rows."""
    groups: dict[int, dict[str, Numbers]] = {}
    for name, tuples in found.items():
        for group in _groups(tuples.versions):
            groups.setdefault(int(tuples.versions[group[0]]), {})[name] = group
    first_rows = {
        version: min(found[name].rows[group[0]] for name, group in by_name.items())
        for version, by_name in groups.items()
    }
    for version in sorted(first_rows, key=first_rows.__getitem__):
        relation = relations[version]
        selected = (_take(tuples, groups[version].get(name, _NOTHING)) for name, tuples in found.items())
        yield RelationTuples(relation, *(Tuples(index, relation, *located) for located in selected))


_NOTHING: Final = np.empty(0, np.int64)


def _take(tuples: TupleLocations, indices: Numbers) -> tuple[Numbers, Numbers]:
    """Return two arrays for the tuples at `indices` (ascending): message rows, and indexes of first cells."""
    if len(indices) == len(tuples.rows):
        return tuples.rows, tuples.first
    return tuples.rows[indices], tuples.first[indices]


def _groups(numbers: Numbers) -> list[Numbers]:
    """Return for each distinct value in `numbers` an array of its indices, ascending."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [np.arange(len(numbers))]
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    ends = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return [group for group in np.split(order, ends) if len(group)]
