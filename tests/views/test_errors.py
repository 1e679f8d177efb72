"""Errors of the views name the segment's path and the message's position."""

from __future__ import annotations

import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from logicalrep import messages as m
from logicalrep.errors import RecordingError
from logicalrep.messages import Message
from logicalrep.recording import Location, Metadata, Recording, SegmentFile, SegmentReader, segment_name
from logicalrep.recording.segment_file import message_batch
from logicalrep.stream import encode_for
from logicalrep.views import plan_changes
from logicalrep.wire import UNCHANGED
from tests.messages import STOP, make_column, make_relation, transaction_of
from tests.recording.conftest import Recorded
from tests.recording.recordings import PARALLEL, record
from tests.views.rows import changes, messages, table

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

T = make_relation(make_column("id", key=True))
BEGIN, COMMIT = transaction_of(100, 5)


def forged(folder: Path, *data: bytes | Message, keyframe: int = 0, **said: Any) -> Path:
    """Write a segment with messages that the recorder would refuse; return the segment's path."""
    path = folder / segment_name(1)
    file = SegmentFile(path)
    raw = [one if isinstance(one, bytes) else encode_for(one, 4) for one in data]
    if keyframe:
        file.add_keyframe(raw[:keyframe])
    rest = raw[keyframe:]
    file.add(0, [message_batch([0] * len(rest), [0] * len(rest), rest)])
    known: dict[str, Any] = {"kind": "stream", "number": 1, "session": 1, "source": PARALLEL}
    known |= {"first_position": 0, "messages": len(rest), "keyframe": keyframe}
    known |= {"start_lsn": 0, "end_lsn": 200}
    file.finish(Metadata(**known | said))
    return path


INSERT = encode_for(m.Insert(relation_oid=1, new=("x",)), 4)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"", "position 2: no bytes"),
        (b"\xff", "position 2: .*tag"),
        (b"I\0", r"position 2: Insert\.relation_oid at byte 1"),
        (INSERT[:-1], r"position 2: Insert\.new.*at byte"),
        (INSERT + b"\0", "position 2: Insert at byte 14: the message ends here"),
        (b"U\0\0\0\1X", "position 2: Update"),
        (b"T\0\0", "position 2: Truncate"),
        (
            encode_for(m.Insert(relation_oid=2, new=("x",)), 4),
            "position 2: Insert: no Relation message has come for the OID 2",
        ),
        (
            encode_for(m.Truncate(options=m.TruncateOption(0), relation_oids=(1, 2)), 4),
            "position 2: Truncate: no Relation message .* OID 2",
        ),
        (
            encode_for(m.Insert(relation_oid=1, new=("x", "y")), 4),
            r"position 2: Insert: new has 2 columns, but public\.t has 1",
        ),
        (
            encode_for(m.Delete(relation_oid=1, key=()), 4),
            r"position 2: Delete: key has 0 columns, but public\.t has 1",
        ),
        (
            encode_for(m.Update(relation_oid=1, new=("x",), old=("x", "y")), 4),
            "position 2: Update: old has 2 columns",
        ),
        (encode_for(STOP, 4), "position 2: StreamStop"),
    ],
)
def test_an_invalid_message_is_reported_with_its_position(tmp_path: Path, bad: bytes, words: str) -> None:
    path = forged(tmp_path, T, BEGIN, bad, COMMIT)
    with pytest.raises(RecordingError, match=f"^{re.escape(str(path))}: {words}") as caught:
        changes(tmp_path)
    assert "\n" not in str(caught.value)


WIDE, UNKNOWN = m.Insert(relation_oid=1, new=("x", "y")), m.Insert(relation_oid=2, new=("x",))


@pytest.mark.parametrize("wrong", list(permutations([b"I", WIDE, UNKNOWN])))
def test_the_first_error_is_reported(tmp_path: Path, wrong: tuple[bytes | Message, ...]) -> None:
    """Later errors do not change which error is reported."""
    forged(tmp_path, T, BEGIN, INSERT, *wrong, COMMIT)
    words = {b"I": r"Insert\.relation_oid", WIDE: "Insert: new has 2 columns", UNKNOWN: "Insert: no Relation"}
    with pytest.raises(RecordingError, match=f"position 3: {words[wrong[0]]}"):
        changes(tmp_path)


def test_a_commit_lsn_of_2_to_the_63_is_refused(tmp_path: Path) -> None:
    forged(tmp_path, T, m.Begin(final_lsn=2**63, commit_time=1, xid=5), INSERT, COMMIT)
    with pytest.raises(
        RecordingError, match=r"position 2: Insert: the commit LSN of the transaction must be below 2\*\*63"
    ):
        changes(tmp_path)


def test_the_view_messages_reports_invalid_messages(tmp_path: Path) -> None:
    path = forged(tmp_path, T, BEGIN, INSERT[:-1])
    with pytest.raises(RecordingError, match=rf"^{re.escape(str(path))}: position 2: Insert\.new"):
        messages(tmp_path)


def test_a_damaged_keyframe_is_reported(tmp_path: Path) -> None:
    path = forged(tmp_path, T, b"R\0", BEGIN, COMMIT, keyframe=2)
    for read in (changes, messages):
        with pytest.raises(RecordingError, match=rf"^{re.escape(str(path))}: keyframe: Relation\.oid"):
            read(tmp_path)


def test_changes_of_unwanted_relations_are_not_checked_against_them(tmp_path: Path) -> None:
    """Changes of relations that the view leaves out are decoded, but their number of cells is not checked."""
    wide = m.Insert(relation_oid=1, new=("x", "y"))
    path = forged(
        tmp_path, T, BEGIN, wide, m.Truncate(options=m.TruncateOption(0), relation_oids=(1, 1)), COMMIT
    )
    assert changes(tmp_path, wanted=lambda relation: False) == []
    path.unlink()
    forged(
        tmp_path, m.Insert(relation_oid=1, new=("x",)), m.Insert(relation_oid=9, new=("x",))
    )  # outside transactions
    assert changes(tmp_path) == []
    path.unlink()
    forged(tmp_path, T, BEGIN, INSERT[:-1], COMMIT)
    with pytest.raises(RecordingError, match=rf"^{re.escape(str(path))}: position 2: Insert\.new"):
        changes(tmp_path, wanted=lambda relation: False)


def test_unchanged_cells_in_an_old_row_are_accepted(tmp_path: Path) -> None:
    """No server sends unchanged cells in an old row, but the protocol allows them."""
    change = m.Update(relation_oid=1, new=(b"\xff",), old=(UNCHANGED,))
    forged(tmp_path, T, BEGIN, change, COMMIT, relations=relations_of(tmp_path))
    (row,) = changes(tmp_path)
    assert (row["before"], row["after"]) == ([("id", None)], [("id", "\0\\xff")])
    (typed,) = table(tmp_path, "t").to_pylist()
    assert typed["after"] == {"id": None, "_rescued_data": [("id", "\\xff")]}


def relations_of(folder: Path) -> tuple[Any, ...]:
    other = folder / "other"
    other.mkdir()
    return record(other, T)[0].relations


def test_damaged_messages_are_read_or_refused(recorded: Recorded, tmp_path: Path) -> None:
    """A changed byte of a message gives rows or a RecordingError, nothing else."""
    generator, refused = random.Random(18), 0
    (original,) = recorded("pg18_p4_par_2pc", 10_000).glob("*.parquet")
    with SegmentReader(original) as segment:
        said = segment.metadata
        data = [one for batch in segment.batches() for one in batch["data"].to_pylist()]
    for number in range(25):
        damaged = list(data)
        for place in generator.sample(range(len(data)), 3):
            raw = bytearray(damaged[place])
            raw[generator.randrange(len(raw))] ^= generator.randrange(1, 256)
            damaged[place] = bytes(raw)
        folder = tmp_path / str(number)
        folder.mkdir()
        file = SegmentFile(folder / segment_name(1))
        file.add(0, [message_batch([0] * len(damaged), [0] * len(damaged), damaged)])
        file.finish(said)
        for read in (changes, messages, lambda place: table(place, "t_num")):
            try:
                read(folder)
            except RecordingError as error:
                refused += str(error).startswith(f"{folder / segment_name(1)}: position ")
    assert refused > 25


@pytest.mark.parametrize("missing", [1, 3, 10])
def test_missing_segments_are_reported(recorded: Recorded, tmp_path: Path, missing: int) -> None:
    folder = recorded("pg18_p4_par_2pc", 40)
    for path in folder.iterdir():
        if path.name != segment_name(missing):
            (tmp_path / path.name).symlink_to(path)
    recording = Recording(tmp_path)
    with pytest.raises(RecordingError, match=f"segment {missing} is missing"):
        recording.check()
    with pytest.raises(
        RecordingError, match=f"^{tmp_path}/{segment_name(missing)}: cannot be read as a Parquet file"
    ):
        plan_changes(recording, range(1, 15))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "no segments found: give the folder that `logicalrep record` writes"),
        (lambda folder: (folder / "9.parquet").mkdir(), "9.parquet: cannot be read as a Parquet file"),
        (
            lambda folder: (folder / "0000000001.parquet").touch(),
            "0000000001.parquet: cannot be read as",
        ),
        (lambda folder: (folder / "1x.parquet").touch(), "1x.parquet: expected the file name of a segment"),
        (
            lambda folder: [(folder / f"{n}.parquet").touch() for n in ("01", "1")],
            "two files are segments with the same number",
        ),
    ],
)
def test_folders_that_are_not_recordings_are_refused(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path)
    with pytest.raises(RecordingError, match=f"^{tmp_path}.*{words}") as caught:
        changes(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["no/such/folder", "no/such/0000000001.parquet", "nofs://here/it/is"])
def test_missing_paths_and_uris_are_reported(tmp_path: Path, place: str) -> None:
    for may_be_empty in (False, True):
        with pytest.raises(RecordingError, match=f"^{place}: "):
            Recording(place, may_be_empty=may_be_empty).check()


def test_a_recording_can_be_a_uri(recorded: Recorded) -> None:
    folder = recorded("pg18_p4_par_2pc", 151)
    assert changes(folder.as_uri()) == changes(folder) == changes(f"{folder}/")
    assert changes((folder / segment_name(2)).as_uri()) == changes(folder, [2])


def test_a_segment_in_the_working_directory_is_read_by_its_name(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file name without a folder works, even if other segments of the folder are needed too."""
    folder = recorded("pg18_p4_par_2pc", 40)
    monkeypatch.chdir(folder)
    for number in (8, 9, 10):
        assert changes(segment_name(number)) == changes(folder, [number])


def test_metadata_is_read_concurrently_and_once(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def open_slowly(path: Location) -> SegmentReader:
        threads.append(threading.get_ident())
        time.sleep(0.02)
        return SegmentReader(path)

    monkeypatch.setattr(sys.modules[Recording.__module__], "SegmentReader", open_slowly)
    recording = Recording(recorded("pg18_p4_par_2pc", 40))
    assert [one.number for one in recording.metadata(recording.numbers)] == recording.numbers
    assert len({*threads}) > 2
    recording.metadata(recording.numbers)
    assert len(threads) == len(recording.numbers) > 10


def test_swapped_segment_names_are_reported(recorded: Recorded, tmp_path: Path) -> None:
    """Without the error, a query would read one segment in place of another."""
    folder = tmp_path / "swapped"
    shutil.copytree(recorded("pg18_p4_par_2pc", 40), folder)
    one, other = (folder / segment_name(number) for number in (3, 4))
    one.rename(tmp_path / "third")
    other.rename(one)
    (tmp_path / "third").rename(other)
    recording = Recording(folder)
    with pytest.raises(
        RecordingError, match=r"0000000003\.parquet: the file contains segment 4, so its name is wrong"
    ):
        recording.check([2, 3])


def test_consecutive_segments_can_be_checked_alone(recorded: Recorded, tmp_path: Path) -> None:
    folder = tmp_path / "gap"
    shutil.copytree(recorded("pg18_p4_par_2pc", 40), folder)
    (folder / segment_name(1)).unlink()
    Recording(folder).check([2, 3, 4])
    Recording(folder / segment_name(5)).check()
    with pytest.raises(RecordingError, match="segment 1 is missing"):
        Recording(folder).check()
    with pytest.raises(RecordingError, match="segment 3 is missing"):
        Recording(folder).check([2, 4])
