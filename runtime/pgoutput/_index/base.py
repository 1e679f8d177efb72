"""The interface of an index of a batch of messages.

`MessageIndex` knows where the fields and cells of each message are. The index is built in one pass over the
batch, which also checks the messages as the codecs do. All cells of the batch are numbered from 0, in the
order of the wire; columns of cells are read on demand, by these numbers. `KernelIndex` is built by the
compiled kernel, without the GIL and without an object per message. `PureIndex` is the reference
implementation.
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


class TupleLocations(NamedTuple):
    """Where all new, all old or all key tuples of a batch are; each array has one item per tuple."""

    rows: Numbers
    """For each tuple, the row of its message in the batch."""
    first: Numbers
    """For each tuple, the index of its first cell among all cells of the batch."""
    versions: Numbers
    """For each tuple, the number of its relation's schema version; -1 if the relation is unknown."""


class MessageIndex(ABC):
    """Index of a batch of messages: where the fields and cells of each message are.

    Attributes:
        data: The messages, as an Arrow array of binary or large_binary.
        tags: The first byte of each message; 0 for NULL and for an invalid message.
        errors: By row, the error that the codec raises for an invalid message. An invalid message has no
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
    def first(self, name: str) -> Numbers:
        """Return the number of the first cell of each message's new, old or key tuple (`name`), else -1.

        Args:
            name: `new`, `old` or `key`.
        """

    @abstractmethod
    def width(self, name: str) -> Numbers:
        """Return the number of cells in each message's new, old or key tuple (`name`); 0 if absent.

        Args:
            name: `new`, `old` or `key`.
        """

    def find_tuples(self, name: str, keys: Numbers, versions: Numbers) -> TupleLocations:
        """Return where all new, old or key tuples (`name`) are, and the schema version of each tuple.

        Args:
            name: `new`, `old` or `key`.
            keys: For each schema version a sort key, ascending: the relation OID shifted left by `RANK_BITS`,
                plus the rank of the Relation message. The rank of a message is its row number + 1.
            versions: For each key, the number of its schema version.
        """
        first = self.first(name)
        rows = np.flatnonzero(first >= 0)
        oids = self.field("relation_oid").values[rows]
        return TupleLocations(rows, first[rows], latest_versions(keys, versions, oids, rows + 1))

    @abstractmethod
    def cells(self, numbers: Numbers) -> list[Cell]:
        """Return the cells with the given numbers as `Cell` objects; the number -1 gives None."""

    @abstractmethod
    def raw(self, numbers: Numbers) -> pa.Array:
        """Return the bytes of the cells with these numbers; NULL for a NULL or UNCHANGED cell and for -1."""

    @abstractmethod
    def texts(self, numbers: Numbers) -> PartialArray:
        """Return text cells as strings, NULL cells and the number -1 as NULL; `unread` lists all others."""

    @abstractmethod
    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> PartialArray | None:
        """Return cells as values of an Arrow type, equal to the results of `pgoutput.values.to_arrow`.

        Args:
            numbers: Numbers of the cells; -1 gives NULL.
            type_: The Arrow type.
            send: Name of the send function of the cells' PostgreSQL type, if `arrow_type` returns `type_` for
                that PostgreSQL type; otherwise None, and all binary cells are in `unread`.

        Returns:
            The values, or None if this method would not be faster than `to_arrow`.
        """


def latest_versions(keys: Numbers, versions: Numbers, oids: Numbers, ranks: Numbers) -> Numbers:
    """Return the number of each relation's last schema version that begins before a rank; -1 if none.

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


def tag_mask(kinds: Sequence[type[Message]]) -> Mask:
    """Return for each of the 256 possible first bytes whether it is the tag of one of these classes."""
    return np.isin(np.arange(256), [ord(kind.wire_tag) for kind in kinds])


IS_SCHEMA_MESSAGE: Final = tag_mask((Relation, Type))
"""For each of the 256 possible first bytes, whether the message is a Relation or Type message."""


def mask_out(numbers: Numbers, mask: Any) -> Numbers:
    """Return a copy of the numbers, with -1 where the mask is true."""
    return np.where(mask, np.int64(-1), numbers)


def without_traceback(error: DecodeError) -> DecodeError:
    """Return the error after removing its traceback and context, which keep objects alive."""
    error.__traceback__ = error.__context__ = None
    return error
