"""The registry finds tables by OID, even if the registry or a table is damaged; folders get valid names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logicalrep.errors import ReplicaError
from logicalrep.replica import replica_tables
from logicalrep.replica.ownership import claim_target
from logicalrep.targets.registry import folder_name
from tests.recorder.lab import Lab
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply
from tests.replica.test_replica import follows


@pytest.fixture
def servers(tmp_path: Path) -> list[SimulatedServer]:
    servers = [SimulatedServer(oid, name, {"k": "int4"}, keys=1) for oid, name in ((1, "a"), (2, "b"))]
    for server in servers:
        server.insert("1")
        assert follows(tmp_path, server)
    return servers


def folders(target: Path) -> dict[int, str]:
    return {oid: Path(table.place).name for oid, table in replica_tables(target).items()}


@pytest.mark.parametrize("text", ["public.b", "", "public.gone"])
@pytest.mark.parametrize("name", ["a", "renamed"])
def test_tables_are_found_by_their_oid(
    text: str, name: str, servers: list[SimulatedServer], tmp_path: Path
) -> None:
    (tmp_path / "_relations" / "1").write_text(text)
    assert folders(tmp_path) == {1: "public.a", 2: "public.b"}
    servers[0].name = name
    servers[0].insert("3")
    assert follows(tmp_path, servers[0])
    servers[1].insert("4")
    assert follows(tmp_path, servers[1])
    assert folders(tmp_path) == {1: "public.a", 2: "public.b"}


def test_an_error_names_a_table_that_is_gone(servers: list[SimulatedServer], tmp_path: Path) -> None:
    servers[0].insert("2")
    shutil.rmtree(tmp_path / "public.a")
    match = (
        r"public\.a: the table of the relation with OID 1 is missing\. Put the table back, or build it anew"
    )
    assert re.search(match, replica_tables(tmp_path)[1].error)
    with pytest.raises(ReplicaError, match=match):
        apply(servers[0].take().to_batches(), tmp_path)


def test_an_error_names_a_table_whose_log_is_damaged(servers: list[SimulatedServer], tmp_path: Path) -> None:
    servers[0].insert("2")
    for entry in (tmp_path / "public.a" / "_delta_log").glob("*.json"):
        entry.write_text("{")
    match = (
        r"public\.a: the Delta table cannot be read: .{1,250}\. If files are lost or damaged, put them back"
    )
    with pytest.raises(ReplicaError, match=match):
        apply(servers[0].take().to_batches(), tmp_path)


def test_a_registry_file_that_is_not_text_is_an_error_of_one_table(
    servers: list[SimulatedServer], tmp_path: Path
) -> None:
    (tmp_path / "_relations" / "1").write_bytes(b"\xff")
    assert re.search(r"_relations/1: .*utf-8", replica_tables(tmp_path)[1].error)
    assert replica_tables(tmp_path)[2].error == ""


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_error_names_a_data_file_that_is_lost(
    is_gone: bool, servers: list[SimulatedServer], tmp_path: Path
) -> None:
    (file,) = (tmp_path / "public.a").glob("*.parquet")
    file.unlink()
    problem = "the table refers to this data file, but the file is missing"
    if not is_gone:
        file.write_bytes(bytes(100))
        problem = "the data file cannot be read: Parquet magic bytes .*"
    servers[0].delete(0)
    match = (
        rf"public.a/{file.name}: {problem}\. If files are lost or damaged, put them back, .*`logicalrep snap"
    )
    with pytest.raises(ReplicaError, match=match):
        apply(servers[0].take().to_batches(), tmp_path)


def test_two_relations_that_are_created_at_once_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relation was dropped and created again, and tasks of Spark apply the changes of both.

    If another process commits after delta-rs has found no table, delta-rs 1.6 makes its own creation
    version 1 of the other table, which gets other properties by it.
    """
    old, new = (SimulatedServer(oid, "t", {"k": "int4"}, keys=1) for oid in (1, 2))
    old.insert("1")
    new.insert("2")
    create = DeltaTable.create

    def create_late(place: str, schema: pa.Schema, configuration: dict[str, str], **options: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "create", create)
            assert follows(tmp_path, old)
        if place == str(tmp_path / "public.t"):
            DeltaTable(place).alter.set_table_properties(configuration, raise_if_not_exists=False)
        else:
            create(place, schema, configuration=configuration, **options)

    monkeypatch.setattr(DeltaTable, "create", create_late)
    assert follows(tmp_path, new)
    assert folders(tmp_path) == {1: "public.t", 2: "public.t@2"}


def test_long_names_are_shortened(lab: Lab, tmp_path: Path) -> None:
    """Schema name and table name have fifteen emoji each. The full folder name would have 361 bytes."""
    name = "\N{GRINNING FACE}" * 15
    lab.run(
        f'CREATE SCHEMA "{name}"',
        f'CREATE TABLE "{name}"."{name}" (k int PRIMARY KEY)',
        f'CREATE PUBLICATION p FOR TABLE "{name}"."{name}"',
    )
    lab.record()
    lab.run(f'INSERT INTO "{name}"."{name}" VALUES (1)')
    lab.record()
    changes = sorted_changes(recorded_changes(lab.folder))
    apply(changes.to_batches(), tmp_path / "target")
    ((oid, table),) = replica_tables(tmp_path / "target").items()
    assert (table.namespace, table.name) == (name, name)
    assert len(Path(table.place).name.encode()) == 200
    other = SimulatedServer(oid + 1, name, {"k": "int4"}, keys=1)
    other.insert("2")
    other.changes[0]["relation"]["namespace"] = name
    apply(other.take().to_batches(), tmp_path / "target")
    both = folders(tmp_path / "target")
    assert both[oid + 1] == f"{both[oid]}@{oid + 1}"


@pytest.mark.parametrize(
    ("namespace", "name"), [("n" * 63, "t" * 63), ("\N{GRINNING FACE}" * 8, "\xe9" * 31)]
)
def test_short_names_are_not_shortened(namespace: str, name: str) -> None:
    whole = folder_name(namespace, name)
    assert whole.endswith(f".{name}")
    assert len(whole.encode()) <= 200


def test_shortened_names_are_distinct() -> None:
    """Long names that differ only at the end, or only in where the schema name ends, stay distinct."""
    face = "\N{GRINNING FACE}"
    pairs = [(face * 15, face * 14 + end) for end in "abc"] + [(face * 14, face * 15), (face * 15, face * 14)]
    names = [folder_name(*pair) for pair in pairs]
    assert len({*names}) == len(names)
    assert all(len(name.encode()) <= 200 for name in names)


def test_a_table_cannot_be_mistaken_for_a_file_of_the_target(tmp_path: Path) -> None:
    server = SimulatedServer(1, "json", {"k": "int4"}, keys=1)
    claim_target(tmp_path, "tables", "")
    server.insert("1")
    server.changes[0]["relation"]["namespace"] = "_owner"
    apply(server.take().to_batches(), tmp_path)
    assert folders(tmp_path) == {1: "~5Fowner.json"}
