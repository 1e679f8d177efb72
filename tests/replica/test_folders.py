"""The register of folders is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgoutput.errors import CaptureError
from pgoutput.replica import apply_changes, replica_tables
from tests.replica.simulator import Server
from tests.replica.test_replica import follows


@pytest.fixture
def servers(tmp_path: Path) -> list[Server]:
    servers = [Server(oid, name, {"k": "int4"}, keys=1) for oid, name in ((1, "a"), (2, "b"))]
    for server in servers:
        server.insert("1")
        assert follows(tmp_path, server, 0)
    return servers


def folders(target: Path) -> dict[int, str]:
    return {oid: Path(path).name for oid, path in replica_tables(target).items()}


@pytest.mark.parametrize("text", ["public.b", "", "public.gone"])
@pytest.mark.parametrize("name", ["a", "renamed"])
def test_tables_are_found_by_their_oid(text: str, name: str, servers: list[Server], tmp_path: Path) -> None:
    (tmp_path / "_relations" / "1").write_text(text)
    assert folders(tmp_path) == {1: "public.a", 2: "public.b"}
    servers[0].name = name
    servers[0].insert("3")
    assert follows(tmp_path, servers[0], 1)
    servers[1].insert("4")
    assert follows(tmp_path, servers[1], 1)
    assert folders(tmp_path) == {1: "public.a", 2: "public.b"}


def test_a_table_is_gone(servers: list[Server], tmp_path: Path) -> None:
    servers[0].insert("2")
    shutil.rmtree(tmp_path / "public.a")
    match = r"public\.a: the Delta table of relation 1 is gone\. Put it back, or begin anew"
    with pytest.raises(CaptureError, match=match):
        replica_tables(tmp_path)
    with pytest.raises(CaptureError, match=match):
        list(apply_changes(servers[0].take().to_batches(), tmp_path, "query", 1))


def test_the_log_of_a_table_is_damaged(servers: list[Server], tmp_path: Path) -> None:
    servers[0].insert("2")
    for entry in (tmp_path / "public.a" / "_delta_log").glob("*.json"):
        entry.write_text("{")
    with pytest.raises(CaptureError, match=r"public\.a: the Delta table cannot be read"):
        list(apply_changes(servers[0].take().to_batches(), tmp_path, "query", 1))


def test_the_register_is_not_text(servers: list[Server], tmp_path: Path) -> None:
    (tmp_path / "_relations" / "1").write_bytes(b"\xff")
    with pytest.raises(CaptureError, match=r"_relations/1: .*utf-8"):
        replica_tables(tmp_path)


def test_a_file_of_a_table_is_gone(servers: list[Server], tmp_path: Path) -> None:
    (file,) = (tmp_path / "public.a").glob("*.parquet")
    file.unlink()
    servers[0].delete(0)
    with pytest.raises(CaptureError, match=rf"{file.name}: the Delta table has this file, but it is gone"):
        list(apply_changes(servers[0].take().to_batches(), tmp_path, "query", 1))
