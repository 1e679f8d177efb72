"""A scenario refuses what a server refuses, with its text, and accepts values that it writes unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random

import psycopg
import pytest

from logicalrep import catalog
from logicalrep.errors import ScenarioError
from logicalrep.synth import Scenario
from logicalrep.synth.column_types import TypeRegistry
from logicalrep.synth.text_format import to_text
from tests.server import WHEEL_VERSION, Server
from tests.synth.test_limits import ACCEPTED, REFUSED, alter, wide

pytestmark = pytest.mark.nightly

TEXTS = {
    "bool": "t f",
    "int2": "-32768 0 7",
    "int4": "2147483647 -1",
    "int8": "9223372036854775807 10",
    "oid": "4294967295 0",
    "float4": "1.5 -0 NaN Infinity 1e+20",
    "float8": "0.1 1e-07 -Infinity 123456.789",
    "numeric": "1.50 -0.001 NaN 12345678901234567890",
    "text": "a é",
    "varchar": "x",
    "bytea": r"\x00ff \x",
    "date": "2024-02-29 infinity 0044-03-15|BC",
    "time": "12:30:00 23:59:59.123456 24:00:00",
    "timetz": "12:30:00+02 01:02:03.5-07:30",
    "timestamp": "2024-02-29|12:30:00 infinity 2024-01-01|00:00:00.5",
    "timestamptz": "2024-02-29|12:30:00+00 -infinity",
    "interval": "1|day 01:02:03 1|year|2|mons|-3|days -00:00:01",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "inet": "1.2.3.4 10.0.0.0/8 ::1 fe80::/10",
    "cidr": "10.0.0.0/8 ::1/128",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "bit(3)": "101 000",
    "varbit(3)": "1 101",
    "point": "(1,2.5)",
    "lseg": "[(0,0),(1,1)]",
    "box": "(1,1),(0,0)",
    "path": "((0,0),(1,1)) [(0,0)]",
    "polygon": "((0,0),(1,0),(1,1))",
    "circle": "<(0,0),1>",
    "line": "{1,-1,0}",
    "pg_lsn": "0/16B3748 FFFFFFFF/FFFFFFFF",
    "tsvector": "'a':1|'b':2A 'x'",
    "tsquery": "'a'|&|'b' !'c'",
    "int4[]": "{1,2} {} {{1,2},{3,4}} [0:1]={1,2} {NULL,1}",
    "text[]": '{a,"b|c"} {""} {"a\\\\\\"b"} {NULL,"NULL"}',
    "int8range": "[1,5) empty (,5)",
    "daterange": "[2024-01-01,2024-02-01) (,)",
    "tsrange": '["2024-01-01|00:00:00",)',
    "nummultirange": "{[1,2),(3,4]} {}",
    "datemultirange": "{[2024-01-01,2024-01-02)}",
    "xid": "4294967295 3",
    "tid": "(0,1)",
    "jsonpath": '$."a"[*] strict|$."b"',
    "xid8": "18446744073709551615",
}
"""Texts that servers write, by type; `|` is a space."""

UNDECIDED = ("jsonpath", "reg", "aclitem", "money", "xml")
"""Types whose texts a scenario checks in part only: `to_text` may accept what a server refuses or changes."""

OTHERWISE = {"pg_lsn": 19}
"""Types whose texts later servers write in another way, and the first of these servers: 0/0A for 0/A."""

SEEDS = {
    **{name: [one.replace("|", " ") for one in texts.split()] for name, texts in TEXTS.items()},
    **{name: [*texts, *REFUSED.get(name, ())] for name, texts in ACCEPTED.items()},
    **{name: texts for name, texts in REFUSED.items() if name not in ACCEPTED},
}

VERDICT = """
CREATE FUNCTION verdict(type_name text, value text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE written text;
BEGIN
    EXECUTE format('SELECT format(''%%s'', %L::%s)', value, type_name) INTO written;
    RETURN coalesce(written, '') = value COLLATE "C";
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END $$
"""


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection]:
    version = int(os.environ.get("LOGICALREP_TEST_VERSION", WHEEL_VERSION))
    with Server(version) as server, psycopg.connect(server.dsn, autocommit=True) as connected:
        connected.execute(VERDICT)
        connected.execute("SET search_path = pg_catalog, public; SET lc_monetary = 'C'; SET timezone = 'UTC'")
        yield connected


def mutated(random: Random, text: str) -> str:
    """Return a text with up to two characters removed, doubled, swapped or replaced."""
    characters = list(text)
    for _ in range(random.randrange(3)):
        place = random.randrange(len(characters) + 1)
        match random.randrange(4):
            case 0:
                characters[place : place + 1] = []
            case 1:
                characters[place:place] = characters[place : place + 1]
            case 2:
                characters[place:place] = [random.choice("0129-+.,:()[]{}\"'\\ eaTZ/")]
            case 3:
                characters[place : place + 1] = [random.choice("0129-+.,:()[]{}\"'\\ eaTZ/")]
    return "".join(characters)


def first_server(name: str) -> int:
    builtin = catalog.BY_NAME[name.partition("(")[0].removesuffix("[]")]
    return int(builtin.server.rstrip("+").partition("-")[0])


def accepts(types: TypeRegistry, name: str, text: str) -> bool:
    try:
        return to_text(text, types.parse(name)) == text
    except ScenarioError:
        return False


def test_scenarios_and_the_server_agree_on_ten_thousand_texts(connection: psycopg.Connection) -> None:
    random, types = Random(0), TypeRegistry(lambda: 20_000)
    version = connection.info.server_version // 10_000
    names = [one for one in SEEDS if first_server(one) <= version < OTHERWISE.get(one, 99)]
    pairs = {(name, text) for name in names for text in SEEDS[name]}
    while len(pairs) < 10_000:
        name = random.choice(names)
        pairs.add((name, mutated(random, random.choice(SEEDS[name]))))
    ordered = sorted(pairs)
    rows = connection.execute(
        "SELECT verdict(name, value) FROM unnest(%s::text[], %s::text[]) "
        "WITH ORDINALITY AS given(name, value, at) ORDER BY at",
        ([name for name, _ in ordered], [text for _, text in ordered]),
    ).fetchall()
    verdicts = [
        (*pair, accepts(types, *pair), verdict) for pair, (verdict,) in zip(ordered, rows, strict=True)
    ]
    differing = [one for one in verdicts if one[2] != one[3]]
    wrong = [one for one in differing if not (one[0].startswith(UNDECIDED) and one[2])]
    assert wrong == [], len(wrong)
    assert 500 < sum(one[3] for one in verdicts) < 9_500


def columns(count: int) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in wide(count).items())


BEYOND: dict[str, tuple[Callable[[Scenario], object], str]] = {
    "columns": (lambda db: db.table("public.u", wide(1601)), f"CREATE TABLE public.u ({columns(1601)})"),
    "dropped and added columns": (
        lambda db: alter(drop=["c1"], add={"more": "int4"})(db, db.table("public.v", wide(1600))),
        f"CREATE TABLE public.v ({columns(1600)}); "
        "ALTER TABLE public.v DROP c1; ALTER TABLE public.v ADD more int4",
    ),
    "system schema": (lambda db: db.table("pg_catalog.t", id="int4"), "CREATE TABLE pg_catalog.t (id int4)"),
    "schema with a reserved name": (lambda db: db.table("pg_mine.t", id="int4"), "CREATE SCHEMA pg_mine"),
    "system column": (lambda db: db.table("public.w", ctid="int4"), "CREATE TABLE public.w (ctid int4)"),
}


@pytest.mark.parametrize("case", BEYOND)
def test_scenarios_refuse_with_the_text_of_the_server(connection: psycopg.Connection, case: str) -> None:
    create, statement = BEYOND[case]
    with pytest.raises(psycopg.Error) as refused:
        connection.execute(statement)
    with pytest.raises(ScenarioError) as error:
        create(Scenario())
    assert refused.value.diag.message_primary
    assert refused.value.diag.message_primary in str(error.value)


def test_the_server_cuts_names_that_scenarios_refuse(connection: psycopg.Connection) -> None:
    connection.execute(f"CREATE TABLE public.{'n' * 63} (id int4)")
    with pytest.raises(psycopg.Error, match=f'^relation "{"n" * 63}" already exists'):
        connection.execute(f"CREATE TABLE public.{'n' * 64} (id int4)")


def test_the_server_cannot_build_a_message_of_a_gibibyte(connection: psycopg.Connection) -> None:
    """Two values of 300 MB have 600 MB each as text."""
    connection.execute("CREATE TABLE public.large (a bytea, b bytea)")
    connection.execute("CREATE PUBLICATION p FOR TABLE public.large")
    connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    value = "convert_to(repeat('a', 300000000), 'UTF8')"
    changes = (
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p')"
    )
    connection.execute(f"INSERT INTO public.large VALUES ({value}, NULL)")
    assert connection.execute(changes).fetchone() == (4,)
    connection.execute(f"INSERT INTO public.large VALUES ({value}, {value})")
    with pytest.raises(psycopg.Error, match="Cannot enlarge string buffer") as refused:
        connection.execute(changes)
    newer = "string buffer exceeds maximum allowed length (1073741823 bytes)"
    assert refused.value.diag.message_primary in ("out of memory", newer)
