"""Applying the captured changes of a server yields the tables of that server."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from logicalrep.capturefile import CaptureFile
from logicalrep.stream import Tables, Transactions
from tests.codec import corpus
from tests.effort import mostly_nightly
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
    "pg19": 36,
}
"""Number of tables by server. A replay of each capture is compared with all tables of its server."""


def comparable(name: str) -> bool:
    """Return whether a capture has the changes of all origins, with values in text format."""
    with CaptureFile(corpus.path(name)) as capture:
        options = capture.header.options
        return options.get("origin", "any") == "any" and options.get("binary") != "true"


TEXT_CAPTURES = [name for name in corpus.CAPTURES if comparable(name)]
VARIED_TEXT = {
    *("pg11_p1", "pg12_p1", "pg13_p1", "pg17_p4_par_2pc", "pg18_p4_par_2pc_immediate"),
    *corpus.VARIED,
} & {*TEXT_CAPTURES}
"""Names of capture files in text format, which cover all major versions and all values of `streaming`."""


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


@pytest.mark.parametrize("name", mostly_nightly(TEXT_CAPTURES, VARIED_TEXT))
def test_replayed_captures_equal_the_servers_tables(name: str) -> None:
    server = name.split("_")[0]
    tables = replayed(name)
    for expected in truth(server):
        table = tables.get(expected.oid)
        if table is None:  # no message named it, so it must be empty
            assert expected.rows == [], expected.name
            continue
        assert expected.name == f"{table.relation.namespace}.{table.relation.name}"
        columns = [column.name for column in table.relation.columns]
        assert Counter(expected.select(columns)) == Counter(tuple(row.values()) for row in table), (
            expected.name
        )
        assert len(expected.rows) == len(table)
    assert COMPARED[server] == len(truth(server))


def test_all_captures_are_replayed() -> None:
    assert len(TEXT_CAPTURES) == 62
    assert sum(COMPARED[name.split("_")[0]] for name in TEXT_CAPTURES) == 2117
    left_out = set(corpus.CAPTURES) - set(TEXT_CAPTURES)
    assert all("origin_none" in name or "bin" in name for name in left_out)
