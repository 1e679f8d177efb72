"""The changes that a server sent, applied, are the tables that the server has."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pyarrow.csv
import pytest
from pgoutput.captures import Capture
from pgoutput.messages import Cell
from pgoutput.stream import Tables, Transactions

from tests.codec import corpus

COMPARED = {
    "pg10": 30,
    "pg11": 30,
    "pg12": 32,
    "pg13": 33,
    "pg14": 34,
    "pg15": 34,
    "pg16": 34,
    "pg17": 34,
    "pg18": 35,
}
"""How many tables each server has. All of them are compared, in each of its captures."""

Rows = Counter[tuple[Cell, ...]]


def comparable(name: str) -> bool:
    """Whether a capture has all changes, and as text, as truth/ has it."""
    with Capture(corpus.path(name)) as capture:
        options = capture.header.options
        return options.get("origin", "any") == "any" and options.get("binary") != "true"


TEXT_CAPTURES = [name for name in corpus.CAPTURES if comparable(name)]


@cache
def replayed(name: str) -> Tables:
    tables = Tables()
    with Capture(corpus.path(name)) as capture:
        transactions = Transactions(capture.decoder)
        for line in capture.messages():
            if line.message is not None and (transaction := transactions.feed(line.message)) is not None:
                tables.apply(transaction)
    assert transactions.open == 0
    return tables


def truth(server: str, csv: str, columns: list[str]) -> Rows:
    """Rows of a table as the server had them; an empty field is NULL, `""` an empty string."""
    table = pyarrow.csv.read_csv(
        corpus.DIRECTORY / "truth" / server / csv,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pyarrow.string()),
            null_values=[""],
            quoted_strings_can_be_null=False,
            strings_can_be_null=True,
        ),
    )
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("name", TEXT_CAPTURES)
def test_replay_equals_the_tables(name: str) -> None:
    server = name.split("_")[0]
    tables = replayed(name)
    manifest = json.loads((corpus.DIRECTORY / "truth" / server / "manifest.json").read_text())
    compared = 0
    for wanted in manifest["tables"]:
        table = tables.get(wanted["oid"])
        if table is None:
            columns = [column["name"] for column in wanted["columns"]]
            actual: Rows = Counter()
        else:
            assert (wanted["schema"], wanted["table"]) == (table.relation.namespace, table.relation.name)
            columns = [column.name for column in table.relation.columns]
            actual = Counter(tuple(row.values()) for row in table)
            assert len(table) == actual.total()
        assert columns
        assert truth(server, wanted["csv"], columns) == actual, wanted["table"]
        compared += 1
    assert COMPARED[server] == compared


def test_no_capture_is_left_out() -> None:
    assert len(TEXT_CAPTURES) == 55
    assert sum(COMPARED[name.split("_")[0]] for name in TEXT_CAPTURES) == 1865
    left_out = set(corpus.CAPTURES) - set(TEXT_CAPTURES)
    assert all("origin_none" in name or "bin" in name for name in left_out)
