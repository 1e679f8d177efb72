"""Each end of the recorder that advises to record anew is reached by a test, on purpose."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import logicalrep.recorder
import logicalrep.recording
from logicalrep.errors import ChangesLost, LogicalrepError, RecordingError
from logicalrep.recording.resent_commits import NO_COMMITS, ResentCommitCheck
from tests.recorder.lab import Lab
from tests.server import VERSION, Server

ENDS = {
    "recorder/catalogs/changes.py": ["test_notices.py::test_a_publication_recreated_while_stopped"],
    "recorder/client/connection.py": ["test_errors.py::test_a_publication_created_after_the_slot_is_refused"],
    "recorder/client/errors.py": ["test_record_anew.py::test_a_character_that_utf8_lacks"],
    "recorder/client/slots.py": ["test_errors.py::test_an_invalidated_slot_is_refused"],
    "recorder/client/timelines.py": [
        "test_failover.py::test_a_standby_that_lacks_recorded_transactions_is_refused"
    ],
    "recorder/session/loop.py": ["test_errors.py::test_a_publication_created_after_the_slot_is_refused"],
    "recorder/session/start.py": [
        "test_errors.py::test_a_dropped_slot_is_not_created_again",
        "test_errors.py::test_a_slot_that_another_client_has_advanced_is_refused",
        "test_errors.py::test_a_server_whose_wal_ends_before_the_recording_is_refused",
        "test_record_anew.py::test_a_missing_catalog_file",
    ],
    "recorder/session/upgrade.py": [
        "test_upgrade.py::test_a_server_that_is_not_proven_to_continue_the_recording_is_refused",
        "test_record_anew.py::test_an_upgraded_server_and_a_recording_without_segments",
        "test_upgrade.py::test_a_recording_with_a_prepared_transaction_is_refused",
    ],
    "recorder/storage/folder.py": [
        "test_folder_safety.py::test_a_missing_last_segment_is_noticed",
        "test_record_anew.py::test_a_table_that_lacks_rows_in_strict_mode",
        "test_folder.py::test_removed_segments_are_noticed",
    ],
    "recorder/storage/lease.py": ["test_folder.py::test_a_damaged_lease_is_an_error_of_the_recording"],
    "recording/resent_commits.py": ["test_record_anew.py::test_transactions_that_were_not_recorded"],
}
"""The tests that reach the ends, one for each, by source file."""

FILES = "_recording.json", "_published.json"


def test_each_end_has_a_test() -> None:
    root = Path(logicalrep.recorder.__file__).parent.parent
    modules = [*(root / "recorder").rglob("*.py"), root / "recording" / "resent_commits.py"]
    found = Counter[str]()
    for module in modules:
        text = re.sub(r'"\s*\n\s*f?"', "", module.read_text())  # joins the parts of a text
        found[module.relative_to(root).as_posix()] = len(re.findall("record anew", text, re.IGNORECASE))
    assert +found == Counter({name: len(tests) for name, tests in ENDS.items()})
    for file, name in (one.split("::") for tests in ENDS.values() for one in tests):
        assert f"def {name}(" in Path(__file__).with_name(file).read_text()


@pytest.mark.parametrize(
    ("name", "text"), [*zip(FILES, ("missing", "_published.json is missing"), strict=True)]
)
def test_a_missing_catalog_file(name: str, text: str, table: Lab) -> None:
    table.record()
    table.run("INSERT INTO t VALUES (1)")
    table.record()
    (table.folder / name).unlink()
    with pytest.raises(RecordingError, match=f"{text}.*: put it back"):
        table.record()


def test_a_table_that_lacks_rows_in_strict_mode(table: Lab) -> None:
    table.run("INSERT INTO t VALUES (1)")
    for _ in range(2):
        with pytest.raises(RecordingError, match=r"lacks rows of some tables .* record anew .* --snapshot"):
            table.record(strict=True)


def test_an_upgraded_server_and_a_recording_without_segments(table: Lab, tmp_path: Path) -> None:
    """Another server with the slot has another system identifier, as after pg_upgrade."""
    table.record()
    with Server(VERSION) as server, Lab(server, tmp_path / "other") as other:
        other.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        other.run(f"SELECT pg_create_logical_replication_slot('{table.slot}', 'pgoutput')")
        state = table.folder / "_recording.json"
        state.write_text(
            state.read_text().replace(f'"database":"{table.name}"', f'"database":"{other.name}"')
        )
        with pytest.raises(RecordingError, match=r"has no segments .* after pg_upgrade: record anew"):
            other.record(recording=table.folder, slot=table.slot, after_upgrade=True)


COMMITS = np.array([(10, 100, False), (20, 200, False)], NO_COMMITS.dtype)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ([(10, 100), (15, 150)], "sends a transaction with commit LSN 0/F"),
        ([(10, 101)], "sends a transaction with commit LSN 0/A"),
        ([(10, 100)], "lacks the recorded transaction with commit LSN 0/14"),
    ],
)
def test_transactions_that_were_not_recorded(sent: list[tuple[int, int]], text: str) -> None:
    def check(commits: list[tuple[int, int]]) -> None:
        resent = ResentCommitCheck(COMMITS)
        for lsn, time in commits:
            resent.check(lsn, time)
        resent.settle()

    with pytest.raises(ChangesLost, match=f"{text}.* restored from a backup"):
        check(sent)
    check([(10, 100), (20, 200)])


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_character_that_utf8_lacks(snapshot: bool, server: Server, tmp_path: Path) -> None:
    options = "ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0"
    with Lab(server, tmp_path, options) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
        if not snapshot:
            lab.record()
        lab.run("SET client_encoding = 'WIN1252'", "INSERT INTO t VALUES (1, chr(129))")
        with pytest.raises(
            LogicalrepError, match=r"UTF8.*; what to do: UTF-8 lacks a character of a row: repl"
        ):
            lab.record(snapshot=snapshot)
        if snapshot:
            lab.run("UPDATE t SET v = 'x'")
            lab.record(snapshot=True)
            lab.assert_equal()
