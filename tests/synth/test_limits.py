"""A scenario refuses what a server refuses: names, columns, values and messages beyond a server's limits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest

from logicalrep.errors import ScenarioError
from logicalrep.messages import XLogData
from logicalrep.stream.check import CheckOptions, check
from logicalrep.synth import Scenario, ScenarioTable, message_size
from logicalrep.synth.column_types import TypeRegistry
from logicalrep.synth.text_format import to_text


@pytest.fixture
def db() -> Scenario:
    return Scenario()


NAMES = {
    "public.orders": ("public", "orders"),
    'public."Kunden"': ("public", "Kunden"),
    '"a.b".c': ("a.b", "c"),
    'public."a ""b"""': ("public", 'a "b"'),
    "public.größe_2$": ("public", "größe_2$"),
    "public." + "x" * 63: ("public", "x" * 63),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_sql_identifiers(db: Scenario, name: str) -> None:
    table = db.table(
        name, {"ID": "int8 key", "a.b": "text"}, column_list=["ID", "a.b"], where=("ID", ">", "0")
    )
    (relation,) = db.published
    assert (relation.namespace, relation.name) == NAMES[name]
    assert [column.name for column in relation.columns] == ["ID", "a.b"]
    with db.transaction() as tx:
        tx.insert(table, {"ID": 1, "a.b": "x"})
    assert db.rows(table) == [{"ID": "1", "a.b": "x"}]
    with pytest.raises(ScenarioError, match="exists already"):
        db.table(name, id="int8 key")


REFUSED_NAMES = {
    "public.Kunden": """write public.kunden or public."Kunden\"""",
    "Public.t": 'write public.t or "Public".t',
    "a.b.c": 'has 3 parts; write schema and name, with a dot inside a name in quotes: "a.b".c',
    "t": "has no schema",
    "public.a b": 'write public."a b"',
    "public.": "is no name of a table",
    'public."x': "is no name of a table",
    'public.""': "the name of a table is empty",
    'public."\0"': "contains a zero byte",
    "public." + "x" * 64: "has 64 bytes, more than 63",
    "public." + "é" * 32: "has 64 bytes, more than 63",
    "pg_catalog.t": 'permission denied to create "pg_catalog.t"',
    "pg_mine.t": 'unacceptable schema name "pg_mine"',
}


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_other_names_are_refused(db: Scenario, name: str) -> None:
    with pytest.raises(ScenarioError) as error:
        db.table(name, id="int8 key")
    assert REFUSED_NAMES[name] in str(error.value)


def test_types_have_quoted_names_too(db: Scenario) -> None:
    db.enum('public."Mood"')
    table = db.table("public.t", id="int8 key", mood='public."Mood"', moods='public."Mood"[]')
    assert [one.name for one in table.definition.type_messages()] == ["Mood", "_Mood"]
    for declared in ("public.Mood", "public.other"):
        with pytest.raises(ScenarioError):
            db.table("public.u", mood=declared)


def wide(count: int) -> dict[str, str]:
    return {f"c{number}": "bool" for number in range(count)}


def alter(**change: Any) -> Callable[[Scenario, ScenarioTable], None]:
    def run(db: Scenario, table: ScenarioTable) -> None:
        with db.transaction() as tx:
            tx.alter(table, **change)

    return run


COLUMNS: dict[str, tuple[Callable[[Scenario, ScenarioTable], Any], str]] = {
    "1601 columns": (lambda db, _: db.table("public.u", wide(1601)), "tables can have at most 1600 columns"),
    "added column": (alter(add={"more": "int4"}), "tables can have at most 1600 columns"),
    "dropped and added column": (alter(drop=["c1"], add={"more": "int4"}), "at most 1600 columns"),
    "generated column": (
        lambda db, _: db.table("public.u", wide(1600), generated={"g": "c1"}),
        "tables can have at most 1600 columns",
    ),
    "name of a system column": (
        lambda db, _: db.table("public.u", ctid="int4"),
        'column name "ctid" conflicts with a system column name',
    ),
    "long name": (lambda db, _: db.table("public.u", {"x" * 64: "int4"}), "has 64 bytes, more than 63"),
    "renamed to a long name": (alter(rename={"c1": "x" * 64}), "has 64 bytes, more than 63"),
    "zero byte": (lambda db, _: db.table("public.u", {"\0": "int4"}), "contains a zero byte"),
    "new name of the table": (alter(name="Orders"), 'write orders or "Orders"'),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_beyond_the_limits_are_refused(db: Scenario, case: str) -> None:
    table = db.table("public.t", wide(1600))
    call, text = COLUMNS[case]
    with pytest.raises(ScenarioError) as error:
        call(db, table)
    assert text in str(error.value)
    assert len(table.definition.columns) == 1600


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("column", "unit"), [("note", "a"), ("note", "é"), ("data", b"a")])
def test_a_message_that_fills_the_buffer_of_a_server_is_refused(
    monkeypatch: pytest.MonkeyPatch, binary: bool, column: str, unit: Any
) -> None:
    """The limit is smaller here, so that the test needs no gigabyte."""
    monkeypatch.setattr(message_size, "MAX_BYTES", 10_000)
    sent: list[int] = []

    def refused(size: int) -> bool:
        db = Scenario(binary=binary)
        table = db.table("public.t", id="int8 key", note="text", data="bytea")
        error = ""
        with db.transaction() as tx:
            tx.insert(table, id=1)
            try:
                tx.update(table, {"id": 1}, **{column: unit * size})
            except ScenarioError as refusal:
                error = str(refusal)
        if error:
            assert "string buffer exceeds maximum allowed length (10000 bytes)" in error
            assert db.rows(table) == [{"id": "1", "note": None, "data": None}]
        else:
            stream = [*db.stream()]
            sent.append(max(len(one.data) for one in stream if isinstance(one, XLogData)) + 25)
            for found, limit in (([], sent[-1] + 1), (["message-size"], sent[-1])):
                checked = CheckOptions(binary=binary, max_bytes=limit)
                assert [one.rule for one in check(stream, checked) if one.rule == "message-size"] == found
        return bool(error)

    largest = bisect_left(range(10_000), True, key=refused) - 1
    assert not refused(largest)
    of_unit = 2 if (column == "data" and not binary) or unit == "é" else 1
    assert 10_000 - of_unit <= sent[-1] < 10_000


ACCEPTED = {
    "json": ["{}", ' {"a":1,"a":2} ', "1e400", '"\\u0000"', '"\\ud800"'],
    "jsonb": ["{}", '{"a": 2, "bb": 1}', "[1, 2.50]", '"ä"'],
    "xml": [
        "",
        "text",
        "<a/>b",
        "<a x='1'>&amp;</a>",
        '<?xml version="1.0" standalone="yes"?><a/>',
        '<?xml version="1.1"?>x',
        "<?xml-a?>",
    ],
    "money": ["$1,234.56", "-$0.01"],
    "aclitem": ["=r/postgres", "miriam=arwdDxt/postgres", '"a b"=r*w/"c d"'],
    "name": ["x" * 63],
    "int4range": ["[1,5)", "(,)", "empty", "[1,)"],
    "numrange": ["[1,1]", "(1,2.5]"],
    "int4multirange": ["{}", "{[1,2),[3,4)}"],
    "bit(3)": ["101"],
    "jsonpath": ['$."a"[*]', "$"],
    "regclass": ["public.orders", "-", '"Kunden"'],
    "int4": ["-7"],
    "text[]": ["{}", '{a,NULL,"b c"}', "{{a},{b}}"],
    "json[]": ['{"{\\"a\\": 1}",1}'],
}
REFUSED = {
    "json": ["{", "", "NaN", "{'a': 1}", "[1,]", "01"],
    "jsonb": ["{", '{"a":1}', '{"bb": 1, "a": 2}', '"\\u0000"', "1e2", '{"a": 1, "a": 2}'],
    "xml": [
        "<a>",
        "<a",
        "&",
        "<a></b>",
        '<?xml version="1.0"?><a/>',
        '<?xml version="1.1" encoding="UTF-8"?>',
        "<?xml?>",
    ],
    "money": ["x", ""],
    "aclitem": ["x", "=q/postgres", "=r"],
    "name": ["x" * 64],
    "int4range": ["[1,5]", "(1,5)", "[5,1)", "[1,1)", "[,1)", "[1,]"],
    "numrange": ["[2,1]", "[1,1)"],
    "int4multirange": ["{[1,2),[2,3)}", "{[3,4),[1,2)}"],
    "bit(3)": ["1010", "10"],
    "varbit(3)": ["1010"],
    "jsonpath": ["", "$."],
    "regclass": ["", "Kunden"],
    "gtsvector": ["1"],
    "int4": ["007", " 7", "2147483648"],
    "inet": ["1.2.3.4/32"],
    "float8": ["1.0"],
    "text[]": ['{"a"}', "{a"],
    "json[]": ['{"{"}', "{{1,2},{3,x}}"],
}


@pytest.mark.parametrize(
    ("type_name", "text"), [(name, text) for name in ACCEPTED for text in ACCEPTED[name]]
)
def test_a_text_that_the_server_writes_is_accepted_unchanged(type_name: str, text: str) -> None:
    assert to_text(text, TypeRegistry(lambda: 20_000).parse(type_name)) == text


@pytest.mark.parametrize(("type_name", "text"), [(name, text) for name in REFUSED for text in REFUSED[name]])
def test_a_text_that_the_server_does_not_write_is_refused(type_name: str, text: str) -> None:
    with pytest.raises(ScenarioError):
        to_text(text, TypeRegistry(lambda: 20_000).parse(type_name))


def test_history_and_tables_are_linear() -> None:
    """Both would take minutes if they were quadratic."""
    db = Scenario()
    tables = [db.table(f"public.t{number}", id="int8 key", note="text") for number in range(1_000)]
    for number in range(4_000):
        with db.transaction() as tx:
            tx.insert(tables[0], id=number)
    with db.transaction() as tx:
        tx.alter(tables[1], rename={"note": "text"}, name="renamed")
        tx.insert(tables[1], id=1)
        tx.delete(tables[0], id=3)
    *_, before, end = db.history()
    assert len(before.tables["public.t0"]) == 4_000
    assert end.tables["public.renamed"] == [{"id": "1", "text": None}]
    assert before.tables["public.t1"] == []
    assert len(before.tables) == len(tables)
    assert dict(end.tables) == db.rows()
