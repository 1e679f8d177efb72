"""Batches of messages to Arrow: a row for each message, and for each relation its tuples by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput.columns.epochs import Epochs, change_error
from pgoutput.columns.index import DESCRIBES, Found, Index, Numbers
from pgoutput.columns.messages import letters, message_columns
from pgoutput.columns.read import index_messages, read_column, read_texts
from pgoutput.errors import DecodeError
from pgoutput.messages import Relation, RelationColumn, Streaming, Truncate, Type
from pgoutput.schemas import arrow as schemas
from pgoutput.stream import StreamDecoder
from pgoutput.values import Rescued, base_types
from pgoutput.wire import shown_text

HEADERS: Final = pa.schema(
    [field.with_nullable(True) for field in schemas.MESSAGES if field.type != schemas.TUPLE_DATA]
)
"""One row per message: `pgoutput.schemas.arrow.MESSAGES` without tuples. All is NULL where there is no
message."""


class Tuples:
    """Tuples of one relation, read by column when they are asked for.

    The batches that its methods give have a row for each tuple and the columns of the relation; what cannot
    be told of a column name in UTF-8 is escaped.

    Attributes:
        rows: The number of the message of each, an array of int64: its row in `Decoded.headers`.
    """

    def __init__(self, index: Index, relation: Relation, rows: Numbers, first: Numbers) -> None:
        self.rows = pa.array(rows, pa.int64())
        self._index = index
        self._relation = relation
        self._first = first

    def __len__(self) -> int:
        return len(self._first)

    def kinds(self) -> pa.RecordBatch:
        """What each cell is, by its tag: n (NULL), u (unchanged), t (text) or b (binary)."""
        return self._batch(lambda numbers, _: letters(self._index.kinds[numbers]))

    def raw(self) -> pa.RecordBatch:
        """The bytes of each cell as they were sent, in text or in binary format."""
        return self._batch(lambda numbers, _: self._index.raw(numbers))

    def texts(self) -> pa.RecordBatch:
        """Strings, as the server writes them: see `pgoutput.values.to_text`."""
        return self._batch(lambda numbers, column: read_texts(self._index, numbers, column.type_oid))

    def values(self) -> tuple[pa.RecordBatch, Mapping[str, Rescued]]:
        """Typed values, and what the types cannot hold: see `pgoutput.values.to_arrow`.

        Returns:
            A batch whose types are those that `pgoutput.values.arrow_type` gives, and apart from it, by
            column, texts of what is NULL there for that reason, by the row in this batch.
        """
        rescued: dict[str, Rescued] = {}

        def read(numbers: Numbers, column: RelationColumn) -> pa.Array:
            array, lost = read_column(self._index, numbers, column.type_oid, column.type_modifier)
            texts: Rescued = {row: text for row, text in lost.items() if text is not None}
            if texts:  # but for what is unchanged
                rescued[shown_text(column.name)] = texts
            return array

        return self._batch(read), rescued

    def _batch(self, read: Callable[[Numbers, RelationColumn], pa.Array]) -> pa.RecordBatch:
        columns = self._relation.columns
        arrays = [read(self._first + place, column) for place, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, [shown_text(column.name) for column in columns])


_TUPLES: Final = ("new", "old", "key")
_TRUNCATE: Final = ord(Truncate.wire_tag)


class RelationTuples(NamedTuple):
    """The tuples of a relation in a batch, as it was from a Relation message to the next that says otherwise.

    They are called as the fields of the messages are: `key` has the columns of the replica identity, and
    NULL in the others.
    """

    relation: Relation
    """Without xid, and with domains replaced by their base types."""
    new: Tuples
    old: Tuples
    key: Tuples


class Decoded:
    """A batch of messages, decoded.

    Attributes:
        relations: The tuples of each relation that the messages change, in the order in which they appear.
    """

    def __init__(self, index: Index, relations: list[RelationTuples]) -> None:
        self._index = index
        self.relations = relations

    @cached_property
    def headers(self) -> pa.RecordBatch:
        """The messages, by `HEADERS`."""
        return pa.record_batch(message_columns(self._index, HEADERS), schema=HEADERS)


class ColumnDecoder:
    """Decodes the messages of one connection into columns, batch by batch, in their order.

    ::

        decoder = ColumnDecoder(4, streaming="parallel")
        for data in batches:  # arrays of messages
            decoded = decoder.decode(data)
            print(decoded.headers["type"].value_counts())
            for tuples in decoded.relations:
                print(tuples.relation.name, tuples.new.texts().num_rows)

    Args:
        proto_version: As for `StreamDecoder`.
        streaming: Likewise.
        two_phase: Likewise.

    Raises:
        ValueError: Likewise.
    """

    def __init__(self, proto_version: int, *, streaming: Streaming = "off", two_phase: bool = False) -> None:
        self._decoder = StreamDecoder(proto_version, streaming=streaming, two_phase=two_phase)
        self._types: dict[int, Type] = {}
        self._last: dict[int, Relation] = {}
        self._known = _Known([], [])

    def decode(self, data: pa.Array | pa.ChunkedArray) -> Decoded:
        """Decode the messages that follow those of the last call.

        Args:
            data: One message each, binary or large_binary; NULL is no message.

        Raises:
            DecodeError: Something is no message of this stream, or changes a relation that is not known or
                that has other columns; it says the row. The decoder goes on behind this batch, as if the
                messages in it that are wrong had not been there.
            TypeError: The data is not binary.
        """
        index, relations, found, errors = self._read(data)
        if errors:
            row = min(errors)
            raise _in_row(row, errors[row])
        return Decoded(index, list(_relations(index, relations, found)))

    def find_error(self, data: pa.Array | pa.ChunkedArray) -> tuple[int, DecodeError] | None:
        """Read the messages that follow those of the last call to their last byte.

        Args:
            data: As for `decode`.

        Returns:
            The row of the first message that `decode` would refuse, and why; None if there is none.

        Raises:
            TypeError: The data is not binary.
        """
        index, _, _, errors = self._read(data)
        for row in np.flatnonzero(index.tags == _TRUNCATE).tolist():
            (message,) = index.messages([row])
            for oid in message.relation_oids:  # type: ignore[attr-defined]
                if oid not in self._last:
                    errors.setdefault(row, change_error(message, oid, None))
        return min(errors.items(), key=itemgetter(0)) if errors else None

    def _read(
        self, data: pa.Array | pa.ChunkedArray
    ) -> tuple[Index, Sequence[Relation], dict[str, Found], dict[int, DecodeError]]:
        index = index_messages(_array(data), self._decoder)
        known = self._see(index)
        found = {name: known.epochs.find_tuples(index, name) for name in _TUPLES}
        errors = dict(index.errors)
        for name, tuples in found.items():
            errors.update(known.misfit(index, name, tuples))
        return index, known.relations, found, errors

    def _see(self, index: Index) -> _Known:
        """All relations that this batch can refer to. Those before it stand at 0, its first row at 1."""
        rows = np.flatnonzero(DESCRIBES[index.tags]).tolist()
        known = self._known
        found: list[Relation] = []
        places: list[int] = []
        for row, message in zip(rows, index.messages(rows), strict=True):
            if isinstance(message, Type):
                self._types[message.oid] = message
            elif isinstance(message, Relation):
                relation = base_types(msgspec.structs.replace(message, xid=None), self._types)
                if self._last.get(relation.oid) != relation:
                    self._last[relation.oid] = relation
                    found.append(relation)
                    places.append(row + 1)
        if not found:
            return known
        self._known = _Known(list(self._last.values()), [0] * len(self._last))
        return _Known([*known.relations, *found], [0] * len(known.relations) + places)


class _Known:
    """Relations that are known, and where each begins to hold."""

    def __init__(self, relations: Sequence[Relation], places: Sequence[int]) -> None:
        self.relations = relations
        self.epochs = Epochs([relation.oid for relation in relations], places)
        self._widths = np.array([*(len(relation.columns) for relation in relations), -1], np.int64)

    def misfit(self, index: Index, name: str, tuples: Found) -> dict[int, DecodeError]:
        """What is wrong with the first tuple that is not one of its relation, by its row."""
        wrong = self._widths[tuples.relations] != index.width(name)[tuples.rows]
        if not wrong.any():
            return {}
        row, epoch = (int(numbers[wrong.argmax()]) for numbers in (tuples.rows, tuples.relations))
        (message,), oid = index.messages([row]), int(index.field("relation_oid").values[row])
        return {row: change_error(message, oid, None if epoch < 0 else self.relations[epoch])}


def _array(data: pa.Array | pa.ChunkedArray) -> pa.Array:
    if data.type not in (pa.binary(), pa.large_binary()):
        raise TypeError(f"messages are binary, not {data.type}")
    return data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data


def _in_row(row: int, error: DecodeError) -> DecodeError:
    text = f"row {row}: {error}"
    return type(error)(text, message=error.message, field=error.field, offset=error.offset)


def _relations(
    index: Index, relations: Sequence[Relation], found: Mapping[str, Found]
) -> Iterator[RelationTuples]:
    """The tuples of each relation, of the names that are found."""
    groups: dict[int, dict[str, Numbers]] = {}
    for name, tuples in found.items():
        for group in _groups(tuples.relations):
            groups.setdefault(int(tuples.relations[group[0]]), {})[name] = group
    rows = {
        epoch: min(found[name].rows[group[0]] for name, group in of_epoch.items())
        for epoch, of_epoch in groups.items()
    }
    for epoch in sorted(rows, key=rows.__getitem__):
        relation = relations[epoch]
        taken = (_some(tuples, groups[epoch].get(name, _NOTHING)) for name, tuples in found.items())
        yield RelationTuples(relation, *(Tuples(index, relation, rows, first) for rows, first, _ in taken))


_NOTHING: Final = np.empty(0, np.int64)


def _some(tuples: Found, places: Numbers) -> Found:
    """Those in some places, which are in order."""
    return tuples if len(places) == len(tuples.rows) else Found(*(part[places] for part in tuples))


def _groups(numbers: Numbers) -> list[Numbers]:
    """The places of equal numbers, in order."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [np.arange(len(numbers))]
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    ends = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return [group for group in np.split(order, ends) if len(group)]
