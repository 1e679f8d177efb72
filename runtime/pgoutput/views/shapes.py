"""Relations as changes refer to them: what each looks like, from one Relation message to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput import messages
from pgoutput.columns.epochs import Epochs
from pgoutput.columns.index import DESCRIBES, Index, Numbers
from pgoutput.messages import Relation
from pgoutput.values import base_types
from pgoutput.wire import shown_text

_TEXT: Final = pa.string()

TEXTS: Final = pa.list_(pa.field("element", _TEXT, nullable=False))

RELATION: Final = pa.struct(
    [
        pa.field("oid", pa.int64(), nullable=False),
        pa.field("namespace", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
    ]
)


class Shape(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A relation, as it is from a Relation message to the next."""

    relation: Relation
    """With domains replaced by their base types, and without an xid."""
    names: tuple[str, ...]
    """Its columns' names, fit to be shown."""
    types: tuple[int, ...]
    """Their types' OIDs."""
    keys: tuple[int, ...]
    """Places of the columns of the replica identity."""

    @property
    def namespace(self) -> str:
        """Its namespace, `pg_catalog` spelt out."""
        return shown_text(self.relation.namespace) or "pg_catalog"

    @property
    def name(self) -> str:
        """Its name, fit to be shown."""
        return shown_text(self.relation.name)

    @cached_property
    def described(self) -> Mapping[str, pa.Array]:
        """What rows say of it, one row each: columns of `CHANGES`, and the names of all columns."""
        relation = {"oid": self.relation.oid, "namespace": self.namespace, "name": self.name}
        columns = {
            name: (column.type_oid, column.type_modifier)
            for name, column in zip(self.names, self.relation.columns, strict=True)
        }
        return {
            "relation": pa.array([relation], RELATION),
            "key_columns": pa.array([[self.names[place] for place in self.keys]], TEXTS),
            "columns": pa.array([msgspec.json.encode(columns).decode()], _TEXT),
            "names": pa.array([self.names], TEXTS),
        }

    def repeated(self, name: str, rows: int) -> pa.Array:
        """One of them, of so many rows; it is made once, not for each batch."""
        array = self._repeated.get(name)
        if array is None or len(array) < rows:
            array = self._repeated[name] = self.described[name].take(pa.array(np.zeros(rows, np.int64)))
        return array.slice(0, rows)

    @cached_property
    def _repeated(self) -> dict[str, pa.Array]:
        return {}


_REMEMBERED: Final = 4
"""Shapes that the segments of a process share, with what has been made of them."""

Wanted: TypeAlias = Callable[[Shape], bool]


def make_shape(relation: Relation, types: Mapping[int, messages.Type]) -> Shape:
    """The relation as changes refer to it.

    Args:
        relation: The Relation message.
        types: The Type messages that came before, by OID.
    """
    return _shape(msgspec.structs.replace(base_types(relation, types), xid=None))


@lru_cache(_REMEMBERED)
def _shape(relation: Relation) -> Shape:
    columns = relation.columns
    keys = [place for place, column in enumerate(columns) if column.flags & messages.ColumnFlag.KEY]
    names = tuple(shown_text(column.name) for column in columns)
    return Shape(relation, names, tuple(column.type_oid for column in columns), tuple(keys))


UNWANTED: Final = -1
UNKNOWN: Final = -2


class ShapeEpochs:
    """Which shape a relation has where, as far as a stream has been read.

    Attributes:
        shapes: Those that are wanted, by number. The others have the number `UNWANTED`.

    Args:
        wanted: Which relations are.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.shapes: list[Shape] = []
        self._wanted = wanted
        self._types: dict[int, messages.Type] = {}
        self._last: dict[int, int] = {}
        self._known = _Known([])

    def find(self, index: Index, rows: Numbers, oids: Numbers) -> Numbers:
        """The numbers of the shapes of relations that messages name; `UNKNOWN` where none has come yet.

        Args:
            index: The messages, which follow those of the last call.
            rows: Of the messages that name them.
            oids: The relations.
        """
        known = self._known
        if described := list(self._described(index)):
            before = [(oid, 0, number) for oid, number in self._last.items()]
            known = _Known(before + described)
            self._last.update((oid, number) for oid, _, number in described)
            self._known = _Known([(oid, 0, number) for oid, number in self._last.items()])
        return known.numbers[known.epochs.find(oids, rows + 1)]

    def _described(self, index: Index) -> Iterator[tuple[int, int, int]]:
        """What Relation messages say: the OID, the place (the first row has 1), and the number."""
        rows = np.flatnonzero(DESCRIBES[index.tags]).tolist()
        for row, message in zip(rows, index.messages(rows), strict=True):
            if isinstance(message, messages.Type):
                self._types[message.oid] = message
            elif isinstance(message, Relation):
                shape = make_shape(message, self._types)
                if self._wanted(shape):
                    self.shapes.append(shape)
                    yield message.oid, row + 1, len(self.shapes) - 1
                else:
                    yield message.oid, row + 1, UNWANTED


class _Known:
    """Relations that are known: the OID of each, where it begins to hold, the number of its shape."""

    def __init__(self, known: Sequence[tuple[int, int, int]]) -> None:
        oids, places, numbers = zip(*known, strict=True) if known else ((), (), ())
        self.epochs = Epochs(oids, places)
        self.numbers = np.array([*numbers, UNKNOWN], np.int64)  # -1 is what is not found
