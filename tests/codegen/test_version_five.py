"""A new protocol version needs only YAML: the worked example in spec/README.md runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.codegen.spec_copy import ROOT, Run, SpecCopy

README = (ROOT / "spec/README.md").read_text(encoding="utf-8")
SECTIONS = (
    "versions",
    "Commit",
    "TruncateOption",
    "ReplicaIdentity",
    "scalars",
    "structs",
    "messages",
    "types",
)


def add_version_five(spec: SpecCopy) -> None:
    """Add the YAML blocks of the example in spec/README.md to the spec, each to the section it names."""
    example = README[README.index("## A new version, step by step") :]
    blocks = re.findall(r"```yaml\n# (\w+)\n(.*?)```", example, re.DOTALL)
    assert tuple(key for key, _ in blocks) == SECTIONS
    for key, block in blocks:
        name = "types.yaml" if key == "types" else "pgoutput.yaml"
        spec.add(f"{key}:" if key.islower() else f"  {key}:", block, name)


def generate(spec: SpecCopy, out: Path) -> None:
    """Run the generator: read the spec and write the generated files to the folder `out`."""
    done = subprocess.run(
        [sys.executable, "-m", "codegen", "--spec", spec.folder, "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def run_python(out: Path, code: str) -> None:
    """Run Python code with the generated modules of `out` instead of those in generated/."""
    # An editable install adds generated/ to sys.path.
    prelude = f"import sys\nsys.path[:] = [p for p in sys.path if p != {str(ROOT / 'generated')!r}]\n"
    path = os.pathsep.join([str(out), str(ROOT / "runtime")])
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def check_types(out: Path) -> None:
    """Check that mypy and ruff accept the generated modules with this project's configuration."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"),
            *("--cache-dir", ROOT / ".mypy_cache/codegen", out / "pgoutput"),
        ],
        env={**os.environ, "MYPYPATH": f"{out}{os.pathsep}{ROOT / 'runtime'}"},
        cwd=out,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--no-cache",
            "--config",
            ROOT / "pyproject.toml",
            out / "pgoutput",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files generated from the spec that has a version 5."""
    folder = tmp_path_factory.mktemp("five")
    shutil.copytree(ROOT / "spec", folder / "spec")
    spec = SpecCopy(folder / "spec")
    add_version_five(spec)
    lock = spec.read("released.json")
    generate(spec, folder / "generated")
    assert spec.read("released.json") == lock, "version 5 is not released"
    return folder / "generated"


def test_diff_describes_the_new_version(run: Run, whole_spec: SpecCopy) -> None:
    add_version_five(whole_spec)
    words = README.split("from version 4 to version 5:\n\n```\n")[1].split("```")[0]
    assert run("diff", "v4", "v5", "--spec", whole_spec.folder) == (0, words, "")


def test_the_new_codec_decodes_and_encodes(five: Path) -> None:
    run_python(
        five,
        """
        from pgoutput import messages, v5
        from pgoutput.stream import StreamDecoder

        commit = messages.Commit(1, 2, 3, flush_lsn=4)
        states = (messages.SequenceState("public", "s", -1), messages.SequenceState("", "t", 5))
        sequences = messages.Sequences(16, states)
        rows = messages.MultiInsert(1, (("1", None), (b"2", "x")))
        truncate = messages.Truncate(messages.TruncateOption.ONLY | messages.TruncateOption.CASCADE, (1,))
        relation = messages.Relation(1, "", "t", messages.ReplicaIdentity.ANY, ())
        inside = messages.MultiInsert(1, (), xid=7)
        assert v5.encode(commit) == bytes.fromhex("43 00 %016x %016x %016x %016x" % (1, 2, 3, 4))
        states = b"public\\0s\\0" + b"\\xff" * 8 + b"\\0t\\0" + (5).to_bytes(8)
        assert v5.encode(sequences) == b"Q" + bytes.fromhex("%016x 0002" % 16) + states
        assert v5.encode(rows) == b"m\\0\\0\\0\\1" b"\\0\\0\\0\\2" + b"".join(
            [b"\\0\\2t\\0\\0\\0\\1" b"1n", b"\\0\\2b\\0\\0\\0\\1" b"2t\\0\\0\\0\\1x"]
        )
        assert v5.encode(truncate) == b"T\\0\\0\\0\\1\\5\\0\\0\\0\\1"
        assert v5.encode(relation).endswith(b"t\\0a\\0\\0")
        outside = (commit, sequences, rows, truncate, relation)
        for message in outside:
            assert v5.decode(v5.encode(message)) == message
        assert v5.decode(v5.encode(inside), in_stream=True) == inside

        decoder = StreamDecoder(5, streaming="parallel")
        for message in (*outside, messages.StreamStart(7, True), inside, messages.StreamStop()):
            assert decoder.decode(v5.encode(message)) == message
        """,
    )


def test_json_columns_recordings_and_views_support_the_new_version(five: Path) -> None:
    """JSON, columns, recordings and views support version 5 without code changes, and still version 4."""
    run_python(
        five,
        """
        import json
        import tempfile
        from pathlib import Path
        import pyarrow as pa
        from pgoutput import messages, v4, v5
        from pgoutput.capturefile import CaptureFile, Header, encode_header, encode_record
        from pgoutput.cli.encoding import to_capture_file
        from pgoutput.columns import ColumnDecoder
        from pgoutput.jsonlines import from_json, to_json
        from pgoutput.stream import StreamDecoder, Tables, Transactions
        from pgoutput.recording import Recording, SegmentReader, record_capture_file
        from pgoutput.views import ChangesView, MessagesView, plan_changes, read

        column = messages.RelationColumn(1, "id", 23, -1)
        relation = messages.Relation(1, "public", "t", messages.ReplicaIdentity.DEFAULT, (column,))
        new = [
            messages.MultiInsert(1, (("6",), ("7",))),
            messages.Sequences(16, (messages.SequenceState("public", "s", 5),)),
            messages.Truncate(messages.TruncateOption.ONLY, (1,)),
        ]
        commits = messages.Commit(1, 2, 3), messages.Commit(1, 2, 3, flush_lsn=4)
        for version, codec, last in zip((4, 5), (v4, v5), commits):
            begin = messages.Begin(1, 3, 7)
            stream = [begin, relation, messages.Insert(1, ("5",)), *new[: 3 * (version - 4)], last]
            decoder = StreamDecoder(version)
            transactions, tables = Transactions(decoder), Tables()
            for message in stream:
                transaction = transactions.feed(decoder.decode(codec.encode(message)))
            assert [change.message for change in transaction.changes] == stream[2:-1]
            tables.apply(transaction)
            assert [*map(tuple, map(dict.values, tables[1]))] == ([] if version == 5 else [("5",)])
            assert [from_json(json.loads(json.dumps(to_json(m)))) for m in stream] == stream
            sent = pa.array([codec.encode(message) for message in stream], pa.binary())
            headers = ColumnDecoder(version).decode(sent).headers
            assert headers["flush_lsn"].to_pylist()[-1] == last.flush_lsn
            lines = [encode_record("data", codec.encode(message)) for message in stream]
            content = encode_header(Header(version)) + b"".join(lines)
            with CaptureFile("stream.jsonl", content=content) as capture:
                assert [one.message for one in capture.messages()] == stream
            with tempfile.TemporaryDirectory() as folder:
                capture = Path(folder, "stream.jsonl")
                capture.write_bytes(content)
                record_capture_file(capture, f"{folder}/recording")
                recording = Recording(f"{folder}/recording")
                (task,) = plan_changes(recording, recording.numbers)
                with SegmentReader(task.place) as segment:
                    (rows,) = read(segment, ChangesView(segment, task, lambda shape: True))
                    after = [[("id", text)] for text in ("567" if version == 5 else "5")]
                    assert rows["after"].to_pylist() == after + [None] * (version - 4)
                with SegmentReader(task.place) as segment:
                    (rows,) = read(segment, MessagesView(segment))
                    assert rows["type"].to_pylist() == [type(message).__name__ for message in stream]
            with tempfile.NamedTemporaryFile("w") as file:
                file.write("".join(json.dumps(to_json(m)) + chr(10) for m in stream))
                file.flush()
                written = list(to_capture_file(Path(file.name), version, "off"))
            assert written[1:] == lines
        """,
    )


def test_errors_of_version_4_name_the_new_version(five: Path) -> None:
    run_python(
        five,
        """
        from pgoutput import messages, v4, v5
        from pgoutput.errors import DecodeError, EncodeError

        def error(function, argument):
            try:
                function(argument)
            except (DecodeError, EncodeError) as error:
                return str(error)

        commit = messages.Commit(1, 2, 3, flush_lsn=4)
        sequences = messages.Sequences(16, ())
        truncate = messages.Truncate(messages.TruncateOption.ONLY, (1,))
        relation = messages.Relation(1, "", "t", messages.ReplicaIdentity.ANY, ())
        assert v4.decode(v4.encode(messages.Commit(1, 2, 3))) == messages.Commit(1, 2, 3)
        expected = "Commit.flush_lsn: protocol version 4 has no such field"
        assert error(v4.encode, commit).startswith(expected), error(v4.encode, commit)
        expected = "protocol version 4 has no message Sequences: it came with version 5"
        assert error(v4.encode, sequences) == expected, error(v4.encode, sequences)
        expected = "protocol version 4 has no Sequences (tag 'Q'): it came with version 5"
        assert error(v4.decode, v5.encode(sequences)) == expected, error(v4.decode, v5.encode(sequences))
        for where, message in (("Truncate.options", truncate), ("Relation.replica_identity", relation)):
            assert error(v4.encode, message).startswith(where), error(v4.encode, message)
            assert "came with version 5" in error(v4.decode, v5.encode(message))
        assert "8 more bytes follow" in error(v4.decode, v5.encode(commit))
        expected = "Commit.flush_lsn: an int is expected, not None"
        assert error(v5.encode, messages.Commit(1, 2, 3)) == expected
        """,
    )


ROUND_TRIP = """
from hypothesis import given, settings, strategies as st
from pgoutput import strategies, v4, v5

for in_stream, streaming in ((False, "off"), (True, "on"), (True, "parallel")):
    for codec, made in ((v4, strategies.v4), (v5, strategies.v5)):
        @settings(deadline=None, database=None, max_examples=200)
        @given(st.one_of(*made(in_stream, streaming).values()))
        def round_trip(message):
            assert codec.decode(codec.encode(message), in_stream, streaming) == message

        round_trip()
"""


def test_messages_of_the_new_strategies_round_trip(five: Path) -> None:
    run_python(five, ROUND_TRIP)


def test_schemas_protocol_tables_and_reference_have_the_new_version(five: Path) -> None:
    run_python(
        five,
        """
        import pyarrow as pa
        from pgoutput import _protocols, catalog, values, versions
        from pgoutput.schemas import arrow, spark

        assert arrow.MESSAGES.field("flush_lsn").type == pa.int64()
        assert arrow.BY_MESSAGE["Sequences"].names == ["xid", "lsn", "sequences"]
        assert arrow.MESSAGES.field("new_rows").type.value_type == arrow.TUPLE_DATA
        assert spark.MESSAGES["flush_lsn"].dataType.typeName() == "long"
        assert spark.BY_MESSAGE["Sequences"].names == ["xid", "lsn", "sequences"]
        assert {"MultiInsert", "Sequences"} <= _protocols.VERSIONS[5].by_name.keys()
        assert not {"MultiInsert", "Sequences"} & _protocols.VERSIONS[4].by_name.keys()
        oid8 = catalog.BY_NAME["oid8"]
        assert values.to_python(b"\\xff" * 8, oid8.oid) == 2**64 - 1
        assert values.to_arrow(["7", None], oid8.oid)[0].to_pylist() == [7, None]
        assert (versions.LATEST, versions.LATEST_RELEASED) == (5, 4)
        """,
    )
    page = (five / "reference/v5.md").read_text(encoding="utf-8")
    assert "## Sequences" in page
    assert "Multi Insert,<br/>" in page
    assert "`Int64 (XLogRecPtr)` **flush_lsn**: The end of what the server has flushed." in page
    for version in range(1, 5):
        name = f"reference/v{version}.md"
        assert (five / name).read_bytes() == (ROOT / "generated" / name).read_bytes()
    assert "| `oid8` |" in (five / "reference/types.md").read_text(encoding="utf-8")
    assert "## 4 to 5" in (five / "reference/changes.md").read_text(encoding="utf-8")


def test_codecs_of_earlier_versions_do_not_change(five: Path) -> None:
    for name in ("v1", "v2", "v3", "v4", "envelope"):
        old, new = ((folder / f"pgoutput/{name}.py").read_text() for folder in (ROOT / "generated", five))
        # Earlier codecs only refuse the new field.
        assert new.replace("    if message.flush_lsn is not None:\n        raise ValueError\n", "") == old


@pytest.mark.slow
def test_mypy_and_ruff_accept_the_new_version(five: Path) -> None:
    check_types(five)


# A message with every kind of field.
EVERY_FIELD_KIND = """\
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


MOOD = """\
  Mood:
    doc: A mood.
    source: nowhere
    values:
      GOOD: {value: g, doc: Good.}
      BAD: {value: b, doc: Bad.}
"""

MARK = """\
  Mark:
    doc: A mark.
    wire: uint8
    source: nowhere
    bits:
      BIG: {value: 64, doc: Big.}
"""

PAIR = """\
  Pair:
    doc: A pair.
    source: nowhere
    fields:
      - {name: left_oid, type: oid, doc: The left.}
      - {name: mood_of_pair, type: Mood, versions: 5+, doc: Its mood.}
"""

PAIRS = """\
      - {count: pairs, type: uint8, doc: Their number.}
      - {name: pairs, list_of: Pair, doc: A list of structs.}
"""

COLLATION = """\
      - {name: collation, type: string, versions: 5+, doc: Name of the collation.}
"""

NEW_FIELDS_OF_ORIGIN = """\
      - {name: node, type: string, versions: 5+, doc: Text.}
      - {name: mood, type: Mood, versions: 5+, when: in_stream, doc: An enum under a condition.}
      - {name: mark, type: Mark, versions: 5+, doc: Flags.}
      - {name: best, type: bool, versions: 5+, doc: A bool.}
      - {count: parents, type: uint8, versions: 5+, doc: Their number.}
      - {name: parents, list_of: oid, versions: 5+, means: none, because: X., doc: A list.}
      - name: wide
        type: WideData
        tag: "W"
        versions: 5+
        when: in_stream
        means: none
        because: Nothing reads it.
        doc: A tuple.
"""


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder generated from a spec with fields of every kind, and a field and a message removed in 5."""
    folder = tmp_path_factory.mktemp("every_kind")
    shutil.copytree(ROOT / "spec", folder / "spec")
    spec = SpecCopy(folder / "spec")
    add_version_five(spec)
    spec.add("messages:", EVERY_FIELD_KIND)
    spec.add("enums:", MOOD)
    spec.add("flags:", MARK)
    tuples = spec.read().split("\ntuples:\n")[1].split("\nstructs:")[0].replace("TupleData:", "WideData:")
    tuples = tuples.replace("count: uint16", "count: uint32").replace("length: uint32", "length: uint16")
    spec.add("tuples:", tuples + "\n")
    spec.add("structs:", PAIR)
    spec.add("  RelationColumn:", COLLATION)
    spec.add("  Origin:", NEW_FIELDS_OF_ORIGIN)
    spec.add("  HotStandbyFeedback:", PAIRS, "replication.yaml")
    spec.replace("{name: origin_lsn, type: lsn,", "{name: origin_lsn, type: lsn, versions: 1-4,")
    spec.replace(
        "title: Rollback Prepared\n    versions: 3+\n", "title: Rollback Prepared\n    versions: 3-4\n"
    )
    spec.write("{}", "released.json")
    generate(spec, folder / "generated")
    return folder / "generated"


def test_messages_with_all_kinds_of_fields_round_trip(every_kind: Path) -> None:
    run_python(every_kind, ROUND_TRIP)


def test_typescript_decodes_and_encodes_all_kinds_of_fields_as_python(every_kind: Path) -> None:
    run_python(
        every_kind,
        f"""
        import sys
        sys.path.append({str(ROOT)!r})
        from pathlib import Path
        from random import Random
        from hypothesis import given, settings, strategies as st
        from pgoutput import strategies
        from tests.typescript.compare import NAMES, compare
        from tests.typescript.peer import Peer

        random, inputs = Random(0), []
        groups = [("envelope", strategies.envelope(), False, "off")]
        for version, made in strategies.VERSIONS.items():
            for in_stream, streaming in ((False, "off"), (True, "on"), (True, "parallel"))[: version]:
                groups.append((f"v{{version}}", made(in_stream, streaming), in_stream, streaming))
        for name, made, in_stream, streaming in groups[:2] + groups[-6:]:
            @settings(deadline=None, database=None, derandomize=True, max_examples=100)
            @given(st.one_of(*made.values()))
            def collect(message):
                data = NAMES[name].encode(message)
                damaged = bytearray(data)
                damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
                for one in (data, data[: random.randrange(len(data))], bytes(damaged)):
                    inputs.append((name, one, in_stream, streaming))

            collect()
        with Peer(Path({str(every_kind)!r}) / "typescript/src/index.ts") as peer:
            outcomes = compare(peer, inputs)
        assert min(outcomes["accepted"], outcomes["refused"]) > 500, outcomes
        """,
    )


def test_a_version_can_drop_fields_and_messages(every_kind: Path) -> None:
    run_python(
        every_kind,
        """
        import msgspec
        from pgoutput import _protocols, messages, v4, v5
        from pgoutput._build import build, fitted
        from pgoutput.errors import EncodeError

        old = messages.Origin("o", origin_lsn=3)
        new = fitted(old, 5)
        both = msgspec.structs.replace(new, origin_lsn=3)
        assert new.origin_lsn is None
        assert v4.decode(v4.encode(old)) == old
        assert v5.decode(v5.encode(new)) == new
        assert "RollbackPrepared" not in _protocols.VERSIONS[5].by_name
        assert build("origin", 5, lsn=3, name="o") == fitted(old, 5) == new
        assert build("origin", 4, lsn=3, name="o") == fitted(old, 4) == old
        gone = messages.RollbackPrepared(1, 2, 3, 4, 5, "gid")
        assert v4.decode(v4.encode(gone)) == gone
        for codec, message, text in (
            (v5, both, "Origin.origin_lsn: protocol version 5 has no such field"),
            (v4, messages.Origin("o"), "Origin.origin_lsn: an int is expected, not None"),
            (v5, gone, "protocol version 5 has no message RollbackPrepared"),
        ):
            try:
                codec.encode(message)
            except EncodeError as error:
                assert str(error).startswith(text), error
            else:
                raise AssertionError(text)
        """,
    )


def test_a_field_in_a_struct_is_refused_by_older_versions(every_kind: Path) -> None:
    run_python(
        every_kind,
        """
        from pgoutput import messages, v4, v5
        from pgoutput.errors import EncodeError

        def relation(**more):
            column = messages.RelationColumn(0, "a", 23, -1, **more)
            return messages.Relation(1, "public", "t", messages.ReplicaIdentity.FULL, (column,))

        assert v5.decode(v5.encode(relation(collation="C"))) == relation(collation="C")
        assert v4.decode(v4.encode(relation())) == relation()
        for codec, message, text in (
            (v4, relation(collation="C"), "Relation.columns[0].collation: protocol version 4 has no"),
            (v5, relation(), "Relation.columns[0].collation: a str is expected, not None"),
        ):
            try:
                codec.encode(message)
            except EncodeError as error:
                assert str(error).startswith(text), error
            else:
                raise AssertionError(text)
        """,
    )


@pytest.mark.slow
def test_mypy_and_ruff_accept_all_kinds_of_fields(every_kind: Path) -> None:
    check_types(every_kind)
