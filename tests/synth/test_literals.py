"""Text that a scenario takes is text that a server writes: in text format nothing else would look at it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pgoutput.errors import ScenarioError
from pgoutput.messages import Insert
from pgoutput.synth import Scenario


def sent(type_: str, value: Any) -> object:
    """The value as the stream has it."""
    db = Scenario(proto_version=1)
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
        ("int4", 1.5, "1.5 is no int4: not a whole number"),
    ],
)
def test_what_no_server_writes_is_refused(type_: str, value: Any, text: str) -> None:
    with pytest.raises(ScenarioError, match=rf"public\.t\.v: .*{text}"):
        sent(type_, value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("date", "infinity"),
        ("text[]", '{a,"b c",NULL}'),
        ("int4range", "[1,5)"),
        ("public.mood[]", "{ok}"),
        # What their texts mean is not known here: amounts have a currency, objects a name.
        ("money", "$5.00"),
        ("money[]", "{$5.00}"),
        ("regclass", "pg_class"),
        ("aclitem", "=r/postgres"),
    ],
)
def test_what_a_server_writes_is_sent_as_it_is(type_: str, value: str) -> None:
    assert sent(type_, value) == value


def test_a_transaction_of_many_rows_takes_time_in_proportion() -> None:
    db = Scenario()
    table = db.table("public.t", id="int8 key")
    begun = time.process_time()
    with db.transaction() as tx:
        for number in range(20_000):
            tx.insert(table, id=number)
    assert time.process_time() - begun < 20  # less than one; it was a hundred when each looked at all before
