"""A table that fails is set aside; the others go on, and it catches up later."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pgoutput import messages as m
from pgoutput.errors import RecordingError
from pgoutput.messages import ReplicaIdentity
from pgoutput.recording import list_segments, locate
from pgoutput.replica import Applied, apply_changes, files, replica_tables, retry, retry_tables, table
from pgoutput.replica.aside import Aside, Missed, catch_up, read_aside, read_missed, set_aside
from pgoutput.replica.claim import Claim, claim
from pgoutput.replica.fold import Fold
from tests.recording.recordings import PARALLEL, record
from tests.replica.changes import in_order, recorded
from tests.replica.simulator import Server

COLUMNS = (m.RelationColumn(1, "k", 23, -1), m.RelationColumn(0, "v", 25, -1))
RELATIONS = [
    m.Relation(oid, "public", name, ReplicaIdentity.DEFAULT, COLUMNS) for oid, name in ((1, "a"), (2, "b"))
]


class Recorded:
    """A recording of the tables a and b, a segment for each batch, and a replica of it."""

    def __init__(self, folder: Path) -> None:
        self.recording = folder / "recording"
        self.recording.mkdir()
        self.target = folder / "target"
        self.owner = Claim("query", "tables", PARALLEL.recording)

    def send(self, *changes: m.Message) -> Missed:
        """Record a transaction; return its batch."""
        number = sum(1 for _ in self.recording.iterdir()) + 1
        lsn = 100 * number
        record(self.recording, *RELATIONS, m.Begin(lsn, 1, 7), *changes, m.Commit(lsn, lsn + 10, 0), lsn=lsn)
        return Missed(number - 1, number, number)

    def apply(self, missed: Missed) -> dict[str, Applied]:
        """Apply a batch as a query does; return what was done, by table."""
        everything = in_order(recorded(self.recording))
        mine = [lsn == 100 * missed.last for lsn in everything["commit_lsn"].to_pylist()]
        rows = everything.filter(pa.array(mine))
        folder = locate(self.target)
        claim(self.target, self.owner, batch=missed.batch)
        aside = {oid: one.error for oid, one in read_aside(folder).items()}
        applied = list(
            apply_changes(
                rows.to_batches(),
                self.target,
                "query",
                missed.batch,
                recording=PARALLEL.recording,
                aside=aside,
            )
        )
        for one in applied:
            if one.error:
                set_aside(folder, Aside(one.oid, one.namespace, one.name, one.error), missed)
        return {one.name: one for one in applied}

    def rows(self, oid: int) -> list[tuple[int, str]]:
        rows = DeltaTable(replica_tables(self.target)[oid].place).to_pyarrow_table().to_pylist()
        return sorted((row["k"], row["v"]) for row in rows)


@pytest.fixture
def made(tmp_path: Path) -> Recorded:
    made = Recorded(tmp_path)
    made.apply(made.send(*(m.Insert(oid, (str(key), "v")) for oid in (1, 2) for key in range(3))))
    return made


def test_a_table_that_fails_does_not_stop_the_others(made: Recorded) -> None:
    """And it has all of its changes, in order, once it is repaired."""
    lost = made.target / "public.b"
    kept = lost.rename(made.target.parent / "kept")
    for value in ("first", "second"):
        applied = made.apply(made.send(*(m.Update(oid, (str(oid), value)) for oid in (1, 2))))
        assert applied["a"].changes == {"Update": 1}
        assert applied["b"].changes == {}
        assert "public.b: the Delta table of relation 2 is gone" in applied["b"].error
    assert made.rows(1) == [(0, "v"), (1, "second"), (2, "v")]
    assert "is gone" in replica_tables(made.target)[2].error
    (failed,) = retry_tables(made.recording, made.target)
    assert "is gone" in failed.error
    assert read_missed(locate(made.target), 2) == [Missed(1, 2, 2), Missed(2, 3, 3)]
    kept.rename(lost)
    assert [one.changes for one in retry_tables(made.recording, made.target)] == [{"Update": 1}] * 2
    assert made.rows(2) == [(0, "v"), (1, "v"), (2, "second")]
    assert replica_tables(made.target)[2].error == ""
    assert not [*(made.target / "_set_aside").iterdir()]
    assert [*retry_tables(made.recording, made.target)] == []
    assert made.apply(made.send(m.Delete(2, key=("2", None))))["b"].changes == {"Delete": 1}


@pytest.mark.parametrize("commits", [1, 2])
def test_a_batch_that_was_applied_in_part(
    commits: int, made: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits that were made are not made again, and the others are."""
    count = 0

    def commit(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == commits + 1:
            raise OSError(28, "No space left on device")
        files.commit(*arguments)

    batch = made.send(
        m.Insert(2, ("10", "before")),
        m.Truncate(0, (2,)),
        m.Insert(2, ("11", "after")),
        m.Truncate(0, (2,)),
        m.Insert(2, ("12", "last")),
    )
    with monkeypatch.context() as patch:
        patch.setattr(table, "commit", commit)
        assert made.apply(batch)["b"].error == "public.b: [Errno 28] No space left on device"
    version = DeltaTable(replica_tables(made.target)[2].place).version()
    assert [one.error for one in retry_tables(made.recording, made.target)] == [""]
    assert made.rows(2) == [(12, "last")]
    assert DeltaTable(replica_tables(made.target)[2].place).version() == version + 3 - commits


def test_an_unknown_error_concerns_one_table_only(made: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(keys: Any, **options: Any) -> Any:
        if ("7",) in keys:
            raise ArithmeticError("what nobody thought of")
        return Fold(keys, **options)

    made.apply(made.send(m.Insert(1, ("7", "v"))))
    batch = made.send(m.Update(1, ("7", "w")), m.Update(2, ("1", "w")))
    with monkeypatch.context() as patch:
        patch.setattr(table, "Fold", fold)
        applied = made.apply(batch)
    assert applied["a"].error == "public.a: ArithmeticError: what nobody thought of"
    assert applied["b"].changes == {"Update": 1}
    assert [one.changes for one in retry_tables(made.recording, made.target)] == [{"Update": 1}]


def test_a_batch_that_is_missed_while_a_table_catches_up(
    made: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that runs at the same time, in another process, notes it; nothing is lost."""
    folder = made.target / "public.b"
    kept = folder.rename(made.target.parent / "kept")
    made.apply(made.send(m.Insert(2, ("10", "v"))))
    kept.rename(folder)
    meanwhile = made.send(m.Insert(2, ("11", "v")))

    def take_note(*arguments: Any) -> None:
        assert "gone" in made.apply(meanwhile)["b"].error
        monkeypatch.undo()
        catch_up(*arguments)

    monkeypatch.setattr(retry, "catch_up", take_note)
    assert [one.changes for one in retry_tables(made.recording, made.target)] == [{"Insert": 1}] * 2
    assert replica_tables(made.target)[2].error == ""
    assert made.rows(2)[-2:] == [(10, "v"), (11, "v")]


@pytest.mark.parametrize("content", [None, ""])
def test_a_note_of_an_error_that_is_lost(content: str | None, made: Recorded) -> None:
    """The machine lost its power: a table that has missed batches is still set aside."""
    folder = made.target / "public.b"
    kept = folder.rename(made.target.parent / "kept")
    made.apply(made.send(m.Insert(2, ("10", "v"))))
    kept.rename(folder)
    file = made.target / "_set_aside" / "2" / "error"
    file.unlink()
    if content is not None:
        file.write_text(content)
    listed = replica_tables(made.target)[2]
    assert (listed.name, listed.error) == ("b", "batches were missed; why is not known")
    assert made.apply(made.send(m.Insert(2, ("11", "v"))))["b"].error == listed.error
    assert [one.changes for one in retry_tables(made.recording, made.target)] == [{"Insert": 1}] * 2
    assert made.rows(2)[-2:] == [(10, "v"), (11, "v")]


def test_a_note_that_is_damaged_concerns_one_table_only(made: Recorded) -> None:
    """Which batch it was is not known: the error says so, and the other tables catch up."""
    for name in ("a", "b"):
        shutil.move(made.target / f"public.{name}", made.target.parent / name)
    made.apply(made.send(m.Insert(1, ("10", "v")), m.Insert(2, ("10", "v"))))
    for name in ("a", "b"):
        shutil.move(made.target.parent / name, made.target / f"public.{name}")
    (made.target / "_set_aside" / "1" / "1").write_text("")
    failed, applied = retry_tables(made.recording, made.target)
    assert failed.error.endswith("_set_aside/1/1: Input data was truncated. Begin anew, with an empty target")
    assert (applied.name, applied.changes) == ("b", {"Insert": 1})
    assert replica_tables(made.target)[1].error == failed.error


def test_a_batch_larger_than_memory(made: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a table has missed is applied in order, and not held at once."""
    folder = made.target / "public.b"
    kept = folder.rename(made.target.parent / "kept")
    for number in range(4):
        made.send(*(m.Insert(2, (str(100 * number + key), "v" * (1 << 20))) for key in range(10, 20)))
    missed = made.send(m.Update(2, ("10", "last")))
    set_aside(locate(made.target), Aside(2, "public", "b", "gone"), Missed(1, 2, missed.last))
    kept.rename(folder)
    positions: list[int] = []
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def count(batches: Iterable[pa.RecordBatch], *arguments: Any, **options: Any) -> Iterator[Applied]:
        for batch in batches:
            held.append(pa.total_allocated_bytes() - before)
            positions.extend(batch["position"].to_pylist())
        return iter([Applied(2, "public", "b", {})])

    monkeypatch.setattr(retry, "apply_changes", count)
    assert [one.error for one in retry_tables(made.recording, made.target)] == [""]
    assert len(positions) == 41
    assert positions == sorted(positions)
    assert max(held) < 30 << 20


def test_a_recording_that_cannot_be_read_for_it(made: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason, it concerns one table only."""
    for name in ("a", "b"):
        shutil.move(made.target / f"public.{name}", made.target.parent / name)
    made.apply(made.send(m.Insert(1, ("10", "v")), m.Insert(2, ("10", "v"))))
    for name in ("a", "b"):
        shutil.move(made.target.parent / name, made.target / f"public.{name}")

    def read_none(*arguments: Any) -> Any:
        monkeypatch.undo()
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(retry, "read", read_none)
    failed, applied = retry_tables(made.recording, made.target)
    assert (failed.name, failed.error) == ("a", "public.a: offset overflow while concatenating arrays")
    assert (applied.name, applied.changes) == ("b", {"Insert": 1})


def test_a_new_table_that_cannot_be_created(made: Recorded) -> None:
    """It is listed with its name and error; an error has its cause."""
    blocked = made.target / "public.c"
    blocked.write_text("not a folder")
    relation = m.Relation(3, "public", "c", ReplicaIdentity.DEFAULT, COLUMNS)
    applied = made.apply(made.send(relation, m.Insert(3, ("1", "v"))))
    assert "public.c: the Delta table cannot be read: " in applied["c"].error
    listed = replica_tables(made.target)[3]
    assert (listed.namespace, listed.name, listed.place) == ("public", "c", "")
    assert listed.error == applied["c"].error
    blocked.unlink()
    assert [one.error for one in retry_tables(made.recording, made.target)] == [""]
    assert made.rows(3) == [(1, "v")]


def test_what_was_missed_is_gone_from_the_recording(made: Recorded) -> None:
    """The table stays aside, with the reason; nothing is skipped."""
    folder = made.target / "public.b"
    kept = folder.rename(made.target.parent / "kept")
    made.apply(made.send(m.Insert(2, ("10", "v"))))
    kept.rename(folder)
    segment = list_segments(made.recording)[1]
    moved = segment.rename(segment.with_suffix(".moved"))
    (failed,) = retry_tables(made.recording, made.target)
    assert segment.name in failed.error
    assert replica_tables(made.target)[2].error == failed.error
    moved.rename(segment)
    assert [one.error for one in retry_tables(made.recording, made.target)] == [""]
    assert (10, "v") in made.rows(2)


def test_another_recording_is_not_read_for_it(made: Recorded) -> None:
    shutil.rmtree(made.target / "public.b")
    made.apply(made.send(m.Insert(2, ("10", "v"))))
    claimed = made.target / "_query.json"
    claimed.write_text(claimed.read_text().replace(PARALLEL.recording, "another"))
    with pytest.raises(RecordingError, match=f"not a replica of recording {PARALLEL.recording}"):
        list(retry_tables(made.recording, made.target))


def test_a_table_of_another_recording(tmp_path: Path) -> None:
    """A folder that was copied from another target is refused, and left as it is."""
    server = Server(1, "t", {"k": "int4"}, keys=1)
    for batch, recording in enumerate(["one", "two"]):
        server.insert(str(batch))
        (applied,) = apply_changes(server.take().to_batches(), tmp_path, "query", batch, recording=recording)
    assert "public.t: the Delta table belongs to recording one, and this is recording two" in applied.error
    (listed,) = replica_tables(tmp_path).values()
    assert (listed.recording, DeltaTable(listed.place).to_pyarrow_table().num_rows) == ("one", 1)
