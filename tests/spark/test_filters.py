"""Filters pushed down to the data source exclude only rows that do not match, and never raise an error."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from logicalrep.spark.filters import Filters
from logicalrep.views import LsnRange
from logicalrep.views.relation_schemas import relation_schema
from tests.messages import make_relation

T = relation_schema(
    make_relation(oid=16_384, namespace="", name='T"\udce9'),
    {},
)
LSN = ("commit_lsn",)
LAST = 2**64 - 1


@pytest.mark.parametrize(
    ("filters", "lsns"),
    [
        ([], (0, LAST)),
        ([EqualTo(LSN, 7)], (7, 7)),
        ([In(LSN, (9, 5, 7))], (5, 9)),
        ([In(LSN, (9, None))], (9, 9)),
        ([In(LSN, (None,))], (LAST, 0)),
        ([GreaterThan(LSN, 5), LessThan(LSN, 9)], (5, 9)),
        ([GreaterThanOrEqual(("sequence", "commit_lsn"), 5), LessThanOrEqual(LSN, 9)], (5, 9)),
        ([GreaterThan(LSN, 5), EqualTo(LSN, 3)], (5, 3)),
        (
            [GreaterThan(("position",), 5), Not(EqualTo(LSN, 7)), IsNotNull(LSN), EqualNullSafe(LSN, 7)],
            (0, LAST),
        ),
    ],
)
def test_filters_on_commit_lsns_give_a_range(filters: list[Filter], lsns: tuple[int, int]) -> None:
    assert Filters(filters).lsns == LsnRange(*lsns)
    assert Filters(filters).selects_relation(T)


@pytest.mark.parametrize(
    ("attribute", "value", "other"),
    [("oid", 16_384, 16_385), ("namespace", "pg_catalog", "public"), ("name", 'T"\\xe9', 'T"')],
)
def test_filters_on_relations_select_matching_relations(attribute: str, value: Any, other: Any) -> None:
    path = ("relation", attribute)
    matching: list[Filter] = [
        EqualTo(path, value),
        In(path, (other, value, None)),
        GreaterThanOrEqual(path, value),
    ]
    matching += [LessThanOrEqual(path, value), Not(EqualTo(path, value)), StringStartsWith(path, "no")]
    assert Filters(matching).selects_relation(T)
    others = (
        EqualTo(path, other),
        In(path, (other, None)),
        GreaterThan(path, value),
        LessThan(path, value),
    )
    for one in others:
        assert not Filters([*matching, one]).selects_relation(T)
        assert Filters([one]).lsns == LsnRange()
