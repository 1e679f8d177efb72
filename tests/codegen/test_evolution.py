"""`python -m codegen diff`, and the evolution rules that protect released versions."""

# ruff: noqa: E501  (a change is a line of its table)

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from codegen import evolution
from codegen.load import load
from codegen.resolve import resolve
from tests.codegen.spec_copy import ROOT, Run, SpecCopy

NOTHING = (0, "nothing changed on the wire\n", "")
COMMIT_LSN = "      - {name: commit_lsn, type: lsn, means: lsn, doc: The LSN of the commit record.}\n"
PREFIX = "      - {name: prefix, type: string, doc: The prefix of the message.}\n"
SEGMENT = (
    "      - {name: first_stream_segment, type: bool, means: first_block, "
    "doc: Whether this is the first block of this xid.}\n"
)
STREAM_XID = "      - {name: xid, type: xid, means: xid, doc: Xid of the top-level transaction.}\n"
PING = "  Ping: {tag: '!', role: payload, title: Ping, source: x, doc: X., fields: []}\n"
VERSION_5 = "  5: {server: 20+, released: false, doc: The next one.}\n"
ADDED = "      - {name: added, type: lsn, means: none, because: X., doc: X.}\n"
ADDED_TO_STRUCT = "      - {name: added, type: lsn, doc: X.}\n"


@pytest.fixture
def old(spec: SpecCopy) -> Path:
    """The folder of a second, unchanged copy of the spec."""
    folder = spec.folder.with_name("old")
    shutil.copytree(spec.folder, folder)
    return folder


def test_diff_of_versions_3_and_4(run: Run) -> None:
    expected = (
        "StreamAbort.abort_lsn is new: Int64 (XLogRecPtr), unsigned, when streaming = parallel\n"
        "StreamAbort.abort_time is new: Int64 (TimestampTz), signed, when streaming = parallel\n"
    )
    assert run("diff", "v3", "v4", "--spec", ROOT / "spec") == (0, expected, "")


def test_diff_of_versions_1_and_2(run: Run) -> None:
    result = run("diff", "v1", "v2", "--spec", ROOT / "spec")
    xid = "xid is new: Int32 (TransactionId), unsigned, when in_stream"
    names = ["LogicalMessage", "Relation", "Type", "Insert", "Update", "Delete", "Truncate"]
    assert result.out.splitlines()[: len(names)] == [f"{name}.{xid}" for name in names]
    assert (result.code, result.err) == (0, "")


def test_diff_of_a_version_with_itself(run: Run) -> None:
    assert run("diff", "v2", "v2", "--spec", ROOT / "spec") == NOTHING


def test_diff_of_equal_specs(run: Run, spec: SpecCopy, old: Path) -> None:
    assert run("diff", old, spec.folder) == NOTHING


def test_documentation_is_not_part_of_the_diff(run: Run, spec: SpecCopy, old: Path) -> None:
    spec.replace("    doc: A row was inserted.\n", "    doc: A row is new.\n")
    spec.replace("    title: Begin\n", "    title: Start\n")
    spec.replace("    source: logicalrep_write_insert\n", "    source: somewhere\n")
    assert run("diff", old, spec.folder) == NOTHING


def test_diff_refuses_an_unknown_version(run: Run) -> None:
    expected = (1, "", "there is no version 7; the versions are 1, 2, 3, 4\n")
    assert run("diff", "v1", "v7", "--spec", ROOT / "spec") == expected


def test_diff_refuses_a_version_and_a_folder(run: Run) -> None:
    expected = (1, "", "compare two versions (v3 v4) or two spec folders, not one of each\n")
    assert run("diff", "v1", ROOT / "spec") == expected


def _replace_after(spec: SpecCopy, old: str, new: str, after: str) -> None:
    text = spec.read()
    start = text.index(old, text.index(after))
    spec.write(text[:start] + new + text[start + len(old) :])


# rule, text before the change, old text, new text, start of the error
VIOLATIONS = [
    ("released-message-removed", "", "    tag: O\n", "    tag: O\n    versions_: x\n", "v1 is released: Origin is gone"),
    ("released-message-added", "", "\nmessages:\n", "\nmessages:\n" + PING, "v1 is released: Ping is new: Byte1('!'), then no fields"),
    ("released-tag-changed", "", "    tag: O\n", "    tag: o\n", "v1 is released: Origin.tag was Byte1('O'), is Byte1('o')"),
    ("released-field-removed", "  LogicalMessage:", PREFIX, "", "v1 is released: LogicalMessage.prefix is gone (was String)"),
    ("released-field-added", "  Commit:", COMMIT_LSN, COMMIT_LSN + ADDED, "v1 is released: Commit.added is new: Int64 (XLogRecPtr), unsigned"),
    ("released-field-changed", "  Truncate:", "type: uint32", "type: uint16", "v1 is released: Truncate."),
    ("released-field-moved", "", STREAM_XID + SEGMENT, SEGMENT + STREAM_XID, "v2 is released: the fields of StreamStart are in another order: tag, first_stream_segment, xid"),
    ("released-version-removed", "  4:", "    released: true", "    released: false", "v4 is released, and now gone or no longer released"),
    # Other parts of the wire format
    ("released-field-changed", "  TupleData:", "count: uint16", "count: uint32", "v1 is released: Insert.new was Byte1('N'), TupleData 2 {n null 0, u unchanged 0, t text 4, b binary 4}, is Byte1('N'), TupleData 4"),
    ("released-field-changed", "  TupleData:", "tag: b", "tag: B", "v1 is released: Insert.new was"),
    ("released-field-changed", "  TupleData:", "length: uint32", "length: uint16", "v1 is released: Insert.new was"),
    ("released-field-changed", "  Insert:", '"N"', '"M"', "v1 is released: Insert.new was"),
    ("released-field-changed", "  Commit:", "literal: 0", "literal: 1", "v1 is released: Commit.flags was Int8(0), is Int8(1)"),
    ("released-field-changed", "  ReplicaIdentity:", "value: f", "value: F", "v1 is released: Relation.replica_identity was"),
    ("released-field-changed", "  ColumnFlag:", "value: 1", "value: 2", "v1 is released: Relation.columns[].flags was"),
    ("released-field-changed", "  xid:", "wire: uint32", "wire: uint64", "v1 is released: Begin.xid was"),
    ("released-field-changed", "  Update:", "optional: true", "optional: false", "v1 is released: Update.key was"),
    ("released-field-changed", "  StreamAbort:", "when: {streaming: parallel}", 'when: {streaming: "on"}', "v4 is released: StreamAbort.abort_lsn was"),
    ("released-field-added", "  RelationColumn:", "    fields:\n", "    fields:\n" + ADDED_TO_STRUCT, "v1 is released: Relation.columns[].added is new"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "after", "before", "new", "words"), VIOLATIONS)
def test_a_change_of_a_released_version_is_refused(
    run: Run,
    spec: SpecCopy,
    old: Path,
    tmp_path: Path,
    rule: str,
    after: str,
    before: str,
    new: str,
    words: str,
) -> None:
    if "versions_" in new:  # remove the whole message
        text = spec.read()
        spec.write(text[: text.index("  Origin:\n")] + text[text.index("  Relation:\n") :])
    else:
        _replace_after(spec, before, new, after)
    out = tmp_path / "out"
    lock = spec.read("released.json")
    for result in (run("diff", old, spec.folder), run("--spec", spec.folder, "--out", out)):
        assert result.code == 1
        assert result.err.startswith(f"{rule}: {words}")
    assert not out.exists()
    assert spec.read("released.json") == lock


def test_removing_a_released_version_is_refused(run: Run, spec: SpecCopy, old: Path) -> None:
    text = spec.read()
    text = text.replace("versions: 4+", "versions: 3+")
    start = text.index("  4:\n")
    spec.write(text[:start] + text[text.index("\n# What a client asks for") :])
    result = run("diff", old, spec.folder)
    assert result.code == 1
    assert "v4 is gone\n" in result.out
    assert "released-version-removed: v4 is released, and now gone or no longer released: " in result.err


def test_a_new_version_may_change_until_it_is_released(
    run: Run, spec: SpecCopy, old: Path, tmp_path: Path
) -> None:
    spec.add("versions:", VERSION_5)
    spec.add(
        "  Commit:", "      - {name: added, type: lsn, versions: 5+, means: none, because: X., doc: X.}\n"
    )
    spec.add("messages:", PING.replace("fields", "versions: 5+, fields"))
    words = (
        "v5 is new\n"
        "v5: Commit.added is new: Int64 (XLogRecPtr), unsigned\n"
        "v5: Ping is new: Byte1('!'), then no fields\n"
    )
    assert run("diff", old, spec.folder) == (0, words, "")
    lock = spec.read("released.json")
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0
    assert spec.read("released.json") == lock

    # Until version 5 is released, it may change.
    spec.replace("versions: 5+, fields: []", f"versions: 5+, fields: [{ADDED.strip().removeprefix('- ')}]")
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0
    spec.replace(VERSION_5, VERSION_5.replace("false", "true"))
    expected = f"{spec.folder}/released.json:1: v5 is released in the spec, but has no layout here: "
    for check in ([], ["--check"]):
        result = run(*check, "--spec", spec.folder, "--out", tmp_path / "out")
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith(expected)
        assert "`python -m codegen --release`" in result.err
        assert spec.read("released.json") == lock
    result = run("--release", "--spec", spec.folder, "--out", tmp_path / "out")
    assert (result.code, result.out.splitlines()[0]) == (0, f"wrote {spec.folder}/released.json")
    spec.replace("'!'", "'?'")
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert result.code == 1
    assert result.err == "released-tag-changed: v5 is released: Ping.tag was Byte1('!'), is Byte1('?')\n"


def test_the_protocol_without_versions_may_grow_but_not_change(
    run: Run, spec: SpecCopy, tmp_path: Path
) -> None:
    spec.add("messages:", PING.replace("role: payload, ", ""), "replication.yaml")
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0
    spec.replace("    tag: k\n", "    tag: z\n", "replication.yaml")
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert result.code == 1
    assert result.err.startswith("released-tag-changed: replication is released: PrimaryKeepalive.tag was")


LOCKS = [
    (None, "there is no lock; restore it, or begin a new one that holds {}"),
    ("", "not a lock, restore it: "),
    ('{"v1": ', "not a lock, restore it: "),
    ("[]", "not a lock, restore it: "),
    ('{"v1": {"Begin": 3}}', "not a lock, restore it: "),
]


@pytest.mark.parametrize(("lock", "words"), LOCKS)
@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_missing_or_damaged_lock_is_refused(
    run: Run, spec: SpecCopy, tmp_path: Path, lock: str | None, words: str, check: list[str]
) -> None:
    path = spec.folder / "released.json"
    if lock is None:
        path.unlink()
    else:
        path.write_text(lock)
    result = run(*check, "--spec", spec.folder, "--out", tmp_path / "out")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"{path}:1: {words}")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert path.exists() == (lock is not None)


def test_a_released_version_that_the_lock_has_lost_is_not_stored_anew(
    run: Run, spec: SpecCopy, tmp_path: Path
) -> None:
    lock = json.loads(spec.read("released.json"))
    del lock["v4"]
    spec.write(json.dumps(lock), "released.json")
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert result.code == 1
    assert result.err.startswith(f"{spec.folder}/released.json:1: v4 is released in the spec")
    assert not (tmp_path / "out").exists()


def test_an_empty_lock_is_filled(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    lock = spec.read("released.json")
    spec.write("{}", "released.json")
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0
    assert spec.read("released.json") == lock


def test_wire_form_describes_each_field() -> None:
    spec = load(ROOT / "spec")
    form = evolution.wire_form(resolve(spec, spec.protocols["pgoutput"], 2))
    assert list(form["StreamCommit"].items()) == [
        ("tag", "Byte1('c')"),
        ("xid", "Int32 (TransactionId), unsigned"),
        ("flags", "Int8(0)"),
        ("commit_lsn", "Int64 (XLogRecPtr), unsigned"),
        ("end_lsn", "Int64 (XLogRecPtr), unsigned"),
        ("commit_time", "Int64 (TimestampTz), signed"),
    ]
    assert list(form["Relation"].items()) == [
        ("tag", "Byte1('R')"),
        ("xid", "Int32 (TransactionId), unsigned, when in_stream"),
        ("oid", "Int32 (Oid), unsigned"),
        ("namespace", "String"),
        ("name", "String"),
        ("replica_identity", "Int8 {d DEFAULT, n NOTHING, f FULL, i INDEX}"),
        ("columns.count", "Int16, unsigned"),
        ("columns", "list"),
        ("columns[].flags", "Int8 {1 KEY}"),
        ("columns[].name", "String"),
        ("columns[].type_oid", "Int32 (Oid), unsigned"),
        ("columns[].type_modifier", "Int32, signed"),
    ]
    cells = "TupleData 2 {n null 0, u unchanged 0, t text 4, b binary 4}"
    assert form["Delete"]["key"] == f"Byte1('K'), {cells}, in a choice"
    assert form["Update"]["old"] == f"Byte1('O'), {cells}, or none of the choice"
    assert "BeginPrepare" not in form
