"""Build the index of a batch of messages, and read the batch's cells as text or as typed values.

The index has the locations of the fields and cells of each message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from logicalrep import catalog, compiled
from logicalrep._arrays import Mask, Numbers, replace_rows
from logicalrep._index.base import MessageIndex, PartialArray
from logicalrep._index.kernel import KernelIndex
from logicalrep._index.pure import PureIndex
from logicalrep.stream import StreamDecoder
from logicalrep.values import Rescued, arrow_type, to_arrow, to_text


def index_messages(
    data: pa.Array, decoder: StreamDecoder, in_stream: Sequence[bool] | Mask | None = None
) -> MessageIndex:
    """Return the index of a batch of messages, built by the compiled kernel if there is one.

    The index has the locations of the fields and cells of each message.

    Args:
        data: The messages, as an array of binary or large_binary, possibly a slice. A NULL row has no
            message.
        decoder: Decoder of the stream. Its state is updated as by decoding each message.
        in_stream: Whether each message is inside a stream block, for messages in any order; the attribute
            `in_stream` of the decoder is then neither used nor changed. None for consecutive messages of the
            stream.
    """
    make = PureIndex if compiled.kernel is None else KernelIndex
    return make(data, decoder, in_stream)


def read_texts(index: MessageIndex, numbers: Numbers, type_oids: Numbers | int) -> pa.StringArray:
    """Return cells as PostgreSQL's text, equal to the results of `logicalrep.values.to_text`.

    Args:
        index: Index of the batch.
        numbers: Indexes of the cells in the batch; -1 gives NULL.
        type_oids: OID of each cell's type, or one OID for all cells.
    """
    return _with_binary(index, index.texts(numbers), numbers, type_oids)


def read_text_columns(index: MessageIndex, first: Numbers, type_oids: Sequence[int]) -> list[pa.StringArray]:
    """Return the cells of several columns, each as `read_texts` does.

    Args:
        index: Index of the batch.
        first: For each row, the index of its cell in the first column; the row's other cells follow.
        type_oids: OID of the type of each column.
    """
    columns = zip(index.text_columns(first, len(type_oids)), type_oids, strict=True)
    return [
        _with_binary(index, read, first + column, type_oid) for column, (read, type_oid) in enumerate(columns)
    ]


def _with_binary(
    index: MessageIndex, read: PartialArray, numbers: Numbers, type_oids: Numbers | int
) -> pa.StringArray:
    """Return the texts in `read`, and the texts of the cells that `read` lacks, such as binary cells.

    `read` is the result of `index.texts(numbers)`. `type_oids` has the OID of each cell's type, or is one OID
    for all cells.
    """
    array, unread = read
    if not len(unread):
        return array
    texts = np.empty(len(unread), object)
    oids = np.broadcast_to(type_oids, len(numbers))[unread]
    for oid in np.unique(oids):
        of_type = np.flatnonzero(oids == oid)
        texts[of_type] = to_text(index.cells(numbers[unread[of_type]]), int(oid))
    return replace_rows(array, unread, pa.array(texts, pa.string()))


def read_column(
    index: MessageIndex,
    numbers: Numbers,
    type_oid: int,
    type_modifier: int = -1,
    type_: pa.DataType | None = None,
) -> tuple[pa.Array, Rescued]:
    """Return cells as an Arrow array, and the rescued values by row, as `logicalrep.values.to_arrow` does.

    Args:
        index: Index of the batch.
        numbers: Indexes of the cells in the batch; -1 gives NULL.
        type_oid: OID of the cells' type (pg_attribute.atttypid).
        type_modifier: Type modifier (pg_attribute.atttypmod); -1 without modifier.
        type_: Arrow type of the array; None for the type that `logicalrep.values.arrow_type` returns.
    """
    own_type = arrow_type(type_oid, type_modifier)
    target = own_type if type_ is None else type_
    builtin = catalog.FORMS.get(type_oid)
    send = builtin.send if builtin is not None and target == own_type else None
    if (quick := index.column(numbers, target, send)) is None:
        return to_arrow(index.cells(numbers), type_oid, type_modifier, target)
    array, unread = quick
    if not len(unread):
        return array, {}
    rest, rescued = to_arrow(index.cells(numbers[unread]), type_oid, type_modifier, target)
    return replace_rows(array, unread, rest), {int(unread[row]): text for row, text in rescued.items()}
