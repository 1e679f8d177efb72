"""Enum values and flag bits that a later protocol version adds exist in that version only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hatch_build
from pgoutput import compiled
from pgoutput.versions import CODECS
from tests.codegen.derived import five as add_five
from tests.codegen.derived import run_python
from tests.codegen.spec_copy import ROOT, Run, SpecCopy

CODEC = """
from pgoutput import messages as m, v4, v5
from pgoutput.errors import DecodeError, EncodeError
from pgoutput.stream import StreamDecoder

FLAGS = m.TruncateOption.ONLY | m.TruncateOption.CASCADE
NEW = {
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
        "one of 'd', 'n', 'f', 'i' is expected, not <ReplicaIdentity.ANY: 'a'>: it came with version 5"
    ),
    "Truncate.options": "bits of 0x03 are expected, not 0x05: 0x04 came with version 5",
    "Relation.columns[0].flags": "bits of 0x01 are expected, not 0x80: 0x80 came with version 5",
}
DECODE = {
    "Relation.replica_identity": "'d', 'n', 'f', 'i' is expected, 'a' is there: it came with version 5",
    "Truncate.options": "bits of 0x03 are expected, 0x05 is there: 0x04 came with version 5",
    "Relation.columns[0].flags": "bits of 0x01 are expected, 0x80 is there: 0x80 came with version 5",
}


def text(function, *arguments):
    try:
        function(*arguments)
    except (DecodeError, EncodeError) as error:
        return str(error)


for where, message in NEW.items():
    data = v5.encode(message)
    assert v5.pure_encode(message) == data
    assert v5.decode(data) == v5.pure_decode(data) == message
    assert StreamDecoder(5).decode(data) == message
    for encode in (v4.encode, v4.pure_encode):
        assert text(encode, message) == f"{where}: {ENCODE[where]}", text(encode, message)
    for decode in (v4.decode, v4.pure_decode, StreamDecoder(4).decode):
        assert text(decode, data).startswith(where) and DECODE[where] in text(decode, data), where
assert text(v5.decode, data.replace(b"f\\0\\1\\x80", b"f\\0\\1\\x82")).endswith("0x82 is there")
odd = m.Relation(oid=1, namespace="", name="t", replica_identity="xx", columns=())
assert text(v4.encode, odd).endswith("is expected, not 'xx'")
"""


def test_codecs_of_earlier_versions_refuse_a_new_value_or_bit(five: Path) -> None:
    run_python(five, CODEC)


INDEX = """
import pyarrow as pa
from pgoutput import messages as m, v5
from pgoutput.columns import ColumnDecoder
from pgoutput.errors import DecodeError

column = m.RelationColumn(flags=m.ColumnFlag.HIDDEN, name="a", type_oid=23, type_modifier=-1)
relation = m.Relation(
    oid=1, namespace="", name="t", replica_identity=m.ReplicaIdentity.ANY, columns=(column,)
)
truncate = m.Truncate(options=m.TruncateOption.ONLY, relation_oids=(1,))
data = pa.array([v5.encode(relation), v5.encode(truncate)], pa.binary())
headers = ColumnDecoder(5).decode(data).headers
assert headers["replica_identity"].to_pylist() == ["a", None]
assert headers["options"].to_pylist() == [None, 4]
for number, one in enumerate(data):
    try:
        ColumnDecoder(4).decode(pa.array([one], pa.binary()))
    except DecodeError as error:
        assert "came with version 5" in str(error), error
    else:
        raise AssertionError(number)
"""


def test_columns_refuse_a_new_value_or_bit_in_earlier_versions(five: Path) -> None:
    run_python(five, INDEX)


@pytest.mark.slow
@pytest.mark.skipif(compiled.kernel is None, reason=f"pgoutput runs {compiled.HOW}")
def test_the_kernel_refuses_a_new_value_or_bit_in_earlier_versions(five: Path) -> None:
    hatch_build.build(five / "pgoutput/_kernel.pyx", five / "pgoutput")
    try:
        loaded = "from pgoutput import compiled, v4\nassert v4.decode is compiled.kernel.decode_v4\n"
        run_python(five, loaded + CODEC)
        run_python(five, loaded + INDEX)
    finally:
        for path in (five / "pgoutput").glob("_kernel.*.so"):
            path.unlink()


def test_strategies_draw_a_new_value_or_bit_in_its_version_only(five: Path) -> None:
    run_python(
        five,
        """
        from hypothesis import find, given, settings, strategies as st
        from hypothesis.errors import NoSuchExample
        from pgoutput import strategies, v4, v5
        from pgoutput.messages import Relation, ReplicaIdentity

        for codec, made in ((v4, strategies.v4), (v5, strategies.v5)):
            @settings(deadline=None, database=None, max_examples=300)
            @given(st.one_of(*made().values()))
            def round_trip(message):
                assert codec.decode(codec.encode(message)) == message

            round_trip()
        quick = settings(deadline=None, database=None, max_examples=300)
        find(strategies.v5()["Relation"], lambda one: one.replica_identity == "a", settings=quick)
        find(strategies.v5()["Truncate"], lambda one: one.options & 4, settings=quick)
        """,
    )


def test_layouts_and_pgoutput_spec_show_the_values_of_each_version(five: Path) -> None:
    run_python(
        five,
        """
        import msgspec
        from pgoutput.cli.specification import as_json

        def values(version):
            messages = {one["name"]: one for one in msgspec.json.decode(as_json(version))["messages"]}
            fields = messages["Relation"]["fields"] + messages["Truncate"]["fields"]
            return {field["name"]: field["values"] for field in fields if "values" in field}

        assert values(4) == {
            "replica_identity": {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "INDEX"},
            "options": {"1": "CASCADE", "2": "RESTART_IDENTITY"},
        }
        assert values(5)["replica_identity"] == values(4)["replica_identity"] | {"a": "ANY"}
        assert values(5)["options"] == values(4)["options"] | {"4": "ONLY"}
        """,
    )


def test_the_reference_lists_the_values_of_each_version(five: Path) -> None:
    pages = {n: (five / f"reference/v{n}.md").read_text(encoding="utf-8") for n in (4, 5)}
    assert pages[4] == (ROOT / "generated/reference/v4.md").read_text(encoding="utf-8")
    assert "- `a` ANY: The columns of any unique index. Since protocol version 5." in pages[5]
    assert "- 4 ONLY: TRUNCATE ONLY leaves out the descendants of the named tables." in pages[5]
    assert "Values: 1 CASCADE, 2 RESTART_IDENTITY, 4 ONLY." in pages[5]
    messages = (five / "pgoutput/messages.py").read_text(encoding="utf-8")
    assert "descendants of the named tables. Since protocol version 5." in messages


def test_codecs_and_forms_of_earlier_versions_do_not_change(five: Path) -> None:
    for name in (f"v{version}" for version in CODECS):
        old, new = ((folder / f"pgoutput/{name}.py").read_text() for folder in (ROOT / "generated", five))
        # Earlier codecs only refuse the new field.
        assert new.replace("    if message.flush_lsn is not None:\n        raise ValueError\n", "") == old
    kernel = (five / "pgoutput/_kernel.pyx").read_text(encoding="utf-8")
    forms = set(re.findall(r"decode_(\w+_v\d)\(Input", kernel))
    assert {"relation_v2", "relation_v5", "truncate_v2", "truncate_v5", "relation_column_v5"} <= forms


@pytest.mark.parametrize("value", ["ANY: {value: a,", "ONLY: {value: 4,", "HIDDEN: {value: 128,"])
def test_a_value_without_gate_changes_released_versions(run: Run, spec: SpecCopy, value: str) -> None:
    add_five(spec)
    spec.replace(f"{value} versions: 5+,", value)
    result = run("--spec", spec.folder, "--out", spec.folder.parent / "out")
    assert ": released-field-changed: v" in result.err


def test_a_released_version_has_its_own_values_in_the_lock(run: Run, spec: SpecCopy) -> None:
    """Once version 5 is released, its new values cannot change any more."""
    add_five(spec)
    spec.replace("released: false", "released: true")
    out = spec.folder.parent / "out"
    assert run("--release", "--spec", spec.folder, "--out", out).code == 0
    spec.replace("value: a, versions: 5+", "value: y, versions: 5+")
    error = run("--spec", spec.folder, "--out", out).err
    line = spec.read().split("  ReplicaIdentity:\n")[0].count("\n") + 1
    assert error.startswith(
        f"{spec.folder}/pgoutput.yaml:{line}: released-field-changed: v5 is released: "
        "Relation.replica_identity"
        " was Int8 {d DEFAULT, n NOTHING, f FULL, i INDEX, a ANY},"
        " is Int8 {d DEFAULT, n NOTHING, f FULL, i INDEX, y ANY}: "
    )


def test_a_version_can_drop_a_value(run: Run, spec: SpecCopy) -> None:
    add_five(spec)
    spec.replace("INDEX: {value: i,", "INDEX: {value: i, versions: 1-4,")
    out = spec.folder.parent / "out"
    assert run("--spec", spec.folder, "--out", out).code == 0
    page = (out / "reference/v4.md").read_text(encoding="utf-8")
    assert "USING INDEX. Only in protocol version 1-4." in page
    run_python(
        out,
        """
        from pgoutput import v4, v5
        from pgoutput.errors import EncodeError
        from pgoutput.messages import Relation, ReplicaIdentity

        relation = Relation(oid=1, namespace="", name="t", replica_identity=ReplicaIdentity.INDEX, columns=())
        assert v4.decode(v4.encode(relation)) == relation
        try:
            v5.encode(relation)
        except EncodeError as error:
            assert "one of 'd', 'n', 'f', 'a' is expected, not <ReplicaIdentity.INDEX: 'i'>" in str(error)
        else:
            raise AssertionError
        """,
    )


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "value: a, versions: 5+",
            "value: a, versions: 6+",
            "ReplicaIdentity.ANY: no version is in the gate `6+`",
        ),
        ("value: 4, versions: 5+", "value: 4, versions: 4-6", "TruncateOption.ONLY: there is no version 6"),
        ("value: a, versions: 5+", "value: a, versions: 5..", "`5..` is not a gate"),
        ("value: 4, versions: 5+", "value: 4, versions: 5-4", "the gate `5-4` ends before it begins"),
        ("value: a, versions: 5+", "value: d, versions: 5+", "duplicate value `d`, already that of DEFAULT"),
        (
            "KEY: {value: 1,",
            "KEY: {value: 1, versions: 1-4,",
            "ColumnFlag: flags need a bit that all versions",
        ),
    ],
)
def test_mistakes_in_gates_of_values(run: Run, spec: SpecCopy, old: str, new: str, error: str) -> None:
    add_five(spec)
    spec.replace(old, new)
    result = run("--spec", spec.folder, "--out", spec.folder.parent / "out")
    assert result.code == 1
    assert re.match(rf".*pgoutput\.yaml:\d+: .*{re.escape(error)}", result.err), result.err
