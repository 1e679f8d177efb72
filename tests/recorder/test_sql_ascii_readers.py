"""SQL_ASCII databases: readers keep bytes that are not valid UTF-8, and do not fail on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logicalrep import messages as m, views
from logicalrep.messages import XLogData
from logicalrep.recording import Recording, RecordingReader, SegmentReader, list_segments, read_metadata
from logicalrep.values import to_arrow, to_text
from tests.conftest import Run
from tests.recorder.lab import Lab
from tests.recording import recordings
from tests.server import Server

GID = "g\udcff"


@pytest.fixture(scope="module")
def folder(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a server's messages with the byte 0xff in names, values and a gid; two segments."""
    encoding = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    folder = tmp_path_factory.mktemp("recording")
    with Lab(server, folder, encoding) as lab, lab.connect() as connection:
        lab.require(15, "prepared transactions in the stream")
        options = "'proto_version', '3', 'publication_names', 'p'"
        changes = f"SELECT data FROM pg_logical_slot_get_binary_changes('{lab.slot}', NULL, NULL, {options})"
        for statement in (
            b'CREATE TABLE "t\xff" (id int PRIMARY KEY, "v\xff" text, a text[])',
            b"CREATE PUBLICATION p FOR ALL TABLES",
            f"SELECT pg_create_logical_replication_slot('{lab.slot}', 'pgoutput', false, true)".encode(),
            b"INSERT INTO \"t\xff\" VALUES (1, 'x\xff\xc3\xa9', '{a\xff}'), (2, '\xc3\xa9', '{a}')",
            b"BEGIN",
            b'INSERT INTO "t\xff" VALUES (3)',
            b"PREPARE TRANSACTION 'g\xff'",
        ):
            connection.execute(statement)
        sent = [
            XLogData(wal_start=0, wal_end=0, send_time=0, data=data)
            for (data,) in connection.execute(changes.encode())
        ]
        connection.execute(b"COMMIT PREPARED 'g\xff'")
        rest = [
            XLogData(wal_start=0, wal_end=0, send_time=0, data=data)
            for (data,) in connection.execute(changes.encode())
        ]
    recordings.write(folder, recordings.PARALLEL, [*sent, *rest], len(sent))
    return folder


def test_metadata_keeps_the_bytes_of_a_gid(folder: Path) -> None:
    first, second = map(read_metadata, list_segments(folder))
    assert [one.gid for one in first.prepared] == [GID]
    assert [(end.type, end.gid, end.begin is not None) for end in second.ends] == [
        ("CommitPrepared", GID, True)
    ]


def test_streams_keep_the_bytes(folder: Path) -> None:
    with RecordingReader(folder) as segments:
        first, second = segments.transactions()
    rows = [change.message.new for change in first.changes if isinstance(change.message, m.Insert)]
    assert rows == [("1", "x\udcffé", "{a\udcff}"), ("2", "é", "{a}")]
    assert (second.gid, first.changes[0].relations[0].name) == (GID, "t\udcff")


def test_commands_show_the_bytes(run: Run, folder: Path) -> None:
    for command in (["decode", "--table"], ["inspect"], ["check"]):
        assert run(*command, folder).code == 0, command
    decoded = [json.loads(line) for line in run("decode", folder).out.splitlines()]
    assert decoded[1]["name"] == {"text_hex": "74ff"}
    assert decoded[2]["new"] == ["1", {"text_hex": b"x\xff\xc3\xa9".hex()}, {"text_hex": b"{a\xff}".hex()}]
    listed = run("segments", folder)
    assert (listed.code, listed.err) == (0, "")
    assert r"public.t\xff" in listed.out
    assert r"id, v\xff, a" in listed.out
    (_, second) = (json.loads(line) for line in run("segments", "--json", folder).out.splitlines())
    assert second["ends"][0]["gid"] == GID


def test_views_show_the_bytes_in_hex(folder: Path) -> None:
    recording = Recording(folder)
    rows = []
    for task in views.plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            for batch in views.read(segment, views.ChangesView(segment, task, lambda shape: True)):
                batch.validate(full=True)
                rows += batch.to_pylist()
    assert {row["relation"]["name"] for row in rows} == {r"t\xff"}
    hexed = ["\0\\x" + raw.hex() for raw in (b"x\xff\xc3\xa9", b"{a\xff}")]
    assert dict(rows[0]["after"]) == {"id": "1", r"v\xff": hexed[0], "a": hexed[1]}
    assert [dict(row["after"])["id"] for row in rows] == ["1", "2", "3"]


def test_arrow_rescues_text_that_is_not_valid_utf8() -> None:
    array, rescued = to_arrow(["x\udcff", "é"], 25)
    assert (array.to_pylist(), rescued) == ([None, "é"], {0: r"\x78ff"})
    array, rescued = to_arrow(["{a\udcff}", "{a}"], 1009)
    assert (array.to_pylist(), rescued) == ([None, ["a"]], {0: r"\x7b61ff7d"})
    assert to_text(["x\udcff"], 25) == ["\0\\x78ff"]
