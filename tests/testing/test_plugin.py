"""The pytest plugin provides fixtures, and does not slow down sessions that do not use the fixtures."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.truth import CAPTURES

pytest_plugins = ["pytester"]

CAPTURE = CAPTURES / "pg18_p1.jsonl.gz"

STREAMS = """
    from tests.versions import OLDEST, PLAIN
    from logicalrep.synth import Scenario
    from logicalrep.testing import Stream, shop

    def test_the_example_shop(logicalrep_stream):
        stream = logicalrep_stream(proto_version=OLDEST, binary=True)
        assert stream == Stream.of(shop(proto_version=OLDEST, binary=True))
        assert len([PLAIN.decode(data) for data in stream.messages]) > 800

    def test_a_scenario(logicalrep_stream):
        db = Scenario()
        t = db.table("public.t", id="int8 key")
        with db.transaction() as tx:
            tx.insert(t, id=1)
        assert logicalrep_stream(db, proto_version=2).options.proto_version == 2
        assert [data[:1] for data in logicalrep_stream(db).messages] == [b"B", b"R", b"I", b"C"]
"""

SERVERS = """
    import psycopg
    import pytest
    from logicalrep.standin import Faults
    from logicalrep.synth import Scenario

    dsns = []

    def test_several_servers(logicalrep_server):
        one, other = logicalrep_server(), logicalrep_server("{capture}", faults=Faults(drop_after=3))
        assert one.port != other.port
        for server in (one, other, logicalrep_server(Scenario(), user="me", password="it's")):
            with psycopg.connect(server.dsn) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            dsns.append(server.dsn)

    def test_servers_are_stopped_after_each_test():
        assert len(dsns) == 3
        for dsn in dsns:
            with pytest.raises(psycopg.OperationalError, match="refused"):
                psycopg.connect(dsn)
"""


def test_stream_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STREAMS)
    pytester.runpytest().assert_outcomes(passed=2)


def test_server_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SERVERS.format(capture=CAPTURE))
    pytester.runpytest().assert_outcomes(passed=2)


def test_fixtures_have_descriptions(pytester: pytest.Pytester) -> None:
    shown = pytester.runpytest("--fixtures")
    shown.stdout.fnmatch_lines(["logicalrep_stream*", "*returns the stream that a PostgreSQL server sends*"])
    shown.stdout.fnmatch_lines(["logicalrep_server*", "*starts a stand-in server for replication clients*"])


def test_a_session_without_the_fixtures_imports_only_the_plugin() -> None:
    code = "import sys, pytest, logicalrep.testing.plugin; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert {name for name in out if name.startswith("logicalrep")} == {
        *(
            "logicalrep",
            "logicalrep._extras",
            "logicalrep.errors",
            "logicalrep.testing",
            "logicalrep.testing.plugin",
        )
    }
    assert not {"hypothesis", "pyarrow", "numpy", "msgspec"} & set(out)


def test_all_names_can_be_imported() -> None:
    import logicalrep.testing

    for name in logicalrep.testing.__all__:
        assert getattr(logicalrep.testing, name) is not None
    with pytest.raises(AttributeError, match=r"logicalrep\.testing has no attribute nothing"):
        logicalrep.testing.nothing  # noqa: B018
