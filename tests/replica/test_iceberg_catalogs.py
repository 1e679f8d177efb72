"""Iceberg tables in named catalogues: a server with the REST protocol, and AWS Glue, with files in S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from logicalrep.errors import ReplicaError
from logicalrep.recording import GoneTable, locate
from logicalrep.replica import maintain_tables, replica_tables, use_iceberg
from logicalrep.targets import (
    ChangeRange,
    ConflictError,
    Position,
    archive_table,
    find_table,
    register_table,
    remove_table,
)
from logicalrep.targets.iceberg import catalogs, cleaning
from logicalrep.targets.iceberg.cleaning import needed_files
from tests import store
from tests.iceberg_rest import Requests, serve_catalog
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, different_tables


class Prod(NamedTuple):
    """A catalogue `prod` in pyiceberg's configuration."""

    target: str
    requests: Requests | None
    """The requests of the server with the REST protocol; None for Glue."""


@pytest.fixture(params=["rest", pytest.param("glue", marks=pytest.mark.nightly)])
def prod(
    request: pytest.FixtureRequest, moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Prod]:
    for name, value in store.settings(moto).items():
        monkeypatch.setenv(name, value)
    endpoint = f"http://127.0.0.1:{moto}"
    keys = {"access-key-id": "key", "secret-access-key": "s3kr3t", "region": "us-east-1"}
    files = {f"s3.{name}": text for name, text in ({"endpoint": endpoint} | keys).items()}

    def configure(**properties: str) -> None:
        for name, text in (files | properties).items():
            variable = name.upper().replace("-", "_").replace(".", "__")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{variable}", text)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when pyiceberg is imported
        catalogs._load.cache_clear()

    target = f"s3://{store.BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}"
    if request.param == "glue":
        configure(type="glue", **{"glue.endpoint": endpoint}, **{f"glue.{name}": keys[name] for name in keys})
        yield Prod(target, None)
        glue = load_catalog("prod")
        for namespace in glue.list_namespaces():
            for table in glue.list_tables(namespace):
                glue.drop_table(table)
        return
    with serve_catalog(tmp_path, **files) as (uri, requests):
        configure(type="rest", uri=uri)
        yield Prod(target, requests)


@pytest.fixture
def server() -> SimulatedServer:
    return SimulatedServer(1, "t", {"id": "int4", "a": "text"}, keys=1)


def test_files_of_a_local_target_are_flushed(
    tmp_path: Path, server: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__OFFICE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__OFFICE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    flushed, flush = set(), os.fsync

    def note(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    target = tmp_path / "lake"
    use_iceberg(target, "office")
    for key in "1", "2":
        server.insert(key, "x")
        server.commit()
        apply(server.take().to_batches(), target)
    files = {str(one) for one in target.glob("*/**/*") if one.suffix in (".avro", ".json", ".parquet")}
    assert len(files) > 6
    assert files <= flushed


def apply_to(prod: Prod, server: SimulatedServer) -> None:
    server.commit()
    apply(server.take().to_batches(), prod.target)


def rows_in(prod: Prod, name: str = "t", namespace: str = "public") -> list[tuple[str, ...]]:
    """Return the rows of a table as other programs read them."""
    rows = load_catalog("prod").load_table((namespace, name)).scan().to_arrow().drop("_rescued_data")
    return sorted(tuple(map(str, row.values())) for row in rows.to_pylist())


def truth(server: SimulatedServer) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row.values())) for row in server.rows)


def test_a_replica_follows_its_server(
    prod: Prod, server: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "_COMMITS", 4)
    monkeypatch.setattr(cleaning, "_MAX_SNAPSHOTS", 3)
    use_iceberg(prod.target, "prod.shop")
    for number in range(7):
        for key in (number, number + 100):
            server.insert(str(key), *["x", "7"][: len(server.columns) - 1])
        if number == 3:
            server.add_column("b", "int4")
        if number >= 3:
            server.update(0, b=str(number))
            server.delete(1)
        apply_to(prod, server)
        assert rows_in(prod, namespace="shop_public") == truth(server)
    server.truncate()
    server.insert("1", "y", "2")
    apply_to(prod, server)
    assert rows_in(prod, namespace="shop_public") == truth(server)
    (table,) = replica_tables(prod.target).values()
    assert not different_tables(prod.target, [server.truth])
    known = load_catalog("prod").load_table(("shop_public", "t"))
    assert len(known.snapshots()) < 8
    folder = locate(table.place) / "data"
    kept = {f"{folder.place}/{name}" for name in folder.names()}
    assert kept == {path for path in needed_files(known.io, known.metadata) if "/data/" in path}
    with monkeypatch.context() as later:
        later.setattr("logicalrep.targets.iceberg.table._UNUSED_HOURS", -1)
        maintain_tables(prod.target)
    assert rows_in(prod, namespace="shop_public") == truth(server)


def test_one_of_two_writers_commits(prod: Prod, server: SimulatedServer) -> None:
    use_iceberg(prod.target, "prod")
    server.insert("1", "x")
    apply_to(prod, server)
    first, second = (find_table(locate(prod.target), 1) for _ in range(2))
    assert first is not None
    assert second is not None
    second.set_properties({"a": "b"})
    with pytest.raises(ConflictError):
        first.commit([], None, ChangeRange(200, Position(200, 1, 0), 1))
    assert rows_in(prod) == truth(server)


@pytest.mark.parametrize("prod", ["rest"], indirect=True)
def test_a_commit_whose_answer_is_lost_is_made_once(prod: Prod, server: SimulatedServer) -> None:
    assert prod.requests is not None
    use_iceberg(prod.target, "prod")
    server.insert("1", "x")
    apply_to(prod, server)
    prod.requests.lose_answers = 1
    server.insert("2", "y")
    apply_to(prod, server)
    assert prod.requests.lose_answers == 0
    assert rows_in(prod) == truth(server)
    table = find_table(locate(prod.target), 1)
    assert table is not None
    assert table.version == 2


def test_a_dropped_table_is_archived(prod: Prod, server: SimulatedServer) -> None:
    use_iceberg(prod.target, "prod")
    server.insert("1", "x")
    apply_to(prod, server)
    gone = GoneTable(oid=1, namespace="public", name="t", after_lsn=1, time=1)
    name = archive_table(locate(prod.target), gone)
    assert rows_in(prod, name.removeprefix("public.")) == truth(server)
    again = SimulatedServer(2, "t", {"id": "int4", "a": "text"}, keys=1)
    again.insert("5", "new")
    apply_to(prod, again)
    assert rows_in(prod) == truth(again)
    remove_table(locate(prod.target), 1)
    assert [one.place for one in replica_tables(prod.target).values()] == [f"{prod.target}/public.t"]
    assert rows_in(prod) == truth(again)


def test_targets_with_tables_of_the_same_name_need_namespaces(prod: Prod, server: SimulatedServer) -> None:
    use_iceberg(prod.target, "prod")
    server.insert("1", "x")
    apply_to(prod, server)
    other = prod._replace(target=f"{prod.target}-other")
    use_iceberg(other.target, "prod")
    server.insert("2", "x")
    with pytest.raises(ReplicaError, match="has another Iceberg table of this name, at "):
        apply_to(other, server)
    register_table(locate(other.target), 1, "public.t")
    with pytest.raises(ReplicaError, match="has another Iceberg table of this name, at "):
        remove_table(locate(other.target), 1)
    assert rows_in(prod) == truth(server)[:1]
