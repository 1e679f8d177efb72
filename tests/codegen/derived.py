"""Specs with other protocol versions, made of a copy of the spec, and the code generated from them.

The worked example in spec/README.md adds protocol version 5. Here its version follows the newest of the spec.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from codegen.evolution import released
from codegen.files import write
from codegen.load import load
from codegen.lock import LOCK, read_lock
from codegen.render import render
from tests.codegen import forked
from tests.codegen.free import EXAMPLE, EXAMPLE_VERSION, VALUES, free
from tests.codegen.spec_copy import ROOT, SpecCopy
from tests.effort import examples
from tests.versions import NEWEST, WRITTEN

OLD, NEW, LAST = WRITTEN, NEWEST + 1, NEWEST + 2
"""The version whose messages tests write by hand, and the versions that `five` and `six` add to a spec."""

_HIDDEN = "      HIDDEN: {value: 128, versions: 5+, doc: The column is hidden.}\n"

_TYPES = """\
  row_number:
    oid: 8602
    array_oid: 8603
    server: 20+
    doc: The number of a row.
    text: Decimal digits.
    binary: Int64, signed.
    output: row_numberout
    send: row_numbersend
    modifier: none
    arrow: int64
    spark: LongType
    like: int8
  text_label:
    oid: 8604
    array_oid: 8605
    server: 20+
    doc: A label.
    text: The characters as they are.
    binary: The characters in the client encoding.
    output: labelout
    send: labelsend
    modifier: length
    arrow: string
    spark: StringType
    like: varchar
"""

_EVERYTHING = """\
  Everything:
    tag: V
    role: payload
    title: Everything
    versions: 5+
    source: nowhere
    doc: All that a message can be made of.
    fields:
      - {name: mood, type: Mood, when: in_stream, doc: An enum alone.}
      - {name: data, type: string, doc: A name that decoders use.}
      - {name: done, type: bool, doc: A bool alone.}
      - {name: pos, type: string, doc: Another.}
      - {name: marks, type: Mark, doc: Flags alone.}
      - {name: n_marks, type: string, when: {streaming: parallel}, doc: A third.}
      - {name: hurry, type: bool, when: {streaming: parallel}, doc: A bool under a condition.}
      - {name: other_marks, type: Mark, when: {streaming: parallel}, doc: Flags under a condition.}
      - {count: moments, type: uint16, when: in_stream, doc: Their number.}
      - {name: moments, list_of: timestamp, means: none, because: X., when: in_stream, doc: A list.}
      - {length: left, type: uint8, doc: Its length.}
      - {length: right, type: uint32, doc: Its length.}
      - {name: left, type: bytes, doc: Bytes.}
      - {name: right, type: bytes, doc: Bytes behind other bytes.}
      - {count: columns, type: uint8, doc: Their number.}
      - {count: pairs, type: uint8, doc: Their number.}
      - {name: columns, list_of: RelationColumn, doc: A list of structs.}
      - {name: pairs, list_of: Pair, doc: A list of other structs.}
      - {name: wide, type: WideData, means: none, because: X., tag: W, when: in_stream, doc: A tuple.}
      - one_of:
          - {name: key, tag: "K", type: TupleData, means: none, because: X., doc: A choice.}
          - {name: old, tag: "O", type: TupleData, means: none, because: X., doc: A choice.}
      - optional: true
        one_of:
          - {name: wider, tag: "X", type: WideData, means: none, because: X., doc: A second choice.}
          - {name: widest, tag: "Y", type: WideData, means: none, because: X., doc: A second choice.}
      - {name: new, tag: "N", type: TupleData, means: none, because: X., doc: A tuple.}
      - {name: tail, type: rest, doc: The rest.}
"""

_PARTS_OF_EVERYTHING = {
    "enums:": """\
  Mood:
    doc: A mood.
    source: nowhere
    values:
      GOOD: {value: g, doc: Good.}
      BAD: {value: b, doc: Bad.}
""",
    "flags:": """\
  Mark:
    doc: A mark.
    wire: uint8
    source: nowhere
    bits:
      BIG: {value: 64, doc: Big.}
""",
    "structs:": """\
  Pair:
    doc: A pair.
    source: nowhere
    fields:
      - {name: left_oid, type: oid, doc: The left.}
      - {name: mood_of_pair, type: Mood, versions: 5+, doc: Its mood.}
""",
}
"""YAML of the structs and types that the message Everything needs, by section of the spec."""

_NEW_FIELDS = {
    "  Relation:": "      - {name: identity_kind, type: ReplicaIdentity, versions: 5+, doc: An enum.}\n",
    "  RelationColumn:": "      - {name: collation_name, type: string, versions: 5+, doc: Its collation.}\n",
    "  Insert:": "      - {name: insert_comment, type: string, versions: 5+, doc: A text.}\n",
}
"""YAML of fields to add to messages that every stream has, by the message or struct that gets them."""

Derive = Callable[[SpecCopy], None]


def newest(spec: SpecCopy) -> int:
    """Return the number of the newest protocol version of a spec."""
    versions = spec.read().split("\nversions:\n")[1].split("\n# What a client")[0]
    return max(int(number) for number in re.findall(r"^  (\d+):", versions, re.MULTILINE))


def numbered(block: str, number: int) -> str:
    """Replace version 5 in YAML by `number`, and PostgreSQL 20 by the release that belongs to `number`."""
    block = re.sub(rf"\b{EXAMPLE_VERSION}(?=:\n|\+)", str(number), block)
    return block.replace("server: 20+", f"server: {15 + number}+")


def add_version(spec: SpecCopy) -> int:
    """Add an unreleased protocol version, equal to the newest one, to a spec; return its number."""
    number = newest(spec) + 1
    line = f"  {number}: {{server: {15 + number}+, released: false, doc: An invented version.}}\n"
    spec.add("versions:", line)
    return number


def example(spec: SpecCopy, blocks: str = EXAMPLE) -> None:
    """Add the example version of spec/README.md to a spec: each YAML block to the section that it names.

    What the versions after `OLD` have added is not part of the new version: tests write its messages by hand.
    """
    number = newest(spec) + 1
    for name in ("pgoutput.yaml", "rules.yaml"):
        text = spec.read(name)
        for added in range(OLD + 1, number):
            text = text.replace(f"versions: {added}+", f"versions: {added}-{number - 1}")
        spec.write(text, name)
    for key, block in re.findall(r"```yaml\n# (\w+)\n(.*?)```", numbered(blocks, number), re.DOTALL):
        if key == "types":
            _add_types(spec, block)
        elif key == "scalars" and free(block, yaml=True) in spec.read():
            continue
        else:
            spec.add(f"{key}:" if key.islower() else f"  {key}:", block)


def _add_types(spec: SpecCopy, block: str) -> None:
    """Add data types to a spec, if it has all types that they refer to with `like`."""
    if all(f"  {name}:\n" in spec.read("types.yaml") for name in re.findall("like: (.*)", block)):
        spec.add("types:", block, "types.yaml")


def five(spec: SpecCopy) -> None:
    """Add to a spec the version of the README's example, a flag of a struct, and two data types."""
    example(spec)
    number = newest(spec)
    spec.add("  ColumnFlag:", numbered(_HIDDEN, number))
    _add_types(spec, numbered(_TYPES, number))


def six(spec: SpecCopy) -> None:
    """Add to a spec the version of `five`, and a further version.

    The further version has a message with fields of all kinds, and new fields in messages of every stream.
    """
    five(spec)
    number = add_version(spec)
    (wide,) = re.findall(r"^  TupleData:\n(?:    .*\n)+", spec.read(), re.MULTILINE)
    wide = wide.replace("TupleData:", "WideData:").replace("count: uint16", "count: uint32")
    spec.add("tuples:", wide.replace("length: uint32", "length: uint16"))
    for key, block in {**_PARTS_OF_EVERYTHING, "messages:": _EVERYTHING, **_NEW_FIELDS}.items():
        spec.add(key, numbered(block, number))


def without_oldest(spec: SpecCopy) -> None:
    """Remove the oldest protocol version from a spec's `versions` and from its lock; change nothing else."""
    text = spec.read()
    number = min(load(spec.folder).versions)
    spec.write(re.sub(rf"^  {number}:\n(?:    .*\n)+", "", text, count=1, flags=re.MULTILINE))
    lock = json.loads(spec.read(LOCK))
    lock.pop(f"v{number}", None)
    spec.write(json.dumps(lock), LOCK)


def generate(folder: Path, *derive: Derive) -> Path:
    """Copy the spec to `folder`/spec, change it with `derive`; return the folder of generated files."""
    shutil.copytree(ROOT / "spec", folder / "spec")
    copy = SpecCopy(folder / "spec")
    for change in derive:
        change(copy)
    spec = load(copy.folder)
    locked = read_lock(copy.folder)
    assert not locked or locked == released(spec), "a released version has changed"
    write(folder / "generated", render(spec))
    return folder / "generated"


def run_python(out: Path, code: str) -> None:
    """Run Python code with the generated modules of `out` instead of those in generated/.

    The code passes through `free`. It has the numbers `OLD`, `NEW`, `LAST` and `EXAMPLES` (of Hypothesis),
    the invented `VALUES` of enums and flags by name, the codecs `v_old`, `v_new` and `v_last`, the message
    classes as `m`, and `error_of`, which returns type, text and fields of the error that a call raises.
    """
    values = {free(name): value for name, value in VALUES.items()}
    prelude = f"""\
from logicalrep import messages as m
from logicalrep.errors import DecodeError, EncodeError
from logicalrep.versions import CODECS, LATEST_RELEASED, SERVERS
OLD, NEW, LAST, EXAMPLES, VALUES = {OLD}, {NEW}, {LAST}, {examples(80)}, {values}
v_old, v_new, v_last = map(CODECS.get, (OLD, NEW, LAST))

def error_of(call, *arguments):
    try:
        call(*arguments)
    except (DecodeError, EncodeError) as error:
        return type(error), str(error), vars(error)
    raise AssertionError(f"{{call}} accepts {{arguments}}")
"""
    output = forked.run(out, prelude + free(textwrap.dedent(code)))
    assert not output, output


ROUND_TRIP = """
from hypothesis import given, settings, strategies as st
from logicalrep import strategies
from logicalrep.versions import CODECS

for in_stream, streaming in ((False, "off"), (True, "on"), (True, "parallel")):
    for version in (OLD, NEW, max(CODECS)):
        @settings(deadline=None, database=None, max_examples=EXAMPLES)
        @given(st.one_of(*strategies.VERSIONS[version](in_stream, streaming).values()))
        def round_trip(message):
            codec = CODECS[version]
            assert codec.decode(codec.encode(message), in_stream, streaming) == message

        round_trip()
"""
"""Python code that encodes and decodes what the generated strategies draw."""


def check_types(out: Path) -> None:
    """Check that mypy and ruff accept the generated modules with this project's configuration."""
    configuration = ROOT / "pyproject.toml"
    mypy = ("mypy", "--config-file", configuration, "--cache-dir", ROOT / ".mypy_cache/codegen")
    ruff = ("ruff", "check", "--no-cache", "--config", configuration)
    for folder, command in ((out, mypy), (ROOT, ruff)):
        done = subprocess.run(
            [sys.executable, "-m", *command, out / "logicalrep"],
            env={**os.environ, "MYPYPATH": f"{out}{os.pathsep}{ROOT / 'runtime'}"},
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
