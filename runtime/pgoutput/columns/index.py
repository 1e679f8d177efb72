"""Where everything stands in a batch of messages, and how columns are read from there.

An `Index` is made in one pass over the messages, which are checked as the codecs check them. Cells have
numbers, in the order of the wire; what is read of them is read by column, when it is wanted. The compiled
kernel makes it without the GIL and without an object for a message; `PureIndex` is the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput.errors import DecodeError
from pgoutput.messages import Cell, Message, Relation, Type

Numbers: TypeAlias = npt.NDArray[np.int64]
"""Numbers of messages or cells, or -1 where there is none."""

Mask: TypeAlias = npt.NDArray[np.bool_]


class Values(NamedTuple):
    """A field of all messages of a batch."""

    values: Numbers
    """As on the wire: flags and enums by their byte, LSNs of 2**63 and more as negative numbers; any value
    where the field is not there."""
    there: Mask
    """Which messages have it."""


class Texts(NamedTuple):
    """What could be read at once of cells or strings, and what could not."""

    array: pa.Array
    left: Numbers
    """Places in the array of those that are something else than NULL, and that it does not hold: there it is
    NULL. Texts that are not UTF-8 are such, and cells of another kind."""


PLACE_BITS: Final = 31
"""Of a number that sorts by OID, then by place; OIDs have 32 bits."""


class Found(NamedTuple):
    """All tuples that messages call so."""

    rows: Numbers
    first: Numbers
    """The first cell of each."""
    relations: Numbers
    """The number of the relation of each; -1 if none is known."""


class Index(ABC):
    """Where everything stands in a batch of messages.

    Attributes:
        data: The messages: binary or large_binary.
        tags: The first byte of each message; 0 for a NULL, and for what is no message.
        errors: What is wrong with messages, by row: what a codec would have raised. They have no effect on
            those behind them, as in a `StreamDecoder`.
        kinds: The tag of each cell.
    """

    data: pa.Array
    tags: npt.NDArray[np.uint8]
    errors: dict[int, DecodeError]
    kinds: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.data)

    @abstractmethod
    def messages(self, rows: Sequence[int]) -> list[Message]:
        """Some of the messages as objects; they are none of `errors` and not NULL."""

    @abstractmethod
    def field(self, name: str) -> Values:
        """A field that has a fixed width, of all messages that have it: `xid`, `relation_oid`."""

    @abstractmethod
    def strings(self, name: str) -> Texts:
        """A field that is a string or bytes, as strings or binary: `gid`, `content`."""

    @abstractmethod
    def first(self, name: str) -> Numbers:
        """The number of the first cell of a tuple, `new`, `old` or `key`; -1 where there is no tuple."""

    @abstractmethod
    def width(self, name: str) -> Numbers:
        """How many cells it has: they follow the first one. 0 where there is no tuple."""

    def find_tuples(self, name: str, keys: Numbers, relations: Numbers) -> Found:
        """The tuples that messages call so.

        Args:
            name: `new`, `old` or `key`.
            keys: Where relations begin to hold, in order: an OID, `PLACE_BITS` to the left, and a row, of
                which the first is 1.
            relations: The number of each.
        """
        first = self.first(name)
        rows = np.flatnonzero(first >= 0)
        oids = self.field("relation_oid").values[rows]
        return Found(rows, first[rows], last_before(keys, relations, oids, rows + 1))

    @abstractmethod
    def cells(self, numbers: Numbers) -> list[Cell]:
        """Cells as objects; None for -1."""

    @abstractmethod
    def raw(self, numbers: Numbers) -> pa.Array:
        """The bytes of cells, text or binary; NULL for others, and for -1."""

    @abstractmethod
    def texts(self, numbers: Numbers) -> Texts:
        """Cells in text format as strings, NULL for NULL and for -1; others are left."""

    @abstractmethod
    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> Texts | None:
        """Cells as values of an Arrow type, as `pgoutput.values.to_arrow` reads them.

        Args:
            numbers: The cells; NULL for -1.
            type_: The Arrow type.
            send: The send function of their own type, if that has this Arrow type; else binary ones are left.

        Returns:
            None where there is no way that is quicker than `to_arrow`.
        """


def last_before(keys: Numbers, relations: Numbers, oids: Numbers, places: Numbers) -> Numbers:
    """The last relation of each OID that begins to hold before a place; -1 where there is none.

    Args:
        keys: As for `Index.find_tuples`.
        relations: Likewise.
        oids: Which relations.
        places: Where.
    """
    before = np.searchsorted(keys, oids << PLACE_BITS | places) - 1
    if not len(keys):
        return before
    there = (before >= 0) & (keys[before] >> PLACE_BITS == oids)
    return np.where(there, relations[before], -1)


def by_tag(kinds: Sequence[type[Message]]) -> Mask:
    """Whether a message is one of these, by its first byte."""
    return np.isin(np.arange(256), [ord(kind.wire_tag) for kind in kinds])


DESCRIBES: Final = by_tag((Relation, Type))
"""By first byte, whether a message says something that those behind it need."""


def where_not(numbers: Numbers, mask: Any) -> Numbers:
    """The numbers, but -1 where the mask is."""
    return np.where(mask, np.int64(-1), numbers)


def without_traceback(error: DecodeError) -> DecodeError:
    """The error alone: what it was raised in would be kept with it."""
    error.__traceback__ = error.__context__ = None
    return error
