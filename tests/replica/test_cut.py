"""Versions of all tables that show one moment, compared with what the server had at each commit."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from logicalrep.errors import ReplicaError
from logicalrep.recording import locate
from logicalrep.replica import Cut, replica_tables, replicate, versions_at
from logicalrep.targets import registry
from logicalrep.wire import format_lsn, parse_lsn
from tests.conftest import Run
from tests.recorder.lab import Lab
from tests.replica.changes import recorded_changes
from tests.targets.formats import FORMATS

pytestmark = pytest.mark.usefixtures("any_format")

TABLES = ("t", "u", "late")


class Source:
    """A server whose rows are kept after each transaction, and a replica of it.

    Attributes:
        states: The rows of each table after 0, 1, 2, … transactions.
    """

    def __init__(self, lab: Lab, target: Path) -> None:
        self.lab, self.target = lab, target
        lab.run("CREATE PUBLICATION p FOR ALL TABLES", *map(create, TABLES[:2]))
        lab.record()
        self.states: list[dict[str, Counter[tuple[Any, ...]]]] = [self._select()]

    def commit(self, *statements: str) -> None:
        """Run statements, which change rows, in one transaction."""
        self.lab.run("BEGIN", *statements, "COMMIT")
        self.states.append(self._select())

    def _select(self) -> dict[str, Counter[tuple[Any, ...]]]:
        names = {name for (name,) in self.lab.rows("SELECT relname FROM pg_class WHERE relkind = 'r'")}
        found = [name for name in TABLES if name in names]
        return {name: Counter(self.lab.rows(f"SELECT id, a FROM {name}")) for name in found}

    def follow(self) -> Cut:
        self.lab.record()
        replicate(self.lab.folder, self.target)
        return versions_at(self.target)

    def commit_lsns(self) -> list[int]:
        batches = recorded_changes(self.lab.folder)
        return sorted({lsn for batch in batches for lsn in batch["commit_lsn"].to_pylist()})

    def assert_exact(self, cut: Cut) -> None:
        """Check that the tables have the rows that the server had at the cut."""
        expected = self.states[sum(lsn < cut.lsn for lsn in self.commit_lsns())]
        found = {
            one.name: Counter((row["id"], row["a"]) for row in rows(one.place, one.version))
            for one in cut.tables.values()
            if one.version is not None
        }
        assert {name: one for name, one in expected.items() if one or name in found} == found


def create(name: str) -> str:
    return f"CREATE TABLE {name} (id int PRIMARY KEY, a text)"


def rows(place: str, version: int) -> list[dict[str, Any]]:
    made = next(one for one in FORMATS.values() if one.format == registry.format_of(locate(place).parent))
    return list(made.read(place, version).select(["id", "a"]).to_pylist())


@pytest.fixture
def source(lab: Lab, tmp_path: Path) -> Source:
    return Source(lab, tmp_path / "lake")


@pytest.mark.delta
def test_versions_show_the_server_at_each_lsn(source: Source) -> None:
    draw, cuts, key = random.Random(5), [], 0
    for number in range(40):
        if number == 12:
            source.lab.run(create("late"))
        if number == 25:
            source.lab.run("ALTER TABLE u ADD COLUMN b int")
        names = draw.sample(TABLES if number > 12 else TABLES[:2], draw.randrange(1, 3))
        statements = []
        for name in names:
            key += 1
            statements.append(f"INSERT INTO {name} VALUES ({key}, 'new')")
            statements.append(f"UPDATE {name} SET a = 'at {number}' WHERE id % 3 = {draw.randrange(3)}")
        if draw.random() < 0.1:
            statements.insert(0, f"TRUNCATE {names[0]}")
        source.commit(*statements)
        if draw.random() < 0.3:
            cuts.append(source.follow())
            DeltaTable(replica_tables(source.target).popitem()[1].place).optimize.compact()
    cuts.append(source.follow())
    inexact = 0
    for lsn in (*source.commit_lsns(), *(lsn + 1 for lsn in source.commit_lsns())):
        try:
            cut = versions_at(source.target, lsn)
            assert cut.lsn == lsn
        except ReplicaError as error:
            (last,) = re.findall(
                r"The last LSN before it for which all tables have a version is (\S+): use that", str(error)
            )
            cut = versions_at(source.target, parse_lsn(last))
            assert cut.lsn < lsn
            inexact += 1
        source.assert_exact(cut)
    assert 20 < inexact < 60
    for cut in cuts:  # the end of each run
        found = versions_at(source.target, cut.lsn)
        assert {oid: found.tables[oid] for oid in cut.tables} == cut.tables
        source.assert_exact(found)


def test_a_time_gives_the_last_moment_before(source: Source) -> None:
    cuts, begin = [], source.lab.value("SELECT clock_timestamp()")
    for number in range(3):
        source.commit(f"INSERT INTO t VALUES ({number}, 'x')", f"INSERT INTO u VALUES ({number}, 'x')")
        cuts.append((source.lab.value("SELECT clock_timestamp()"), source.follow()))
    for time, cut in cuts:
        found = versions_at(source.target, time=time)
        source.assert_exact(found)
        assert found.tables == cut.tables
    assert {one.version for one in versions_at(source.target, time=begin).tables.values()} == {None}


def test_a_failed_table_holds_the_cut_back(source: Source, tmp_path: Path) -> None:
    source.commit("INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1, 'x')")
    source.follow()
    elsewhere = (source.target / "public.t").rename(tmp_path / "elsewhere")
    source.commit("INSERT INTO t VALUES (2, 'x')", "INSERT INTO u VALUES (2, 'x')")
    source.lab.record()
    replicate(source.lab.folder, source.target)
    with pytest.raises(ReplicaError, match=r"public\.t"):
        versions_at(source.target)
    elsewhere.rename(source.target / "public.t")
    source.assert_exact(versions_at(source.target))
    source.assert_exact(source.follow())


def test_a_dropped_table_is_left_out(source: Source) -> None:
    source.commit("INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1, 'x')")
    first = source.follow()
    source.lab.run("DROP TABLE u")
    source.commit("INSERT INTO t VALUES (2, 'x')")
    source.follow()
    source.lab.record()
    assert {one.name for one in source.follow().tables.values()} == {"t"}
    assert versions_at(source.target, first.lsn) == first


@pytest.mark.delta
def test_the_command_prints_the_versions(source: Source, run: Run) -> None:
    source.commit("INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1, 'x')")
    cut = source.follow()
    source.commit("INSERT INTO t VALUES (2, 'x')")
    source.commit("INSERT INTO t VALUES (3, 'x')")
    lsn = format_lsn(source.follow().lsn)
    first, heading, *lines = run("tables", source.target).out.splitlines()
    assert (first, heading.split()) == (f"as of LSN {lsn}:", ["table", "version", "place", "may", "differ"])
    assert [line.split()[:2] for line in lines] == [["public.t", "2"], ["public.u", "1"]]
    done = run("tables", source.target, "--json", f"--as-of={format_lsn(cut.lsn)}")
    printed = [json.loads(line) for line in done.out.splitlines()]
    assert [(one["lsn"], one["version"]) for one in printed] == [(format_lsn(cut.lsn), 1)] * 2
    assert run("tables", source.target, "--as-of=2000-01-01").out.split().count("public.t") == 1
    *_, between = source.commit_lsns()
    for value, error in (
        (format_lsn(between), "not every table has a version as of LSN"),
        ("yesterday", "is neither an LSN such as 16/B374D848"),
        ("1/X", "'1/X' is not an LSN such as '16/B374D848'"),
    ):
        done = run("tables", source.target, f"--as-of={value}")
        assert (done.code, error in " ".join(done.err.split())) == (2, True), done.err


def test_a_target_without_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReplicaError, match="the target has no tables"):
        versions_at(tmp_path)


def test_a_first_copy_is_shown_as_of_the_first_transaction_after_it(lab: Lab, tmp_path: Path) -> None:
    """The copied rows have the LSN of the snapshot, and a part of them is no moment of the source."""
    lab.run(*map(create, TABLES[:2]), "INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1, 'x')")
    lab.run("CREATE PUBLICATION p FOR ALL TABLES")
    for statement, expected in (("SELECT 1", {"t": 0, "u": 0}), ("DELETE FROM u", {"t": 1, "u": 0})):
        lab.run(statement)
        lab.record(snapshot=True)
        replicate(lab.folder, tmp_path / "lake")
        tables = versions_at(tmp_path / "lake").tables.values()
        found = {one.name: 0 if one.version is None else len(rows(one.place, one.version)) for one in tables}
        assert found == expected
