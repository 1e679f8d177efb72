"""The interface of an index of a batch of messages.

`MessageIndex` has the locations of the fields and cells of each message. The index is built in one pass over
the batch, which also checks the messages as the codecs do. All cells of the batch, also those in lists of
tuples, are numbered from 0, in the order of the wire. Cells are read on demand, by these numbers.
`KernelIndex` is built by the compiled kernel, without the GIL and without an object per message. `PureIndex`
is the reference implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep import _roles
from logicalrep._arrays import Mask, Numbers
from logicalrep.errors import DecodeError
from logicalrep.messages import Cell, Message


class FieldValues(NamedTuple):
    """The values of one fixed-width field, such as `xid`, in all messages of a batch."""

    values: Numbers
    """The field's value in each message: flags and enums as their byte, LSNs of 2**63 and more as negative
    numbers. Undefined for messages without the field."""
    present: Mask
    """For each message, whether the message has the field."""


class PartialArray(NamedTuple):
    """An Arrow array, and the rows whose values this array does not represent."""

    array: pa.Array
    unread: Numbers
    """Rows that are NULL in `array` although the value is not NULL: the value is text in invalid UTF-8,
    outside the range of the array's type, or in a format that the reading method does not accept."""


RANK_BITS: Final = 31
"""Number of low bits for the rank (a number that orders messages) in a schema version's sort key; the higher
bits are the relation OID."""


class MessageTuples(NamedTuple):
    """Locations of tuples in a batch: of the tuples in one field, or of all new, all old or all key tuples.

    Each array has one item per message of the batch, even if messages have lists of tuples.
    """

    first: Numbers
    """For each message, the index of its first tuple's first cell among all cells of the batch; -1 if the
    message has no tuple."""
    widths: Numbers
    """For each message, the number of cells in each of its tuples; 0 without tuples, -1 if tuples differ."""
    counts: Numbers | None
    """For each message, the number of tuples in its list of tuples; None if no message of the batch has a
    list of tuples. The cells of a list's tuples are consecutive. For a message without such a list,
    `MessageIndex.tuples_in` gives 0, and `MessageIndex.tuples` gives 1."""


class TupleLocations(NamedTuple):
    """Where all new, all old or all key tuples of a batch are; each array has one item per tuple."""

    rows: Numbers
    """For each tuple, the row of its message in the batch."""
    first: Numbers
    """For each tuple, the index of its first cell among all cells of the batch."""
    versions: Numbers
    """For each tuple, the number of its relation's schema version; -1 if the relation is unknown."""
    widths: Numbers
    """For each tuple, its number of cells; -1 if the tuples of its message differ in this number."""


class MessageIndex(ABC):
    """Index of a batch of messages: where the fields and cells of each message are.

    Attributes:
        data: The messages, as an Arrow array of binary or large_binary.
        tags: The first byte of each message; 0 for NULL and for an invalid message.
        errors: Maps the row of an invalid message to the error that the codec raises. Such a message has no
            effect on the messages after it, as in a `StreamDecoder`.
        kinds: The tag of each cell as ASCII code: n (NULL), u (unchanged), t (text) or b (binary).
    """

    data: pa.Array
    tags: npt.NDArray[np.uint8]
    errors: dict[int, DecodeError]
    kinds: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.data)

    @abstractmethod
    def messages(self, rows: Sequence[int]) -> list[Message]:
        """Return the messages in `rows` as objects; no row may be NULL or invalid."""

    @abstractmethod
    def field(self, name: str) -> FieldValues:
        """Return a fixed-width field, such as `xid` or `relation_oid`, of all messages of the batch."""

    @abstractmethod
    def strings(self, name: str) -> PartialArray:
        """Return a string or bytes field, such as `gid` or `content`, of all messages of the batch."""

    @abstractmethod
    def tuples_in(self, name: str) -> MessageTuples | None:
        """Return where the tuples in the field `name` are: one tuple or a list of tuples for each message.

        Return None if no message of the batch has the field.
        """

    def meaning(self, meaning: str, rows: Numbers | None = None) -> Numbers:
        """Return for each message the value of its fixed-width field that means `meaning`.

        The value is undefined for a message without such a field.

        Args:
            meaning: What the field means, such as `relation`.
            rows: Rows of the messages in the batch; None for all messages.
        """
        (name, _), *others = _fields_by_meaning(meaning)
        values = self.field(name).values
        if rows is None and not others:
            return values
        rows = np.arange(len(self)) if rows is None else rows
        values = values[rows]
        for name, has_field in others:
            if (other := has_field[self.tags[rows]]).any():
                values[other] = self.field(name).values[rows[other]]
        return values

    def has_meaning(self, meaning: str, rows: Numbers) -> Mask:
        """Return for each message in `rows` whether it has a fixed-width field that means `meaning`.

        A meaning is what a field tells, such as `relation`.
        """
        tags, found = self.tags[rows], np.zeros(len(rows), np.bool_)
        for name, has_field in _fields_by_meaning(meaning):
            if (selected := has_field[tags]).any():
                found |= selected & self.field(name).present[rows]
        return found

    def tuples(self, meaning: str) -> MessageTuples | None:
        """Return where the tuples of the given meaning are; None if no message of the batch has such a tuple.

        Args:
            meaning: `new`, `old` or `key`.
        """
        found = [one for name in _roles.tags_by_field(meaning) if (one := self.tuples_in(name)) is not None]
        if not found:
            return None
        if len(found) == 1 and found[0].counts is None:
            return found[0]
        first, widths, counts = (np.full(len(self), number, np.int64) for number in (-1, 0, 1))
        for one in found:
            present = one.first >= 0
            first[present] = one.first[present]
            widths[present] = one.widths[present]
            if one.counts is not None:
                counts[present] = one.counts[present]
        return MessageTuples(first, widths, counts)

    def first_tuples(self, first: Numbers, keys: Numbers, versions: Numbers) -> tuple[Numbers, ...]:
        """Return three arrays, with an item per message that has a tuple: row, first cell, schema version.

        The schema version is given by its number; -1 if the relation is unknown.

        Args:
            first: For each message, the index of its tuple's first cell; -1 if it has no tuple.
            keys: For each schema version a sort key, ascending: the relation OID shifted left by `RANK_BITS`,
                plus the row number + 1 of the Relation message (plus 0 if it came before the batch).
            versions: For each key, the number of its schema version.
        """
        rows = np.flatnonzero(first >= 0)
        oids = self.meaning("relation", rows)
        return rows, first[rows], latest_versions(keys, versions, oids, rows + 1)

    @abstractmethod
    def cells(self, numbers: Numbers) -> list[Cell]:
        """Return the cells with these indexes in the batch as `Cell` objects; -1 gives None."""

    @abstractmethod
    def raw(self, numbers: Numbers) -> pa.Array:
        """Return the bytes of the cells with these indexes; NULL for a NULL or UNCHANGED cell and for -1."""

    @abstractmethod
    def texts(self, numbers: Numbers) -> PartialArray:
        """Return cells in text format as strings; NULL cells and the index -1 give NULL.

        `unread` of the result has the rows of all other cells: binary, unchanged, or text that is not valid
        (`stored_text`). The row of a cell in the result is its index in `numbers`.

        Args:
            numbers: Indexes of the cells in the batch.
        """

    def raw_columns(self, first: Numbers, columns: int) -> list[pa.Array]:
        """Return the cells of several columns, each as `raw` does.

        Args:
            first: For each row, the index of its cell in the first column; the row's other cells follow. -1
                gives NULL in all columns.
            columns: Number of columns.
        """
        return [self.raw(_shift(first, column)) for column in range(columns)]

    def text_columns(self, first: Numbers, columns: int) -> list[PartialArray]:
        """Return the cells of several columns, each as `texts` does.

        Args:
            first: For each row, the index of its cell in the first column; the row's other cells follow. -1
                gives NULL in all columns.
            columns: Number of columns.
        """
        return [self.texts(_shift(first, column)) for column in range(columns)]

    @abstractmethod
    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> PartialArray | None:
        """Return cells as values of an Arrow type, equal to the results of `logicalrep.values.to_arrow`.

        Args:
            numbers: Indexes of the cells in the batch; -1 gives NULL.
            type_: The Arrow type.
            send: Name of the send function of the cells' PostgreSQL type. It is needed to read cells in
                binary format. If None, binary cells are not read: `unread` of the result has their rows. It
                must be None if `arrow_type` returns another Arrow type than `type_` for the PostgreSQL type.

        Returns:
            The values, or None if this method would not be faster than `to_arrow`.
        """


def _shift(numbers: Numbers, by: int) -> Numbers:
    """Return the numbers plus `by`; -1, which stands for no cell, stays -1."""
    return mask_out(numbers + by, numbers < 0)


@cache
def _fields_by_meaning(meaning: str) -> Sequence[tuple[str, Mask]]:
    """Return (name, mask) of each field that means `meaning`, such as `relation`.

    The mask says for each of the 256 possible first bytes of a message whether the message has the field.
    """
    return [(name, byte_mask(tags)) for name, tags in _roles.tags_by_field(meaning).items()]


def ordinals(rows: Numbers) -> Numbers:
    """Return for each item of ascending numbers its index among equal items: 0, 1, 0 for 5, 5, 7."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


def latest_versions(keys: Numbers, versions: Numbers, oids: Numbers, ranks: Numbers) -> Numbers:
    """Return for each OID the number of its last schema version that begins before the rank; -1 if none.

    Args:
        keys: For each schema version a sort key, ascending: the relation OID shifted left by `RANK_BITS`,
            plus the rank (a number that orders messages) at which the schema version begins.
        versions: For each key, the number of its schema version.
        oids: The relation OIDs to look up.
        ranks: For each OID, the rank before which the schema version must begin.
    """
    before = np.searchsorted(keys, oids << RANK_BITS | ranks) - 1
    if not len(keys):
        return before
    same_oid = (before >= 0) & (keys[before] >> RANK_BITS == oids)
    return np.where(same_oid, versions[before], -1)


def tag_mask(*roles: str) -> Mask:
    """Return for each of the 256 possible bytes whether it is the tag of a message with a role in `roles`.

    A role is what a message does in a stream, such as `relation`.
    """
    return byte_mask(_roles.tags(*roles))


def byte_mask(bytes_: Collection[int]) -> Mask:
    """Return for each of the 256 possible bytes whether it is in `bytes_`."""
    mask = np.zeros(256, np.bool_)
    mask[list(bytes_)] = True
    return mask


IS_SCHEMA_MESSAGE: Final = tag_mask("relation", "type")
"""For each of the 256 possible bytes, whether it is the tag of a message about a relation or type."""


def mask_out(numbers: Numbers, mask: Any) -> Numbers:
    """Return a copy of the numbers, with -1 where the mask is true."""
    return np.where(mask, np.int64(-1), numbers)


def without_traceback(error: DecodeError) -> DecodeError:
    """Return the error after removing its traceback and context, which keep objects alive."""
    error.__traceback__ = error.__context__ = None
    return error
