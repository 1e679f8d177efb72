"""The default protocol version is the newest released one; an unreleased version is used only on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codegen.derived import run_python

USES = {
    "scenario": """
        from logicalrep.messages import XLogData
        from logicalrep.synth import Scenario

        db = Scenario()
        assert db.options.proto_version == LATEST_RELEASED
        table = db.table("public.t", id="int8 key")
        with db.transaction() as tx:
            tx.insert(table, id=1)
        decode = CODECS[LATEST_RELEASED].decode
        sent = [decode(one.data) for one in db.stream() if isinstance(one, XLogData)]
        assert [type(one).__name__ for one in sent] == ["Begin", "Relation", "Insert", "Commit"]
        assert Scenario(proto_version=NEW).options.proto_version == NEW
        """,
    "workload": """
        from logicalrep.synth.workload import Workload

        assert Workload(transactions=1).options.proto_version == LATEST_RELEASED
        """,
    "columns": """
        import numpy as np
        import pyarrow as pa
        from logicalrep import messages
        from logicalrep._build import fitted
        from logicalrep.columns import encode_commits, encode_inserts

        (commit,) = encode_commits(*(np.array([one]) for one in (1, 2, 3))).to_pylist()
        expected = fitted(messages.Commit(commit_lsn=1, end_lsn=2, commit_time=3), LATEST_RELEASED)
        assert CODECS[LATEST_RELEASED].decode(commit) == expected
        (insert,) = encode_inserts(7, [pa.array(["a"])]).to_pylist()
        expected = fitted(messages.Insert(relation_oid=7, new=("a",)), LATEST_RELEASED)
        assert CODECS[LATEST_RELEASED].decode(insert) == expected
        """,
    "JSON": """
        from logicalrep import _protocols
        from logicalrep.errors import EncodeError
        from logicalrep.jsonlines import from_json, to_json
        from logicalrep.messages import Commit

        for message in (
            Commit(commit_lsn=1, end_lsn=2, commit_time=3),
            Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4),
        ):
            assert from_json(to_json(message)) == message
        fields = _protocols.VERSIONS[LATEST_RELEASED].by_name["Truncate"].members
        (mask,) = (field.mask for field in fields if field.name == "options")
        try:
            from_json({"type": "Truncate", "options": 64, "relation_oids": []})
        except EncodeError as error:  # version NEW has more bits
            assert str(error) == f"Truncate.options: expected bits of {mask:#04x}, found 0x40", error
        else:
            raise AssertionError
        try:
            from_json(
                to_json(Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4)) | {"flush_lsn": -1}
            )
        except EncodeError as error:
            expected = "Commit.flush_lsn: -1 does not fit into Int64 (XLogRecPtr), 0 to 18446744073709551615"
            assert str(error) == expected, error
        else:
            raise AssertionError
        """,
    "Spark writer": """
        import tempfile
        from pathlib import Path
        import pyarrow as pa
        from logicalrep.recording import Recording
        from logicalrep.spark.transactions import write_partition
        from logicalrep.spark.write_plan import describe_table, plan_segments

        batch = pa.record_batch({"id": [1, 2]})
        for given, expected in (({}, LATEST_RELEASED), ({"proto_version": str(NEW)}, NEW)):
            table = describe_table({"table": "public.t"} | given, batch.schema)
            assert table.proto_version == expected
        table = describe_table({"table": "public.t"}, batch.schema)
        with tempfile.TemporaryDirectory() as folder:
            table, plan = plan_segments(f"{folder}/recording", table, overwrite=False)
            Path(folder, "recording").mkdir()
            write_partition(Path(folder, "recording"), table, plan, 0, iter([batch]))
            recording = Recording(f"{folder}/recording")
            (metadata,) = recording.metadata(recording.numbers)
            assert metadata.source.proto_version == LATEST_RELEASED
        """,
    "check --rules": """
        from io import StringIO
        from rich.console import Console
        from logicalrep.cli.look.checking import show_rules

        for json in (False, True):
            show_rules(Console(file=StringIO()), json=json)
        """,
    "check": """
        from logicalrep import messages as m
        from logicalrep.stream.check import CheckOptions, check

        for codec, version, more in ((v_old, OLD, {}), (v_new, NEW, {"flush_lsn": 9})):
            sent = [
                m.Begin(final_lsn=8, commit_time=0, xid=7),
                m.Commit(commit_lsn=9, end_lsn=10, commit_time=0, **more),
            ]
            (violation,) = check(map(codec.encode, sent), CheckOptions(proto_version=version))
            assert (violation.rule, violation.field, violation.byte) == ("commit-as-begun", "commit_lsn", 2)
        """,
    "strategies": """
        from hypothesis import given, settings
        from logicalrep.testing import strategies
        from logicalrep.versions import CODECS

        options = strategies._valid_options({})
        assert {one["proto_version"] for one in options} == {one for one in CODECS if one <= LATEST_RELEASED}
        assert {one["proto_version"] for one in strategies._valid_options({"proto_version": NEW})} == {NEW}
        """,
    "recorder": """
        from logicalrep.errors import ReplicationError
        from logicalrep.recorder import RecorderOptions

        server = SERVERS[NEW]
        assert RecorderOptions().negotiate(server)[0] == LATEST_RELEASED
        assert RecorderOptions(proto_version=NEW).negotiate(server)[0] == NEW
        try:
            RecorderOptions(proto_version=NEW).negotiate(18)
        except ReplicationError as error:
            expected = f"protocol version {NEW} needs PostgreSQL {server} or later, but the server is "
            assert f"{expected}PostgreSQL 18: request version 4" in str(error)
        else:
            raise AssertionError
        """,
    "stand-in server": """
        from logicalrep.standin.replication.plugin_options import _check_proto_version

        _check_proto_version(NEW, SERVERS[NEW])
        _check_proto_version(4, 18)
        try:
            _check_proto_version(NEW, 18)
        except Exception as error:
            assert "server only supports protocol 4 or lower" in str(error), error
        else:
            raise AssertionError
        """,
    "command line": """
        from typer.testing import CliRunner
        from logicalrep.cli.app import app

        def output(*arguments):
            done = CliRunner().invoke(app, list(arguments), input="")
            assert done.exit_code == 0, done.output
            return done.output

        assert output("spec").startswith(f"Protocol version {LATEST_RELEASED},")
        assert output("spec", "--proto", str(NEW)).startswith(f"Protocol version {NEW},")
        assert output("encode").startswith(f'{{"proto_version":{LATEST_RELEASED}')
        assert output("encode", "--proto", str(NEW)).startswith(f'{{"proto_version":{NEW}')
        """,
}


@pytest.mark.parametrize("code", USES.values(), ids=USES)
def test_the_default_is_the_newest_released_version(five: Path, code: str) -> None:
    run_python(five, code)
