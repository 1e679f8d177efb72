"""`verify` gives the same verdicts of recordings and replicas in an object store."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from logicalrep.recorder import Connected, Event
from logicalrep.recorder.storage.status import stored_lsn
from logicalrep.recording import locate, verified_tables
from logicalrep.replica import replica_tables, replicate
from logicalrep.verification import RowDifference, TableVerdict, key_ranges, verify_tables
from logicalrep.verification.differences import ValueDifference
from logicalrep.verification.source_rows import SourceRows, Total
from tests import store
from tests.conftest import Run
from tests.recorder.conftest import direct, moto
from tests.recorder.lab import Lab, Recording, wait_until

__all__ = ["direct", "moto"]

TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, a text)",
    "INSERT INTO t SELECT g, 'a' || g FROM generate_series(1, 3000) g",
)


class Stored:
    """A recording and its replica in the object store."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        place = f"s3://{store.BUCKET}/{lab.name}"
        self.url, self.target = f"{place}/recording", f"{place}/lake"

    def start(self) -> Recording:
        recording = Recording(lambda on_event: self.lab.recorder(recording=self.url, on_event=on_event))
        recording.wait(Connected)
        return recording

    def replicate(self) -> None:
        lsn = self.lab.lsn()
        self.lab.run("INSERT INTO tick VALUES (1)")
        wait_until(lambda: stored_lsn(self.url) >= lsn)
        replicate(self.url, self.target)

    def verify(self, *tables: str) -> list[TableVerdict]:
        def tick(event: Event) -> None:
            self.lab.run("INSERT INTO tick VALUES (1)")

        return list(verify_tables(self.url, self.target, self.lab.dsn, tables=tables, on_event=tick))

    def table(self) -> DeltaTable:
        (place,) = (one.place for one in replica_tables(self.target).values() if one.name == "t")
        return DeltaTable(place)


def test_a_replica_in_a_store_is_compared_and_repaired(lab: Lab, direct: None, run: Run) -> None:
    stored = Stored(lab)
    recording = stored.start()
    try:
        lab.run(*TABLE, "UPDATE t SET a = 'b' WHERE id = 1")
        stored.replicate()
        verdicts = {one.table: one for one in stored.verify()}
        assert {one.is_equal for one in verdicts.values()} == {True}
        verified = {one.oid: one.verified_through for one in replica_tables(stored.target).values()}
        (found,) = [one for one in verified_tables(stored.url) if one.table == "public.t"]
        assert (found.target, found.verified_through) == (stored.target, verified[found.oid])
        assert "_verification" not in locate(stored.target).names()

        lab.run("DELETE FROM t WHERE id < 11", "ALTER TABLE t ADD COLUMN c int")
        (verdict,) = stored.verify("public.t")  # as of changes that the replica has not applied
        assert (verdict.is_equal, verdict.rows, verdict.pending) == (True, 2990, 10)

        stored.replicate()
        stored.table().update({"a": "'other'"}, predicate="id = 100")
        done = run("verify", "--recording", stored.url, "--target", stored.target, "--dsn", lab.dsn, "--json",
            "--table", "public.t", "--repair")  # fmt: skip
        assert (done.code, done.out.count('"different_rows":1')) == (1, 1)
        stored.replicate()
        (verdict,) = stored.verify("public.t")
        assert verdict.is_equal
    finally:
        recording.stop()


def test_an_interrupted_comparison_in_a_store_is_continued(
    lab: Lab, direct: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(lab)
    monkeypatch.setattr(key_ranges, "ROWS", 500)
    read: list[int] = []
    total = SourceRows.total

    def interrupt(self: SourceRows, number: int) -> Total:
        read.append(number)
        if len(read) == 4:
            raise KeyboardInterrupt
        return total(self, number)

    monkeypatch.setattr(SourceRows, "total", interrupt)
    recording = stored.start()
    try:
        lab.run(*TABLE, "ANALYZE t")
        stored.replicate()
        with pytest.raises(KeyboardInterrupt):
            stored.verify("public.t")
        assert locate(stored.target + "/_verification").names() == ["finished.json"]
        stored.table().update({"a": "'other'"}, predicate="id = 2900")
        (verdict,) = stored.verify("public.t")
    finally:
        recording.stop()
    assert (read[:4], read[-4:]) == ([0, 1, 2, 3], [3, 4, 5, 6])
    assert verdict.differences == (
        RowDifference("different", {"id": "2900"}, {"a": ValueDifference("a2900", "other")}),
    )
