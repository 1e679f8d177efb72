"""The command `logicalrep check` reports legal and illegal capture files and recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from logicalrep import envelope, messages as m, v4
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.recording import record_capture_file
from logicalrep.stream.check import RULES, samples as s
from tests.codec.corpus import CAPTURES, path, read
from tests.messages import make_relation
from tests.recording import recordings

Run = Callable[..., SimpleNamespace]

PARALLEL = {"streaming": "parallel", "publication_names": "p"}


def write_capture(folder: Path, *messages: m.Message, options: dict[str, str] = PARALLEL) -> Path:
    """Write these messages to a capture file and return its path."""
    file = folder / "capture.jsonl"
    lines = [encode_record("data", v4.encode(message)) for message in messages]
    file.write_bytes(encode_header(Header(4, options, slot_two_phase=True)) + b"".join(lines))
    return file


def test_captures_of_real_servers_are_legal(run: Run) -> None:
    result = run("check", *map(path, CAPTURES))
    assert (result.code, result.err) == (0, "")
    counts = [sum(line.record.channel != "sent" for line in read(name)[1]) for name in CAPTURES]
    expected = [
        f"{path(name)}: legal, {count:,} messages" for name, count in zip(CAPTURES, counts, strict=True)
    ]
    assert result.out.splitlines() == expected


def test_a_violation_is_reported_with_file_line_message_and_byte(run: Run, tmp_path: Path) -> None:
    file = write_capture(tmp_path, *s.transaction(s.RELATION, m.Insert(relation_oid=s.OID, new=("1",))))
    result = run("check", file)
    assert result.code == 1
    text = "illegal at message 2, byte 6, because Insert.new.count: new has 1 columns, but public.t has 2"
    assert result.out.splitlines() == [
        f"{file}:4: {text} (column-count)",
        f"{file}: illegal, 1 of 4 messages",
    ]
    result = run("check", "--json", file)
    assert result.code == 1
    assert json.loads(result.out) == {
        "file": str(file),
        "line": 4,
        "rule": "column-count",
        "message": 2,
        "byte": 6,
        "name": "Insert",
        "field": "new.count",
        "because": "Insert.new.count: new has 1 columns, but public.t has 2",
        "text": text,
    }


def test_one_illegal_file_among_legal_ones_fails_the_command(run: Run, tmp_path: Path) -> None:
    illegal = write_capture(tmp_path, s.COMMIT)
    assert run("check", path(CAPTURES[0]), illegal, path(CAPTURES[0])).code == 1


def test_options_are_read_from_the_header(run: Run, tmp_path: Path) -> None:
    binary = s.transaction(s.RELATION, m.Insert(relation_oid=s.OID, new=(b"\1", "x")))
    assert run("check", write_capture(tmp_path, *binary)).code == 1
    assert run("check", write_capture(tmp_path, *binary, options=PARALLEL | {"binary": "on"})).code == 0
    unknown = {"streaming": "parallel"}  # as `logicalrep encode` writes it
    assert run("check", write_capture(tmp_path, *binary, options=unknown)).code == 0


def test_messages_of_the_client_are_not_checked(run: Run, tmp_path: Path) -> None:
    update = envelope.encode(
        m.StandbyStatusUpdate(written_lsn=1, flushed_lsn=1, applied_lsn=1, send_time=0, reply_requested=False)
    )
    file = write_capture(tmp_path)
    file.write_bytes(file.read_bytes() + encode_record("sent", update))
    assert run("check", file).out == f"{file}: legal, 0 messages\n"
    file.write_bytes(file.read_bytes() + encode_record("copydata", update))
    assert "a server does not send StandbyStatusUpdate (envelope)" in run("check", file).out


def test_control_characters_in_names_are_escaped(run: Run, tmp_path: Path) -> None:
    name = "[red]\x1b[31m\n"
    relation = make_relation(
        *s.COLUMNS, oid=s.OID, namespace=name, name=name, identity=s.RELATION.replica_identity
    )
    result = run(
        "check", write_capture(tmp_path, *s.transaction(relation, m.Insert(relation_oid=s.OID, new=())))
    )
    assert r"but [red]\x1b[31m\n.[red]\x1b[31m\n has 2" in result.out
    assert len(result.out.splitlines()) == 2


def test_a_missing_file_has_its_own_exit_code(run: Run, tmp_path: Path) -> None:
    assert run("check", tmp_path / "none.jsonl").code == 2
    assert run("check").code == 2


def test_rules_are_printed_with_their_examples(run: Run) -> None:
    result = run("check", "--rules")
    assert result.code == 0
    for rule in RULES:
        assert f"{rule.name}  " in result.out
    printed = [json.loads(line) for line in run("check", "--rules", "--json").out.splitlines()]
    assert [rule.name for rule in RULES] == [one["name"] for one in printed]
    assert [len(rule.illegal) for rule in RULES] == [len(one["illegal"]) for one in printed]


# Recordings


@pytest.mark.parametrize("name", [name for name in CAPTURES if name.startswith(("pg10", "pg14", "pg18"))])
def test_recordings_and_their_segments_are_legal(run: Run, tmp_path: Path, name: str) -> None:
    files = record_capture_file(path(name), tmp_path / "recording", segment_bytes=40_000)
    result = run("check", tmp_path / "recording", *files)
    assert (result.code, result.out.count(": legal, ")) == (0, len(files) + 1)


def test_a_recording_of_two_sessions_is_legal(run: Run, tmp_path: Path) -> None:
    recordings.record(tmp_path, *s.BLOCK, *s.PREPARED)
    recordings.record(tmp_path, *s.PREPARED, *s.BLOCK, s.STREAM_COMMIT, s.COMMIT_PREPARED, lsn=900)
    result = run("check", tmp_path)
    assert (result.code, result.out.count("legal, ")) == (0, 1), result.out


def test_a_violation_in_a_recording_has_its_position(run: Run, tmp_path: Path) -> None:
    recordings.record(tmp_path, *s.BLOCK, s.STREAM_COMMIT)
    later = (
        m.Begin(final_lsn=3_000, commit_time=0, xid=750),
        s.INSERT,
        m.Commit(commit_lsn=3_000, end_lsn=3_048, commit_time=0),
    )
    recordings.record(tmp_path, *later)
    result = run("check", tmp_path)
    assert result.code == 1
    assert (
        f"{tmp_path}:7: illegal at message 7, byte 1, because Insert.relation_oid: no Relation" in result.out
    )
