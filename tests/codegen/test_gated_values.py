"""Enum values and flag bits that a later protocol version adds exist in that version only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hatch_build
from logicalrep import compiled
from tests.codegen.derived import LAST, NEW, OLD, add_version, five as add_five, newest, run_python
from tests.codegen.free import VALUES, free
from tests.codegen.spec_copy import ROOT, Run, SpecCopy
from tests.versions import CAPTURED, NEWEST, OLDEST

CODEC = """
from logicalrep.stream import StreamDecoder

FLAGS = m.TruncateOption.ONLY | m.TruncateOption.CASCADE
A, ONLY, HIDDEN = VALUES["ANY"], int(VALUES["ONLY"]), int(VALUES["HIDDEN"])
ADDED = {
    "Relation.replica_identity": m.Relation(
        oid=1, namespace="", name="t", replica_identity=m.ReplicaIdentity.ANY, columns=()
    ),
    "Truncate.options": m.Truncate(options=FLAGS, relation_oids=(1, 2)),
    "Relation.columns[0].flags": m.Relation(
        oid=1,
        namespace="",
        name="t",
        replica_identity=m.ReplicaIdentity.FULL,
        columns=(m.RelationColumn(flags=m.ColumnFlag.HIDDEN, name="a", type_oid=23, type_modifier=-1),),
    ),
}
ENCODE = {
    "Relation.replica_identity": (
        f"expected one of 'd', 'n', 'f', 'i', found <ReplicaIdentity.ANY: {A!r}>: it came with version {NEW}"
    ),
    "Truncate.options": (
        f"expected bits of 0x03, found 0x{ONLY + 1:02x}: 0x{ONLY:02x} came with version {NEW}"
    ),
    "Relation.columns[0].flags": (
        f"expected bits of 0x01, found 0x{HIDDEN:02x}: 0x{HIDDEN:02x} came with version {NEW}"
    ),
}
DECODE = ENCODE | {
    "Relation.replica_identity": (
        f"expected one of 'd', 'n', 'f', 'i', found {A!r}: it came with version {NEW}"
    ),
}


def text(function, *arguments):
    return error_of(function, *arguments)[1]


for where, message in ADDED.items():
    data = v_new.encode(message)
    assert v_new.pure_encode(message) == data
    assert v_new.decode(data) == v_new.pure_decode(data) == message
    assert StreamDecoder(NEW).decode(data) == message
    for encode in (v_old.encode, v_old.pure_encode):
        assert text(encode, message) == f"{where}: {ENCODE[where]}", text(encode, message)
    for decode in (v_old.decode, v_old.pure_decode, StreamDecoder(OLD).decode):
        assert text(decode, data).startswith(where) and DECODE[where] in text(decode, data), where
(unknown, *_) = (bit for bit in (1 << one for one in range(8)) if not bit & sum(m.ColumnFlag))
hidden, more = (b"f\\0\\1" + bytes([one]) for one in (HIDDEN, HIDDEN + unknown))
assert text(v_new.decode, data.replace(hidden, more)).endswith(f"found 0x{HIDDEN + unknown:02x}")
odd = m.Relation(oid=1, namespace="", name="t", replica_identity="xx", columns=())
assert text(v_old.encode, odd).endswith("found 'xx'")
"""


def test_codecs_of_earlier_versions_refuse_a_new_value_or_bit(five: Path) -> None:
    run_python(five, CODEC)


INDEX = """
import pyarrow as pa
from logicalrep.columns import ColumnDecoder

column = m.RelationColumn(flags=m.ColumnFlag.HIDDEN, name="a", type_oid=23, type_modifier=-1)
relation = m.Relation(
    oid=1, namespace="", name="t", replica_identity=m.ReplicaIdentity.ANY, columns=(column,)
)
truncate = m.Truncate(options=m.TruncateOption.ONLY, relation_oids=(1,))
data = pa.array([v_new.encode(relation), v_new.encode(truncate)], pa.binary())
headers = ColumnDecoder(NEW).decode(data).headers
assert headers["replica_identity"].to_pylist() == [VALUES["ANY"], None]
assert headers["options"].to_pylist() == [None, int(VALUES["ONLY"])]
for one in data:
    assert f"came with version {NEW}" in error_of(ColumnDecoder(OLD).decode, pa.array([one], pa.binary()))[1]
"""


def test_columns_refuse_a_new_value_or_bit_in_earlier_versions(five: Path) -> None:
    run_python(five, INDEX)


@pytest.mark.nightly
@pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")
def test_the_kernel_refuses_a_new_value_or_bit_in_earlier_versions(five: Path) -> None:
    hatch_build.build(five / "logicalrep/_kernel.pyx", five / "logicalrep")
    try:
        loaded = f"from logicalrep import compiled\nassert v_old.decode is compiled.kernel.decode_v{OLD}\n"
        run_python(five, loaded + CODEC)
        run_python(five, loaded + INDEX)
    finally:
        for path in (five / "logicalrep").glob("_kernel.*.so"):
            path.unlink()


def test_strategies_draw_a_new_value_and_bit(five: Path) -> None:
    """In its version only: `ROUND_TRIP` encodes what the strategies of earlier versions draw."""
    run_python(
        five,
        """
        from hypothesis import find, settings
        from logicalrep import strategies

        quick = settings(deadline=None, database=None, max_examples=300)
        drawn, any_, only = strategies.VERSIONS[NEW](), VALUES["ANY"], int(VALUES["ONLY"])
        find(drawn["Relation"], lambda one: one.replica_identity == any_, settings=quick)
        find(drawn["Truncate"], lambda one: one.options & only, settings=quick)
        """,
    )


def test_layouts_and_logicalrep_spec_show_the_values_of_each_version(five: Path) -> None:
    run_python(
        five,
        """
        import msgspec
        from logicalrep.cli.look.specification import as_json

        def values(version):
            messages = {one["name"]: one for one in msgspec.json.decode(as_json(version))["messages"]}
            fields = messages["Relation"]["fields"] + messages["Truncate"]["fields"]
            return {field["name"]: field["values"] for field in fields if "values" in field}

        assert values(OLD) == {
            "replica_identity": {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "INDEX"},
            "options": {"1": "CASCADE", "2": "RESTART_IDENTITY"},
        }
        assert values(NEW)["replica_identity"] == values(OLD)["replica_identity"] | {VALUES["ANY"]: "ANY"}
        assert values(NEW)["options"] == values(OLD)["options"] | {VALUES["ONLY"]: "ONLY"}
        """,
    )


def test_the_reference_lists_the_values_of_each_version(five: Path) -> None:
    pages = {n: (five / f"reference/v{n}.md").read_text(encoding="utf-8") for n in (OLD, NEW)}
    assert pages[OLD] == (ROOT / f"generated/reference/v{OLD}.md").read_text(encoding="utf-8")
    any_, only = (free(f"{VALUES[name]}{mark} {name}") for name, mark in (("ANY", "`"), ("ONLY", "")))
    assert f"- `{any_}: The columns of any unique index. Since protocol version {NEW}." in pages[NEW]
    assert f"- {only}: TRUNCATE {free('ONLY')} leaves out the descendants of the named tables." in pages[NEW]
    assert f"Values: 1 CASCADE, 2 RESTART_IDENTITY, {only}." in pages[NEW]
    messages = (five / "logicalrep/messages.py").read_text(encoding="utf-8")
    assert f"descendants of the named tables. Since protocol version {NEW}." in messages


def test_codecs_and_forms_of_earlier_versions_do_not_change(five: Path) -> None:
    for name in (*(f"v{version}" for version in CAPTURED), "envelope"):
        old, new = ((folder / f"logicalrep/{name}.py").read_text() for folder in (ROOT / "generated", five))
        # Earlier codecs only refuse the new field.
        refusal = free("    if message.flush_lsn is not None:\n        raise ValueError\n")
        assert new.replace(refusal, "") == old
    kernel = (five / "logicalrep/_kernel.pyx").read_text(encoding="utf-8")
    forms = set(re.findall(r"decode_(\w+_v\d)\(Input", kernel))
    kept = {"relation_v2", "truncate_v2"}
    assert kept | {f"{name}_v{NEW}" for name in ("relation", "truncate", "relation_column")} <= forms


@pytest.mark.parametrize("value", ["ANY: {value: a,", "ONLY: {value: 4,", "HIDDEN: {value: 128,"])
def test_a_value_without_gate_changes_released_versions(run: Run, spec: SpecCopy, value: str) -> None:
    add_five(spec)
    spec.replace(f"{value} versions: {NEW}+,", value)
    result = run("--spec", spec.folder, "--out", spec.folder.parent / "out")
    assert ": released-field-changed: v" in result.err


def test_a_released_version_has_its_own_values_in_the_lock(run: Run, spec: SpecCopy) -> None:
    """Once the new version is released, its new values cannot change any more.

    The error names the enum's line, although the version before has another field with this type.
    """
    gate = f"versions: {add_version(spec)}+"
    spec.add("  Relation:", f"      - {{name: other, type: ReplicaIdentity, {gate}, doc: An enum.}}\n")
    add_five(spec)
    number = newest(spec)
    spec.write(spec.read().replace("released: false", "released: true"))
    out = spec.folder.parent / "out"
    assert run("--release", "--spec", spec.folder, "--out", out).code == 0
    spec.replace(
        f"ANY: {{value: a, versions: {number}+", f"ANY: {{value: {VALUES['OTHER']}, versions: {number}+"
    )
    error = run("--spec", spec.folder, "--out", out).err
    line = spec.read().split("  ReplicaIdentity:\n")[0].count("\n") + 1
    assert error.startswith(
        f"{spec.folder}/pgoutput.yaml:{line}: released-field-changed: v{number} is released: "
        "Relation.replica_identity"
        f" was Int8 {{d DEFAULT, n NOTHING, f FULL, i INDEX, {VALUES['ANY']} {free('ANY')}}},"
        f" is Int8 {{d DEFAULT, n NOTHING, f FULL, i INDEX, {VALUES['OTHER']} {free('ANY')}}}: "
    )


def test_a_version_can_drop_a_value(run: Run, spec: SpecCopy) -> None:
    add_five(spec)
    spec.replace("INDEX: {value: i,", f"INDEX: {{value: i, versions: {OLDEST}-{NEWEST},")
    out = spec.folder.parent / "out"
    assert run("--spec", spec.folder, "--out", out).code == 0
    page = (out / f"reference/v{OLD}.md").read_text(encoding="utf-8")
    assert f"USING INDEX. Only in protocol version {OLDEST}-{NEWEST}." in page
    run_python(
        out,
        """
        index = m.ReplicaIdentity.INDEX
        relation = m.Relation(oid=1, namespace="", name="t", replica_identity=index, columns=())
        assert v_old.decode(v_old.encode(relation)) == relation
        text = f"expected one of 'd', 'n', 'f', {VALUES['ANY']!r}, found <ReplicaIdentity.INDEX: 'i'>"
        assert text in error_of(v_new.encode, relation)[1]
        """,
    )


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            f"ANY: {{value: a, versions: {NEW}+",
            f"ANY: {{value: a, versions: {LAST}+",
            f"ReplicaIdentity.ANY: no version is in the gate `{LAST}+`",
        ),
        (
            f"ONLY: {{value: 4, versions: {NEW}+",
            f"ONLY: {{value: 4, versions: 4-{LAST}",
            f"TruncateOption.ONLY: there is no version {LAST}",
        ),
        (f"ANY: {{value: a, versions: {NEW}+", "ANY: {value: a, versions: 5..", "`5..` is not a gate"),
        (
            f"ONLY: {{value: 4, versions: {NEW}+",
            f"ONLY: {{value: 4, versions: {NEW}-{NEWEST}",
            f"the gate `{NEW}-{NEWEST}` has its larger version first",
        ),
        (
            f"ANY: {{value: a, versions: {NEW}+",
            f"ANY: {{value: d, versions: {NEW}+",
            "duplicate value `d`, already that of DEFAULT",
        ),
        (
            "KEY: {value: 1,",
            f"KEY: {{value: 1, versions: {OLDEST}-{NEWEST},",
            "ColumnFlag: flags need a bit that all versions",
        ),
    ],
)
def test_mistakes_in_gates_of_values(run: Run, spec: SpecCopy, old: str, new: str, error: str) -> None:
    add_five(spec)
    spec.replace(old, new)
    result = run("--spec", spec.folder, "--out", spec.folder.parent / "out")
    assert result.code == 1
    assert re.match(rf".*pgoutput\.yaml:\d+: .*{re.escape(free(error))}", result.err), result.err
