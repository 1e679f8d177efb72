"""Scenarios written as capture files and recordings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logicalrep.capturefile import CaptureFile
from logicalrep.errors import RecordingError, ScenarioError
from logicalrep.messages import PrimaryKeepalive, XLogData
from logicalrep.recording import SEGMENT_BYTES, RecordingReader
from logicalrep.standin import PluginOptions, RecordedSource
from logicalrep.synth import Scenario, write_capture_file, write_recording
from logicalrep.testing import shop
from tests.synth.random_scenarios import OPTION_SETS
from tests.versions import OLDEST

each = pytest.mark.parametrize("options", OPTION_SETS)


def sent(db: Scenario, **options: Any) -> list[XLogData]:
    return [one for one in db.stream(**options) if isinstance(one, XLogData)]


@each
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_capture_file_contains_the_stream(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    db = shop()
    write_capture_file(db, tmp_path / name, **options)
    assert os.listdir(tmp_path) == [name]
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    with CaptureFile(tmp_path / name) as capture:
        header = capture.header
        assert [one.envelope for one in capture.messages()] == list(db.stream(**options))
    actual = (header.proto_version, header.streaming, header.slot_two_phase)
    expected = (options["proto_version"], options.get("streaming", "off"), options.get("two_phase", False))
    assert actual == expected
    write_capture_file(db, tmp_path / "again" / name, **options)
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


@each
@pytest.mark.parametrize("size", [SEGMENT_BYTES, 20_000])
def test_a_recording_contains_the_stream(options: dict[str, Any], size: int, tmp_path: Path) -> None:
    db = shop(**options)
    paths = write_recording(db, tmp_path / "r", segment_bytes=size)
    assert os.listdir(tmp_path) == ["r"]
    assert sorted(os.listdir(tmp_path / "r")) == [path.name for path in paths]
    assert (len(paths) > 1) == (size < SEGMENT_BYTES)
    with RecordingReader(tmp_path / "r") as segments:
        assert [record.data for record in segments.records()] == [one.data for one in sent(db)]
    with RecordingReader(tmp_path / "r") as segments:
        ends = [(one.xid, one.gid, one.end_lsn, one.commit_time) for one in segments.transactions()]
    if options.get("two_phase"):
        assert ends == [(one.xid, one.gid, one.end_lsn, one.commit_time) for one in db.history()]
    else:
        assert ends == [(one.xid, None, one.end_lsn, one.commit_time) for one in db.history()]


@each
@pytest.mark.parametrize("write", [write_capture_file, write_recording])
def test_a_stand_in_server_serves_capture_files_and_recordings(
    write: Callable[..., Any], options: dict[str, Any], tmp_path: Path
) -> None:
    db = shop(**options)
    write(db, tmp_path / "it.jsonl")
    source = RecordedSource(tmp_path / "it.jsonl")
    expected = PluginOptions(publication_names=("synth",), **options)
    messages = [(one.wal_start, one.data) for one in sent(db)]
    served = [one for one in source.start(expected, 0) if isinstance(one, XLogData)]
    assert [(one.wal_start, one.data) for one in served] == messages


@pytest.mark.parametrize("write", [write_capture_file, write_recording])
def test_existing_output_is_not_overwritten(write: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(RecordingError, match=r"there (exists already|is not an empty folder)"):
        write(shop(), tmp_path / "there")
    assert os.listdir(tmp_path / "there") == ["file"]


@pytest.mark.parametrize("write", [write_capture_file, write_recording])
def test_a_failed_write_leaves_no_output(write: Callable[..., Any], tmp_path: Path) -> None:
    db = shop()
    t = db.table("public.t", id="int8 key", owner="regclass")
    with db.transaction() as tx:
        tx.insert(t, id=1, owner="pg_class")
    with pytest.raises(
        ScenarioError, match=r"column owner in binary format: 'pg_class' is not what .* type regclass"
    ):
        write(db, tmp_path / "x", binary=True)
    with pytest.raises(ValueError, match="needs protocol version 4"):
        write(db, tmp_path / "x", proto_version=OLDEST, streaming="parallel")
    assert os.listdir(tmp_path) == []
    write(db, tmp_path / "x")


def test_an_empty_scenario_is_written(tmp_path: Path) -> None:
    write_capture_file(Scenario(), tmp_path / "c.jsonl")
    with CaptureFile(tmp_path / "c.jsonl") as capture:
        assert [type(one.envelope) for one in capture.messages()] == [PrimaryKeepalive]
    assert write_recording(Scenario(), tmp_path / "r") == []
