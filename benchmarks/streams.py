"""Streams for the codec benchmarks: changes of one table, in text or binary format.

A regular stream repeats one transaction of 98 changes, and the values of a column have nearly equal lengths.
With six columns in text format, its messages have 88 bytes on average. In an irregular stream, changes are
Inserts, Updates and Deletes at random, and each cell is one of 250 values of its column, which have different
lengths and some of which are NULL.

All content is derived from message numbers, so streams are deterministic. A stream is made batch by batch, so
its length is not limited by memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import messages as m, v4
from logicalrep.columns import encode_begins, encode_commits, encode_deletes, encode_inserts, encode_updates

Numbers: TypeAlias = npt.NDArray[np.int64]
Format: TypeAlias = Literal["text", "binary"]
Kind: TypeAlias = Literal["Begin", "Insert", "Update", "Update with key", "Delete", "Commit"]
Columns: TypeAlias = list[pa.Array]
Row: TypeAlias = tuple[str | bytes | None, ...]

OID: Final = 16_384

CHANGES: Final[dict[str, Kind]] = {"I": "Insert", "U": "Update", "K": "Update with key", "D": "Delete"}
REGULAR: Final = "IUIIDIUIIUIIKD" * 7
"""Changes of a regular stream's transaction, in order. All its transactions have these changes."""

IRREGULAR: Final = "IIIIIIUUUD"
"""The changes from which each change of an irregular stream is chosen. A transaction has as many changes."""

POOL: Final = 250
"""Number of values from which each cell of a column of an irregular stream is chosen."""

LETTERS: Final = "aeinorst " * 11 + "ö"
"""Letters of an irregular stream's texts, of which one in a hundred is not ASCII."""


class Shape(msgspec.Struct, frozen=True):
    """The shape of a stream: number of columns, format, and whether it is irregular (in text format only)."""

    columns: int
    format: Format
    irregular: bool = False

    @property
    def relation(self) -> bytes:
        """Encoded Relation message of the table that the stream changes."""
        columns = (
            m.RelationColumn(
                flags=m.ColumnFlag(not i), name=f"c{i}", type_oid=one.oid, type_modifier=one.modifier
            )
            for i, one in enumerate(self.types)
        )
        return v4.encode(
            m.Relation(
                oid=OID,
                namespace="public",
                name="orders",
                replica_identity=m.ReplicaIdentity.DEFAULT,
                columns=tuple(columns),
            )
        )

    @property
    def types(self) -> list[Type]:
        """Types of the columns of the table, in order."""
        return [TYPES[i % len(TYPES)] for i in range(self.columns)]

    @property
    def batch_size(self) -> int:
        """Number of messages per batch: as many as in a segment's row group, but at most about 4 MB."""
        messages = min(16_300, 300_000 // self.columns)
        return messages - messages % self.transaction_size

    @property
    def transaction_size(self) -> int:
        """Number of messages in a transaction, with its Begin and its Commit."""
        return 2 + len(IRREGULAR if self.irregular else REGULAR)

    def kinds(self, numbers: Numbers) -> Iterator[tuple[Kind, Numbers]]:
        """Yield each kind of message, with the numbers of the messages of this kind."""
        places = numbers % self.transaction_size
        yield "Begin", numbers[places == 0]
        letters = np.array([*IRREGULAR] if self.irregular else ["", *REGULAR, ""])
        letters = letters[_random(numbers) % len(IRREGULAR) if self.irregular else places]
        letters[(places == 0) | (places == self.transaction_size - 1)] = ""
        for letter, kind in CHANGES.items():
            if (found := letters == letter).any():
                yield kind, numbers[found]
        yield "Commit", numbers[places == self.transaction_size - 1]


class Part(msgspec.Struct, frozen=True):
    """The messages of one kind, such as Insert, in a batch."""

    kind: Kind
    shape: Shape
    numbers: Numbers
    """Number of each of the part's messages within the stream, counted from 0."""
    new: Columns | None = None
    key: Columns | None = None

    def encode(self) -> pa.BinaryArray:
        """Return the encoded messages of this part."""
        match self.kind:
            case "Begin":
                size = self.shape.transaction_size
                return encode_begins(self.numbers + size - 1, self.numbers, 3 + self.numbers // size)
            case "Commit":
                begins = self.numbers - self.shape.transaction_size + 1
                return encode_commits(self.numbers, self.numbers + 1, begins)
            case "Delete":
                return encode_deletes(OID, key=self.key)
            case "Insert":
                return encode_inserts(OID, self.new or [])
            case "Update" | "Update with key":
                return encode_updates(OID, self.new or [], key=self.key)


class Batch(msgspec.Struct, frozen=True):
    """Consecutive messages of a stream."""

    shape: Shape
    start: int
    """Number of the batch's first message within the stream, counted from 0."""
    parts: list[Part]
    data: pa.BinaryArray

    @property
    def message_size(self) -> float:
        """Average size of a message, in bytes."""
        return float(pc.mean(pc.binary_length(self.data)).as_py())

    def joined(self, encoded: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
        """Return all messages of the batch in stream order. `encoded` has the messages of each part."""
        order = np.argsort(np.concatenate([part.numbers for part in self.parts]))
        return pa.concat_arrays(encoded).take(pa.array(order))

    def rows(self) -> list[Row]:
        """Return the cells of all tuples in stream order. An Update's key tuple precedes its new tuple."""
        rows: list[tuple[int, int, Row]] = []
        for part in self.parts:
            for place, columns in enumerate((part.key, part.new)):
                if columns is not None:
                    cells = zip(*(column.to_pylist() for column in columns), strict=True)
                    rows += zip(part.numbers.tolist(), [place] * len(part.numbers), cells, strict=True)
        rows.sort(key=lambda row: row[:2])
        return [cells for _, _, cells in rows]


def stream(shape: Shape, messages: int) -> Iterator[Batch]:
    """Yield a stream of messages as batches.

    Args:
        shape: Shape of the messages.
        messages: Number of messages, a multiple of the size of a transaction.
    """
    for start in range(0, messages, shape.batch_size):
        yield batch(shape, start, min(shape.batch_size, messages - start))


def batch(shape: Shape, start: int, messages: int) -> Batch:
    """Return a batch of whole transactions: `messages` messages of a stream, from message `start` on."""
    kinds = shape.kinds(np.arange(start, start + messages))
    parts = [_part(shape, kind, numbers) for kind, numbers in kinds]
    empty = Batch(shape, start, parts, pa.array([], pa.binary()))
    return msgspec.structs.replace(empty, data=empty.joined([part.encode() for part in parts]))


def _part(shape: Shape, kind: Kind, numbers: Numbers) -> Part:
    new = key = None
    if kind in ("Insert", "Update", "Update with key"):
        new = [_cells(shape, i, numbers) for i in range(shape.columns)]
    if kind in ("Delete", "Update with key"):
        nothing = [pa.nulls(len(numbers), pa.string())] * (shape.columns - 1)
        key = [_cells(shape, 0, numbers - 1), *nothing]
    return Part(kind, shape, numbers, new, key)


def _cells(shape: Shape, column: int, numbers: Numbers) -> pa.Array:
    """Return the cells of one column in the messages with these numbers."""
    one = shape.types[column]
    if shape.irregular:
        return _pool(column).take(pa.array(_random(numbers + column * 1_000_003) % POOL))
    make = one.text if shape.format == "text" else one.binary
    return make(numbers + column * 1_000_003)


def _random(numbers: Numbers) -> Numbers:
    """Return a pseudo-random number of 32 bits for each number: high bits of SplitMix64."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed >> np.uint64(32)).astype(np.int64)


@cache
def _pool(column: int) -> pa.StringArray:
    """Return the values of a column of an irregular stream. Every tenth is NULL, except in the key."""
    random = Random(column)
    make = TYPES[column % len(TYPES)].random
    return pa.array([None if column and i % 10 == 0 else make(random) for i in range(POOL)], pa.string())


class Type(msgspec.Struct, frozen=True):
    """A column type, with functions that derive its values in text and binary format from message numbers."""

    oid: int
    modifier: int
    text: Callable[[Numbers], pa.StringArray]
    binary: Callable[[Numbers], pa.BinaryArray]
    random: Callable[[Random], str]
    """Function that returns a value for irregular streams in text format, never empty."""


def _int8s(numbers: Numbers) -> Numbers:
    return 10_000_000 + numbers % 90_000_000


def _int8_text(numbers: Numbers) -> pa.StringArray:
    return pa.array(_int8s(numbers)).cast(pa.string())


def _int8_random(random: Random) -> str:
    return str(random.randrange(10 ** random.randint(1, 18)))


def _int8_binary(numbers: Numbers) -> pa.BinaryArray:
    return _fixed(_int8s(numbers).astype(">i8"))


def _numerics(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return a numeric for each message number in two parts, before and after the decimal point, never 0."""
    return 1_000 + numbers % 8_999, 1 + numbers % 99


def _numeric_text(numbers: Numbers) -> pa.StringArray:
    whole, cents = _numerics(numbers)
    digits = pa.array(100 + cents).cast(pa.string())
    return pc.binary_join_element_wise(
        pa.array(whole).cast(pa.string()), pc.utf8_slice_codeunits(digits, 1), "."
    )


def _numeric_random(random: Random) -> str:
    cents = random.randrange(10 ** random.randint(3, 12))
    return f"{cents // 100}.{cents % 100:02}"


def _numeric_binary(numbers: Numbers) -> pa.BinaryArray:
    whole, cents = _numerics(numbers)
    words = np.empty((len(numbers), 6), ">i2")
    words[:, :4] = 2, 0, 0, 2  # digit count, weight, sign, scale (numeric_send)
    words[:, 4], words[:, 5] = whole, cents * 100
    return _fixed(words)


def _microseconds(numbers: Numbers) -> Numbers:
    """Return a time after 2025 for each message number: microseconds since 2000, the last digit not 0."""
    return 825_588_000_000_000 + numbers * 12_345_670 + 1 + numbers % 9


def _timestamptz_text(numbers: Numbers) -> pa.StringArray:
    since_1970 = _microseconds(numbers) + 946_684_800_000_000
    return pc.binary_join_element_wise(pa.array(since_1970, pa.timestamp("us")).cast(pa.string()), "+00", "")


def _timestamptz_random(random: Random) -> str:
    (text,) = _timestamptz_text(np.array([random.randrange(10**7)])).to_pylist()
    return str(text)


def _timestamptz_binary(numbers: Numbers) -> pa.BinaryArray:
    return _fixed(_microseconds(numbers).astype(">i8"))


def _bool_text(numbers: Numbers) -> pa.StringArray:
    return _one_of(["t", "f"], numbers)


def _bool_random(random: Random) -> str:
    return random.choice("tf")


def _bool_binary(numbers: Numbers) -> pa.BinaryArray:
    return _fixed((numbers % 2 == 0).astype("u1"))


def _name(numbers: Numbers) -> pa.StringArray:
    names = ["Ada Lovelace", "Alan Turing", "Emmy Noether", "Kurt Gödel", "Grace Hopper", "Edgar Codd"]
    return _one_of([*names, "Barbara Liskov"], numbers)


def _state(numbers: Numbers) -> pa.StringArray:
    return _one_of(["paid", "open", "sent", "open", "back", "paid", None, "lost", "sent", "open"], numbers)


def _text_random(random: Random) -> str:
    return "".join(random.choices(LETTERS, k=random.randint(1, 40)))


def _as_binary(text: Callable[[Numbers], pa.StringArray]) -> Callable[[Numbers], pa.BinaryArray]:
    return lambda numbers: text(numbers).cast(pa.binary())


def _one_of(values: Sequence[str | None], numbers: Numbers) -> pa.StringArray:
    return pa.array(values, pa.string()).take(pa.array(numbers % len(values)))


def _fixed(rows: npt.NDArray[Any]) -> pa.BinaryArray:
    """Return an Arrow array with one binary value for each row: the row's bytes."""
    width = rows.nbytes // max(len(rows), 1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


TYPES: Final = (
    Type(20, -1, _int8_text, _int8_binary, _int8_random),
    Type(25, -1, _name, _as_binary(_name), _text_random),
    Type(1700, (12 << 16 | 2) + 4, _numeric_text, _numeric_binary, _numeric_random),
    Type(1184, -1, _timestamptz_text, _timestamptz_binary, _timestamptz_random),
    Type(16, -1, _bool_text, _bool_binary, _bool_random),
    Type(25, -1, _state, _as_binary(_state), _text_random),
)
"""Types of a table's columns, repeated after six: int8, text, numeric(12,2), timestamptz, boolean, text."""
