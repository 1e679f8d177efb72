"""Reads batches of messages: the index of a batch, and its cells as text and as values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import catalog, compiled
from pgoutput.columns.index import Index, Mask, Numbers
from pgoutput.columns.kernel import KernelIndex
from pgoutput.columns.pure import PureIndex
from pgoutput.stream import StreamDecoder
from pgoutput.values import Rescued, arrow_type, to_arrow, to_text


def index_messages(
    data: pa.Array, decoder: StreamDecoder, in_stream: Sequence[bool] | Mask | None = None
) -> Index:
    """The index of a batch of messages.

    Args:
        data: The messages, binary or large_binary, sliced or not; NULL is no message.
        decoder: Of their stream. It remembers what they say, as if it had decoded each.
        in_stream: For each whether it stands in a stream block, where they do not follow each other: the
            decoder's own state does not matter then, and stays as it is.
    """
    make = PureIndex if compiled.kernel is None else KernelIndex
    return make(data, decoder, in_stream)


def read_texts(index: Index, numbers: Numbers, type_oids: Numbers | int) -> pa.StringArray:
    """Cells as the server's text, as `to_text` gives it.

    Args:
        index: Where they are.
        numbers: Which; NULL for -1.
        type_oids: The type of each, or of all.
    """
    array, left = index.texts(numbers)
    if not len(left):
        return array
    texts = np.empty(len(left), object)
    oids = np.broadcast_to(type_oids, len(numbers))[left]
    for oid in np.unique(oids):
        of_type = np.flatnonzero(oids == oid)
        texts[of_type] = to_text(index.cells(numbers[left[of_type]]), int(oid))
    return _replaced(array, left, pa.array(texts, pa.string()))


def read_column(
    index: Index, numbers: Numbers, type_oid: int, type_modifier: int = -1, type_: pa.DataType | None = None
) -> tuple[pa.Array, Rescued]:
    """Cells as an Arrow array, and what the array cannot hold: as `to_arrow`.

    Args:
        index: Where they are.
        numbers: Which; NULL for -1.
        type_oid: OID of their type.
        type_modifier: `atttypmod`.
        type_: The array's type, if it is another than `arrow_type` gives.
    """
    own_type = arrow_type(type_oid, type_modifier)
    wanted = own_type if type_ is None else type_
    builtin = catalog.BY_OID.get(type_oid)
    send = builtin.send if builtin is not None and wanted == own_type else None
    if (quick := index.column(numbers, wanted, send)) is None:
        return to_arrow(index.cells(numbers), type_oid, type_modifier, wanted)
    array, left = quick
    if not len(left):
        return array, {}
    rest, rescued = to_arrow(index.cells(numbers[left]), type_oid, type_modifier, wanted)
    return _replaced(array, left, rest), {int(left[row]): text for row, text in rescued.items()}


def _replaced(array: pa.Array, places: Numbers, values: pa.Array) -> pa.Array:
    """The array with other values in some places."""
    mask = np.zeros(len(array), np.bool_)
    mask[places] = True
    return pc.replace_with_mask(array, pa.array(mask), values)
