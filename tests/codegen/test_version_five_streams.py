"""Scenarios, workloads, checks, stand-in servers and faults work for versions that are added by YAML only.

The versions are those of `tests.codegen.derived.six`. Synthetic streams have neutral values in the new
fields. They have the new messages where a program copies rows or emits payloads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codegen.derived import generate, run_python, six
from tests.codegen.spec_copy import SpecCopy


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files generated from the spec `six`."""
    return generate(tmp_path_factory.mktemp("six"), six)


def release(spec: SpecCopy) -> None:
    """Release all versions."""
    spec.write(spec.read().replace("released: false", "released: true"))
    spec.write("{}", "released.json")


SCENARIO = """
import msgspec
from logicalrep.messages import XLogData
from logicalrep.synth import Scenario


def scenario(version, **options):
    db = Scenario(proto_version=version, logical_decoding_work_mem=300, **options)
    db.enum("public.mood")
    table = db.table("public.t", {"id": "int8 key", "note": "text", "mood": "public.mood"})
    for number in range(3):
        with db.transaction(origin="o", origin_lsn=7) as tx:
            tx.insert(table, id=number, note="a" * number, mood="x")
            tx.update(table, {"id": number}, note="b")
            tx.message("p", "content")
    db.message("p", "at once")
    with db.transaction() as tx:
        for number in range(10, 30):
            tx.insert(table, id=number, note="long" * 10)
        point = tx.savepoint()
        for number in range(30, 50):
            point.insert(table, id=number, note="gone" * 10)
        point.rollback()
    for end in (db.rollback_prepared, db.commit_prepared):
        tx = db.transaction()
        for number in range(3 if end == db.commit_prepared else 20):
            tx.insert(table, id=100 + number, note="prepared" * number)
        tx.prepare("gid")
        db.wait()
        end("gid")
    with db.transaction() as tx:
        tx.delete(table, {"id": 1})
        tx.truncate(table)
    return db


OPTIONS = {"streaming": "parallel", "two_phase": True, "messages": True}


def data_of(db):
    return [one.data for one in db.stream() if isinstance(one, XLogData)]


def as_version_four(message):
    '''Return the message without the fields of the last version, whose values must be neutral.'''
    if isinstance(message, m.Commit):
        assert message.flush_lsn == 0
        return msgspec.structs.replace(message, flush_lsn=None)
    if isinstance(message, m.Insert):
        assert message.insert_comment == ""
        return msgspec.structs.replace(message, insert_comment=None)
    if isinstance(message, m.Relation):
        assert message.identity_kind is m.ReplicaIdentity.DEFAULT
        assert {column.collation_name for column in message.columns} == {""}
        columns = tuple(msgspec.structs.replace(one, collation_name=None) for one in message.columns)
        return msgspec.structs.replace(message, identity_kind=None, columns=columns)
    return message
"""


def test_a_scenario_has_neutral_values_in_new_fields(derived: Path) -> None:
    run_python(
        derived,
        SCENARIO
        + """
for options in ({}, OPTIONS, OPTIONS | {"streaming": "on", "binary": True}):
    old, new = scenario(OLD, **options), scenario(LAST, **options)
    assert list(map(as_version_four, new.messages())) == list(old.messages())
    assert [type(message) for message in new.messages()] == [type(message) for message in old.messages()]
names = {type(message).__name__ for message in scenario(LAST, **OPTIONS).messages()}
expected = {"StreamAbort", "StreamPrepare", "CommitPrepared", "RollbackPrepared", "Origin", "Type"}
assert names >= expected, names
""",
    )


def test_check_accepts_a_scenario_and_finds_every_certain_fault(derived: Path) -> None:
    run_python(
        derived,
        SCENARIO
        + """
from logicalrep.stream.check import check
from logicalrep.testing import FAULTS, Stream

stream = Stream.of(scenario(LAST, **OPTIONS))
assert list(check(stream.messages, stream.options)) == []
possible = set()
for fault in FAULTS:
    for position in range(fault.size(stream)) if fault.unit == "message" else ():
        messages = fault.apply(stream, position)
        if messages is None:
            continue
        possible.add(fault.name)
        assert not fault.certain or list(check(messages, stream.options)), (fault.name, position)
assert len(possible) > 40, possible
""",
    )


def test_check_reports_new_messages_that_break_a_rule(derived: Path) -> None:
    run_python(
        derived,
        SCENARIO
        + """
from logicalrep.stream.check import CheckOptions, check

data = data_of(scenario(LAST))
tags = [one[:1] for one in data]
inside = tags.index(b"I")
oid = v_last.decode(data[inside]).relation_oid
rows = (("8", "x", None), ("9", "y", None))


def found(index, *added):
    changed = [*data[:index], *map(v_last.encode, added), *data[index:]]
    return [(one.rule, one.field, one.message) for one in check(changed, CheckOptions(proto_version=LAST))]


group = m.Counters(lsn=1, counters=(m.CounterState(namespace="public", name="s", last_value=5),))
assert found(inside, m.InsertBatch(relation_oid=oid, new_rows=rows), group) == []
assert found(0, m.InsertBatch(relation_oid=oid, new_rows=rows))[0] == ("change-in-transaction", None, 0)
assert found(0, group)[0][0] == "message-in-transaction"
assert found(inside, m.InsertBatch(relation_oid=oid + 1, new_rows=rows)) == [
    ("relation-before-use", "relation_oid", inside)
]
wrong = m.InsertBatch(relation_oid=oid, new_rows=(rows[0], rows[1][:1]))
assert found(inside, wrong) == [("column-count", "new_rows[1].count", inside)]
""",
    )


def test_random_scenarios_and_broken_streams_can_name_the_version(derived: Path) -> None:
    run_python(
        derived,
        """
        from hypothesis import HealthCheck, given, settings
        from logicalrep.stream.check import check
        from logicalrep.testing import broken_streams, streams

        quick = settings(
            max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )

        @quick
        @given(streams(proto_version=LAST))
        def legal(stream):
            assert list(check(stream.messages, stream.options)) == []

        @quick
        @given(broken_streams(proto_version=LAST))
        def illegal(corruption):
            stream = corruption.stream
            assert not corruption.certain or list(check(stream.messages, stream.options))

        legal()
        illegal()
        """,
    )


def test_a_recorder_stores_the_stream_that_a_stand_in_server_sends(derived: Path, tmp_path: Path) -> None:
    run_python(
        derived,
        SCENARIO
        + f"""
from pathlib import Path
from logicalrep.errors import ReplicationError
from logicalrep.recorder import Recorder, RecorderOptions
from logicalrep.recording import RecordingReader
from logicalrep.standin import RecordedSource, StandIn
from logicalrep.synth.export import write_capture_file, write_recording

folder = Path({str(tmp_path)!r})
db = scenario(LAST, **OPTIONS)
sent = data_of(db)


def stored(path):
    with RecordingReader(path) as segments:
        return [record.data for record in segments.records()]


def record(source, name, **options):
    options = RecorderOptions(**{{"proto_version": LAST, "streaming": "parallel", "two_phase": True,
                                 "messages": True}} | options)
    with StandIn(source) as server:
        recorder = Recorder(server.dsn, "slot", ["synth"], folder / name, options=options, create_slot=True)
        recorder.run(until="now", seconds=120)
    return stored(folder / name)


assert record(db, "scenario") == sent
write_capture_file(db, folder / "capture.jsonl")
write_recording(db, folder / "written", segment_bytes=500)
for name in ("capture.jsonl", "written", "scenario"):
    assert record(RecordedSource(folder / name), f"of {{name}}") == sent, name
    older = record(RecordedSource(folder / name), f"older {{name}}", proto_version=OLD)
    assert older != sent, name
    assert [data[:1] for data in older] == [data[:1] for data in sent], name
try:
    record(scenario(OLD, **OPTIONS), "too new")
except ReplicationError as error:
    text = f"version {{LAST}} needs PostgreSQL {{15 + LAST}} or later, but the server is PostgreSQL 18"
    assert text in str(error), error
else:
    raise AssertionError
""",
    )


def test_a_workload_is_legal_and_recorded_in_whole_transactions(derived: Path, tmp_path: Path) -> None:
    run_python(
        derived,
        f"""
import io
from pathlib import Path
import pyarrow as pa
from logicalrep.recording import RecordingReader, SegmentWriter, SessionStart, batch_tracker, read_metadata
from logicalrep.recording import list_segments
from logicalrep.recording.stream_state import StreamState
from logicalrep.stream.check import CheckOptions, check
from logicalrep.synth.workload import Range, Workload, write_capture_file, write_recording
from logicalrep.capturefile import CaptureFile

folder = Path({str(tmp_path)!r})
for streaming in ("off", "parallel"):
    data = {{}}
    for version in (OLD, LAST):
        workload = Workload(
            transactions=300, large=0.02, large_changes=150, tables=3, proto_version=version,
            streaming=streaming, changes=Range(1, 5),
        )
        path = folder / f"{{streaming}}{{version}}.jsonl"
        write_capture_file(workload, path, lambda *done: None)
        with CaptureFile(path) as capture:
            data[version] = [one.data for one in capture.messages()]
        options = CheckOptions(proto_version=version, streaming=streaming)
        assert list(check(data[version], options)) == []
        write_recording(workload, folder / f"{{streaming}}{{version}}", lambda *done: None)
        with RecordingReader(folder / f"{{streaming}}{{version}}") as recording:
            assert [one.data for one in recording.records() if one.number is not None] == data[version]
    assert len(data[OLD]) == len(data[LAST])
    assert all(new.startswith(old) or new[:1] == b"R" for old, new in zip(data[OLD], data[LAST]))

# Whole transactions give the same metadata as messages one by one.
batch = pa.array(data[LAST], pa.binary())
lsns, times = pa.array([0] * len(batch)), pa.array([0] * len(batch), pa.timestamp("us", "UTC"))
metadata, calls, feed_whole = [], [], StreamState.feed_whole


def counted(state, transactions, *arguments):
    calls.append(transactions)
    feed_whole(state, transactions, *arguments)


StreamState.feed_whole = counted
for number, minimum in enumerate((1, 1 << 60)):
    batch_tracker._MIN_MESSAGES = minimum
    target = folder / str(number)
    target.mkdir()
    start = SessionStart(session=1, number=1, position=0, lsn=0)
    writer = SegmentWriter(target, workload.source, start, segment_bytes=1 << 14)
    for first in range(0, len(batch), 500):
        rows = slice(first, first + 500)
        writer.write_batch(lsns[rows], times[rows], batch[rows])
    writer.rotate()
    assert sum(calls) > 100, calls  # the second writer adds none
    metadata.append([read_metadata(path) for path in list_segments(target)])
assert metadata[0] == metadata[1]
assert sum(calls) < 300
assert len(metadata[0]) > 1
""",
    )


def test_a_snapshot_has_neutral_values_in_new_fields(derived: Path, tmp_path: Path) -> None:
    run_python(
        derived,
        f"""
from pathlib import Path
import pyarrow as pa
from logicalrep.columns import encode_inserts
from logicalrep.jsonlines import from_json
from logicalrep.recorder.catalogs.publications import PublishedTable
from logicalrep.recorder.snapshots.segment import SnapshotSegment
from logicalrep.recording import Directory, RecordingReader, Source, read_metadata

source = Source(
    recording="r", system_identifier="", server_version="20.0", database="d", slot="s",
    publications=("p",), proto_version=LAST,
)
column = m.RelationColumn(flags=m.ColumnFlag.KEY, name="id", type_oid=20_000, type_modifier=-1)
identity = m.ReplicaIdentity.DEFAULT
relation = m.Relation(oid=7, namespace="public", name="t", replica_identity=identity, columns=(column,))
mood = m.Type(oid=20_000, namespace="public", name="mood")
table = PublishedTable(relation, (mood,), (), True, "", "public.t", "id", (), None, ())
segment = SnapshotSegment(Directory(Path({str(tmp_path)!r})), 1, source, 100, 5, table, 1 << 20)
rows = encode_inserts(7, [pa.array(["a", "b"])], proto_version=LAST)
assert segment.add(rows) == 2
segment.finish()
(path,) = Path({str(tmp_path)!r}).iterdir()
with RecordingReader(path) as recording:
    begin, type_, described, *inserts, commit = [one.message for one in recording.messages()]
assert type_ == mood
assert (begin.final_lsn, begin.commit_time, begin.xid) == (100, 5, 0)
assert (commit.commit_lsn, commit.end_lsn, commit.flush_lsn) == (100, 100, 0)
assert [(one.new, one.insert_comment) for one in inserts] == [(("a",), ""), (("b",), "")]
assert (described.identity_kind, described.columns[0].collation_name) == (m.ReplicaIdentity.DEFAULT, "")
(version,) = read_metadata(path).relations
assert from_json(version.relation) == described
""",
    )


def test_copied_rows_are_one_message_if_the_version_has_one(derived: Path) -> None:
    run_python(
        derived,
        """
        from logicalrep.messages import XLogData
        from logicalrep.stream import StreamDecoder, Transactions
        from logicalrep.synth import Scenario
        from logicalrep.synth.workload import fit_profile

        counters = m.Counters(lsn=0, counters=())
        payload = ["Commit", "Begin", "Counters"]
        for version, kinds in ((OLD, ["Insert", "Insert"]), (NEW, ["InsertBatch", *payload])):
            db = Scenario(proto_version=version)
            table = db.table("public.t", id="int8 key", v="text")
            with db.transaction() as tx:
                tx.copy(table, [{"id": 1, "v": "a"}, {"id": 2}])
            with db.transaction() as tx:
                tx.send(counters)
            sent = list(db.messages())
            found = [type(one).__name__ for one in sent]
            assert found == ["Begin", "Relation", *kinds, "Commit"], found
            rows = list(db.history())[-1].tables["public.t"]
            assert [tuple(row.values()) for row in rows] == [("1", "a"), ("2", None)]
            collected = Transactions(decoder := StreamDecoder(version))
            data = [one.data for one in db.stream() if isinstance(one, XLogData)]
            done = [one for sent in data if (one := collected.feed(decoder.decode(sent))) is not None]
            (shape,) = fit_profile(done).shapes
            assert (shape.columns[1].nulls, set(shape.columns[1].sizes)) == (0.5, {1}), shape
        """,
    )


def test_faults_damage_the_rows_of_a_list(derived: Path) -> None:
    run_python(
        derived,
        """
        from logicalrep.stream.check import check
        from logicalrep.synth import Scenario
        from logicalrep.testing import FAULTS, Stream
        from logicalrep.versions import CODECS

        db = Scenario(proto_version=NEW)
        table = db.table("public.t", id="int8 key", v="text")
        with db.transaction() as tx:
            tx.copy(table, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
        stream = Stream.of(db)
        (position,) = (one.position for one in stream.places if isinstance(one.message, m.InsertBatch))
        damaged = {}
        for fault in FAULTS:
            messages = fault.apply(stream, position) if fault.unit == "message" else None
            if messages is not None:
                assert not fault.certain or list(check(messages, stream.options)), fault.name
                damaged[fault.name] = messages
        rows = {
            "cell-more": (("1", "a", None), ("2", "b")),
            "cell-less": (("1",), ("2", "b")),
            "binary": ((b"\\0", "a"), ("2", "b")),
        }
        for name, expected in rows.items():
            found = CODECS[NEW].decode(damaged[name][position]).new_rows
            assert found == expected, (name, found)
        """,
    )


def test_clients_of_older_versions_get_rows_one_by_one(derived: Path, tmp_path: Path) -> None:
    """They get no payload that their version lacks. Values of lists of rows are sent in both formats."""
    run_python(
        derived,
        f"""
        from itertools import product
        from pathlib import Path

        from logicalrep.messages import XLogData
        from logicalrep.standin import PluginOptions, RecordedSource
        from logicalrep.stream import StreamDecoder
        from logicalrep.stream.check import CheckOptions, check
        from logicalrep.synth import Scenario
        from logicalrep.synth.export import write_recording

        folder = Path({str(tmp_path)!r})
        counters = m.Counters(lsn=0, counters=())
        for binary in (False, True):
            db = Scenario(
                proto_version=NEW, logical_decoding_work_mem=300, streaming="on", messages=True, binary=binary
            )
            table = db.table("public.t", id="int8 key", v="text")
            for first, count in ((0, 2), (10, 60)):
                with db.transaction() as tx:
                    tx.copy(table, [dict(id=first + number, v="long" * 10) for number in range(count)])
                    tx.send(counters)
            write_recording(db, folder / str(binary))
        formats = (False, True)
        for recorded, binary, version, streaming in product(formats, formats, (OLD, NEW), ("off", "on")):
            options = PluginOptions(
                proto_version=version,
                publication_names=("synth",),
                streaming=streaming,
                binary=binary,
                messages=True,
            )
            source = RecordedSource(folder / str(recorded))
            sent = [one.data for one in source.start(options, 0) if isinstance(one, XLogData)]
            checked = CheckOptions(proto_version=version, streaming=streaming, binary=binary, messages=True)
            assert list(check(sent, checked)) == [], (recorded, options)
            decoder = StreamDecoder(version, streaming=streaming)
            rows, kinds = [], set()
            for message in map(decoder.decode, sent):
                kinds.add(type(message))
                if isinstance(message, m.InsertBatch):
                    rows += message.new_rows
                elif isinstance(message, m.Insert):
                    rows.append(message.new)
            ids = [*range(2), *range(10, 70)]
            expected = [one.to_bytes(8, "big") if binary else str(one) for one in ids]
            assert [row[0] for row in rows] == expected, (rows, options)
            batched = {{m.InsertBatch, m.Counters}} & kinds
            assert len(batched) == (2 if version == NEW else 0), kinds
        """,
    )


def test_decode_and_inspect_show_each_row_and_each_payload(derived: Path, tmp_path: Path) -> None:
    run_python(
        derived,
        f"""
        from typer.testing import CliRunner

        from logicalrep.cli.app import app
        from logicalrep.synth import Scenario
        from logicalrep.synth.export import write_capture_file

        db = Scenario(proto_version=NEW)
        table = db.table("public.t", id="int8 key", v="text")
        with db.transaction() as tx:
            tx.copy(table, [dict(id=1, v="a"), dict(id=2)])
            tx.send(m.Counters(lsn=0, counters=(m.CounterState(namespace="n", name="c", last_value=5),)))
        path = {str(tmp_path / "made.jsonl")!r}
        write_capture_file(db, path)
        shown = []
        for command in (["decode", "--table"], ["inspect"]):
            result = CliRunner(env=dict(COLUMNS="200")).invoke(app, [*command, path])
            assert result.exit_code == 0, result.output
            shown.append([" ".join(line.split()) for line in result.output.splitlines()])
        table, pieces = shown
        assert "4 InsertBatch public.t new_rows[0]: id='1' v='a' new_rows[1]: id='2' v=NULL" in table, table
        (counters,) = (line for line in table if " Counters " in line)
        assert counters.endswith("counters=[{{'namespace': 'n', 'name': 'c', 'last_value': 5}}]"), counters
        for piece in (
            "00001e 00 00 00 02 new_rows.count 2 Int32 Number of rows.",
            "000033 00 00 00 01 new_rows[1][0].length 1 Int32 Length of the value.",
            "000038 6e new_rows[1][1] NULL Byte1('n') The value is NULL.",
            "000028 00 00 00 00 00 00 00 05 counters[0].last_value 5 Int64 The last value of the counter.",
        ):
            assert piece in pieces, (piece, pieces)
        """,
    )


def test_vectors_have_the_messages_of_a_version_once_it_is_released(tmp_path: Path) -> None:
    run_python(
        generate(tmp_path, six, release),
        """
        from logicalrep.jsonlines import to_json
        from logicalrep.stream import StreamDecoder
        from logicalrep.vectors.illegal import illegal_vectors
        from logicalrep.vectors.legal import message_vectors

        legal = list(message_vectors())
        for vector in legal:
            decoder = StreamDecoder(vector.version, streaming=vector.options.streaming, two_phase=True)
            assert [to_json(decoder.decode(bytes.fromhex(one))) for one in vector.messages] == vector.expected
        names = {one.id for one in (*legal, *illegal_vectors())}
        for name in (
            f"v{NEW}/off/InsertBatch/new_rows=text-64k",
            f"v{NEW}/on/block/InsertBatch/usual",
            f"v{NEW}/off/Counters/counters=none",
            f"v{NEW}/off/bad/InsertBatch/usual/new_rows.count=00000002",
            f"v{OLD}/off/bad/InsertBatch/version",
        ):
            assert name in names, name
        """,
    )


def test_synth_sends_new_messages_of_known_roles(derived: Path, tmp_path: Path) -> None:
    run_python(
        derived,
        f"""
        from collections import Counter

        from typer.testing import CliRunner

        import logicalrep.cli.testing.synthesis
        from logicalrep.capturefile import CaptureFile
        from logicalrep.cli.app import app

        for version in (OLD, NEW):
            path = {str(tmp_path)!r} + f"/{{version}}.jsonl"
            options = ["--out", path, "--transactions", "200", "--proto", str(version)]
            result = CliRunner().invoke(app, ["synth", *options])
            assert result.exit_code == 0, result.output
            with CaptureFile(path) as capture:
                kinds = Counter(type(one.message) for one in capture.messages())
            for kind in (m.InsertBatch, m.Counters):
                assert (kinds[kind] > 10) == (version == NEW), (version, kind, kinds[kind])
        """,
    )
