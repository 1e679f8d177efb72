"""The commands `logicalrep segments`, `decode`, `encode` and `inspect` accept recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logicalrep import messages as m
from logicalrep.capturefile import CaptureFile
from logicalrep.jsonlines import to_json
from logicalrep.recording import (
    IncompleteTable,
    Metadata,
    PublicationChange,
    SegmentReader,
    encode_metadata,
    list_segments,
    read_metadata,
    segment_name,
)
from logicalrep.recording.segment_file import checksum
from logicalrep.recording.segment_format import CHECKSUM_KEY, METADATA_KEY
from tests.codec import corpus
from tests.messages import STOP, make_column, make_relation, start_block
from tests.recording import recordings

Run = Callable[..., SimpleNamespace]
NAME = "pg18_ws_p4_par_2pc_msg"


def words(line: str) -> list[str]:
    return line.split()


def relation(*names: str, oid: int = 1, name: str = "t") -> m.Relation:
    columns = tuple(make_column(name) for name in names)
    return make_relation(*columns, oid=oid, name=name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Record two sessions in three segments, with a schema change and a transaction in two segments."""
    streamed = msgspec.structs.replace(relation("id", "v"), xid=7)
    recordings.record(
        tmp_path,
        *(
            m.Begin(final_lsn=16, commit_time=0, xid=5),
            relation("id"),
            m.Insert(relation_oid=1, new=("a",)),
            m.Commit(commit_lsn=16, end_lsn=32, commit_time=0),
        ),
        *(
            start_block(7),
            streamed,
            STOP,
            m.StreamCommit(xid=7, commit_lsn=48, end_lsn=64, commit_time=1_000_000),
        ),
        cut=5,
    )
    recordings.record(tmp_path, relation("id", "v"), relation("\x1b[31m", oid=2, name="\x1b[2Ju"))
    return tmp_path


def test_segments_lists_segments_and_schema_versions(run: Run, folder: Path) -> None:
    done = run("segments", folder)
    assert (done.code, done.err) == (0, "")
    listed, relations, end = (part.splitlines() for part in done.out.split("\n\n"))
    assert [words(line) for line in listed] == [
        words("number session positions LSNs transactions last commit unfinished relations"),
        words("1 1 0 … 4 0/0 … 0/20 1 2000-01-01 00:00:00+00:00 1 public.t"),
        words("2 1 5 … 7 0/20 … 0/40 1 2000-01-01 00:00:01+00:00 public.t"),
        words(r"3 2 8 … 9 0/40 … 0/40 0 public.t, public.\x1b[2Ju"),
    ]
    assert [words(line) for line in relations] == [
        words("relation OID version segment position columns"),
        words("public.t 1 1 1 1 id"),
        words("public.t 1 2 2 5 id, v"),
        words(r"public.\x1b[2Ju 2 1 3 9 \x1b[31m"),
    ]
    assert end == ["3 segments, without a gap."]


def test_segments_json_prints_the_metadata(run: Run, folder: Path) -> None:
    done = run("segments", "--json", folder)
    assert (done.code, done.err) == (0, "")
    said = [msgspec.json.decode(line, type=Metadata) for line in done.out.splitlines()]
    assert said == [read_metadata(path) for path in list_segments(folder)]
    first = json.loads(done.out.splitlines()[0])
    assert first["source"]["proto_version"] == 4
    assert first["source"]["options"] == {"streaming": "parallel"}
    assert first["parts"] == [{"begin": 4, "xid": 7, "changes": 0}]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_missing_segment_is_one_line_and_exit_code_2(
    run: Run, folder: Path, options: tuple[str, ...]
) -> None:
    (folder / segment_name(2)).unlink()
    done = run("segments", *options, folder)
    assert done.code == 2
    assert done.err == (
        f"logicalrep: {folder}: segment 2 is missing; "
        "between segments 1 and 3, expected position 5, found 8; "
        "between segments 1 and 3, expected LSN 0/20, found 0/40\n"
    )
    assert "without a gap" not in done.out
    assert len(done.out.splitlines()) == (2 if options else 9)


def test_a_path_that_is_not_a_recording_is_one_line(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run("segments", tmp_path / "nowhere")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    path = folder / segment_name(2)
    path.write_bytes(path.read_bytes()[:-1])
    for arguments in (("segments", folder), ("decode", folder), ("inspect", path), ("decode", path)):
        done = run(*arguments)
        assert done.code == 2
        assert done.err.startswith(f"logicalrep: {path}: cannot be read as a Parquet file (")
        assert len(done.err.splitlines()) == 1


def test_decode_prints_a_recording_like_its_capture_file(run: Run, tmp_path: Path) -> None:
    recordings.write(tmp_path, recordings.source(NAME), recordings.sent(NAME), 61)
    done = run("decode", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line) for line in done.out.splitlines()] == messages_of(corpus.path(NAME))
    some = list_segments(tmp_path)[2:4]
    each = run("decode", *some)
    with_keyframes = [to_json(message) for path in some for message in recordings.decoded(path)]
    assert [json.loads(line) for line in each.out.splitlines()] == json.loads(json.dumps(with_keyframes))


def messages_of(path: Path) -> list[object]:
    with CaptureFile(path) as capture:
        found = [to_json(one.message) for one in capture.messages() if one.message is not None]
    return [json.loads(json.dumps(one)) for one in found]


def test_encode_accepts_the_decoded_messages_of_a_segment(run: Run, tmp_path: Path) -> None:
    paths = recordings.write(tmp_path, recordings.source(NAME), recordings.sent(NAME), 61)
    for path in paths[::3]:
        lines = run("decode", path).out
        done = run("encode", "-", "--proto", "4", "--streaming", "parallel", stdin=lines.encode())
        assert (done.code, done.err) == (0, "")
        capture = tmp_path / "capture.jsonl"
        capture.write_text(done.out)
        with CaptureFile(capture) as again:
            assert [one.message for one in again.messages()] == recordings.decoded(path)


def test_decode_prints_a_table(run: Run, folder: Path) -> None:
    """Messages of a keyframe are shown without a position."""
    done = run("decode", "--table", folder / segment_name(2))
    assert (done.code, done.err) == (0, "")
    lines = [words(line) for line in done.out.splitlines()]
    assert [line[:2] for line in lines[:2]] == [["Relation", "oid=1"], ["StreamStart", "xid=7"]]
    assert [line[:2] for line in lines[2:]] == [
        ["5", "Relation"],
        ["6", "StreamStop"],
        ["7", "StreamCommit"],
    ]
    whole = run("decode", "--table", folder)
    assert [line.split()[0] for line in whole.out.splitlines()] == [str(number) for number in range(10)]
    assert "new: id='a'" in whole.out


def test_inspect_shows_positions_and_keyframe(run: Run, folder: Path) -> None:
    done = run("inspect", folder / segment_name(2))
    assert (done.code, done.err) == (0, "")
    heads = [line for line in done.out.splitlines() if line and not line.startswith(" ")]
    assert [head.split(", ")[0] for head in heads] == [
        "keyframe",
        "keyframe",
        "position 5",
        "position 6",
        "position 7",
    ]
    whole = run("inspect", folder)
    assert [line for line in whole.out.splitlines() if line.startswith("position 2,")] == [
        "position 2, data, 14 bytes"
    ]


def test_segments_lists_incomplete_tables_and_changed_publications(run: Run, folder: Path) -> None:
    late = IncompleteTable(oid=5, namespace="", name="[b]late\x1b[2J", lsn=0x30, lost="added to p since 0/20")
    early = msgspec.structs.replace(late, name="early")
    change = PublicationChange(
        publication="p", after_lsn=0x10, before_lsn=0x20, time=1_000_000, changes=("t added", "[b]u\x1b")
    )
    other = msgspec.structs.replace(change, publication="q")
    remarks = {
        1: {"incomplete": (early,), "publication_changes": (change,)},  # `early` is complete by then
        3: {"incomplete": (late,), "publication_changes": (other,)},
    }
    for number, said in remarks.items():
        with SegmentReader(folder / segment_name(number)) as segment:
            metadata, batches = segment.metadata, list(segment.batches())
        rows = pa.Table.from_batches(batches)
        raw = encode_metadata(msgspec.structs.replace(metadata, **said))
        pq.write_table(
            rows.replace_schema_metadata({METADATA_KEY: raw, CHECKSUM_KEY: checksum(raw)}),
            folder / segment_name(number),
        )
    done = run("segments", folder)
    assert (done.code, done.err) == (0, "")
    _, _, changes, incomplete, _ = (part.splitlines() for part in done.out.split("\n\n"))
    assert [words(line) for line in changes] == [
        words("publication after before noticed changes"),
        words(r"p 0/10 0/20 2000-01-01 00:00:01+00:00 t added; [b]u\x1b"),
        words(r"q 0/10 0/20 2000-01-01 00:00:01+00:00 t added; [b]u\x1b"),
    ]
    assert [words(line) for line in incomplete] == [
        words("incomplete table since reason"),
        words(r"pg_catalog.[b]late\x1b[2J 0/30 added to p since 0/20"),
    ]
