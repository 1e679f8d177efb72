"""A new protocol version needs only YAML: the worked example in spec/README.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.codegen.derived import (
    LAST,
    NEW,
    OLD,
    ROUND_TRIP,
    check_types,
    example,
    generate,
    numbered,
    run_python,
    six,
)
from tests.codegen.free import README, VALUES, free
from tests.codegen.spec_copy import ROOT, Run, SpecCopy
from tests.versions import CAPTURED, OLDEST


def test_diff_describes_the_new_version(run: Run, whole_spec: SpecCopy) -> None:
    example(whole_spec)
    words = README.split("from version 4 to version 5:\n\n```\n")[1].split("```")[0]
    words = free(re.sub("(4|a) (ONLY|ANY)", lambda match: f"{VALUES[match[2]]} {match[2]}", words))
    assert run("diff", f"v{OLD}", f"v{NEW}", "--spec", whole_spec.folder) == (0, words, "")


def test_the_new_codec_decodes_and_encodes(five: Path) -> None:
    run_python(
        five,
        """
        from logicalrep.stream import StreamDecoder

        commit = m.Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4)
        states = (
            m.CounterState(namespace="public", name="s", last_value=-1),
            m.CounterState(namespace="", name="t", last_value=5),
        )
        counters = m.Counters(lsn=16, counters=states)
        rows = m.InsertBatch(relation_oid=1, new_rows=(("1", None), (b"2", "x")))
        truncate = m.Truncate(
            options=m.TruncateOption.ONLY | m.TruncateOption.CASCADE, relation_oids=(1,)
        )
        relation = m.Relation(
            oid=1, namespace="", name="t", replica_identity=m.ReplicaIdentity.ANY, columns=()
        )
        inside = m.InsertBatch(relation_oid=1, new_rows=(), xid=7)
        assert v_new.encode(commit) == bytes.fromhex("43 00 %016x %016x %016x %016x" % (1, 2, 3, 4))
        states = b"public\\0s\\0" + b"\\xff" * 8 + b"\\0t\\0" + (5).to_bytes(8)
        assert v_new.encode(counters) == b"J" + bytes.fromhex("%016x 0002" % 16) + states
        assert v_new.encode(rows) == b"m\\0\\0\\0\\1\\0\\0\\0\\2" + b"".join(
            [b"\\0\\2t\\0\\0\\0\\1" b"1n", b"\\0\\2b\\0\\0\\0\\1" b"2t\\0\\0\\0\\1x"]
        )
        assert v_new.encode(truncate) == b"T\\0\\0\\0\\1%c\\0\\0\\0\\1" % truncate.options
        assert v_new.encode(relation).endswith(b"t\\0%s\\0\\0" % VALUES["ANY"].encode())
        outside = (commit, counters, rows, truncate, relation)
        for message in outside:
            assert v_new.decode(v_new.encode(message)) == message
        assert v_new.decode(v_new.encode(inside), in_stream=True) == inside

        decoder = StreamDecoder(NEW, streaming="parallel")
        for message in (
            *outside,
            m.StreamStart(xid=7, first_stream_segment=True),
            inside,
            m.StreamStop(),
        ):
            assert decoder.decode(v_new.encode(message)) == message
        """,
    )


def test_json_columns_recordings_and_views_support_the_new_version(five: Path) -> None:
    """JSON, columns, recordings and views support the new version without code changes, and still others."""
    run_python(
        five,
        """
        import json
        import tempfile
        from pathlib import Path
        import pyarrow as pa
        from logicalrep.capturefile import CaptureFile, Header, encode_header, encode_record
        from logicalrep.cli.testing.encoding import to_capture_file
        from logicalrep.columns import ColumnDecoder
        from logicalrep.jsonlines import from_json, to_json
        from logicalrep.stream import StreamDecoder, Tables, Transactions
        from logicalrep.recording import Recording, SegmentReader, record_capture_file
        from logicalrep.views import ChangesView, MessagesView, plan_changes, read

        column = m.RelationColumn(
            flags=m.ColumnFlag.KEY, name="id", type_oid=23, type_modifier=-1
        )
        relation = m.Relation(
            oid=1,
            namespace="public",
            name="t",
            replica_identity=m.ReplicaIdentity.DEFAULT,
            columns=(column,),
        )
        new = [
            m.InsertBatch(relation_oid=1, new_rows=(("6",), ("7",))),
            m.Counters(
                lsn=16, counters=(m.CounterState(namespace="public", name="s", last_value=5),)
            ),
            m.Truncate(options=m.TruncateOption.ONLY, relation_oids=(1,)),
        ]
        commits = (
            m.Commit(commit_lsn=1, end_lsn=2, commit_time=3),
            m.Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4),
        )
        for version, codec, last in zip((OLD, NEW), (v_old, v_new), commits):
            begin = m.Begin(final_lsn=1, commit_time=3, xid=7)
            stream = [
                begin,
                relation,
                m.Insert(relation_oid=1, new=("5",)),
                *(new if version == NEW else []),
                last,
            ]
            decoder = StreamDecoder(version)
            transactions, tables = Transactions(decoder), Tables()
            for message in stream:
                transaction = transactions.feed(decoder.decode(codec.encode(message)))
            assert [change.message for change in transaction.changes] == stream[2:-1]
            tables.apply(transaction)
            assert [*map(tuple, map(dict.values, tables[1]))] == ([] if version == NEW else [("5",)])
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
                    after = [[("id", text)] for text in ("567" if version == NEW else "5")]
                    assert rows["after"].to_pylist() == after + [None] * (version == NEW)
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
        def error(function, argument):
            return error_of(function, argument)[1]


        commit = m.Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4)
        counters = m.Counters(lsn=16, counters=())
        assert v_old.decode(
            v_old.encode(m.Commit(commit_lsn=1, end_lsn=2, commit_time=3))
        ) == m.Commit(commit_lsn=1, end_lsn=2, commit_time=3)
        expected = f"Commit.flush_lsn: protocol version {OLD} has no such field"
        assert error(v_old.encode, commit).startswith(expected), error(v_old.encode, commit)
        expected = f"protocol version {OLD} has no message Counters: it came with version {NEW}"
        assert error(v_old.encode, counters) == expected, error(v_old.encode, counters)
        expected = f"protocol version {OLD} has no Counters (tag 'J'): it came with version {NEW}"
        found = error(v_old.decode, v_new.encode(counters))
        assert found == expected, found
        assert "8 more bytes follow" in error(v_old.decode, v_new.encode(commit))
        expected = "Commit.flush_lsn: expected an int, found None"
        assert error(v_new.encode, m.Commit(commit_lsn=1, end_lsn=2, commit_time=3)) == expected
        """,
    )


def test_schemas_protocol_tables_and_reference_have_the_new_version(five: Path) -> None:
    run_python(
        five,
        """
        import pyarrow as pa
        from logicalrep import _protocols, catalog, values, versions
        from logicalrep.schemas import arrow, spark

        assert arrow.MESSAGES.field("flush_lsn").type == pa.int64()
        assert arrow.BY_MESSAGE["Counters"].names == ["xid", "lsn", "counters", "_rescued_data"]
        assert arrow.MESSAGES.field("new_rows").type.value_type == arrow.TUPLE_DATA
        assert spark.MESSAGES["flush_lsn"].dataType.typeName() == "long"
        assert spark.BY_MESSAGE["Counters"].names == ["xid", "lsn", "counters", "_rescued_data"]
        assert {"InsertBatch", "Counters"} <= _protocols.VERSIONS[NEW].by_name.keys()
        assert not {"InsertBatch", "Counters"} & _protocols.VERSIONS[OLD].by_name.keys()
        ticket = catalog.BY_NAME["ticket"]
        assert values.to_python(b"\\xff" * 8, ticket.oid) == 2**64 - 1
        assert values.to_arrow(["7", None], ticket.oid)[0].to_pylist() == [7, None]
        assert versions.LATEST == NEW > versions.LATEST_RELEASED
        """,
    )
    page = (five / f"reference/v{NEW}.md").read_text(encoding="utf-8")
    assert f"## {free('Counters')}" in page
    assert free("Insert Batch") in page.split("```mermaid")[1].split("```")[0]
    assert f"`Int64 (XLogRecPtr)` **{free('flush_lsn')}**: The end of what the server has flushed." in page
    for version in CAPTURED:
        name = f"reference/v{version}.md"
        assert (five / name).read_bytes() == (ROOT / "generated" / name).read_bytes()
    assert f"| `{free('ticket')}` |" in (five / "reference/types.md").read_text(encoding="utf-8")
    assert f"## {NEW - 1} to {NEW}" in (five / "reference/changes.md").read_text(encoding="utf-8")


PAIRS = """\
      - {count: pairs, type: uint8, doc: Their number.}
      - {name: pairs, list_of: Pair, doc: A list of structs.}
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
    """The folder generated from a spec with fields of every kind, whose last version drops two things."""
    return generate(tmp_path_factory.mktemp("every_kind"), six, drop_and_add)


def drop_and_add(spec: SpecCopy) -> None:
    """Remove a message and a field in the newest version, and add fields of more kinds to messages."""
    spec.add("  Origin:", numbered(NEW_FIELDS_OF_ORIGIN, LAST))
    spec.add("  HotStandbyFeedback:", PAIRS, "replication.yaml")
    spec.replace("{name: origin_lsn, type: lsn,", f"{{name: origin_lsn, type: lsn, versions: {OLDEST}-{NEW},")
    spec.replace(
        "title: Rollback Prepared\n    versions: 3+\n", f"title: Rollback Prepared\n    versions: 3-{NEW}\n"
    )
    spec.write("{}", "released.json")


def test_messages_with_all_kinds_of_fields_round_trip(every_kind: Path) -> None:
    run_python(every_kind, ROUND_TRIP)


def test_javascript_decodes_and_encodes_all_kinds_of_fields_as_python(every_kind: Path) -> None:
    run_python(
        every_kind,
        f"""
        import sys
        sys.path.append({str(ROOT)!r})
        from pathlib import Path
        from random import Random
        from hypothesis import given, settings, strategies as st
        from logicalrep import strategies
        from tests.javascript.compare import NAMES, compare
        from tests.javascript.peer import Peer

        random, inputs = Random(0), []
        groups = [("envelope", strategies.envelope(), False, "off")]
        for version, made in strategies.VERSIONS.items():
            for in_stream, streaming in ((False, "off"), (True, "on"), (True, "parallel"))[: version]:
                groups.append((f"v{{version}}", made(in_stream, streaming), in_stream, streaming))
        for name, made, in_stream, streaming in groups[:2] + groups[-6:]:
            @settings(deadline=None, database=None, derandomize=True, max_examples=EXAMPLES)
            @given(st.one_of(*made.values()))
            def collect(message):
                data = NAMES[name].encode(message)
                damaged = bytearray(data)
                damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
                for one in (data, data[: random.randrange(len(data))], bytes(damaged)):
                    inputs.append((name, one, in_stream, streaming))

            collect()
        with Peer(Path({str(every_kind)!r}) / "javascript/src/index.js") as peer:
            outcomes = compare(peer, inputs)
        assert min(outcomes["accepted"], outcomes["refused"]) > 150, outcomes
        """,
    )


def test_a_version_can_drop_fields_and_messages(every_kind: Path) -> None:
    run_python(
        every_kind,
        """
        import msgspec
        from logicalrep import _protocols
        from logicalrep._build import build, fitted

        old = m.Origin(name="o", origin_lsn=3)
        new = fitted(old, LAST)
        both = msgspec.structs.replace(new, origin_lsn=3)
        assert new.origin_lsn is None
        assert v_new.decode(v_new.encode(old)) == old
        assert v_last.decode(v_last.encode(new)) == new
        assert "RollbackPrepared" not in _protocols.VERSIONS[LAST].by_name
        assert build("origin", LAST, lsn=3, name="o") == fitted(old, LAST) == new
        assert build("origin", NEW, lsn=3, name="o") == fitted(old, NEW) == old
        gone = m.RollbackPrepared(
            prepare_end_lsn=1, rollback_end_lsn=2, prepare_time=3, rollback_time=4, xid=5, gid="gid"
        )
        assert v_new.decode(v_new.encode(gone)) == gone
        for codec, message, text in (
            (v_last, both, f"Origin.origin_lsn: protocol version {LAST} has no such field"),
            (v_new, m.Origin(name="o"), "Origin.origin_lsn: expected an int, found None"),
            (v_last, gone, f"protocol version {LAST} has no message RollbackPrepared"),
        ):
            assert error_of(codec.encode, message)[1].startswith(text)
        """,
    )


def test_a_field_in_a_struct_is_refused_by_older_versions(every_kind: Path) -> None:
    run_python(
        every_kind,
        """


        def relation(collation_name=None, identity_kind=None):
            column = m.RelationColumn(
                flags=m.ColumnFlag(0), name="a", type_oid=23, type_modifier=-1, collation_name=collation_name
            )
            return m.Relation(
                oid=1,
                namespace="public",
                name="t",
                replica_identity=m.ReplicaIdentity.FULL,
                columns=(column,),
                identity_kind=identity_kind,
            )


        new = relation("C", m.ReplicaIdentity.FULL)

        assert v_last.decode(v_last.encode(new)) == new
        assert v_new.decode(v_new.encode(relation())) == relation()
        for codec, message, text in (
            (v_new, relation("C"), f"Relation.columns[0].collation_name: protocol version {NEW} has no"),
            (
                v_last,
                relation(identity_kind=new.identity_kind),
                "Relation.columns[0].collation_name: expected a str, found None",
            ),
        ):
            assert error_of(codec.encode, message)[1].startswith(text)
        """,
    )


def test_a_field_in_a_struct_can_be_null_if_a_version_lacks_it(every_kind: Path) -> None:
    run_python(
        every_kind,
        """
        from logicalrep.schemas import arrow, spark

        for name in ("name", "collation_name"):
            fields = arrow.RELATION_COLUMN.field(name), spark.RELATION_COLUMN[name]
            assert {field.nullable for field in fields} == {name == "collation_name"}, fields
        """,
    )


@pytest.mark.slow
def test_mypy_and_ruff_accept_all_kinds_of_fields(every_kind: Path) -> None:
    check_types(every_kind)
