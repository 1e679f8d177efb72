"""Captures of the same changes in text and in binary format give equal tables, equal to the server's."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import zip_longest

import pytest

from logicalrep.capturefile import CaptureFile
from logicalrep.messages import Cell, Relation
from logicalrep.stream import Tables
from logicalrep.values import Rescued, base_types, to_arrow, to_text
from tests.codec import corpus
from tests.truth import true_tables

PAIRS = {
    "pg14_p1_binary": "pg14_p1",
    "pg14_p2_stream_bin": "pg14_p2_stream",
    "pg15_p1_binary": "pg15_p1",
    "pg15_p2_stream_bin": "pg15_p2_stream",
    "pg16_p1_binary": "pg16_p1",
    "pg17_p1_binary": "pg17_p1",
    "pg18_p1_binary": "pg18_p1",
    "pg19_p1_binary": "pg19_p1",
    "pg18_p2_stream_bin": "pg18_p2_stream",
    "pg18_p4_gen_par_bin": "pg18_p1_gen",
}
"""Capture in text format of the same columns of the same server, by name of each capture in binary format."""

NOT_SENT = {
    "t_num.m": "money: the currency is not sent",
    "t_sys.rc": "regclass: the name is not sent",
    "t_sys.rt": "regtype: the name is not sent",
    "t_v13.rcoll": "regcollation: the name is not sent",
    "t_v19.db": "regdatabase: the name is not sent",
}
"""Reasons why the text of a column has information that the binary form lacks, by `table.column`."""

OTHER_TEXT = {"pg19_p1_binary": {"t_net.l"}}
"""Columns whose text this server writes in another way than `to_text`, by name of a capture in binary format.

PostgreSQL 19 pads a value of type pg_lsn with zeros.
"""

UNKNOWN_TYPES = {
    "t_range.fr": "a range that is not built in: no message tells its type",
    "t_user.fr": "a range that is not built in: no message tells its type",
    "t_v14.fm": "a multirange over it",
    "t_user.a": "a composite with a domain in it: no message tells the domain's type",
    "t_user.aa": "an array of it",
}
"""Reasons why a column's binary values have an unknown form and are rescued in hex, by `table.column`."""


def incomparable(name: str) -> set[str]:
    """Return the columns, as `table.column`, whose values in this binary capture have another text."""
    return {*NOT_SENT, *UNKNOWN_TYPES, *OTHER_TEXT.get(name, ())}


@cache
def columns_of(name: str) -> dict[str, tuple[int, int, list[Cell]]]:
    """Return each column's type OID, type modifier and cells at the end of a capture, by `table.column`."""
    tables = Tables()
    with CaptureFile(corpus.path(name)) as capture:
        for transaction in capture.transactions():
            tables.apply(transaction)
        types = dict(capture.decoder.types)
    columns = {}
    for table in tables.values():
        relation: Relation = base_types(table.relation, types)
        rows = list(table)
        for column in relation.columns:
            cells = [row[column.name] for row in rows]
            columns[f"{relation.name}.{column.name}"] = column.type_oid, column.type_modifier, cells
    return columns


def test_every_binary_capture_is_compared() -> None:
    assert sorted(PAIRS) == [name for name in corpus.CAPTURES if "bin" in name]


@pytest.mark.parametrize("name", PAIRS)
def test_binary_values_become_the_servers_text(name: str) -> None:
    columns = columns_of(name)
    left_out = incomparable(name)
    compared = 0
    for table in true_tables(name.split("_")[0]):
        short = table.name.partition(".")[2]
        mine = {column: columns[key] for column in table.columns if (key := f"{short}.{column}") in columns}
        told = [column for column in mine if f"{short}.{column}" not in left_out]
        texts = [to_text(mine[column][2], mine[column][0]) for column in told]
        if told:
            assert Counter(zip_longest(*texts)) == Counter(table.select(told)), table.name
        compared += sum(isinstance(cell, bytes) for column in told for cell in mine[column][2])
    assert compared > 300


@pytest.mark.parametrize("name", PAIRS)
def test_text_and_binary_captures_become_equal_arrays(name: str) -> None:
    binary, text = columns_of(name), columns_of(PAIRS[name])
    assert binary.keys() == text.keys()
    different = set()
    for key, (oid, modifier, cells) in binary.items():
        assert text[key][:2] == (oid, modifier)
        array, rescued = to_arrow(cells, oid, modifier)
        wanted, rescued_of_text = to_arrow(text[key][2], oid, modifier)
        assert array.type == wanted.type, key
        if list(map(str, array)) != list(map(str, wanted)) or rescued != rescued_of_text:
            different.add(key)
        if key in UNKNOWN_TYPES:
            assert in_hex(cells, rescued), key
    assert different == incomparable(name) & binary.keys()


def in_hex(cells: list[Cell], rescued: Rescued) -> bool:
    """Return whether at least one cell is rescued, and all rescued values are the hex of their cell."""
    shown = {row: "\\x" + cell.hex() for row, cell in enumerate(cells) if isinstance(cell, bytes)}
    return bool(rescued) and rescued.items() <= shown.items()
