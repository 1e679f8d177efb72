"""For every type, the text of a binary value equals the server's text, and the text converts back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import pq

from logicalrep import catalog
from logicalrep.values import encode_binary, to_arrow, to_binary, to_text
from tests.server import VERSION, Server
from tests.values.binary_samples import BYTES
from tests.values.text_samples import TEXTS

AVAILABLE = {one.name: one for one in catalog.TYPES if int(one.server.rstrip("+")) <= VERSION}
"""The built-in types that the server has."""

SETTINGS = "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c bytea_output=hex"

UNSENDABLE = {"aclitem", "gtsvector"}
"""Types without a binary form; the server sends them as text."""
UNREADABLE = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"}
"""Types that the server does not accept as input; tests read values from the server's catalogs."""
STATISTICS = {"pg_ndistinct", "pg_dependencies"}
"""Types whose binary form cannot be made from text."""
UNSUPPORTED = {"xml"}
"""Types that this build of the server lacks; other tests read values from capture files."""
INDEX_ONLY = {"pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}
"""Types that exist only in indexes; their binary form depends on the index."""
ALTERED_TEXT = {"pg_lsn", *STATISTICS} if VERSION >= 19 else set()
"""Types whose text the server writes in another way than the servers before PostgreSQL 19."""
NUMBERS_ONLY = {builtin.name for builtin in catalog.TYPES if builtin.name.startswith("reg")} | {"money"}
"""Types whose text has information that is not in the binary form."""

RANGES = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}
MULTIRANGES = {name.replace("range", "multirange"): name for name in RANGES}
DISCRETE = {"int4range", "int8range", "daterange"}


@pytest.fixture(scope="module")
def server() -> Iterator[psycopg.Connection]:
    with (
        Server(VERSION) as server,
        psycopg.connect(server.dsn, autocommit=True, options=SETTINGS) as connection,
    ):
        yield connection


def select(server: psycopg.Connection, sql: str, parameter: bytes | None, form: int) -> list[pq.abc.PGresult]:
    """Return two results of a query: one in text format, one in binary format."""
    results = []
    parameters = [] if parameter is None else [parameter]
    formats = [form] * len(parameters)
    for result_format in (0, 1):
        result = server.pgconn.exec_params(
            sql.encode(), parameters, param_formats=formats, result_format=result_format
        )
        assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message.decode()
        results.append(result)
    return results


def compare(server: psycopg.Connection, sql: str, parameter: bytes | None = None, form: int = 0) -> int:
    """Check that a query's binary values become the same text and the same Arrow array as its text values.

    Returns:
        The number of values.
    """
    in_text, in_binary = select(server, sql, parameter, form)
    oid = in_text.ftype(0)
    rows = range(in_text.ntuples)
    texts = [None if (raw := in_text.get_value(row, 0)) is None else raw.decode() for row in rows]
    cells = [in_binary.get_value(row, 0) for row in rows]
    wrong = [
        (cell, text, found)
        for cell, text, found in zip(cells, texts, to_text(cells, oid), strict=True)
        if text != found
    ]
    assert wrong[:5] == [], f"{len(wrong)} of {len(rows)}"
    check_to_binary(texts, cells, oid)
    array, rescued = to_arrow(texts, oid)
    from_binary, rescued_from_binary = to_arrow(cells, oid)
    assert array.type == from_binary.type
    assert rescued == rescued_from_binary
    # As text, NaN equals NaN, and -0 differs from 0.
    assert list(map(str, array)) == list(map(str, from_binary))
    return len(rows)


def check_to_binary(texts: list[str | None], cells: list[bytes | None], oid: int) -> None:
    """Check that `to_binary` returns the server's binary values, or raises an error that names the type."""
    element = catalog.BY_ARRAY_OID.get(oid)
    builtin = element or catalog.BY_OID.get(oid)
    if builtin is None or builtin.name in UNSENDABLE | INDEX_ONLY | STATISTICS:
        name = "OID" if builtin is None else builtin.name
        with pytest.raises(ValueError, match=f"{name}.* no binary form"):
            encode_binary("", oid)
        return
    back = to_binary(texts, oid)
    unique = [has_unique_binary(builtin.name, text) for text in texts]
    wrong = [
        found for found in zip(unique, texts, cells, back, strict=True) if found[0] and found[2] != found[3]
    ]
    assert wrong[:5] == [], f"{len(wrong)} of {len(texts)}"
    assert to_text(back, oid) == texts


def has_unique_binary(name: str, text: str | None) -> bool:
    """Return whether a text has exactly one binary form, unlike NaN and tsquery."""
    return text is None or not (("float" in name and "NaN" in text) or name == "tsquery")


def as_array(texts: list[str]) -> bytes:
    escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return ("{" + ",".join(f'"{text}"' for text in escaped) + "}").encode()


def as_binary_array(oid: int, values: list[bytes]) -> bytes:
    head = b"".join(number.to_bytes(4) for number in (1, 0, oid, len(values), 1))
    return head + b"".join(len(value).to_bytes(4) + value for value in values)


def query_samples(name: str) -> tuple[str, bytes, int]:
    """Return a query for the samples of a type, the query's parameter, and the parameter's format code.

    The query has the columns `v`, the sample, and `n`, the sample's number.
    """
    samples = AVAILABLE[name].like or name
    if samples in BYTES:
        parameter = as_binary_array(AVAILABLE[name].oid, BYTES[samples])
        return f'SELECT v, n FROM unnest($1::"{name}"[]) WITH ORDINALITY AS given(v, n)', parameter, 1
    sql = f'SELECT given::"{name}" AS v, n FROM unnest($1::text[]) WITH ORDINALITY AS list(given, n)'
    return sql, as_array(TEXTS[samples]), 0


SAMPLES = BYTES.keys() | TEXTS.keys()
SAMPLED = sorted(
    name for name, one in AVAILABLE.items() if (one.like or name) in SAMPLES and name not in ALTERED_TEXT
)
VECTORS = {"int2vector", "oidvector"}


def test_every_type_has_samples() -> None:
    tested = {*BYTES, *TEXTS, *RANGES, *MULTIRANGES}
    left_out = UNSENDABLE | UNREADABLE | UNSUPPORTED | INDEX_ONLY | NUMBERS_ONLY
    assert tested | left_out == {one.name for one in catalog.TYPES if one.like not in tested}
    assert not tested & left_out


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_of_a_type(server: psycopg.Connection, name: str) -> None:
    sql, parameter, form = query_samples(name)
    samples = AVAILABLE[name].like or name
    assert compare(server, f"SELECT v FROM ({sql}) AS s ORDER BY n", parameter, form) == len(
        BYTES.get(samples) or TEXTS[samples]
    )


def test_a_tsquery_text_is_parsed_as_the_server_parses_it(server: psycopg.Connection) -> None:
    oid = catalog.BY_NAME["tsquery"].oid
    sql, parameter, form = query_samples("tsquery")
    written, _ = select(server, f"SELECT v FROM ({sql}) AS s", parameter, form)
    texts = [value.decode() for row in range(written.ntuples) if (value := written.get_value(row, 0))]
    again = "SELECT given::tsquery FROM unnest($1::text[]) AS given"
    _, read = select(server, again, as_array(texts), 0)
    cells = [read.get_value(row, 0) for row in range(read.ntuples)]
    assert len(cells) > 200
    assert to_binary(texts, oid) == cells


@pytest.mark.parametrize("name", sorted({*SAMPLED} - VECTORS))
def test_arrays_of_a_type(server: psycopg.Connection, name: str) -> None:
    sql, parameter, form = query_samples(name)
    few = f"(SELECT * FROM ({sql}) AS s WHERE n < 400) AS few"
    flat = f"SELECT array_agg(CASE WHEN n % 7 <> 3 THEN v END ORDER BY n) AS a FROM {few} GROUP BY n / 4"
    deep = f"SELECT array_agg(ARRAY[[v, NULL], [v, v]] ORDER BY n) AS a FROM {few} GROUP BY n / 3"
    bounds = f"""SELECT ('[-1:' || cardinality(a) - 2 || ']=' || a::text)::"{name}"[] FROM ({flat}) AS f"""
    for query in (flat, deep, bounds):
        assert compare(server, query, parameter, form) > 0


def test_arrays_with_nulls_dimensions_and_bounds(server: psycopg.Connection) -> None:
    for array in (
        "'{1 2,NULL,\"\",3}'::int2vector[]",
        "'{1 2,NULL,\"\",3}'::oidvector[]",
        "'{}'::int4[]",
        "'{}'::text[]",
        "'[0:0][7:8]={{1,2}}'::int4[]",
        "'[-5:-4]={a,b}'::text[]",
        "'[2147483646:2147483646]={1}'::int4[]",
        "'{{{{{{1}}}}}}'::int4[]",
        "ARRAY[int4range(1, 5), NULL, 'empty']",
        "ARRAY[tsrange('2000-01-01', NULL), '[0044-03-15 BC,infinity]']",
        "ARRAY[int4multirange(int4range(1, 5)), '{}']",
        "ARRAY['{[2000-01-01,infinity)}'::tstzmultirange]",
    ):
        compare(server, f"SELECT {array}")


@pytest.mark.parametrize("name", RANGES)
def test_ranges_and_multiranges(server: psycopg.Connection, name: str) -> None:
    sql, parameter, form = query_samples(RANGES[name])
    # Discrete ranges are canonicalized to [), and the last value has no successor.
    brackets = "ARRAY['[)']" if name in DISCRETE else "ARRAY['[)', '()', '[]', '(]']"
    pairs = f"SELECT n, v AS a, lead(v) OVER (ORDER BY n) AS b FROM ({sql}) AS s"
    ranges = f"""
        SELECT n, {name}(CASE WHEN n % 9 <> 1 THEN least(a, b) END,
                         CASE WHEN n % 9 <> 2 THEN greatest(a, b) END,
                         ({brackets})[1 + n % array_length({brackets}, 1)]) AS r
        FROM ({pairs}) AS p WHERE a IS NOT NULL AND b IS NOT NULL"""
    assert compare(server, f"SELECT r FROM ({ranges}) AS r ORDER BY n", parameter, form) > 400
    multiranges = f"SELECT range_agg(r ORDER BY n) FROM ({ranges}) AS r GROUP BY n / 5"
    assert compare(server, multiranges, parameter, form) > 80
    arrays = f"SELECT array_agg(r ORDER BY n) FROM ({ranges}) AS r GROUP BY n / 5"
    assert compare(server, arrays, parameter, form) > 80
    others = "'empty', '(,)', '[,]', '(,x)', '[x,)', '[x,x]', '(x,y]', '[x,y)', '(x,y)'"
    x, y = ("2000-01-01", "2000-01-05") if "date" in name or "ts" in name else ("-1", "7")
    compare(
        server,
        f"SELECT unnest(ARRAY[{others}]::{name}[])".replace("x", x)
        .replace("y]", f"{y}]")
        .replace("y)", f"{y})"),
    )
    compare(server, f"SELECT '{{}}'::{name.replace('range', 'multirange')}")


def test_types_that_are_not_built_in(server: psycopg.Connection) -> None:
    server.execute("""
        CREATE TYPE mood AS ENUM ('sad', 'so so', '"', 'é', 'null');
        CREATE TYPE inner_type AS (a int, b text, c numeric[]);
        CREATE TYPE outer_type AS (n int8, t text, i inner_type, more inner_type[], m mood, e mood[]);
        CREATE DOMAIN short AS text;
    """)
    for value in (
        "unnest(enum_range(NULL::mood))",
        "enum_range(NULL::mood)",
        "ARRAY[[NULL, 'so so'::mood], ['sad'::mood, 'null'::mood]]",
        "ROW(1, 'a b', '{1.50,NULL}')::inner_type",
        "ROW(NULL, '', NULL)::inner_type",
        """ROW(NULL, E'"(\\\\,\t)', '{}')::inner_type""",
        "ARRAY[ROW(1, 'a', '{1}')::inner_type, NULL]",
        """ROW(1, 'x', ROW(2, '"', '{3,4}'), ARRAY[ROW(5, E'\\\\', NULL)::inner_type], 'é', '{sad,"so so"}')
           ::outer_type""",
        "ROW(NULL, NULL, NULL, NULL, NULL, NULL)::outer_type",
        "ARRAY['a', 'b c']::short[]",
        "ROW(1, 'a'::text, NULL::int)",
    ):
        assert compare(server, f"SELECT {value}") > 0


def test_a_value_of_unknown_form_becomes_hex(server: psycopg.Connection) -> None:
    server.execute("CREATE TYPE float_range AS RANGE (subtype = float8)")
    _, binary = select(server, "SELECT '[1,2)'::float_range", None, 0)
    cell = binary.get_value(0, 0)
    assert cell is not None
    assert to_text([cell], binary.ftype(0)) == ["\0\\x" + cell.hex()]
    array, rescued = to_arrow([cell], binary.ftype(0))
    assert (array.to_pylist(), rescued) == ([None], {0: "\\x" + cell.hex()})


def test_values_of_the_system_catalogs(server: psycopg.Connection) -> None:
    server.execute("""
        CREATE TABLE sampled AS
            SELECT n % 7 AS a, n % 7 * 2 AS b, n % 3 AS c FROM generate_series(1, 1000) AS n;
        CREATE STATISTICS all_kinds (ndistinct, dependencies, mcv) ON a, b, c FROM sampled;
        ANALYZE sampled;
        CREATE VIEW seen AS SELECT a + 1 AS x FROM sampled WHERE b > 1;
    """)
    for kind in ("pg_ndistinct", "pg_dependencies", "pg_mcv_list"):
        if kind not in ALTERED_TEXT:
            column = f"stxd{kind.removeprefix('pg_').removesuffix('_list')}"
            assert compare(server, f"SELECT {column} FROM pg_statistic_ext_data") == 1
    assert compare(server, "SELECT ev_action FROM pg_rewrite LIMIT 20") == 20
    for column in ("indkey", "indclass", "indrelid"):
        assert compare(server, f"SELECT {column} FROM pg_index WHERE indnatts > 1") > 20


@pytest.mark.parametrize("name", sorted(NUMBERS_ONLY & AVAILABLE.keys() - {"money"}))
def test_reg_types_become_oids(server: psycopg.Connection, name: str) -> None:
    compare(server, f"SELECT 0::oid::{name}")
    compare(server, f"SELECT 4000000000::oid::{name}")
    _, binary = select(server, f"SELECT 2206::oid::{name}", None, 0)
    assert to_text([binary.get_value(0, 0)], binary.ftype(0)) == ["2206"]


def test_money_becomes_its_amount_in_the_smallest_unit(server: psycopg.Connection) -> None:
    _, binary = select(server, "SELECT unnest(ARRAY[12.34, -0.01]::money[])", None, 0)
    assert to_text([binary.get_value(row, 0) for row in (0, 1)], binary.ftype(0)) == ["1234", "-1"]
