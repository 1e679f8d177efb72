"""Decode messages in any order, after a first pass over the few messages that other messages depend on.

A message cannot be decoded alone: inside a stream block it has an xid, and a change needs the Relation
message that is valid at its place in the stream. `build_stream_context` collects stream blocks and Relation
messages in a `StreamContext`. With the `StreamContext`, `UnorderedDecoder` decodes all messages in any order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep import _roles
from logicalrep._arrays import Mask, Numbers
from logicalrep._changes import change_error
from logicalrep._index import (
    MessageIndex,
    SchemaVersions,
    index_messages,
    misfits,
    tag_mask,
)
from logicalrep.errors import DecodeError, StreamError
from logicalrep.messages import AnyMessage, Relation, ReplicaIdentity
from logicalrep.stream import StreamDecoder
from logicalrep.views.change_cells import Changes, used_schemas
from logicalrep.views.committed_changes import IS_CHANGE, split_changes
from logicalrep.views.relation_schemas import RelationSchema, relation_schema

Key: TypeAlias = tuple[Any, ...]
"""Sort key of a message. Messages sorted by their keys are in the order of the stream."""

KeyColumns: TypeAlias = Sequence[pa.Array]
"""Sort keys of several messages: an array for each component of the key."""

_BLOCK_BORDERS: Final = ("open_block", "close_block")
_CONTEXT: Final = ("relation", "type", *_BLOCK_BORDERS)

CONTEXT_TAGS: Final = tuple(kind.wire_tag for kind in _roles.classes(*_CONTEXT))
"""First bytes of the messages that make up a `StreamContext`: Relation, Type, Stream Start, Stream Stop."""


class StreamContext:
    """The stream blocks and schema versions of a stream, by sort key.

    A rank is a number that orders messages. The messages that begin or end a stream block, or begin a schema
    version, have odd ranks: 1, 3, 5 and so on. All messages between two such messages have the even rank
    between the two ranks.

    Attributes:
        relations: The Relation messages that begin a schema version, without xids. An invalid message
            begins a schema version without columns.
        schemas: The schema that each message of `relations` describes.
        invalid: For each message of `relations`, whether it is invalid. A further last item is False: it is
            found by the index -1, which means that no schema version is valid.
        versions: Finds the index in `relations` and `schemas` for a relation OID and rank.

    Args:
        keys: Sort keys of the messages with the ranks 1, 3, 5 and so on, ascending.
        borders: Ranks where stream blocks begin and end, alternately.
        relations: Rank, Relation message and schema of each schema version, and whether it is invalid.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        borders: Sequence[int],
        relations: Sequence[tuple[int, Relation, RelationSchema, bool]],
    ) -> None:
        self.relations: list[Relation] = [relation for _, relation, _, _ in relations]
        self.schemas: list[RelationSchema] = [schema for _, _, schema, _ in relations]
        self.versions: SchemaVersions = SchemaVersions(
            [relation.oid for relation in self.relations], [rank for rank, _, _, _ in relations]
        )
        self.invalid: Mask = np.array([*(invalid for _, _, _, invalid in relations), False])
        self._keys = keys
        self._borders = np.array(borders, np.int64)

    def ranks(self, keys: KeyColumns) -> Numbers:
        """Return the rank of each message: its place in the order of the stream (`StreamContext`).

        The rank is -1 if a component of the message's sort key is NULL.
        """
        if all(pa.types.is_integer(column.type) for column in keys):
            packed = _packed(np.stack([column.fill_null(0).cast(pa.int64()) for column in keys], axis=1))
            ranks = np.searchsorted(self._packed, packed) + np.searchsorted(self._packed, packed, "right")
            unknown = np.any([np.asarray(column.is_null()) for column in keys], axis=0)
            return np.where(unknown, -1, ranks)
        rows = zip(*(column.to_pylist() for column in keys), strict=True)
        return np.array([-1 if None in key else self._rank(key) for key in rows], np.int64)

    def _rank(self, key: Key) -> int:
        return bisect_left(self._keys, key) + bisect_right(self._keys, key)

    @cached_property
    def _packed(self) -> npt.NDArray[np.bytes_]:
        return _packed(np.array(self._keys, np.int64))

    def latest_relations(self) -> list[Relation]:
        """Return the relations at the end of the stream, with base types in place of domains."""
        versions = zip(self.schemas, self.invalid.tolist(), strict=False)
        latest = {schema.relation.oid: (schema.relation, invalid) for schema, invalid in versions}
        return [relation for relation, invalid in latest.values() if not invalid]

    def in_stream(self, ranks: Numbers) -> Mask:
        """Return for each rank whether it is inside a stream block: after Stream Start, up to Stream Stop.

        Args:
            ranks: Ranks of messages: their places in the order of the stream (`StreamContext`).
        """
        inside: Mask = np.searchsorted(self._borders, ranks) % 2 == 1
        return inside

    def is_block_border(self, ranks: Numbers) -> Mask:
        """Return for each rank whether it is the rank of a Stream Start or Stream Stop.

        Args:
            ranks: Ranks of messages: their places in the order of the stream (`StreamContext`).
        """
        return np.isin(ranks, self._borders)


def _packed(rows: Numbers) -> npt.NDArray[np.bytes_]:
    """Return each row of integers as a byte string; the byte strings sort in the order of the rows."""
    unsigned = rows.view(np.uint64) ^ np.uint64(1 << 63)
    return unsigned.astype(">u8").view(f"S{8 * rows.shape[-1] or 8}").reshape(-1)


def build_stream_context(rows: Iterable[tuple[Key, bytes]], decoder: StreamDecoder) -> StreamContext:
    """Return the `StreamContext` of a stream: its stream blocks and schema versions.

    Messages that cannot be decoded have no effect, and a damaged Stream Start opens its stream block, as in
    `StreamDecoder`. One thing differs: after an invalid Relation message, the changes of its relation are
    invalid until the next Relation message.

    Args:
        rows: Sort key and bytes of each message whose first byte is in `CONTEXT_TAGS`, in any order.
            Duplicates, and messages whose key contains None, are ignored.
        decoder: A new decoder of the stream.

    Raises:
        ValueError: Two different messages have the same sort key.
    """
    ordered = sorted({(key, data) for key, data in rows if None not in key})
    keys: list[Key] = []
    borders: list[int] = []
    relations: list[tuple[int, Relation, RelationSchema, bool]] = []
    latest: dict[int, tuple[Relation, Relation, bool]] = {}
    for number, (key, data) in enumerate(ordered):
        if number and ordered[number - 1][0] == key:
            raise ValueError(
                f"the order of two messages is ambiguous: {ordered[number - 1][1][:1]!r} and {data[:1]!r} "
                f"have the same sort key {format_key(key)}. Sort by more columns: an LSN is not unique"
            )
        before, invalid = decoder.in_stream, False
        message: AnyMessage | None = None
        try:
            message = decoder.decode(data)
        except DecodeError:
            if (oid := _relation_oid(data, decoder)) is not None:
                message, invalid = msgspec.structs.replace(_WITHOUT_COLUMNS, oid=oid), True
        rank = 2 * len(keys) + 1
        if decoder.in_stream is not before:
            borders.append(rank)
            keys.append(key)
        elif isinstance(message, Relation):
            relation = msgspec.structs.replace(message, xid=None)
            schema = relation_schema(relation, decoder.types)
            description = relation, schema.relation, invalid
            if latest.get(relation.oid) != description:
                latest[relation.oid] = description
                relations.append((rank, relation, schema, invalid))
                keys.append(key)
    return StreamContext(keys, borders, relations)


_WITHOUT_COLUMNS: Final = Relation(
    oid=0, namespace="", name="", replica_identity=ReplicaIdentity.NOTHING, columns=()
)


def _relation_oid(data: bytes, decoder: StreamDecoder) -> int | None:
    """Return the OID in an invalid Relation message; None for other messages, or if the OID is cut off."""
    if _roles.tags("relation").intersection(data[:1]):
        with suppress(DecodeError):
            for piece in decoder.walk(data):
                if piece.path in _roles.tags_by_field("oid"):
                    return int(piece.value)
    return None


class UnorderedBatch(msgspec.Struct, frozen=True):
    """A decoded batch of messages, which can be in any order."""

    index: MessageIndex
    errors: Mapping[int, DecodeError]
    """Error of each message that is invalid or out of place, by row."""
    changes: Changes
    """Changes of the messages without errors."""


class UnorderedDecoder:
    """Decodes messages in any order, with the stream blocks and schema versions of a `StreamContext`.

    Args:
        context: The `StreamContext` of the stream.
        decoder: A decoder for the stream's protocol version and options; its state does not matter.
    """

    def __init__(self, context: StreamContext, decoder: StreamDecoder) -> None:
        self._context = context
        self._decoder = decoder

    def decode(self, keys: KeyColumns, data: pa.Array) -> UnorderedBatch:
        """Decode a batch of messages.

        Args:
            keys: Sort keys of the messages.
            data: The messages; NULL for a row without a message.

        Raises:
            ValueError: The context lacks a Relation, Stream Start or Stream Stop message of the batch:
                the messages have changed since the `StreamContext` was built.
        """
        ranks = self._context.ranks(keys)
        index = index_messages(data, self._decoder, self._context.in_stream(ranks))
        errors = dict(index.errors)
        for row in np.flatnonzero((ranks < 0) & np.asarray(data.is_valid())).tolist():
            errors[row] = StreamError(
                "a column of the sort key is NULL, so the order of the message is unknown"
            )
        tags = np.where(ranks < 0, _NO_TAG, index.tags)
        self._check_complete(index, tags, ranks, keys)
        at_border = (tags != _NO_TAG) & ~_IS_CONTEXT[tags] & self._context.is_block_border(ranks)
        for row in np.flatnonzero(at_border).tolist():
            (message,) = index.messages([row])
            text = f"a Stream Start or Stream Stop has the same sort key {format_key(key_at(keys, row))}"
            errors[row] = StreamError.at(message, text)
        changes, wrong = self._changes(index, np.flatnonzero(IS_CHANGE[tags] & ~at_border), ranks, keys)
        return UnorderedBatch(index, errors | wrong, changes)

    def _changes(
        self, index: MessageIndex, rows: Numbers, ranks: Numbers, keys: KeyColumns
    ) -> tuple[Changes, dict[int, DecodeError]]:
        """Return the changes whose tuples fit their relation, and the errors of the other changes by row.

        Args:
            index: The messages of the batch.
            rows: Rows of the messages that change rows.
            ranks: Rank of each message of the batch: its place in the order of the stream (`StreamContext`).
            keys: Sort keys of the messages of the batch.
        """
        schemas, versions = self._context.schemas, self._context.versions
        rows, oids = split_changes(index, rows)
        numbers = versions.find(oids, ranks[rows])
        invalid = self._context.invalid[numbers]
        same_key = versions.begins_at(oids, ranks[rows])
        widths = np.array([*(len(schema.names) for schema in schemas), 0], np.int64)
        wrong = same_key | invalid | (numbers < 0) | misfits(index, rows, widths[numbers])
        errors: dict[int, DecodeError] = {}
        for change in np.flatnonzero(wrong).tolist():
            row, number = int(rows[change]), int(numbers[change])
            (message,) = index.messages([row])
            if same_key[change]:
                text = f"a Relation message has the same sort key {format_key(key_at(keys, row))}"
                error = StreamError.at(message, text)
            elif invalid[change]:
                text = f"the last Relation message of the OID {int(oids[change])} is invalid"
                error = StreamError.at(message, text)
            else:
                relation = None if number < 0 else schemas[number].relation
                error = change_error(message, int(oids[change]), relation)
            errors.setdefault(row, error)
        right = ~np.isin(rows, list(errors))  # an error in one relation drops the whole Truncate
        return Changes(index, rows[right], *used_schemas(schemas, numbers[right])), errors

    def _check_complete(
        self, index: MessageIndex, tags: npt.NDArray[np.uint8], ranks: Numbers, keys: KeyColumns
    ) -> None:
        """Raise ValueError if the context lacks a Relation, Stream Start or Stream Stop of the batch."""
        context = self._context
        unexpected = np.flatnonzero(_IS_BLOCK_BORDER[tags] & ~context.is_block_border(ranks)).tolist()
        rows = np.flatnonzero(_IS_RELATION[tags])
        numbers = context.versions.find(index.meaning("oid", rows), ranks[rows] + 1).tolist()
        for row, number, message in zip(rows.tolist(), numbers, index.messages(rows.tolist()), strict=True):
            if number < 0 or context.relations[number] != msgspec.structs.replace(message, xid=None):
                unexpected.append(row)
        if unexpected:
            (message,), key = index.messages([min(unexpected)]), key_at(keys, min(unexpected))
            raise ValueError(
                f"{type(message).__name__} at {format_key(key)} was not in the input when the relations of "
                "the input were collected: the input must not change. Cache it, or limit it to a fixed range"
            )


_NO_TAG: Final = 0
"""Used as the first byte of a row without a message, and of a message with NULL in its sort key."""

_IS_CONTEXT: Final = tag_mask(*_CONTEXT)
_IS_BLOCK_BORDER: Final = tag_mask(*_BLOCK_BORDERS)
_IS_RELATION: Final = tag_mask("relation")


def key_at(keys: KeyColumns, row: int) -> Key:
    """Return the sort key of the message in a row."""
    return tuple(column[row].as_py() for column in keys)


def format_key(key: Key) -> str:
    """Return a sort key as text for error messages."""
    return ", ".join(map(repr, key))
