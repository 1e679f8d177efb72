"""A scenario accepts only text that a server would write."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from logicalrep.errors import ScenarioError
from logicalrep.messages import Insert
from logicalrep.synth import Scenario
from tests.versions import OLDEST


def sent(type_: str, value: Any) -> object:
    """Return a value of type `type_` as a scenario sends it in the stream."""
    db = Scenario(proto_version=OLDEST)
    db.enum("public.mood")
    table = db.table("public.t", id="int4 key", v=type_)
    with db.transaction() as tx:
        tx.insert(table, id=1, v=value)
    return next(message.new[1] for message in db.messages() if isinstance(message, Insert))


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("date", "yesterday", "for the type date .*such as 2000-12-31"),
        ("date", 5, "date"),
        ("timestamptz", "2024-01-01", "for the type timestamptz"),
        ("uuid", "x", "for the type uuid"),
        ("int4[]", "{a}", r"for the type int4\[\]"),
        ("date[]", ["2024-02-30"], "for the type date"),
        ("inet", "300.1.1.1", "for the type inet"),
        ("bytea", "zz", "for the type bytea"),
        ("oid", -1, "for the type oid"),
        ("int4", 1.5, "'1.5' is not what a server writes for the type int4"),
        ("int4", True, "for the type int4"),
        ("int4", "1_000", "for the type int4"),
        ("float4", 10**40, "for the type float4"),
        ("numeric(5,2)", float("inf"), "cannot store infinity"),
        ("int4[]", [[1], [2, 3]], "sub-arrays have different dimensions"),
        ("text", "\udcff", "invalid UTF-8"),
    ],
)
def test_text_that_no_server_writes_is_refused(type_: str, value: Any, text: str) -> None:
    with pytest.raises(ScenarioError, match=rf"public\.t\.v: .*{text}"):
        sent(type_, value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("date", "infinity"),
        ("text[]", '{a,"b c",NULL}'),
        ("int4range", "[1,5)"),
        ("public.mood[]", "{ok}"),
        # Not checked: money depends on the currency, reg types on the names in the catalog.
        ("money", "$5.00"),
        ("money[]", "{$5.00}"),
        ("regclass", "pg_class"),
        ("aclitem", "=r/postgres"),
    ],
)
def test_text_that_a_server_writes_is_sent_unchanged(type_: str, value: str) -> None:
    assert sent(type_, value) == value


def test_a_large_transaction_takes_linear_time() -> None:
    db = Scenario()
    table = db.table("public.t", id="int8 key")
    begun = time.process_time()
    with db.transaction() as tx:
        for number in range(20_000):
            tx.insert(table, id=number)
    assert time.process_time() - begun < 20  # about 1 s; quadratic time would take 100 s


def test_an_array_without_elements_is_written_without_dimensions() -> None:
    assert sent("int4[]", [[], []]) == "{}"


def test_nan_is_the_greatest_number_and_equals_itself() -> None:
    for operator, value, expected in ((">", 5, ["NaN"]), ("=", "NaN", ["NaN"]), ("<=", "NaN", ["NaN", "1"])):
        db = Scenario(proto_version=OLDEST)
        table = db.table("public.t", n="numeric key", where=("n", operator, value))
        with db.transaction() as tx:
            tx.insert(table, n="NaN")
            tx.insert(table, n=1)
        assert [m.new[0] for m in db.messages() if isinstance(m, Insert)] == expected


@pytest.mark.parametrize(
    "misuse",
    [
        lambda db: db.message("p", "\udcff"),
        lambda db: db.message("p\0", b""),
        lambda db: db.wait(float("nan")),
        lambda db: db.wait(1e300),
        lambda db: db.transaction().prepare("\udcff"),
        lambda db: db.table("public.u", id="int4 key", where=("id", "=")),
    ],
)
def test_invalid_arguments_raise_scenario_error(misuse: Callable[[Scenario], object]) -> None:
    with pytest.raises(ScenarioError):
        misuse(Scenario())


def test_logical_decoding_work_mem_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="must be 0 bytes or more"):
        Scenario(streaming="on", logical_decoding_work_mem=-1)
