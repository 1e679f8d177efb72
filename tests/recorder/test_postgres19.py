"""The recorder handles settings that PostgreSQL 19 and minor releases since August 2026 have added."""

from __future__ import annotations

from pathlib import Path

import pytest

from logicalrep.errors import ReplicationError
from logicalrep.recorder import Recorder
from logicalrep.recording import RecordingReader
from logicalrep.standin import StandIn
from tests.recorder.lab import Lab
from tests.server import VERSION, Server
from tests.standin.streams import Repeated


class PostgreSQL19(Repeated):
    server_version = "19.0"


def record(server: StandIn, folder: Path) -> int:
    """Record up to the end of the WAL; return the number of recorded messages."""
    Recorder(server.dsn, "lake", ["p"], folder, create_slot=True, retry_for=0).run(until="now")
    with RecordingReader(folder) as segments:
        return sum(1 for _ in segments.records())


@pytest.mark.parametrize(
    ("wal_level", "effective"), [("replica", "replica"), ("replica", "logical"), ("logical", "logical")]
)
def test_logical_decoding_is_switched_on_by_the_first_slot(
    wal_level: str, effective: str, tmp_path: Path
) -> None:
    settings = {"wal_level": wal_level, "effective_wal_level": effective}
    with StandIn(PostgreSQL19(2), settings=settings) as server:
        assert record(server, tmp_path) == 201


def test_a_low_wal_level_is_refused(tmp_path: Path) -> None:
    settings = {"wal_level": "minimal", "effective_wal_level": "minimal"}
    with (
        StandIn(PostgreSQL19(2), settings=settings) as server,
        pytest.raises(ReplicationError, match="wal_level must be replica or logical, but is minimal: "),
    ):
        record(server, tmp_path)
    with (
        StandIn(Repeated(2), settings={"wal_level": "replica"}) as server,  # version 18
        pytest.raises(ReplicationError, match="wal_level must be logical, but is replica: "),
    ):
        record(server, tmp_path)


def test_a_standby_needs_logical_decoding_on_its_primary(tmp_path: Path) -> None:
    settings = {"wal_level": "logical", "effective_wal_level": "replica", "in_hot_standby": "on"}
    with (
        StandIn(PostgreSQL19(2), settings=settings) as server,
        pytest.raises(
            ReplicationError,
            match="of the standby must be logical, but is replica: on the primary, create a logical slot",
        ),
    ):
        record(server, tmp_path)


@pytest.mark.parametrize("version", ["18.6", "14.23"])
def test_a_server_that_does_not_allow_the_plugin_is_reported(version: str, tmp_path: Path) -> None:
    class Minor(Repeated):
        server_version = version

    expected = "the server does not allow the output plugin pgoutput: add pgoutput to its setting "
    settings = {"output_plugin_libraries": "test_decoding, wal2json"}
    with StandIn(Minor(2), settings=settings) as server:
        with pytest.raises(ReplicationError, match=f"{expected}output_plugin_libraries") as caught:
            record(server, tmp_path)
        assert type(caught.value) is ReplicationError
    with StandIn(Minor(2), settings={"output_plugin_libraries": "test_decoding,pgoutput"}) as server:
        assert record(server, tmp_path) == 201


@pytest.mark.skipif(VERSION < 19, reason="since PostgreSQL 19")
def test_publications_with_exceptions_and_sequences_and_repack(tmp_path: Path) -> None:
    with Server(VERSION, wal_level="replica") as server, Lab(server, tmp_path) as lab:
        lab.run(
            "CREATE TABLE t (id serial PRIMARY KEY, o oid8, d regdatabase)",
            "CREATE TABLE hidden (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE hidden), ALL SEQUENCES",
            "INSERT INTO t (o, d) SELECT g, 'postgres' FROM generate_series(1, 50) g",
        )
        lab.record(snapshot=True)
        with lab.recording():
            lab.run("INSERT INTO hidden VALUES (1)", "INSERT INTO t (o) VALUES ('18446744073709551615')")
            lab.run(
                "UPDATE t SET o = 7 WHERE id < 9", "REPACK (CONCURRENTLY) t", "DELETE FROM t WHERE id > 40"
            )
        lab.record()
        lab.assert_equal()
