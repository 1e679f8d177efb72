"""`python -m codegen diff`, and the evolution rules that protect released versions."""

# ruff: noqa: E501  (a change is a line of its table)

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from codegen import evolution
from codegen.load import load
from codegen.resolve import resolve
from tests.codegen.derived import add_version, without_oldest
from tests.codegen.free import VALUES, free
from tests.codegen.spec_copy import ROOT, Run, SpecCopy
from tests.versions import CAPTURED

VERSIONS = load(ROOT / "spec").versions
RELEASED = [number for number, version in VERSIONS.items() if version.released]
KNOWN = f"the versions are {', '.join(map(str, VERSIONS))}"
NOTHING = (0, "nothing changed on the wire\n", "")
COMMIT_LSN = "      - {name: commit_lsn, type: lsn, means: lsn, doc: The LSN of the commit record.}\n"
PREFIX = "      - {name: prefix, type: string, doc: The prefix of the message.}\n"
SEGMENT = (
    "      - {name: first_stream_segment, type: bool, means: first_block, "
    "doc: Whether this is the first block of this xid.}\n"
)
STREAM_XID = "      - {name: xid, type: xid, means: xid, doc: Xid of the top-level transaction.}\n"
PING = free("  Ping: {tag: '!', role: payload, title: Ping, source: x, doc: X., fields: []}\n")
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
    unknown = max(VERSIONS) + 1
    expected = (1, "", f"there is no version {unknown}; {KNOWN}\n")
    assert run("diff", "v2", f"v{unknown}", "--spec", ROOT / "spec") == expected


def test_diff_refuses_a_version_and_a_folder(run: Run) -> None:
    text = f"compare two versions (v3 v4) or two spec folders, not one of each: v2 {ROOT / 'spec'}\n"
    assert run("diff", "v2", ROOT / "spec") == (1, "", text)


def _replace_after(spec: SpecCopy, old: str, new: str, after: str) -> None:
    text = spec.read()
    start = text.index(old, text.index(after))
    spec.write(text[:start] + new + text[start + len(old) :])


class Violation(NamedTuple):
    """A change of released versions, and its error, which names a line of the spec."""

    rule: str
    after: str
    """Text before the replaced occurrence of `old`."""
    old: str
    new: str
    words: str
    """What the error says about the change."""
    at: str = ""
    """Text whose line the error names, after `after`; the first replaced line if empty."""
    first: int = 1
    """The oldest version that the change concerns."""
    times: int = 1
    """Number of occurrences of `old` after `after` that are replaced; -1 for all, as all tuples share tags."""


ABORT_LSN = "      - {name: abort_lsn, type: lsn, means: lsn, versions: 4+, when: {streaming: parallel},"
ORIGIN_FIELDS = "    fields:\n      - {name: origin_lsn"
VIOLATIONS = [
    Violation("released-message-added", "", "\nmessages:\n", "\nmessages:\n" + PING, "Ping is new: write `versions: {new}+`", at="  Ping:"),
    Violation("released-message-renamed", "", "  Origin:\n", "  Source:\n", "Origin is now called Source: restore the name"),
    Violation("released-tag-changed", "", "    tag: O\n", "    tag: o\n", "Origin.tag was Byte1('O'), is Byte1('o'): restore the tag"),
    Violation("released-field-removed", "  LogicalMessage:", PREFIX, "", "LogicalMessage.prefix is gone (was String): restore it; to drop it from version {new} on, write `versions: 1-{last}`", at="    fields:"),
    Violation("released-field-renamed", "  LogicalMessage:", "name: prefix", "name: topic", "LogicalMessage.prefix is now called topic: restore the name"),
    Violation("released-field-renamed", "  Relation:", "{count: columns, type: uint16, doc: Number of columns.}\n      - {name: columns,", "{count: parts, type: uint16, doc: Number of columns.}\n      - {name: parts,", "Relation.columns is now called parts: restore the name", at="{name: parts"),
    Violation("released-field-renamed", "  RelationColumn:", "name: type_modifier", "name: modifier", "Relation.columns[].type_modifier is now called columns[].modifier: restore the name"),
    Violation("released-field-added", "  Commit:", COMMIT_LSN, COMMIT_LSN + ADDED, "Commit.added is new: Int64 (XLogRecPtr), unsigned: write `versions: {new}+`", at="{name: added"),
    Violation("released-field-changed", "  Truncate:", "type: uint32", "type: uint16", "Truncate.relation_oids.count was Int32, unsigned, is Int16, unsigned: restore it"),
    Violation("released-field-moved", "", STREAM_XID + SEGMENT, SEGMENT + STREAM_XID, "the fields of StreamStart are in another order: tag, first_stream_segment, xid: restore the order", first=2),
    Violation("released-field-changed", "  Insert:", '"N"', '"M"', "Insert.new was", at="      - name: new"),
    Violation("released-field-changed", "  Commit:", "literal: 0", "literal: 1", "Commit.flags was Int8(0), is Int8(1)"),
    Violation("released-field-changed", "  Update:", "optional: true", "optional: false", "Update.key was", at="          - name: key"),
    Violation("released-field-changed", ABORT_LSN[:20], "{streaming: parallel}", '{streaming: "on"}', "StreamAbort.abort_lsn was", first=4),
    Violation("released-field-added", "  RelationColumn:", "    fields:\n", "    fields:\n" + ADDED_TO_STRUCT, "Relation.columns[].added is new", at="{name: added"),
    # A changed type is the place of the error, not one of its fields.
    Violation("released-field-changed", "  TupleData:", "count: uint16", "count: uint32", "Insert.new was Byte1('N'), TupleData 2 {{n null 0, u unchanged 0, t text 4, b binary 4}}, is Byte1('N'), TupleData 4", at="  TupleData:"),
    Violation("released-field-changed", "  TupleData:", "        tag: b\n", "        tag: B\n", "Insert.new was", at="  TupleData:", times=-1),
    Violation("released-field-changed", "  TupleData:", "length: uint32", "length: uint16", "Insert.new was", at="  TupleData:"),
    Violation("released-field-changed", "  ReplicaIdentity:", "value: f", "value: F", "Relation.replica_identity was", at="  ReplicaIdentity:"),
    Violation("released-field-changed", "  ColumnFlag:", "value: 1", f"value: {VALUES['SPARE']}", "Relation.columns[].flags was", at="  ColumnFlag:"),
    Violation("released-field-changed", "  ReplicaIdentity:", "      INDEX:", "      HASH: {value: Z, doc: X.}\n      INDEX:", "Relation.replica_identity was Int8 {{d DEFAULT, n NOTHING, f FULL, i INDEX}}, is Int8 {{d DEFAULT, n NOTHING, f FULL, Z HASH, i INDEX}}: write `versions: {new}+`", at="      HASH:"),
    Violation("released-field-changed", "  ColumnFlag:", "      KEY:", "      HIDDEN: {value: SPARE, doc: X.}\n      KEY:".replace("SPARE", VALUES["SPARE"]), "Relation.columns[].flags was Int8 {{1 KEY}}, is Int8 {{SPARE HIDDEN, 1 KEY}}: write `versions: {new}+`".replace("SPARE", VALUES["SPARE"]), at="      HIDDEN:"),
    Violation("released-field-changed", "  xid:", "wire: uint32", "wire: uint64", "Begin.xid was"),
    Violation("released-field-changed", "  xid:", "wire: uint32, c", "wire: uint64, c", "Begin.xid was", at="  xid:"),
    Violation("released-field-changed", "  Relation:", "type: uint16", "type: uint32", "Relation.columns.count was Int16"),
    Violation("released-meaning-changed", "  two_phase:", "    any_version: true\n", "", "`any_version` of BeginPrepare was true, is false", at="  two_phase:", first=3),
]  # fmt: skip


@pytest.mark.parametrize("case", VIOLATIONS)
def test_a_change_of_a_released_version_is_refused_in_one_line(
    run: Run, spec: SpecCopy, old: Path, tmp_path: Path, case: Violation
) -> None:
    text, case = (
        spec.read(),
        case._replace(new=free(case.new), words=free(case.words), at=free(case.at)),
    )
    start = text.index(case.old, text.index(case.after))
    text = text[:start] + text[start:].replace(case.old, case.new, case.times)
    if case.times < 0:  # tuples of later versions can be written in braces
        text = text.replace("{tag: b,", "{tag: B,")
    spec.write(text)
    position = text.index(case.at, text.index(case.after)) if case.at else start
    line = text.count("\n", 0, position) + 1
    labels = ", ".join(f"v{number}" for number in CAPTURED if number >= case.first)
    # Versions after them can describe the change differently: one has another value of an enum.
    which = rf"{labels}(, v\d+)* (is|are) released"
    words = case.words.format(new=RELEASED[-1] + 1, last=RELEASED[-1])
    out = tmp_path / "out"
    lock = spec.read("released.json")
    for result in (run("diff", old, spec.folder), run("--spec", spec.folder, "--out", out)):
        assert result.code == 1
        place = re.escape(f"{spec.folder}/pgoutput.yaml:{line}: {case.rule}: ")
        assert re.match(f"{place}{which}: {re.escape(words)}", result.err)
        assert result.err.count("\n") == 1
    assert not out.exists()
    assert spec.read("released.json") == lock


def test_removing_a_released_message_is_refused(run: Run, spec: SpecCopy, old: Path) -> None:
    text = spec.read()
    spec.write(text[: text.index("  Origin:\n")] + text[text.index("  Relation:\n") :])
    result = run("diff", old, spec.folder)
    line = text.splitlines().index("messages:") + 1
    assert result.err.startswith(f"{spec.folder}/pgoutput.yaml:{line}: released-message-removed: ")
    assert "are released: Origin is gone: restore it; to drop it from version" in result.err


def test_a_released_version_cannot_become_unreleased(run: Run, spec: SpecCopy, old: Path) -> None:
    last = RELEASED[-1]
    _replace_after(spec, "    released: true", "    released: false", f"  {last}:\n")
    result = run("diff", old, spec.folder)
    text = spec.read()
    line = text.count("\n", 0, text.index("    released: false")) + 1
    reason = f"released-version-removed: v{last} is released, and now gone or no longer released: "
    assert result.err.startswith(f"{spec.folder}/pgoutput.yaml:{line}: {reason}")


def test_removing_a_released_version_is_refused(run: Run, spec: SpecCopy, old: Path) -> None:
    without_oldest(spec)
    result = run("diff", old, spec.folder)
    label = f"v{RELEASED[0]}"
    assert result.code == 1
    assert f"{label} is gone\n" in result.out
    line = spec.read().splitlines().index("versions:") + 1
    place = f"{spec.folder}/pgoutput.yaml:{line}"
    assert result.err.startswith(f"{place}: released-version-removed: {label} is released, and now gone or ")


def test_a_new_version_may_change_until_it_is_released(
    run: Run, spec: SpecCopy, old: Path, tmp_path: Path
) -> None:
    number = add_version(spec)
    gate = f"versions: {number}+"
    spec.add("  Commit:", f"      - {{name: added, type: lsn, {gate}, means: none, because: X., doc: X.}}\n")
    spec.add("messages:", PING.replace("fields", f"{gate}, fields"))
    words = free(
        f"v{number} is new\n"
        f"v{number}: Commit.added is new: Int64 (XLogRecPtr), unsigned\n"
        f"v{number}: Ping is new: Byte1('!'), then no fields\n"
    )
    assert run("diff", old, spec.folder) == (0, words, "")
    lock = spec.read("released.json")
    out = tmp_path / "out"
    assert run("--spec", spec.folder, "--out", out).code == 0
    assert spec.read("released.json") == lock

    # It may change until it is released.
    spec.replace(f"{gate}, fields: []", f"{gate}, fields: [{ADDED.strip().removeprefix('- ')}]")
    assert run("--spec", spec.folder, "--out", out).code == 0
    text = re.sub(r"released: false", "released: true", spec.read())
    spec.write(text)
    first = next(one for one in VERSIONS | {number: None} if one not in RELEASED)
    line = next(i for i, one in enumerate(text.splitlines(), 1) if one.startswith(f"  {first}:"))
    for check in ([], ["--check"]):
        result = run(*check, "--spec", spec.folder, "--out", out)
        assert (result.code, result.out) == (1, "")
        reason = f"v{first} is released here, but released.json has no layout of it: "
        assert f": {reason}" in result.err
        assert line <= int(result.err.split(":")[1]) <= line + 2
        assert "`python -m codegen --release`" in result.err
        assert spec.read("released.json") == lock
    result = run("--release", "--spec", spec.folder, "--out", out)
    assert (result.code, result.out.splitlines()[0]) == (0, f"wrote {spec.folder}/released.json")
    spec.replace("Ping: {tag: '!'", "Ping: {tag: '?'")
    result = run("--spec", spec.folder, "--out", out)
    assert result.code == 1
    changed = f"released-tag-changed: v{number} is released: Ping.tag was Byte1('!'), is Byte1('?'): "
    assert free(changed) in result.err


def test_the_protocol_without_versions_may_grow_but_not_change(
    run: Run, spec: SpecCopy, tmp_path: Path
) -> None:
    spec.add("messages:", PING.replace("role: payload, ", ""), "replication.yaml")
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0
    spec.replace("    tag: k\n", "    tag: z\n", "replication.yaml")
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert result.code == 1
    line = spec.read("replication.yaml").split("    tag: z\n")[0].count("\n") + 1
    reason = "released-tag-changed: replication is released: PrimaryKeepalive.tag was"
    assert result.err.startswith(f"{spec.folder}/replication.yaml:{line}: {reason}")


LOCKS = [
    (None, "there is no lock: restore it, or for a new spec run `python -m codegen --release`"),
    ("", "the lock file is invalid ("),
    ('{"v1": ', "the lock file is invalid ("),
    ("[]", "the lock file is invalid ("),
    ('{"v1": {"Begin": 3}}', "the lock file is invalid ("),
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
    del lock[f"v{RELEASED[-1]}"]
    spec.write(json.dumps(lock), "released.json")
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert result.code == 1
    assert f": v{RELEASED[-1]} is released here, but released.json has no layout of it: " in result.err
    assert not (tmp_path / "out").exists()


def test_release_begins_a_lock(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    lock = spec.read("released.json")
    (spec.folder / "released.json").unlink()
    assert run("--release", "--spec", spec.folder, "--out", tmp_path / "out").code == 0
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
