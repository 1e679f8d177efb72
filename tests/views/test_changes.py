"""The view `changes` has each committed change exactly once, for any segments and micro-batches."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import pytest

from logicalrep import compiled
from logicalrep.recording import Recording, RecordingReader
from logicalrep.views import LsnRange, plan_changes
from tests.codec import corpus
from tests.codec.test_replay import TEXT_CAPTURES, truth
from tests.effort import mostly_nightly
from tests.recording import recordings
from tests.recording.conftest import Recorded
from tests.views.rows import Row, changes, expected_changes, in_order, replay, without

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

CUTS = [
    *(
        pytest.param(name, 151, marks=() if name in corpus.VARIED else pytest.mark.nightly)
        for name in corpus.CAPTURES
    ),
    ("pg18_p4_par_2pc", 9),
    ("pg18_ws_p4_par_2pc_msg", 11),
    ("pg15_p3_2pc_stream_msg", 23),
    ("pg15_p1_on_2pc_slot", 19),
    ("pg14_ws_p2_stream_msg", 31),
    ("pg18_p4_gen_par_bin", 13),
    ("pg10_ws_p1", 10_000),
]


def everything(folder: Path) -> list[Row]:
    """Return all rows of the view `changes` of a recording, sorted by `sequence`."""
    return _everything(folder, compiled.kernel is None)


@cache
def _everything(folder: Path, pure: bool) -> list[Row]:
    return in_order(changes(folder))


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_rows_are_the_committed_changes(recorded: Recorded, name: str, cut: int) -> None:
    folder = recorded(name, cut)
    found, expected = everything(folder), expected_changes(folder)
    assert [without(row, "position", "sequence") for row in found] == [one.row for one in expected]
    sent = recordings.stored(folder)
    assert [sent[row["position"]] for row in found] == [one.data for one in expected]
    assert [tuple(row["sequence"].values()) for row in found] == [
        (row["commit_lsn"], row["position"], number)
        for _, of_message in groupby(found, itemgetter("position"))
        for number, row in enumerate(of_message)
    ]
    assert len(found) > 200


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("pg18_ws_p4_par_2pc_msg", 20),
        ("pg14_ws_p2_stream_msg", 50),
    ],
)
@pytest.mark.parametrize("step", [1, 3])
def test_a_micro_batch_has_the_commits_of_its_segments(
    recorded: Recorded, name: str, cut: int, step: int
) -> None:
    folder = recorded(name, cut)
    recording = Recording(folder)
    committed_in = {
        end.lsn: said.number
        for said in recording.metadata(recording.numbers)
        for end in said.ends
        if end.type in ("Commit", "StreamCommit", "CommitPrepared")
    }
    together, spanning = list[Row](), 0
    for first in range(0, len(recording.numbers), step):
        numbers = recording.numbers[first : first + step]
        batch = changes(folder, numbers)
        together += batch
        for row in batch:
            at = row["position"] // cut + 1
            assert committed_in.get(row["commit_lsn"], at) in numbers
            spanning += at not in numbers
    assert in_order(together) == everything(folder)
    assert spanning


def test_the_corpus_has_transactions_that_span_segments(recorded: Recorded) -> None:
    """Some transactions of the captures span 3 segments or more, with other transactions in between."""
    recording = Recording(recorded("pg18_ws_p4_par_2pc_msg", 5))
    ends = [end for said in recording.metadata(recording.numbers) for end in said.ends]
    spans = Counter(end.type for end in ends if len(end.segments) > 2)
    assert set(spans) >= {"Commit", "StreamCommit", "StreamPrepare", "CommitPrepared"}
    assert any(end.rolled_back for end in ends if len(end.segments) > 2)


@pytest.mark.parametrize("name", mostly_nightly(TEXT_CAPTURES, corpus.VARIED))
def test_replayed_changes_give_the_servers_tables(recorded: Recorded, name: str) -> None:
    of_table: dict[int, list[Row]] = {}
    for row in everything(recorded(name, 151)):
        images = {key: None if row[key] is None else dict(row[key]) for key in ("before", "after")}
        of_table.setdefault(row["relation"]["oid"], []).append(row | images)
    for table in truth(name.split("_")[0]):
        of_one = of_table.pop(table.oid, [])
        if not of_one:
            assert table.rows == [], table.name
            continue
        relation = of_one[-1]["relation"]
        assert table.name == f"{relation['namespace']}.{relation['name']}"
        columns = list(json.loads(of_one[-1]["columns"]))
        found = Counter(tuple(row.get(column) for column in columns) for row in replay(of_one))
        assert found == Counter(table.select(columns)), table.name
    assert len(of_table) <= 1  # app.gone is dropped at the end


@pytest.mark.parametrize(("name", "cut"), [("pg18_ws_p4_par_2pc_msg", 50), ("pg10_p1", 50)])
def test_an_lsn_range_has_all_its_commits_and_skips_segments(recorded: Recorded, name: str, cut: int) -> None:
    folder = recorded(name, cut)
    recording = Recording(folder)
    all_rows = changes(folder)
    lsns = sorted({row["commit_lsn"] for row in all_rows})
    ends = [0, lsns[0], lsns[0] + 1, *lsns[1:-1:30], lsns[-1] - 1, lsns[-1], 2**64 - 1]
    for first, last in [*pairwise(ends), *((lsn, lsn) for lsn in lsns[::20]), (0, 2**64 - 1), (0, 0)]:
        of_range = LsnRange(first, last)
        found = [row for row in changes(folder, lsns=of_range) if row["commit_lsn"] in of_range]
        assert found == [row for row in all_rows if row["commit_lsn"] in of_range]
    assert len(plan_changes(recording, recording.numbers, LsnRange(0, 0))) == 1
    assert not plan_changes(recording, recording.numbers, LsnRange(2**62))
    one = LsnRange(lsns[-1], lsns[-1])
    assert len(plan_changes(recording, recording.numbers, one)) < len(recording.numbers) / 3


def test_each_needed_segment_is_read_once(recorded: Recorded) -> None:
    recording = Recording(recorded("pg18_ws_p4_par_2pc_msg", 11))
    tasks = plan_changes(recording, recording.numbers)
    assert len({task.place for task in tasks}) == len(tasks)
    # The segment itself, and the segments that have its transactions.
    for number in recording.numbers:
        (said,) = recording.metadata([number])
        named = {one for end in said.ends for one in end.segments if end.type != "Prepare"}
        there = {task.place: task for task in plan_changes(recording, [number])}
        assert {str(recording.path(one)) for one in {number}} <= set(there)
        assert set(there) <= {str(recording.path(one)) for one in {number, *named}}
        assert [place for place, task in there.items() if task.whole] == [str(recording.path(number))]


def test_only_wanted_relations_are_read(recorded: Recorded) -> None:
    folder = recorded("pg18_p4_par_2pc", 151)
    all_rows = changes(folder)
    for name in ("strm", "t_num", "t_toast"):
        found = changes(folder, wanted=lambda relation: relation.name == name)  # noqa: B023
        assert found == [row for row in all_rows if row["relation"]["name"] == name]
        assert found


def test_one_segment_gives_the_commits_in_it(recorded: Recorded) -> None:
    folder = recorded("pg18_ws_p4_par_2pc_msg", 50)
    recording = Recording(folder)
    for number in recording.numbers[::3]:
        path = Path(str(recording.path(number)))
        assert changes(path) == changes(folder, [number])


def test_the_corpus_has_every_kind_of_change(recorded: Recorded) -> None:
    found = [row for name in ("pg18_p4_par_2pc", "pg18_p1") for row in everything(recorded(name, 151))]
    assert {row["operation"] for row in found} == {"Insert", "Update", "Delete", "Truncate"}
    assert any(row["unchanged"] for row in found)
    assert {row["before"] is None for row in found if row["operation"] == "Update"} == {True, False}
    sizes = [(len(row["before"]), len(json.loads(row["columns"]))) for row in found if row["before"]]
    assert {before < columns for before, columns in sizes} == {True, False}
    texts = [text for row in found for _, text in row["after"] or ()]
    assert "after rollback to s2" in texts
    assert not [text for text in texts if text and ("undone" in text or "abort" in text)]
    with RecordingReader(recorded("pg18_p4_par_2pc", 151)) as segments:
        assert any(transaction.gid for transaction in segments.transactions())
