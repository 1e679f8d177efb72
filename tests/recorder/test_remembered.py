"""Servers before May 2025 remember a publication as it was, if a transaction was open when it was altered."""

from __future__ import annotations

import pytest

from logicalrep.recorder import Connected, TableComplete, TableIncomplete
from logicalrep.recorder.session.remembered import remembers_publications
from tests.recorder.lab import Lab, wait_until

VERSIONS = {
    100023: True,
    120022: True,
    130020: True,
    130021: False,
    140017: True,
    140018: False,
    150012: True,
    150013: False,
    160008: True,
    160009: False,
    170004: True,
    170005: False,
    180000: False,
    190000: False,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_minor_releases_of_may_2025_forget(version: int) -> None:
    assert remembers_publications(version) == VERSIONS[version]


def prepare(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._MIN_PAUSE", 0.1)
    lab.run("CREATE TABLE u (id int)", "ALTER PUBLICATION p SET TABLE t", "CREATE PUBLICATION q FOR TABLE u")
    lab.run("INSERT INTO t SELECT g FROM generate_series(1, 9) g")


def rows(lab: Lab) -> list[int]:
    """Return the ids in the recorded table t."""
    (found,) = (one for one in lab.replay().values() if one.relation.name == "t")
    return sorted(int(str(row["id"])) for row in found)


def test_changes_after_the_open_transaction_are_recorded(table: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(table, monkeypatch)
    with table.recording("p", "q", snapshot=True) as recording:
        wait_until(recording.has_read_catalogs)
        table.run("ALTER PUBLICATION p SET (publish = 'insert')")
        with table.connect() as other, other.transaction():
            other.execute("INSERT INTO u VALUES (1)")
            table.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete')")
            recording.wait(TableIncomplete)
        recording.wait(TableComplete)
        table.run("DELETE FROM t WHERE id < 5")
        is_affected = remembers_publications(int(table.value("SHOW server_version_num")))
        assert len(recording.events_of(Connected)) == (2 if is_affected else 1)
    table.record("p", "q")
    assert rows(table) == [5, 6, 7, 8, 9]


def test_another_recorder_goes_on_waiting(table: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(table, monkeypatch)
    with table.connect() as other:
        with table.recording("p", "q", snapshot=True) as recording:
            wait_until(recording.has_read_catalogs)
            table.run("ALTER PUBLICATION p SET (publish = 'insert')")
            other.execute("BEGIN")
            other.execute("INSERT INTO u VALUES (1)")
            table.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete')")
            recording.wait(TableIncomplete)
        with table.recording("p", "q", snapshot=True) as second:
            wait_until(second.has_read_catalogs)
            other.execute("COMMIT")
            second.wait(TableComplete)
            table.run("DELETE FROM t WHERE id < 5")
    table.record("p", "q")
    assert rows(table) == [5, 6, 7, 8, 9]
