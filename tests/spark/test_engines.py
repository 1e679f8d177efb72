"""A replica is kept with Spark and without in turns; each resumes where the other has stopped."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from logicalrep import replica
from logicalrep.spark import replicate
from tests.messages import transaction_of
from tests.recorder.lab import Lab
from tests.recording.recordings import record, sent, source, write
from tests.replica.tables import different_tables
from tests.replica.test_any_bytes import KEYS, back, changes, check_rows
from tests.replica.test_replicate import copy_segments, versions
from tests.truth import true_tables

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

NAME = "pg18_p4_par_2pc"


def test_a_dropped_table_is_put_aside(session: SparkSession, lab: Lab, tmp_path: Path) -> None:
    folders = lab.folder, tmp_path / "lake"
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR ALL TABLES")
    lab.record()
    lab.run("INSERT INTO t VALUES (1)", "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    lab.record()
    lab.run("INSERT INTO t VALUES (2)")
    lab.record()
    replicate(session, *folders, dropped="archive")
    names = sorted(path.name for path in folders[1].glob("[!_]*"))
    assert re.fullmatch(r"public\.t public\.t@\d+-\d{4}-\d\d-\d\d", " ".join(names))
    rows = [DeltaTable(str(folders[1] / name)).to_pyarrow_table()["id"].to_pylist() for name in names]
    assert rows == [[2], [1]]


@pytest.mark.parametrize("spark_first", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_each_engine_resumes_the_other(session: SparkSession, tmp_path: Path, spark_first: bool) -> None:
    """The other engine has nothing left to do, also without the file that caches the positions."""
    whole, folder, target = tmp_path / "whole", tmp_path / "recording", tmp_path / "lake"
    whole.mkdir()
    write(whole, source(NAME), sent(NAME), 150)
    engines: list[Callable[[], None]] = [
        lambda: replicate(session, folder, target),
        lambda: replica.replicate(folder, target),
    ]
    if not spark_first:
        engines.reverse()
    for count, turn in ((2, 0), (4, 1), (None, 0)):
        engine, other = engines[turn], engines[1 - turn]
        copy_segments(whole, folder, count)
        engine()
        before = versions(target)
        (target / "_reached.json").unlink()
        other()
        assert versions(target) == before
    assert different_tables(target, list(true_tables("pg18"))) == []


@pytest.mark.parametrize("binary", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_bytes_and_times_that_have_no_column(session: SparkSession, tmp_path: Path, binary: bool) -> None:
    """Keys that are not UTF-8 stay different rows, and a commit time of infinity is NULL."""
    folder, target = tmp_path / "recording", tmp_path / "lake"
    folder.mkdir()
    record(folder, *transaction_of(100, 1, *changes(binary), time=2**63 - 1))
    replicate(session, folder, target, history=True)
    (table,) = replica.replica_tables(target).values()
    rows = DeltaTable(table.place).to_pyarrow_table().to_pylist()
    check_rows([row for row in rows if row["__END_AT"] is None])
    moments = [row[name] for row in rows for name in ("__START_AT", "__END_AT") if row[name] is not None]
    assert {(one["commit_lsn"], one["commit_time"]) for one in moments} == {(100, None)}
    read = session.read.format("pgoutput").load(str(folder)).collect()
    assert {row["commit_time"] for row in read} == {None}
    inserted = [back(row["after"]["k"]) for row in read if row["operation"] == "Insert"]
    assert sorted(inserted) == sorted(KEYS)
