"""The changes that a server sent, applied, are the tables that the server has."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from pgoutput.capturefile import CaptureFile
from pgoutput.stream import Tables, Transactions
from tests.codec import corpus
from tests.truth import TrueTable, true_tables

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


def comparable(name: str) -> bool:
    """Whether a capture has all changes, and as text, as truth/ has it."""
    with CaptureFile(corpus.path(name)) as capture:
        options = capture.header.options
        return options.get("origin", "any") == "any" and options.get("binary") != "true"


TEXT_CAPTURES = [name for name in corpus.CAPTURES if comparable(name)]


@cache
def replayed(name: str) -> Tables:
    tables = Tables()
    with CaptureFile(corpus.path(name)) as capture:
        transactions = Transactions(capture.decoder)
        for line in capture.messages():
            if line.message is not None and (transaction := transactions.feed(line.message)) is not None:
                tables.apply(transaction)
    assert transactions.open == 0
    return tables


@cache
def truth(server: str) -> tuple[TrueTable, ...]:
    return tuple(true_tables(server))


@pytest.mark.parametrize("name", TEXT_CAPTURES)
def test_replay_equals_the_tables(name: str) -> None:
    server = name.split("_")[0]
    tables = replayed(name)
    for wanted in truth(server):
        table = tables.get(wanted.oid)
        if table is None:  # in no message, so it must be empty
            assert wanted.rows == [], wanted.name
            continue
        assert wanted.name == f"{table.relation.namespace}.{table.relation.name}"
        columns = [column.name for column in table.relation.columns]
        assert Counter(wanted.select(columns)) == Counter(tuple(row.values()) for row in table), wanted.name
        assert len(wanted.rows) == len(table)
    assert COMPARED[server] == len(truth(server))


def test_no_capture_is_left_out() -> None:
    assert len(TEXT_CAPTURES) == 55
    assert sum(COMPARED[name.split("_")[0]] for name in TEXT_CAPTURES) == 1865
    left_out = set(corpus.CAPTURES) - set(TEXT_CAPTURES)
    assert all("origin_none" in name or "bin" in name for name in left_out)
