"""A capture file becomes a recording with the same messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.errors import RecordingError
from logicalrep.recording import read_metadata, record_capture_file
from tests.codec import corpus
from tests.recording import recordings
from tests.versions import OLDEST


@pytest.mark.parametrize("name", ["pg10_p1", "pg15_p3_2pc_stream_msg", "pg18_p4_gen_par_bin"])
def test_the_recording_has_the_messages_of_the_capture_file(name: str, tmp_path: Path) -> None:
    paths = record_capture_file(corpus.path(name), tmp_path / "recording", segment_bytes=20_000)
    assert len(paths) > 1
    assert read_metadata(paths[0]).source.server_version == corpus.read(name)[0].server_version
    assert recordings.committed(tmp_path / "recording") == recordings.captured(name)
    assert recordings.stored(tmp_path / "recording") == [one.data for one in recordings.sent(name)]


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(RecordingError, match="give a new or empty folder"):
        record_capture_file(corpus.path("pg10_p1"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_out_of_place_message_is_reported(tmp_path: Path) -> None:
    capture = tmp_path / "bad.jsonl"
    commit = bytes.fromhex("43" + "00" * 25)
    capture.write_bytes(encode_header(Header(OLDEST)) + encode_record("data", commit))
    with pytest.raises(RecordingError, match=r"bad\.jsonl: Commit: no transaction is open"):
        record_capture_file(capture, tmp_path / "recording")
