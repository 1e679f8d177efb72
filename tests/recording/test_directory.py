"""A writer that was given up does not touch the files of the next one."""

from __future__ import annotations

from pathlib import Path

from pgoutput.recording import SegmentFile
from pgoutput.recording.segment_file import sent


def test_a_file_that_was_given_up_does_not_damage_the_segment_of_its_number(tmp_path: Path) -> None:
    """It is ended when it is collected as garbage, which may be after the other one was published."""
    path, partial = tmp_path / "0000000001.parquet", tmp_path / ".0000000001.parquet.partial"
    given_up, after = SegmentFile(path), SegmentFile(path)
    given_up.add(0, [sent([1], [1], [b"given up" * 1000])])
    after.add(0, [sent([1], [1], [b"stored" * 1000])])
    partial.rename(path)
    before = path.read_bytes()
    given_up.__del__()  # as the garbage collector does
    assert path.read_bytes() == before
