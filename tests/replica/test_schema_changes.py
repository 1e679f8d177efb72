"""Replicas follow schema changes: columns are renamed, dropped, added and retyped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import Field
from deltalake.schema import MapType, PrimitiveType

from logicalrep.errors import ReplicaError
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, delta_table_of, rows_of
from tests.replica.test_replica import follows

pytestmark = pytest.mark.usefixtures("any_format")


def numeric(precision: int, scale: int) -> int:
    """Return the type modifier of the type numeric with the given precision and scale."""
    return (precision << 16 | scale) + 4


@pytest.fixture
def server() -> SimulatedServer:
    return SimulatedServer(1, "t", {"k": "int4", "v": "text", "w": "text"}, keys=1)


def send(target: Path, server: SimulatedServer, batch: int, *, history: bool) -> None:
    apply(server.take().to_batches(), target, history=history)


def current_rows(target: Path) -> list[tuple[Any, ...]]:
    """Return the current rows of a Delta table with history, without versions that have ended."""
    rows = [row for row in rows_of(target).to_pylist() if row.pop("__END_AT", None) is None]
    return sorted(
        (tuple(value for value in row.values() if not isinstance(value, dict)) for row in rows), key=str
    )


@pytest.mark.parametrize("name", ["id", "K"])
def test_a_renamed_key_finds_its_rows(name: str, server: SimulatedServer, tmp_path: Path) -> None:
    for key in "123":
        server.insert(key, "v", "toast" + key)
    assert follows(tmp_path, server)
    server.rename_column("k", name)
    server.update(1, ("w",), v="new")
    server.delete(2)
    assert follows(tmp_path, server)
    assert rows_of(tmp_path).column_names == [name, "v", "w", "_rescued_data"]


def test_renamed_columns_keep_their_history(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "a", "w")
    server.insert("2", "b", "w")
    send(tmp_path, server, 0, history=True)
    server.drop_column("w")
    server.add_column("x", "int4")
    server.insert("3", "c", "7")
    send(tmp_path, server, 1, history=True)
    server.rename_column("v", "Value")
    server.rename_column("k", "id")
    server.update(0, Value="new")
    server.delete(1)
    send(tmp_path, server, 2, history=True)
    table = rows_of(tmp_path)
    assert table.column_names == ["id", "Value", "w", "x", "_rescued_data", "__START_AT", "__END_AT"]
    assert sorted(table["Value"].to_pylist()) == ["a", "b", "c", "new"]
    assert current_rows(tmp_path) == [(1, "new", None, None, None), (3, "c", None, 7, None)]


def test_a_renamed_column_keeps_its_rescued_values(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "date", "v": "text"}, keys=1)
    server.insert("infinity", "a")
    assert follows(tmp_path, server)
    server.rename_column("k", "day")
    server.update(0, v="b")
    assert follows(tmp_path, server)


def test_a_dropped_last_column_is_not_taken_for_renamed(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "v", "w")
    assert follows(tmp_path, server)
    server.drop_column("w")
    server.add_column("x", "text")
    server.insert("2", "v", "x")
    assert follows(tmp_path, server)
    server.drop_column("v")  # the next column takes its position
    server.add_column("w", "text")
    server.insert("3", "x", "w")
    assert follows(tmp_path, server)


@pytest.mark.parametrize("history", [False, True])
def test_a_column_name_that_changes_only_in_case_keeps_its_values(
    history: bool, server: SimulatedServer, tmp_path: Path
) -> None:
    server.insert("1", "v", "w")
    send(tmp_path, server, 0, history=history)
    server.rename_column("w", "W")
    server.update(0, v="new")
    send(tmp_path, server, 1, history=history)
    server.drop_column("W")
    server.insert("2", "v")
    send(tmp_path, server, 2, history=history)
    server.add_column("w", "text")
    server.insert("3", "v", "w")
    send(tmp_path, server, 3, history=history)
    rows = rows_of(tmp_path).to_pylist()
    assert sorted(row["v"] for row in rows if not row.get("__END_AT")) == ["new", "v", "v"]
    assert [row["w"] for row in rows if row["k"] == 3] == ["w"]


@pytest.mark.parametrize("history", [False, True])
def test_one_of_two_columns_that_differ_only_in_case_is_dropped(history: bool, tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"id": "int4", "v": "text", "V": "text"}, keys=1)
    server.insert("1", "a", "A")
    send(tmp_path, server, 0, history=history)
    server.drop_column("v")
    server.insert("2", "B")
    for batch in (1, 2):
        send(tmp_path, server, batch, history=history)
        server.insert(str(batch + 2), "C")
    rows = rows_of(tmp_path).sort_by("id").to_pylist()
    assert [row["V"] for row in rows] == ["A", "B", "C"]
    assert [row.get("v_") for row in rows] == ["a" if history else None, None, None]


@pytest.mark.delta
def test_a_column_that_somebody_else_added_is_an_error(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "v", "w")
    assert follows(tmp_path, server)
    text = PrimitiveType("string")
    delta_table_of(tmp_path).alter.add_columns([Field("mine", MapType(text, text))])
    server.insert("2", "v", "w")
    with pytest.raises(ReplicaError, match=r"^another program has changed the columns of the table"):
        send(tmp_path, server, 1, history=False)


@pytest.mark.parametrize(
    ("old", "modifier", "before", "new", "new_modifier", "after"),
    [
        ("bpchar", 9, "abc  ", "text", -1, "abc"),
        ("bpchar", 9, "abc  ", "bpchar", 14, "abc       "),
        ("int4", -1, "5", "bpchar", 7, "5  "),
        ("numeric", numeric(40, 2), "1.50", "numeric", numeric(42, 4), "1.5000"),
        ("numeric", numeric(40, 2), "-1.25", "numeric", numeric(42, 1), "-1.3"),
        ("numeric", numeric(40, 1), "9" * 39 + ".5", "numeric", numeric(42, 0), "1" + "0" * 39),
        ("numeric", -1, "NaN", "numeric", numeric(42, 4), "NaN"),
        ("numeric", numeric(10, 2), "1.50", "numeric", numeric(42, 4), "1.5000"),
        ("numeric", numeric(40, 2), "1.50", "numeric", -1, "1.50"),
        ("numeric", -1, f"{10**20}.5", "numeric", numeric(38, 10), f"{10**20}.5000000000"),
        ("int8", -1, "1234567890123", "numeric", numeric(38, 20), "1234567890123." + "0" * 20),
        ("timestamp", -1, "2020-01-01 00:00:00.5", "timestamp", 0, "2020-01-01 00:00:01"),
        ("timestamp", -1, "1999-12-31 23:59:58.5", "timestamp", 0, "1999-12-31 23:59:58"),
        ("timestamptz", 6, "2020-01-01 00:00:00.123456+00", "timestamptz", 3, "2020-01-01 00:00:00.123+00"),
        ("timestamp", -1, "infinity", "timestamp", 0, "infinity"),
        ("varchar", 9, "abc", "varchar", 24, "abc"),
    ],
)
def test_rows_are_found_after_the_type_or_modifier_of_their_key_changes(
    old: str, modifier: int, before: str, new: str, new_modifier: int, after: str, tmp_path: Path
) -> None:
    server = SimulatedServer(1, "t", {"k": old, "v": "text"}, keys=1)
    server.modifiers["k"] = modifier
    server.insert(before, "old")
    assert follows(tmp_path, server)
    server.columns["k"] = new
    server.modifiers["k"] = new_modifier
    server.rows[0]["k"] = after
    server.update(0, v="new")
    assert follows(tmp_path, server)
