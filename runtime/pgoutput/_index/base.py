"""The interface of an index of a batch of messages.

`MessageIndex` knows where the fields and cells of each message are. It is made in one pass over the batch,
which checks messages as the codecs do. Cells are numbered in the order of the wire and read by column, on
demand. `KernelIndex` is made by the compiled kernel, without the GIL and without an object per message.
`PureIndex` is the reference implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput._arrays import Mask, Numbers
from pgoutput.errors import DecodeError
from pgoutput.messages import Cell, Message, Relation, Type


class FieldValues(NamedTuple):
    """A field of a fixed width, of all messages of a batch."""

    values: Numbers
    """Value per message: flags and enums as their byte, LSNs of 2**63 and more as negative numbers.
    Undefined for messages without the field."""
    present: Mask
    """Which messages have the field."""


class PartialArray(NamedTuple):
    """An Arrow array, and the rows that it could not represent."""

    array: pa.Array
    unread: Numbers
    """Rows whose value is not NULL, but which are NULL in `array`: text that is not valid UTF-8, values
    outside the range of the array's type, and cells of another format."""


RANK_BITS: Final = 31
"""Number of bits of a rank in a key that sorts by relation OID (32 bits), then by rank."""


class TupleLocations(NamedTuple):
    """All new, old or key tuples of a batch."""

    rows: Numbers
    """Row of each tuple's message."""
    first: Numbers
    """Number of each tuple's first cell."""
    versions: Numbers
    """Number of each tuple's schema version; -1 if its relation is unknown."""


class MessageIndex(ABC):
    """Where the fields and cells of a batch of messages are.

    Attributes:
        data: The messages, as an Arrow array of binary or large_binary.
        tags: The first byte of each message; 0 for NULL and for an invalid message.
        errors: The error of each invalid message, by row: what the codec raises. An invalid message has no
            effect on the messages after it, as in a `StreamDecoder`.
        kinds: The tag of each cell: n (NULL), u (unchanged), t (text) or b (binary), as its byte.
    """

    data: pa.Array
    tags: npt.NDArray[np.uint8]
    errors: dict[int, DecodeError]
    kinds: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.data)

    @abstractmethod
    def messages(self, rows: Sequence[int]) -> list[Message]:
        """Return the messages in `rows` as objects; none of these rows is NULL or invalid."""

    @abstractmethod
    def field(self, name: str) -> FieldValues:
        """Return a field of a fixed width, such as `xid` or `relation_oid`, of all messages."""

    @abstractmethod
    def strings(self, name: str) -> PartialArray:
        """Return a field of type string or bytes, such as `gid` or `content`, of all messages."""

    @abstractmethod
    def first(self, name: str) -> Numbers:
        """Return, per message, the number of the first cell of the tuple `name`; -1 without that tuple.

        Args:
            name: `new`, `old` or `key`.
        """

    @abstractmethod
    def width(self, name: str) -> Numbers:
        """Return, per message, how many cells the tuple `name` has; 0 without that tuple.

        Args:
            name: `new`, `old` or `key`.
        """

    def find_tuples(self, name: str, keys: Numbers, versions: Numbers) -> TupleLocations:
        """Return all tuples called `name` with the schema version of each.

        Args:
            name: `new`, `old` or `key`.
            keys: Where each schema version begins, sorted: the relation OID shifted left by `RANK_BITS`,
                plus the rank of the Relation message. The rank of a row is its number + 1.
            versions: The number of each of these schema versions.
        """
        first = self.first(name)
        rows = np.flatnonzero(first >= 0)
        oids = self.field("relation_oid").values[rows]
        return TupleLocations(rows, first[rows], latest_versions(keys, versions, oids, rows + 1))

    @abstractmethod
    def cells(self, numbers: Numbers) -> list[Cell]:
        """Return the cells with these numbers as objects; None for -1."""

    @abstractmethod
    def raw(self, numbers: Numbers) -> pa.Array:
        """Return the bytes of text and binary cells; NULL for all other cells, and for -1."""

    @abstractmethod
    def texts(self, numbers: Numbers) -> PartialArray:
        """Return text cells as strings, and NULL for NULL and for -1; all other cells are unread."""

    @abstractmethod
    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> PartialArray | None:
        """Return cells as values of an Arrow type, with the results of `pgoutput.values.to_arrow`.

        Args:
            numbers: Numbers of the cells; -1 gives NULL.
            type_: The Arrow type.
            send: The send function of the cells' PostgreSQL type, if `type_` is the Arrow type of that
                PostgreSQL type; else None, and binary cells are unread.

        Returns:
            The values, or None if there is no faster way than `to_arrow`.
        """


def latest_versions(keys: Numbers, versions: Numbers, oids: Numbers, ranks: Numbers) -> Numbers:
    """Return the last schema version of each OID that begins before a rank; -1 if there is none.

    Args:
        keys: Where each schema version begins, sorted: the relation OID shifted left by `RANK_BITS`, plus
            the rank.
        versions: The number of each of these schema versions.
        oids: The relation OIDs to look up.
        ranks: The rank to look up for each OID.
    """
    before = np.searchsorted(keys, oids << RANK_BITS | ranks) - 1
    if not len(keys):
        return before
    same_oid = (before >= 0) & (keys[before] >> RANK_BITS == oids)
    return np.where(same_oid, versions[before], -1)


def tag_mask(kinds: Sequence[type[Message]]) -> Mask:
    """Return a mask of 256 entries: whether a first byte is the tag of one of these message classes."""
    return np.isin(np.arange(256), [ord(kind.wire_tag) for kind in kinds])


IS_SCHEMA_MESSAGE: Final = tag_mask((Relation, Type))
"""By first byte: whether a message describes a relation or type that later messages refer to."""


def mask_out(numbers: Numbers, mask: Any) -> Numbers:
    """Return the numbers with -1 where the mask is true."""
    return np.where(mask, np.int64(-1), numbers)


def without_traceback(error: DecodeError) -> DecodeError:
    """Return the error without traceback and context, which would keep objects alive."""
    error.__traceback__ = error.__context__ = None
    return error
