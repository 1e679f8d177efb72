"""The streams that the codec's benchmarks read: transactions of 98 changes of one table, in text or binary.

Everything in them follows from the numbers of their messages, so that each run has the same bytes. A stream
is made a batch at a time, as it is read from segments, so that it can be of any length. With six columns a
message has 88 bytes, the Begins, Commits and Deletes among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import messages as m
from pgoutput import v4
from pgoutput.columns import encode_begins, encode_commits, encode_deletes, encode_inserts, encode_updates

Numbers: TypeAlias = npt.NDArray[np.int64]
Format: TypeAlias = Literal["text", "binary"]
Kind: TypeAlias = Literal["Begin", "Insert", "Update", "Update with key", "Delete", "Commit"]
Columns: TypeAlias = list[pa.Array]
Row: TypeAlias = tuple[str | bytes | None, ...]

OID: Final = 16_384

CHANGES: Final[dict[str, Kind]] = {"I": "Insert", "U": "Update", "K": "Update with key", "D": "Delete"}
TRANSACTION: Final[tuple[Kind, ...]] = (
    "Begin",
    *(CHANGES[change] for change in "IUIIDIUIIUIIKD" * 7),
    "Commit",
)
"""The messages of each transaction."""


class Shape(msgspec.Struct, frozen=True):
    """What the messages of a stream look like."""

    columns: int
    format: Format

    @property
    def relation(self) -> bytes:
        """The Relation that a server sends before all of them."""
        columns = (
            m.RelationColumn(not i, f"c{i}", one.oid, one.modifier) for i, one in enumerate(self.types)
        )
        return v4.encode(m.Relation(OID, "public", "orders", m.ReplicaIdentity.DEFAULT, tuple(columns)))

    @property
    def types(self) -> list[Type]:
        """Those of the columns."""
        return [TYPES[i % len(TYPES)] for i in range(self.columns)]

    @property
    def batch_size(self) -> int:
        """Messages of a batch: as many as a segment's row group has, or so many that it has about 4 MB."""
        return min(16_300, 300_000 // self.columns)


class Part(msgspec.Struct, frozen=True):
    """The messages of one kind in a batch."""

    kind: Kind
    numbers: Numbers
    """Of these messages, within the stream."""
    new: Columns | None = None
    key: Columns | None = None

    def encode(self) -> pa.BinaryArray:
        """As messages."""
        match self.kind:
            case "Begin":
                lsns = self.numbers + len(TRANSACTION) - 1
                return encode_begins(lsns, self.numbers, 3 + self.numbers // len(TRANSACTION))
            case "Commit":
                return encode_commits(self.numbers, self.numbers + 1, self.numbers - len(TRANSACTION) + 1)
            case "Delete":
                return encode_deletes(OID, key=self.key)
            case "Insert":
                return encode_inserts(OID, self.new or [])
            case "Update" | "Update with key":
                return encode_updates(OID, self.new or [], key=self.key)


class Batch(msgspec.Struct, frozen=True):
    """Messages that follow each other in a stream."""

    shape: Shape
    start: int
    """The number of its first message."""
    parts: list[Part]
    data: pa.BinaryArray

    @property
    def message_size(self) -> float:
        """Bytes of a message, on average."""
        return float(pc.mean(pc.binary_length(self.data)).as_py())

    def joined(self, encoded: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
        """The messages of the parts in the stream's order."""
        order = np.argsort(np.concatenate([part.numbers for part in self.parts]))
        return pa.concat_arrays(encoded).take(pa.array(order))

    def rows(self) -> list[Row]:
        """Its tuples as they stand in the messages, the old one of an Update before the new one."""
        rows: list[tuple[int, int, Row]] = []
        for part in self.parts:
            for place, columns in enumerate((part.key, part.new)):
                if columns is not None:
                    cells = zip(*(column.to_pylist() for column in columns), strict=True)
                    rows += zip(part.numbers.tolist(), [place] * len(part.numbers), cells, strict=True)
        rows.sort(key=lambda row: row[:2])
        return [cells for _, _, cells in rows]


def stream(shape: Shape, messages: int) -> Iterator[Batch]:
    """The batches of a stream of so many messages, a multiple of 100."""
    for start in range(0, messages, shape.batch_size):
        yield batch(shape, start, min(shape.batch_size, messages - start))


def batch(shape: Shape, start: int, messages: int) -> Batch:
    """Some messages of a stream, from whole transactions."""
    kinds = np.tile(np.array(TRANSACTION), messages // len(TRANSACTION))
    numbers = np.arange(start, start + messages)
    parts = [_part(shape, kind, numbers[kinds == kind]) for kind in dict.fromkeys(TRANSACTION)]
    made = Batch(shape, start, parts, pa.array([], pa.binary()))
    return msgspec.structs.replace(made, data=made.joined([part.encode() for part in parts]))


def _part(shape: Shape, kind: Kind, numbers: Numbers) -> Part:
    new = key = None
    if kind in ("Insert", "Update", "Update with key"):
        new = [_cells(shape, i, numbers) for i in range(shape.columns)]
    if kind in ("Delete", "Update with key"):
        nothing = [pa.nulls(len(numbers), pa.string())] * (shape.columns - 1)
        key = [_cells(shape, 0, numbers - 1), *nothing]
    return Part(kind, numbers, new, key)


def _cells(shape: Shape, column: int, numbers: Numbers) -> pa.Array:
    """The values that messages have in a column."""
    one = shape.types[column]
    make = one.text if shape.format == "text" else one.binary
    return make(numbers + column * 1_000_003)


class Type(msgspec.Struct, frozen=True):
    """A type of columns, and how its values follow from numbers."""

    oid: int
    modifier: int
    text: Callable[[Numbers], pa.StringArray]
    binary: Callable[[Numbers], pa.BinaryArray]


def _int8s(numbers: Numbers) -> Numbers:
    return 10_000_000 + numbers % 90_000_000


def _int8_text(numbers: Numbers) -> pa.StringArray:
    return pa.array(_int8s(numbers)).cast(pa.string())


def _int8_binary(numbers: Numbers) -> pa.BinaryArray:
    return _fixed(_int8s(numbers).astype(">i8"))


def _numerics(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """What stands before and behind the point; neither is 0."""
    return 1_000 + numbers % 8_999, 1 + numbers % 99


def _numeric_text(numbers: Numbers) -> pa.StringArray:
    whole, cents = _numerics(numbers)
    digits = pa.array(100 + cents).cast(pa.string())
    return pc.binary_join_element_wise(
        pa.array(whole).cast(pa.string()), pc.utf8_slice_codeunits(digits, 1), "."
    )


def _numeric_binary(numbers: Numbers) -> pa.BinaryArray:
    whole, cents = _numerics(numbers)
    made = np.empty((len(numbers), 6), ">i2")
    made[:, :4] = 2, 0, 0, 2  # digits of base 10,000, weight, sign, scale (numeric_send)
    made[:, 4], made[:, 5] = whole, cents * 100
    return _fixed(made)


def _microseconds(numbers: Numbers) -> Numbers:
    """Since 2000: of 2026 and later, with six digits behind the point of which the last is not 0."""
    return 825_588_000_000_000 + numbers * 12_345_670 + 1 + numbers % 9


def _timestamptz_text(numbers: Numbers) -> pa.StringArray:
    since_1970 = _microseconds(numbers) + 946_684_800_000_000
    return pc.binary_join_element_wise(pa.array(since_1970, pa.timestamp("us")).cast(pa.string()), "+00", "")


def _timestamptz_binary(numbers: Numbers) -> pa.BinaryArray:
    return _fixed(_microseconds(numbers).astype(">i8"))


def _bool_text(numbers: Numbers) -> pa.StringArray:
    return _one_of(["t", "f"], numbers)


def _bool_binary(numbers: Numbers) -> pa.BinaryArray:
    return _fixed((numbers % 2 == 0).astype("u1"))


def _name(numbers: Numbers) -> pa.StringArray:
    names = ["Ada Lovelace", "Alan Turing", "Emmy Noether", "Kurt Gödel", "Grace Hopper", "Edgar Codd"]
    return _one_of([*names, "Barbara Liskov"], numbers)


def _state(numbers: Numbers) -> pa.StringArray:
    return _one_of(["paid", "open", "sent", "open", "back", "paid", None, "lost", "sent", "open"], numbers)


def _as_binary(text: Callable[[Numbers], pa.StringArray]) -> Callable[[Numbers], pa.BinaryArray]:
    return lambda numbers: text(numbers).cast(pa.binary())


def _one_of(values: Sequence[str | None], numbers: Numbers) -> pa.StringArray:
    return pa.array(values, pa.string()).take(pa.array(numbers % len(values)))


def _fixed(rows: npt.NDArray[Any]) -> pa.BinaryArray:
    """Each row's bytes."""
    width = rows.nbytes // max(len(rows), 1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


TYPES: Final = (
    Type(20, -1, _int8_text, _int8_binary),
    Type(25, -1, _name, _as_binary(_name)),
    Type(1700, (12 << 16 | 2) + 4, _numeric_text, _numeric_binary),
    Type(1184, -1, _timestamptz_text, _timestamptz_binary),
    Type(16, -1, _bool_text, _bool_binary),
    Type(25, -1, _state, _as_binary(_state)),
)
"""Those of a table, over and over: int8, text, numeric(12,2), timestamptz, boolean, text."""
