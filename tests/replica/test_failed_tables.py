"""A failed table does not stop other tables. A retry applies the micro-batches that the table has missed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pgoutput import messages as m
from pgoutput.errors import ReplicaError
from pgoutput.messages import ReplicaIdentity
from pgoutput.recording import list_segments, locate
from pgoutput.replica import (
    FailedTable,
    MissedBatch,
    Owner,
    TableResult,
    apply_changes,
    claim_target,
    read_failed_tables,
    record_failure,
    replica_tables,
    retry,
    retry_tables,
)
from pgoutput.replica.data_files import DataFiles
from pgoutput.replica.failed_tables import read_missed_batches, remove_missed_batch
from pgoutput.replica.rows import chunk_writer
from pgoutput.replica.rows.lookup import look_up_rows
from tests.recording.recordings import PARALLEL, record
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.simulator import SimulatedServer

COLUMNS = (
    m.RelationColumn(flags=m.ColumnFlag.KEY, name="k", type_oid=23, type_modifier=-1),
    m.RelationColumn(flags=m.ColumnFlag(0), name="v", type_oid=25, type_modifier=-1),
)
RELATIONS = [
    m.Relation(
        oid=oid, namespace="public", name=name, replica_identity=ReplicaIdentity.DEFAULT, columns=COLUMNS
    )
    for oid, name in ((1, "a"), (2, "b"))
]


class Setup:
    """A recording of the tables a and b, with one segment per micro-batch, and a replica of the recording."""

    def __init__(self, folder: Path) -> None:
        self.recording = folder / "recording"
        self.recording.mkdir()
        self.target = folder / "target"
        self.owner = Owner("query", "tables", PARALLEL.recording)

    def send(self, *changes: m.Message) -> MissedBatch:
        """Record a transaction as a new segment; return the numbers of the segment and its micro-batch."""
        number = sum(1 for _ in self.recording.iterdir()) + 1
        lsn = 100 * number
        record(
            self.recording,
            *RELATIONS,
            m.Begin(final_lsn=lsn, commit_time=1, xid=7),
            *changes,
            m.Commit(commit_lsn=lsn, end_lsn=lsn + 10, commit_time=0),
            lsn=lsn,
        )
        return MissedBatch(number - 1, number, number)

    def apply(self, missed: MissedBatch) -> dict[str, TableResult]:
        """Apply a micro-batch as a streaming query does; return the results by table name."""
        everything = sorted_changes(recorded_changes(self.recording))
        mine = [lsn == 100 * missed.last_segment for lsn in everything["commit_lsn"].to_pylist()]
        rows = everything.filter(pa.array(mine))
        folder = locate(self.target)
        claim_target(self.target, self.owner, batch=missed.batch)
        failed = {oid: one.error for oid, one in read_failed_tables(folder).items()}
        applied = list(
            apply_changes(
                rows.to_batches(),
                self.target,
                "query",
                missed.batch,
                recording=PARALLEL.recording,
                failed=failed,
            )
        )
        for one in applied:
            if one.error:
                record_failure(folder, FailedTable(one.oid, one.namespace, one.name, one.error), missed)
        return {one.name: one for one in applied}

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Move the folders of tables away during a `with` block."""
        for name in names:
            (self.target / f"public.{name}").rename(self.target.parent / name)
        yield
        for name in names:
            (self.target.parent / name).rename(self.target / f"public.{name}")

    def rows(self, oid: int) -> list[tuple[int, str]]:
        rows = DeltaTable(replica_tables(self.target)[oid].place).to_pyarrow_table().to_pylist()
        return sorted((row["k"], row["v"]) for row in rows)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    setup = Setup(tmp_path)
    setup.apply(
        setup.send(*(m.Insert(relation_oid=oid, new=(str(key), "v")) for oid in (1, 2) for key in range(3)))
    )
    return setup


def test_a_table_that_fails_does_not_stop_the_others(setup: Setup) -> None:
    """After the failed table is repaired, a retry applies all changes that the table has missed, in order."""
    lost = setup.target / "public.b"
    kept = lost.rename(setup.target.parent / "kept")
    for value in ("first", "second"):
        applied = setup.apply(
            setup.send(*(m.Update(relation_oid=oid, new=(str(oid), value)) for oid in (1, 2)))
        )
        assert applied["a"].changes == {"Update": 1}
        assert applied["b"].changes == {}
        assert "public.b: the Delta table of relation 2 is gone" in applied["b"].error
    assert setup.rows(1) == [(0, "v"), (1, "second"), (2, "v")]
    assert "is gone" in replica_tables(setup.target)[2].error
    (failed,) = retry_tables(setup.recording, setup.target)
    assert "is gone" in failed.error
    assert read_missed_batches(locate(setup.target), 2) == [MissedBatch(1, 2, 2), MissedBatch(2, 3, 3)]
    kept.rename(lost)
    assert [one.changes for one in retry_tables(setup.recording, setup.target)] == [{"Update": 1}] * 2
    assert setup.rows(2) == [(0, "v"), (1, "v"), (2, "second")]
    assert replica_tables(setup.target)[2].error == ""
    assert not [*(setup.target / "_failed_tables").iterdir()]
    assert [*retry_tables(setup.recording, setup.target)] == []
    assert setup.apply(setup.send(m.Delete(relation_oid=2, key=("2", None))))["b"].changes == {"Delete": 1}


@pytest.mark.parametrize("commits", [0, 1])
def test_a_retry_resumes_a_partly_applied_batch(
    commits: int, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry makes only those Delta commits of the micro-batch that the first attempt did not make."""
    commit = DataFiles.commit
    count = 0

    def failing_commit(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == commits + 1:
            raise OSError(28, "No space left on device")
        commit(*arguments)

    batch = setup.send(
        m.Insert(relation_oid=2, new=("10", "before")),
        m.Truncate(options=m.TruncateOption(0), relation_oids=(2,)),
        m.Insert(relation_oid=2, new=("11", "after")),
        m.Truncate(options=m.TruncateOption(0), relation_oids=(2,)),
        m.Insert(relation_oid=2, new=("12", "last")),
    )
    with monkeypatch.context() as patch:
        patch.setattr(DataFiles, "commit", failing_commit)
        assert setup.apply(batch)["b"].error == "public.b: [Errno 28] No space left on device"
    version = DeltaTable(replica_tables(setup.target)[2].place).version()
    assert [one.error for one in retry_tables(setup.recording, setup.target)] == [""]
    assert setup.rows(2) == [(12, "last")]
    assert DeltaTable(replica_tables(setup.target)[2].place).version() == version + 2 - commits


def test_an_unexpected_error_affects_one_table_only(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_look_up(*arguments: Any, **options: Any) -> Any:
        keys = arguments[3]
        if keys[0].to_pylist() == ["7"]:
            raise ArithmeticError("unexpected")
        return look_up_rows(*arguments, **options)

    setup.apply(setup.send(m.Insert(relation_oid=1, new=("7", "v"))))
    batch = setup.send(m.Update(relation_oid=1, new=("7", "w")), m.Update(relation_oid=2, new=("1", "w")))
    with monkeypatch.context() as patch:
        patch.setattr(chunk_writer, "look_up_rows", failing_look_up)
        applied = setup.apply(batch)
    assert applied["a"].error == "public.a: ArithmeticError: unexpected"
    assert applied["b"].changes == {"Update": 1}
    assert [one.changes for one in retry_tables(setup.recording, setup.target)] == [{"Update": 1}]


def test_a_batch_missed_during_a_retry_is_applied_too(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the retry runs, a query in another process records that the table misses one more micro-batch."""
    with setup.without("b"):
        setup.apply(setup.send(m.Insert(relation_oid=2, new=("10", "v"))))
    meanwhile = setup.send(m.Insert(relation_oid=2, new=("11", "v")))

    def miss_another(*arguments: Any) -> None:
        assert "gone" in setup.apply(meanwhile)["b"].error
        monkeypatch.undo()
        remove_missed_batch(*arguments)

    monkeypatch.setattr(retry, "remove_missed_batch", miss_another)
    assert [one.changes for one in retry_tables(setup.recording, setup.target)] == [{"Insert": 1}] * 2
    assert replica_tables(setup.target)[2].error == ""
    assert setup.rows(2)[-2:] == [(10, "v"), (11, "v")]


@pytest.mark.parametrize("content", [None, ""])
def test_a_table_with_missed_batches_is_failed_even_if_its_error_is_lost(
    content: str | None, setup: Setup
) -> None:
    """A power failure may remove or truncate the file that contains the table's error."""
    with setup.without("b"):
        setup.apply(setup.send(m.Insert(relation_oid=2, new=("10", "v"))))
    file = setup.target / "_failed_tables" / "2" / "error"
    file.unlink()
    if content is not None:
        file.write_text(content)
    listed = replica_tables(setup.target)[2]
    assert (listed.name, listed.error) == (
        "b",
        "the table has missed batches; the error is not known, because its file is lost",
    )
    assert setup.apply(setup.send(m.Insert(relation_oid=2, new=("11", "v"))))["b"].error == listed.error
    assert [one.changes for one in retry_tables(setup.recording, setup.target)] == [{"Insert": 1}] * 2
    assert setup.rows(2)[-2:] == [(10, "v"), (11, "v")]


def test_a_damaged_record_of_a_missed_batch_affects_one_table_only(setup: Setup) -> None:
    """The error names the damaged file of the missed micro-batch; other tables are retried successfully."""
    with setup.without("a", "b"):
        setup.apply(
            setup.send(m.Insert(relation_oid=1, new=("10", "v")), m.Insert(relation_oid=2, new=("10", "v")))
        )
    (setup.target / "_failed_tables" / "1" / "1").write_text("")
    failed, applied = retry_tables(setup.recording, setup.target)
    assert failed.error.endswith(
        "_failed_tables/1/1: Input data was truncated. Begin anew, with an empty target"
    )
    assert (applied.name, applied.changes) == ("b", {"Insert": 1})
    assert replica_tables(setup.target)[1].error == failed.error


def test_a_retry_needs_bounded_memory(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry applies the missed changes in order, without holding all of them in memory at once."""
    folder = setup.target / "public.b"
    kept = folder.rename(setup.target.parent / "kept")
    for number in range(4):
        setup.send(
            *(
                m.Insert(relation_oid=2, new=(str(100 * number + key), "v" * (1 << 20)))
                for key in range(10, 20)
            )
        )
    missed = setup.send(m.Update(relation_oid=2, new=("10", "last")))
    record_failure(
        locate(setup.target), FailedTable(2, "public", "b", "gone"), MissedBatch(1, 2, missed.last_segment)
    )
    kept.rename(folder)
    positions: list[int] = []
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def count(batches: Iterable[pa.RecordBatch], *arguments: Any, **options: Any) -> Iterator[TableResult]:
        for batch in batches:
            held.append(pa.total_allocated_bytes() - before)
            positions.extend(batch["position"].to_pylist())
        return iter([TableResult(2, "public", "b", {})])

    monkeypatch.setattr(retry, "apply_changes", count)
    assert [one.error for one in retry_tables(setup.recording, setup.target)] == [""]
    assert len(positions) == 41
    assert positions == sorted(positions)
    assert max(held) < 30 << 20


def test_an_error_reading_the_recording_affects_one_table_only(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error in the retry of one table, not only a PgoutputError, lets the other table's retry proceed."""
    with setup.without("a", "b"):
        setup.apply(
            setup.send(m.Insert(relation_oid=1, new=("10", "v")), m.Insert(relation_oid=2, new=("10", "v")))
        )

    def read_none(*arguments: Any) -> Any:
        monkeypatch.undo()
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr("pgoutput.replica.recorded_changes.read", read_none)
    failed, applied = retry_tables(setup.recording, setup.target)
    assert (failed.name, failed.error) == ("a", "public.a: offset overflow while concatenating arrays")
    assert (applied.name, applied.changes) == ("b", {"Insert": 1})


def test_a_table_that_cannot_be_created_is_listed_with_its_error(setup: Setup) -> None:
    blocked = setup.target / "public.c"
    blocked.write_text("not a folder")
    relation = m.Relation(
        oid=3, namespace="public", name="c", replica_identity=ReplicaIdentity.DEFAULT, columns=COLUMNS
    )
    applied = setup.apply(setup.send(relation, m.Insert(relation_oid=3, new=("1", "v"))))
    assert "public.c: the Delta table cannot be read: " in applied["c"].error
    listed = replica_tables(setup.target)[3]
    assert (listed.namespace, listed.name, listed.place) == ("public", "c", "")
    assert listed.error == applied["c"].error
    blocked.unlink()
    assert [one.error for one in retry_tables(setup.recording, setup.target)] == [""]
    assert setup.rows(3) == [(1, "v")]


def test_a_table_stays_failed_if_its_missed_segments_are_gone(setup: Setup) -> None:
    """The error names the removed segment, and the retry does not skip the segment's micro-batch."""
    with setup.without("b"):
        setup.apply(setup.send(m.Insert(relation_oid=2, new=("10", "v"))))
    segment = list_segments(setup.recording)[1]
    moved = segment.rename(segment.with_suffix(".moved"))
    (failed,) = retry_tables(setup.recording, setup.target)
    assert segment.name in failed.error
    assert replica_tables(setup.target)[2].error == failed.error
    moved.rename(segment)
    assert [one.error for one in retry_tables(setup.recording, setup.target)] == [""]
    assert (10, "v") in setup.rows(2)


def test_a_retry_refuses_another_recording(setup: Setup) -> None:
    shutil.rmtree(setup.target / "public.b")
    setup.apply(setup.send(m.Insert(relation_oid=2, new=("10", "v"))))
    claimed = setup.target / "_owner.json"
    claimed.write_text(claimed.read_text().replace(PARALLEL.recording, "another"))
    with pytest.raises(ReplicaError, match=f"not a replica of recording {PARALLEL.recording}"):
        list(retry_tables(setup.recording, setup.target))


def test_a_table_of_another_recording_is_refused(tmp_path: Path) -> None:
    """A Delta table that was copied into the target from another target is not changed."""
    server = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    for batch, recording in enumerate(["one", "two"]):
        server.insert(str(batch))
        (applied,) = apply_changes(server.take().to_batches(), tmp_path, "query", batch, recording=recording)
    assert "public.t: the Delta table belongs to recording one, and this is recording two" in applied.error
    (listed,) = replica_tables(tmp_path).values()
    assert (listed.recording, DeltaTable(listed.place).to_pyarrow_table().num_rows) == ("one", 1)
