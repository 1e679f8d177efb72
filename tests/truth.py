"""Expected rows of the captures: the final tables of the captured servers, and comparison with them.

The comparison shares no code with the package. Python's built-in types parse the server's text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
from pyarrow import csv

from tests.versions import CAPTURES as CAPTURES


class TrueTable(msgspec.Struct, frozen=True):
    """A table as dumped from a server: its rows as text, NULL as None."""

    oid: int
    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]]

    def select(self, columns: Iterable[str]) -> list[tuple[str | None, ...]]:
        """Return the sorted rows, reduced to these columns."""
        places = [self.columns.index(column) for column in columns]
        return sorted((tuple(row[place] for place in places) for row in self.rows), key=repr)


def true_tables(server: str) -> Iterator[TrueTable]:
    """Yield the final tables of a captured server; `server` is its label, such as `pg18`."""
    folder = CAPTURES / "truth" / server
    for table in json.loads((folder / "manifest.json").read_text())["tables"]:
        columns = tuple(column["name"] for column in table["columns"])
        rows = _read_csv(folder / table["csv"], columns)
        yield TrueTable(table["oid"], f"{table['schema']}.{table['table']}", columns, rows)


def _read_csv(path: Path, columns: tuple[str, ...]) -> list[tuple[str | None, ...]]:
    if not columns:  # "# 3 rows, no columns"
        return [()] * int(path.read_text().split()[1])
    table = csv.read_csv(
        path,
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={column: pa.string() for column in columns},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def equals_typed(truth: TrueTable, table: pa.Table) -> bool:
    """Return whether a typed table with the column `_rescued_data` has exactly the rows of `truth`.

    A rescued value must be NULL in its column and equal the server's text. Any other value must equal the
    Python object of the server's text.
    """
    columns = [name for name in table.column_names if name != "_rescued_data"]
    schema = pa.schema([table.schema.field(name) for name in columns])
    unmatched: dict[str | None, list[tuple[str | None, ...]]] = {}
    for texts in truth.select(columns):
        unmatched.setdefault(texts[0] if texts else "", []).append(texts)
    for row in table.to_pylist():
        rescued = dict(row.pop("_rescued_data") or ())
        likely = unmatched.get(str(next(iter(row.values()), "")), [])  # the first column is usually a key
        for rows in (likely, *unmatched.values()):
            match = next((texts for texts in rows if _row_equals(row, texts, rescued, schema)), None)
            if match is not None:
                rows.remove(match)
                break
        else:
            return False
    return not any(unmatched.values())


def _row_equals(
    row: dict[str, Any], texts: tuple[str | None, ...], rescued: dict[str, Any], schema: pa.Schema
) -> bool:
    rescued_texts = [rescued.get(column, _NOT_RESCUED) for column in row]
    return all(map(_equal, row.values(), texts, rescued_texts, schema))


_NOT_RESCUED = object()


def _equal(value: Any, text: str | None, rescued: Any, field: pa.Field) -> bool:
    if rescued is not _NOT_RESCUED:
        return value is None and rescued == text
    if value is None or text is None:
        return value is text
    if pa.types.is_list(field.type):
        if pa.types.is_fixed_size_binary(field.type.value_type):
            value = [None if item is None else UUID(bytes=item) for item in value]
        return bool(_array_text(value) == text)
    if pa.types.is_fixed_size_binary(field.type):
        return bool(UUID(text).bytes == value)
    if isinstance(value, float):
        return _same_float(value, text, single=pa.types.is_float32(field.type))
    return bool(_READERS[type(value)](text) == value)


_READERS: dict[type, Callable[[str], Any]] = {
    bool: {"t": True, "f": False}.__getitem__,
    int: int,
    str: str,
    bytes: lambda text: bytes.fromhex(text.removeprefix("\\x")),
    Decimal: Decimal,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
}


def _same_float(value: float, text: str, *, single: bool) -> bool:
    packing = ">f" if single else ">d"
    return struct.pack(packing, value) == struct.pack(packing, float(text))


def _array_text(items: list[Any]) -> str:
    """Return a list as PostgreSQL's text of a one-dimensional array."""
    return "{" + ",".join(map(_element_text, items)) + "}"


def _element_text(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, bool):
        return "t" if item else "f"
    text = "\\x" + item.hex() if isinstance(item, bytes) else str(item)
    if text and text.upper() != "NULL" and not set(text) & set('{}",\\ \t\n\r\v\f'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
