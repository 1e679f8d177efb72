"""Sort keys of rows that each contain a message, and the columns that `decode` adds to such rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from logicalrep._arrays import dates_as_integers
from logicalrep._index import scatter
from logicalrep.errors import DecodeError
from logicalrep.views import KeyColumns, UnorderedBatch, decoded_batch, format_key, key_at


def sort_keys(order: pa.StructArray) -> list[pa.Array]:
    """Return the columns that sort the messages, with the fields of nested structs as separate columns.

    Dates and timestamps are integers, which Python sorts as Spark does, and which a stream's state can store.
    """
    columns = [order]
    while any(pa.types.is_struct(column.type) for column in columns):
        columns = [
            field
            for column in columns
            for field in (column.flatten() if pa.types.is_struct(column.type) else [column])
        ]
    return list(map(dates_as_integers, columns))


def add_decoded(
    rows: pa.RecordBatch, keys: KeyColumns, decoded: UnorderedBatch, mode: str, names: Sequence[str]
) -> pa.RecordBatch:
    """Return rows with the columns that `decode` adds.

    Args:
        rows: The rows.
        keys: Sort keys of the rows, for errors.
        decoded: The decoded messages of the rows.
        mode: The mode of `decode`, in capitals.
        names: Names of the result's columns; if the column of errors is not among them, it is left out.

    Raises:
        DecodeError: A message is invalid, and the mode is FAILFAST.
    """
    if decoded.errors and mode == "FAILFAST":
        raise _first_error(decoded.errors, keys)
    errors = _error_texts(decoded.errors, len(rows))
    arrays = [*rows.columns, *decoded_batch(decoded).columns, errors]
    if mode == "DROPMALFORMED":
        arrays = [array.filter(errors.is_null()) for array in arrays]
    return pa.RecordBatch.from_arrays(arrays[: len(names)], list(names))


def _first_error(errors: Mapping[int, DecodeError], keys: KeyColumns) -> DecodeError:
    """Return the error of the first row that has an error, with the sort key of the row in its text."""
    row = min(errors)
    text = f"the message at {format_key(key_at(keys, row))}: {errors[row]}"
    return DecodeError(text, message=errors[row].message, field=errors[row].field, offset=errors[row].offset)


def _error_texts(errors: Mapping[int, DecodeError], rows: int) -> pa.StringArray:
    """Return the text of each row's decoding error; NULL for rows without an error."""
    indices = np.array(list(errors), np.int64)
    return scatter([str(error) for error in errors.values()], indices, rows, pa.string())
