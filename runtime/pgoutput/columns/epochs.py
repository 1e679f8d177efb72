"""Which relation a change is of: a Relation message holds until the next one of its OID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pgoutput.columns.index import PLACE_BITS, Found, Index, Mask, Numbers, last_before
from pgoutput.errors import StreamError
from pgoutput.messages import Message, Relation
from pgoutput.wire import shown_text

_TUPLES: Final = ("key", "old", "new")
"""The tuples of a change, in the order of the wire."""


class Epochs:
    """Epochs of relations, which are called by their numbers.

    Args:
        oids: Of which OID each is.
        places: Where each begins, of an OID no two at one place.
    """

    def __init__(self, oids: Sequence[int] | Numbers, places: Sequence[int] | Numbers) -> None:
        keys = _keys(np.asarray(oids, np.int64), np.asarray(places, np.int64))
        self._numbers = np.argsort(keys)
        self._keys = keys[self._numbers]

    def find(self, oids: Numbers, places: Numbers) -> Numbers:
        """The last epoch of each OID that begins before the place; -1 where there is none."""
        return last_before(self._keys, self._numbers, oids, places)

    def find_tuples(self, index: Index, name: str) -> Found:
        """The tuples of a batch that messages call so, with their epochs. Its first row is at 1."""
        return index.find_tuples(name, self._keys, self._numbers)

    def begins_at(self, oids: Numbers, places: Numbers) -> Mask:
        """Whether an epoch of the OID begins exactly at the place."""
        return np.isin(_keys(oids, places), self._keys)


def _keys(oids: Numbers, places: Numbers) -> Numbers:
    return oids << PLACE_BITS | places


def misfits(index: Index, rows: Numbers, columns: Numbers) -> Mask:
    """Which changes have a tuple of another width than their relation.

    Args:
        index: The messages.
        rows: Which of them.
        columns: How many columns the relation of each has.
    """
    wrong = np.zeros(len(rows), np.bool_)
    for name in _TUPLES:
        there = index.first(name)[rows] >= 0
        if there.any():
            wrong |= there & (index.width(name)[rows] != columns)
    return wrong


def change_error(message: Message, oid: int, relation: Relation | None) -> StreamError:
    """Why a change cannot be one of this relation.

    Args:
        message: The change.
        oid: The relation's OID.
        relation: The relation, which has another number of columns; None if no message has told of it.
    """
    if relation is None:
        return StreamError.at(message, f"no Relation message has come for the OID {oid}")
    width = len(relation.columns)
    found = [(name, getattr(message, name, None)) for name in _TUPLES]
    field, cells = next(
        (name, len(cells)) for name, cells in found if cells is not None and len(cells) != width
    )
    table = f"{shown_text(relation.namespace) or 'pg_catalog'}.{shown_text(relation.name)}"
    return StreamError.at(message, f"{field} has {cells} columns, but {table} has {width}")
