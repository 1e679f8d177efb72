"""Rows of a Delta table are found by keys of any type, in data files that any program has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from logicalrep.errors import ReplicaError
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, delta_table_of, rows_of
from tests.replica.test_replica import follows

pytestmark = pytest.mark.usefixtures("any_format")


@pytest.mark.delta
@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("timestamptz", ["2020-01-01 00:00:00.123456+00", "2020-01-01 00:00:00.123999+00"]),
        ("timestamp", ["2020-01-01 00:00:00.123456", "2020-01-01 00:00:00.123999"]),
        ("float8", ["NaN", "1", "-0"]),
        ("text", ["a" * 100, "a" * 100 + "b"]),
        ("date", ["2020-01-01", "infinity"]),
    ],
)
def test_rows_are_found_in_files_of_another_writer(type_: str, values: list[str], tmp_path: Path) -> None:
    """delta-rs compacts the table, which gives data files whose statistics are not exact."""
    for at in range(len(values)):
        target = tmp_path / str(at)
        server = SimulatedServer(1, "t", {"k": type_, "v": "text"}, keys=1)
        for value in values:
            server.insert(value, "old")
            assert follows(target, server)
        assert delta_table_of(target).optimize.compact()["numFilesRemoved"] == len(values)
        server.update(at, v="new")
        assert follows(target, server)


def test_no_value_equals_a_value_that_was_never_sent(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"a": "text[]", "b": "text"}, keys=2)
    server.insert("{rescued,NULL}", "x")
    server.insert("{q}", "x")
    assert follows(tmp_path, server)
    server.insert("{z}", "x")
    server.take()  # not sent, as if the publication did not contain the table
    server.delete(2)
    assert follows(tmp_path, server)


def test_no_value_equals_a_rescued_value(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "text[]", "v": "text"}, keys=1)
    server.insert("{{1}}", "nested")
    server.insert('{rescued,"{{1}}"}', "flat")
    assert follows(tmp_path, server)
    server.update(0, v="nested still")
    server.update(1, v="flat still")
    assert follows(tmp_path, server)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("change", ["update", "delete"])
def test_a_key_that_was_never_sent_is_an_error(change: str, history: bool, tmp_path: Path) -> None:
    """An added serial column becomes the key. The server does not send the key values of existing rows."""
    server = SimulatedServer(1, "t", {"a": "int4", "b": "text"}, keys=2)
    for a in "123":
        server.insert(a, "b" + a)
    apply(server.take().to_batches(), tmp_path, history=history)
    server.full = False
    server.add_column("id", "int4")
    for at, row in enumerate(server.rows):
        row["id"] = str(at)
    server.key = ["id"]
    server.insert("4", "b4", "4")
    if change == "update":
        server.update(3, b="b5")
    else:
        server.delete(3)
    apply(server.take().to_batches(), tmp_path, history=history)
    before = rows_of(tmp_path)
    if change == "update":
        server.update(0, b="new")
    else:
        server.delete(0)
    with pytest.raises(ReplicaError, match=r"^rows cannot be found by id: .* never sent.* empty target"):
        apply(server.take().to_batches(), tmp_path, history=history)
    assert rows_of(tmp_path).equals(before)
