"""An abandoned writer does not change the files of the next writer."""

from __future__ import annotations

from pathlib import Path

from logicalrep.recording import SegmentFile
from logicalrep.recording.segment_file import message_batch


def test_an_abandoned_file_does_not_damage_a_later_segment_of_its_number(tmp_path: Path) -> None:
    """Garbage collection may write the end of the abandoned file after the later segment was published."""
    path, partial = tmp_path / "0000000001.parquet", tmp_path / ".0000000001.parquet.partial"
    abandoned, after = SegmentFile(path), SegmentFile(path)
    abandoned.add(0, [message_batch([1], [1], [b"abandoned" * 1000])])
    after.add(0, [message_batch([1], [1], [b"stored" * 1000])])
    partial.rename(path)
    before = path.read_bytes()
    abandoned.__del__()  # as the garbage collector does
    assert path.read_bytes() == before
