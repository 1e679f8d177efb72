"""Paths and URIs of recordings: appending names, parents, and hidden passwords."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from pyarrow import fs

from logicalrep.errors import RecordingError
from logicalrep.recording import (
    Location,
    SegmentReader,
    find_segments,
    locate,
    read_metadata,
    record_capture_file,
)
from tests.codec import corpus

S3 = "s3://key:secret@bucket/rec{}?endpoint_override=localhost%3A5999&scheme=http"


def test_names_are_inserted_before_the_query_of_a_uri() -> None:
    folder = locate(S3.format(""))
    segment = folder / "0000000001.parquet"
    assert (segment.place, segment.path) == (
        S3.format("/0000000001.parquet"),
        "bucket/rec/0000000001.parquet",
    )
    assert (segment.parent.place, segment.parent.path) == (folder.place, folder.path)


def test_a_question_mark_in_a_local_path_is_kept() -> None:
    assert (locate("/a?b") / "c").path == "/a?b/c"


def test_passwords_are_not_shown() -> None:
    assert "secret" not in str(locate(S3.format("/x")))
    with pytest.raises(
        RecordingError,
        match=r"^s4://key:\*\*\*@host/x: the URI cannot be opened \([^:]*: s4://key:\*\*\*@host/x\)$",
    ):
        locate("s4://key:secret@host/x")


def test_a_uri_finds_the_same_segments_as_a_path(tmp_path: Path) -> None:
    record_capture_file(corpus.path("pg10_p1"), tmp_path / "rec", segment_bytes=20_000)
    by_path, by_uri = (find_segments(locate(place)) for place in (tmp_path / "rec", f"file://{tmp_path}/rec"))
    assert len(by_path) > 1
    assert [one.path for one in by_uri] == [one.path for one in by_path]
    assert [read_metadata(one.place) for one in by_uri] == [read_metadata(one) for one in by_path]


def test_a_storage_failure_is_not_reported_as_damage(tmp_path: Path) -> None:
    """The RecordingError contains the storage's error text, and has the storage's error as its cause."""
    loop = tmp_path / "0000000001.parquet"
    loop.symlink_to(loop)
    with pytest.raises(
        RecordingError, match=r"the storage failed \(.*Too many levels of symbolic links"
    ) as error:
        SegmentReader(loop)
    assert isinstance(error.value.__cause__, OSError)


class RemovedStore:
    """An object store in which an object is removed after it was opened, before its bytes are read."""

    removed = False

    @contextmanager
    def open_input_file(self, path: str) -> Iterator[RemovedStore]:
        yield self

    def read(self) -> bytes:
        self.removed = True
        raise OSError("AWS Error NO_SUCH_KEY during GetObject operation: The specified key does not exist.")

    def get_file_info(self, path: str) -> fs.FileInfo:
        return fs.FileInfo(path, fs.FileType.NotFound if self.removed else fs.FileType.File)


def test_an_object_that_is_removed_while_it_is_read_is_missing() -> None:
    """As the request of `logicalrep snapshot`, which the recorder removes."""
    assert Location("s3://bucket/request", cast(Any, RemovedStore()), "bucket/request").content() is None


class CompressedStore(RemovedStore):
    """An object store that reports another size than the number of bytes that it returns."""

    def read(self) -> bytes:
        return b"text"

    def get_file_info(self, path: str) -> fs.FileInfo:
        return fs.FileInfo(path, fs.FileType.File, size=3)


def test_an_object_whose_size_is_never_that_of_its_content_is_refused() -> None:
    with pytest.raises(RecordingError, match="without a Content-Encoding"):
        Location("s3://bucket/state", cast(Any, CompressedStore()), "bucket/state").content()


def test_a_folder_that_is_created_while_it_is_listed_is_empty(tmp_path: Path) -> None:
    folder, stop = tmp_path / "folder", Event()

    def create_and_remove() -> None:
        while not stop.is_set():
            folder.mkdir()
            folder.rmdir()

    with ThreadPoolExecutor() as pool:
        pool.submit(create_and_remove)
        try:
            assert all(locate(folder).names() == [] for _ in range(20_000))
        finally:
            stop.set()
