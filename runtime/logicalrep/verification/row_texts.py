"""Convert the values and rows of a replica to the text that the server writes for them.

The text of a row is that of the server's `ROW(…)::text` (record_out in src/backend/utils/adt/rowtypes.c). It
consists of the output functions' texts, which are the values in the text format of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import compiled
from logicalrep._arrays import from_buffers, raw_buffers, replace_rows, value_bytes
from logicalrep.replica import TableAsOf
from logicalrep.values import from_arrow

_DOUBLED: Final = np.frombuffer(b'"\\', np.uint8)

_SPECIAL: Final = r'["\\(), \t\n\x0b\f\r]'
"""Regular expression for a character that makes record_out quote a value."""


class ColumnTexts:
    """The values of one column of several rows, as text.

    Attributes:
        texts: The texts; NULL for NULL and for values that were never sent.
        never_sent: Indices of the rows whose value was never sent.

    Args:
        array: The values.
        texts: The values as text.
        rescued: The rescued values of the column, by row; None for a value that was never sent.
    """

    def __init__(self, array: pa.Array, texts: pa.StringArray, rescued: dict[int, str | None]) -> None:
        self.quote = next(quote for matches, quote in _QUOTES if matches(array.type))
        known = {row: text for row, text in rescued.items() if text is not None}
        if known:
            self.quote = _quote
            rows = np.array(sorted(known))
            texts = replace_rows(texts, rows, pa.array([known[row] for row in rows.tolist()], pa.string()))
        self.texts: pa.StringArray = texts
        self.never_sent: set[int] = rescued.keys() - known.keys()


def column_texts(batch: pa.RecordBatch, table: TableAsOf) -> list[ColumnTexts]:
    """Return the values of each column of the relation as text.

    Args:
        batch: Rows of the table, as `TableAsOf.read` yields them.
        table: The table.

    Raises:
        ValueError: A value of the Delta table is not a value of its column's type.
    """
    rescued = _rescued_values(batch[table.rescued])
    found = []
    for name, column in table.columns:
        array = batch[name]
        texts = (
            array  # strings are the server's text
            if pa.types.is_string(array.type)
            else from_arrow(array, column.type_oid, column.type_modifier)
        )
        found.append(ColumnTexts(array, texts, rescued.get(name, {})))
    return found


def record_texts(columns: Sequence[ColumnTexts], rows: int) -> pa.StringArray:
    """Return the text of each row, as the server's `ROW(…)::text` of these columns."""
    if not columns:
        return pa.array(["()"] * rows, pa.string())
    if compiled.kernel is not None and rows:
        arrays = [(*raw_buffers(column.texts), column.quote is _keep) for column in columns]
        return from_buffers(pa.string(), rows, *compiled.kernel.record_texts(arrays, rows))
    parts = [part for column in columns for part in (",", pc.fill_null(column.quote(column.texts), ""))]
    return pc.binary_join_element_wise("(", *parts[1:], ")", "")


def _rescued_values(maps: pa.MapArray) -> dict[str, dict[int, str | None]]:
    """Return the rescued values by column name and row."""
    found: dict[str, dict[int, str | None]] = {}
    if maps.null_count < len(maps):
        for row in pc.indices_nonzero(maps.is_valid()).to_pylist():
            for name, text in maps[row].as_py():
                found.setdefault(name, {})[row] = text
    return found


def _quote(texts: pa.StringArray) -> pa.StringArray:
    """Return the texts of values as fields of a record: in quotation marks if necessary (record_out)."""
    is_special = pc.or_(pc.equal(pc.binary_length(texts), 0), pc.match_substring_regex(texts, _SPECIAL))
    if not pc.any(is_special).as_py():
        return texts
    doubled = texts
    if np.isin(value_bytes(texts), _DOUBLED).any():  # the replacement is the slowest step
        doubled = pc.replace_substring_regex(texts, r'(["\\])', r"\1\1")
    quoted = pc.binary_join_element_wise('"', doubled, '"', "")
    return quoted if pc.all(is_special).as_py() else pc.if_else(is_special, quoted, texts)


def _keep(texts: pa.StringArray) -> pa.StringArray:
    return texts


def _is_plain(type_: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    return bool(is_number or pa.types.is_boolean(type_) or pa.types.is_date(type_))


_QUOTES: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.StringArray], pa.StringArray]], ...]
] = (
    (_is_plain, _keep),
    (pa.types.is_fixed_size_binary, _keep),
    (pa.types.is_timestamp, lambda texts: pc.binary_join_element_wise('"', texts, '"', "")),
    (pa.types.is_binary, lambda texts: pc.binary_join_element_wise('"\\', texts, '"', "")),
    (lambda type_: True, _quote),
)
"""Pairs of a test for Arrow types, and the function that quotes the texts of values of such a type."""
