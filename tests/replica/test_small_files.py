"""Files of a target: small ones are replaced at once; in an object store, each is one request."""

from __future__ import annotations

import errno
import gc
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from logicalrep.cli import _may_pass
from logicalrep.errors import ReplicaError
from logicalrep.recording import locate, object_store
from logicalrep.targets import (
    ParquetWriter,
    create_file,
    read_file,
    read_parquet,
    remove_file,
    small_files,
    write_file,
)
from logicalrep.targets.data_files import copy_file
from tests import store

pytestmark = pytest.mark.usefixtures("any_format")


@pytest.mark.parametrize("folder", ["lake/_readers", ""])
def test_a_file_is_written_by_one_request(proxy: store.Proxy, folder: str) -> None:
    """Arrow's stream would create the file first, on Azure without its content."""
    place = locate(f"s3://{store.BUCKET}/{folder}") / "one"
    for text in ("first", "second"):
        proxy.requests.clear()
        write_file(place, text)
        assert proxy.requests == [("PUT", f"/{place.path}")]
        assert read_file(place) == text
    remove_file(place)
    remove_file(place)
    assert read_file(place) == ""


def test_a_data_file_is_written_by_one_request(proxy: store.Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow and delta-rs upload in parts, which a kill leaves in the store."""
    place = locate(f"s3://{store.BUCKET}/lake/public.t")
    rows = pa.record_batch({"a": np.random.default_rng(0).integers(0, 1 << 62, 1_600_000)})
    writer = ParquetWriter(place, rows.schema)
    writer.write([rows])
    proxy.requests.clear()
    (file,) = writer.close()
    assert file.size > 12 << 20
    assert proxy.requests == [("PUT", f"/{place.path}/{file.path}")]
    assert pa.Table.from_batches(read_parquet(place, file, rows.schema)) == pa.Table.from_batches([rows])
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    proxy.fault = lambda method, path: "403"
    writer.write([rows])
    with pytest.raises(ReplicaError, match=r"^part-.*: the data file cannot be written: ") as error:
        writer.close()
    assert _may_pass(error.value)


def test_a_file_is_created_once(proxy: store.Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    place = locate(f"s3://{store.BUCKET}/lake/_checkpoint/offsets") / "0"
    create_file(place, "first")
    with pytest.raises(ReplicaError, match="another process has created this file"):
        create_file(place, "second")
    with monkeypatch.context() as patched:
        patched.setattr(small_files, "read_file", lambda place: "")  # the file did not exist a moment ago
        with pytest.raises(ReplicaError, match="another process has created this file"):
            create_file(place, "second")
    assert read_file(place) == "first"


def test_a_store_that_does_not_answer_may_answer_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    for name, value in store.settings(1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ReplicaError, match=f"^s3://{store.BUCKET}/lake/_owner.json: ") as error:
        write_file(locate(f"s3://{store.BUCKET}/lake") / "_owner.json", "text")
    assert _may_pass(error.value)


def test_several_processes_may_write_a_small_file_at_the_same_time(tmp_path: Path) -> None:
    place = locate(tmp_path / "file")
    texts = [f"{number}" * 1000 for number in range(8)]

    def write(text: str) -> None:
        for _ in range(40):
            write_file(place, text)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert read_file(place) in texts
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_data_file_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destructor of pyarrow's writer would write to the full disk again, and print a traceback."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    rows = pa.record_batch({"a": np.random.default_rng(0).integers(0, 1 << 62, 100_000)})
    writer = ParquetWriter(locate(tmp_path), rows.schema)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write([rows])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert writer.close() == []
    del writer
    gc.collect()
    assert unraisable == []
    assert not [*tmp_path.iterdir()]


def test_a_file_is_copied_where_no_hard_link_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*paths: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    (tmp_path / "file").write_text("content")
    monkeypatch.setattr(os, "link", link)
    copy_file(locate(tmp_path / "file"), tmp_path / "folder" / "copy")
    assert (tmp_path / "folder" / "copy").read_text() == "content"
    with pytest.raises(ReplicaError, match="missing cannot be copied to"):
        copy_file(locate(tmp_path / "missing"), tmp_path / "folder" / "other")
